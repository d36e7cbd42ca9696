package s3_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/store/s3"
)

func TestParse(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	for raw, want := range map[string]s3.Address{
		"s3://acme-config":                                 {Bucket: "acme-config", Endpoint: "s3.amazonaws.com", Region: "us-east-1"},
		"s3://acme-config/prod/":                           {Bucket: "acme-config", Prefix: "prod", Endpoint: "s3.amazonaws.com", Region: "us-east-1"},
		"s3://acme.config/a/b?region=eu-west-1":            {Bucket: "acme.config", Prefix: "a/b", Endpoint: "s3.amazonaws.com", Region: "eu-west-1"},
		"s3://abc?endpoint=http://127.0.0.1:7070":          {Bucket: "abc", Endpoint: "127.0.0.1:7070", Plain: true, Region: "us-east-1"},
		"s3://abc?endpoint=minio.lan:9000&path_style=true": {Bucket: "abc", Endpoint: "minio.lan:9000", Region: "us-east-1", PathStyle: "true"},
		"s3://abc?endpoint=https://h/&path_style=false":    {Bucket: "abc", Endpoint: "h", Region: "us-east-1", PathStyle: "false"},
	} {
		got, err := s3.Parse(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, want -, got +:\n%s", raw, diff)
		}
		if again, err := s3.Parse(got.String()); err != nil || again != got {
			t.Errorf("%s reads back as %+v, %v", got, again, err)
		}
	}
	for raw, says := range map[string]string{
		"s3://":                                         "has no bucket",
		"s3:///prefix":                                  "has no bucket",
		"s3:bucket":                                     "has no bucket",
		"http://bucket":                                 "is no s3://",
		"s3://Bucket":                                   "cannot name a bucket",
		"s3://ab":                                       "cannot name a bucket",
		"s3://key:SECRETSECRET@bucket":                  "credentials do not belong",
		"s3://bucket/a//b":                              "empty part",
		"s3://bucket/../x":                              "dot",
		"s3://bucket?secret=SECRETSECRET":               "unknown setting \"secret\"",
		"s3://bucket?region=":                           "needs one value",
		"s3://bucket?region=a&region=b":                 "needs one value",
		"s3://bucket?path_style=yes":                    "true or false",
		"s3://bucket?endpoint=ftp://h":                  "endpoint is not valid",
		"s3://bucket?endpoint=https://h:9000/path":      "has a path",
		"s3://bucket?endpoint=https://u:SECRETSECRET@h": "credentials do not belong",
		"s3://bucket#x":                                 "means nothing",
		"s3://bucket?a;b":                               "not valid",
		"s3://u:SECRETSECRET@[bad":                      "not valid",
	} {
		_, err := s3.Parse(raw)
		contains(t, err, says)
	}
}
