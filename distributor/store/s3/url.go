package s3

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/muster-config/muster/distributor/store"
)

// Address is a parsed s3:// URL. Secrets are never part of it.
type Address struct {
	Bucket    string
	Prefix    string // without slashes at its ends
	Endpoint  string // host or host:port
	Plain     bool   // plain http, because the endpoint says http://
	Region    string
	PathStyle string // "", "true" or "false"
}

const form = "s3://bucket/prefix?endpoint=https://host:port&region=eu-west-1&path_style=true"

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// Parse reads s3://bucket/prefix?endpoint=…&region=…&path_style=true. Without a region it is AWS_REGION or us-east-1: the store is never asked for it.
func Parse(raw string) (Address, error) {
	var a Address
	u, err := url.Parse(raw)
	if err != nil {
		return a, fmt.Errorf("store URL is not valid; it looks like %s", form) // the error would repeat the URL, secrets included
	}
	shown := (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
	switch {
	case u.Scheme != "s3":
		return a, fmt.Errorf("store %s: is no s3:// URL", shown)
	case u.User != nil:
		return a, fmt.Errorf("store %s: credentials do not belong into the URL; use AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws/credentials", shown)
	case u.Host == "":
		return a, fmt.Errorf("store %s: has no bucket; it looks like %s", shown, form)
	case u.Fragment != "" || u.Opaque != "":
		return a, fmt.Errorf("store %s: has a part that means nothing here; it looks like %s", shown, form)
	case !bucketName.MatchString(u.Host):
		return a, fmt.Errorf("store %s: %q cannot name a bucket", shown, u.Host)
	}
	a.Bucket = u.Host
	a.Prefix = strings.Trim(u.Path, "/")
	if a.Prefix != "" {
		if err := store.CheckKey(a.Prefix); err != nil {
			return a, fmt.Errorf("store %s: prefix: %w", shown, err)
		}
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return a, fmt.Errorf("store %s: the part after ? is not valid; it looks like %s", shown, form)
	}
	for name, values := range q {
		if !slices.Contains([]string{"endpoint", "region", "path_style"}, name) {
			return a, fmt.Errorf("store %s: unknown setting %q; known are endpoint, region, path_style", shown, name)
		}
		if len(values) != 1 || values[0] == "" {
			return a, fmt.Errorf("store %s: the setting %q needs one value", shown, name)
		}
	}
	a.Region = q.Get("region")
	for _, env := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if a.Region == "" {
			a.Region = os.Getenv(env)
		}
	}
	if a.Region == "" {
		a.Region = "us-east-1"
	}
	a.PathStyle = q.Get("path_style")
	if !slices.Contains([]string{"", "true", "false"}, a.PathStyle) {
		return a, fmt.Errorf("store %s: path_style is true or false", shown)
	}
	return a, a.endpoint(shown, q.Get("endpoint"))
}

func (a *Address) endpoint(shown, raw string) error {
	if raw == "" {
		a.Endpoint = "s3.amazonaws.com"
		return nil
	}
	if !strings.Contains(raw, "://") {
		raw = "https://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("store %s: the endpoint is not valid; it looks like https://host:port", shown)
	}
	if u.User != nil {
		return fmt.Errorf("store %s: credentials do not belong into the endpoint", shown)
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("store %s: the endpoint %s://%s has a path, which the S3 protocol does not allow", shown, u.Scheme, u.Host)
	}
	a.Endpoint, a.Plain = u.Host, u.Scheme == "http"
	return nil
}

// String is the URL.
func (a Address) String() string {
	u := url.URL{Scheme: "s3", Host: a.Bucket}
	if a.Prefix != "" {
		u.Path = "/" + a.Prefix
	}
	q := url.Values{}
	if a.Endpoint != "s3.amazonaws.com" {
		scheme := "https://"
		if a.Plain {
			scheme = "http://"
		}
		q.Set("endpoint", scheme+a.Endpoint)
	}
	q.Set("region", a.Region)
	if a.PathStyle != "" {
		q.Set("path_style", a.PathStyle)
	}
	u.RawQuery = q.Encode()
	return u.String()
}
