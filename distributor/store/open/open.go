// Package open gives the store that a URL names.
package open

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/dir"
	"github.com/muster-config/muster/distributor/store/https"
	"github.com/muster-config/muster/distributor/store/s3"
)

const forms = "file:///path, s3://bucket/prefix?endpoint=…&region=…&path_style=true, or https://host/path (read only)"

// Open gives a store for reading and writing: file:// or s3://. It makes no request and no directory; what is wrong beyond the URL shows at the first use.
func Open(ctx context.Context, raw string) (store.Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	switch {
	case raw == "":
		return nil, errors.New("no store given; it is " + forms)
	case !ok:
		return nil, fmt.Errorf("store %q: is no URL; it is %s", redact(raw), forms)
	case scheme == "file":
		return openDir(raw)
	case scheme == "s3":
		return s3.Open(raw, s3.Options{})
	case scheme == "https":
		return nil, fmt.Errorf("store https://%s: an https store can only be read; write to its s3:// or file:// address: %w", redact(rest), store.ErrReadOnly)
	}
	return nil, fmt.Errorf("store %s://…: unknown scheme %q; a store is %s", scheme, scheme, forms)
}

// OpenRead gives a store for reading: all that Open takes, and https://.
func OpenRead(ctx context.Context, raw string) (store.ReadStore, error) {
	if strings.HasPrefix(raw, "https://") {
		return https.Open(raw, https.Options{})
	}
	return Open(ctx, raw)
}

func openDir(raw string) (store.Store, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("store %q: is not a valid URL; it looks like file:///path", raw)
	case u.Host != "" || u.User != nil:
		return nil, fmt.Errorf("store %q: has a host where the path begins; it looks like file:///path, with three slashes", redact(raw))
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("store %q: takes no settings after ? or #", raw)
	}
	path := dir.FromURL(u.Path)
	if path == "" {
		return nil, fmt.Errorf("store %q: has no path; it looks like %s", raw, dir.Form)
	}
	return dir.Open(path)
}

// redact keeps what may be a password out of messages.
func redact(raw string) string {
	if i := strings.LastIndexByte(raw, '@'); i >= 0 {
		raw = "…@" + raw[i+1:]
	}
	if i := strings.IndexByte(raw, '?'); i >= 0 {
		raw = raw[:i] + "?…"
	}
	return raw
}
