package open_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
)

func TestOpen(t *testing.T) {
	root := filepath.Join(t.TempDir(), "a store")
	s, err := open.Open(t.Context(), "file://"+strings.ReplaceAll(root, " ", "%20"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "k", []byte("x")); err != nil {
		t.Fatal(err)
	}
	again, err := open.OpenRead(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if o, err := again.Get(t.Context(), "k", 10); err != nil || string(o.Data) != "x" {
		t.Errorf("by its own URL %s: %q, %v", s.URL(), o.Data, err)
	}
	if s, err := open.Open(t.Context(), "s3://bucket/prod?region=eu-west-1"); err != nil || s.URL() != "s3://bucket/prod?region=eu-west-1" {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := open.OpenRead(t.Context(), "https://host/prod"); err != nil || s.URL() != "https://host/prod" {
		t.Errorf("%v, %v", s, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for raw, says := range map[string]string{
		"":                             "no store given",
		"/var/lib/muster":              "is no URL",
		"store":                        "is no URL",
		"ftp://host/x":                 `unknown scheme "ftp"`,
		"gs://bucket":                  `unknown scheme "gs"`,
		"http://host/x":                `unknown scheme "http"`,
		"file://":                      "has no path",
		"file://relative/path":         "three slashes",
		"file:///x?y=z":                "no settings",
		"file:///dev/null":             "not a directory",
		"s3://":                        "has no bucket",
		"s3://key:SECRETSECRET@bucket": "credentials",
		"ftp://u:SECRETSECRET@host":    "unknown scheme",
		"u:SECRETSECRET@host":          "is no URL",
		"file://u:SECRETSECRET@host/x": "three slashes",
	} {
		_, err := open.Open(t.Context(), raw)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "SECRETSECRET") || strings.Contains(err.Error(), "\n") {
			t.Errorf("Open(%q): %v, want one line with %q", raw, err, says)
		}
		if _, rerr := open.OpenRead(t.Context(), raw); rerr == nil {
			t.Errorf("OpenRead(%q) is allowed", raw)
		}
	}
	if _, err := open.Open(t.Context(), "https://u:SECRETSECRET@host/prod"); !errors.Is(err, store.ErrReadOnly) || strings.Contains(err.Error(), "SECRETSECRET") {
		t.Errorf("https for writing: %v, want ErrReadOnly", err)
	}
}
