// Package https is a store that is read by plain GETs below a base URL: a bucket behind a web server or a CDN. It cannot be written and not be listed.
package https

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/retry"
	"github.com/muster-config/muster/distributor/store/stall"
)

// Options of a store. The zero value is the default.
type Options struct {
	Token     string            // bearer token
	CA        []byte            // PEM certificates to trust instead of the system's
	Transport http.RoundTripper // replaces the network, and CA
	Retry     retry.Policy
	// StallWindow is how long an exchange may stand still; default stall.DefaultWindow.
	StallWindow time.Duration
}

// Store reads below a base URL.
type Store struct {
	base   *url.URL
	token  string
	client *http.Client
	retry  retry.Policy
}

var _ store.ReadStore = (*Store)(nil)

// Open makes a store. It makes no request.
func Open(raw string, o Options) (*Store, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("store URL is not valid; it looks like https://host/path")
	}
	shown := (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
	switch {
	case u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("store %s: is no https:// URL", shown)
	case u.User != nil:
		return nil, fmt.Errorf("store %s: credentials do not belong into the URL", shown)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("store %s: takes no settings after ? or #", shown)
	}
	if o.Transport == nil {
		t := &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			ForceAttemptHTTP2:   true,
			IdleConnTimeout:     90 * time.Second,
			TLSHandshakeTimeout: 10 * time.Second,
			DisableCompression:  true,
		}
		if len(o.CA) > 0 {
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(o.CA) {
				return nil, fmt.Errorf("store %s: the CA file holds no certificate", shown)
			}
			t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		}
		o.Transport = t
	}
	return &Store{
		base: u, token: o.Token, retry: o.Retry,
		client: &http.Client{
			Transport: &stall.Transport{Base: o.Transport, Window: o.StallWindow},
			CheckRedirect: func(req *http.Request, via []*http.Request) error {
				if req.URL.Scheme != "https" {
					return errors.New("the server redirects away from https")
				}
				if len(via) > 5 {
					return errors.New("too many redirects")
				}
				return nil
			},
		},
	}, nil
}

// URL is the base URL.
func (s *Store) URL() string { return s.base.String() }

// Get reads an object.
func (s *Store) Get(ctx context.Context, key string, limit int64) (store.Object, error) {
	return s.GetIfChanged(ctx, key, "", limit)
}

// GetIfChanged reads an object unless it still has token.
func (s *Store) GetIfChanged(ctx context.Context, key string, token store.Token, limit int64) (o store.Object, err error) {
	err = retry.Do(ctx, s.retry, func() error {
		body, size, etag, err := s.open(ctx, key, token)
		if err != nil {
			return err
		}
		defer body.Close()
		if size > limit {
			return fmt.Errorf("%d bytes, at most %d allowed: %w", size, limit, store.ErrTooLarge)
		}
		data, err := io.ReadAll(io.LimitReader(body, limit+1))
		if err != nil {
			return err
		}
		if int64(len(data)) > limit {
			return fmt.Errorf("more than the %d bytes that are allowed: %w", limit, store.ErrTooLarge)
		}
		if etag == "" { // a server without ETags: tell changes apart by content
			sum := sha256.Sum256(data)
			etag = store.Token(digestPrefix + hex.EncodeToString(sum[:]))
		}
		if token != "" && etag == token {
			return store.ErrNotModified
		}
		o = store.Object{Data: data, Token: etag}
		return nil
	})
	if errors.Is(err, store.ErrNotModified) {
		return store.Object{}, store.ErrNotModified
	}
	return o, s.fail("get", key, err)
}

const digestPrefix = "sha256:"

// Open streams an object. The size is -1 if the server does not tell it.
func (s *Store) Open(ctx context.Context, key string) (r io.ReadCloser, size int64, err error) {
	err = retry.Do(ctx, s.retry, func() error {
		r, size, _, err = s.open(ctx, key, "")
		return err
	})
	if err != nil {
		return nil, 0, s.fail("open", key, err)
	}
	return r, size, nil
}

// List is what a web server does not do.
func (s *Store) List(_ context.Context, prefix, _ string, _ int) ([]store.Info, error) {
	return nil, s.fail("list", prefix, fmt.Errorf("an https store cannot be listed, use its s3:// or file:// address: %w", store.ErrReadOnly))
}

func (s *Store) fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s at %s: %w", op, key, s.base, err)
}

func (s *Store) open(ctx context.Context, key string, token store.Token) (io.ReadCloser, int64, store.Token, error) {
	if err := store.CheckKey(key); err != nil {
		return nil, 0, "", err
	}
	u := *s.base
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+"/"+key, ""
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, 0, "", err
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	if token != "" && !strings.HasPrefix(string(token), digestPrefix) {
		req.Header.Set("If-None-Match", string(token))
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, 0, "", ctx.Err()
		}
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, 0, "", fmt.Errorf("%w: %w", store.ErrUnreachable, err)
	}
	if resp.StatusCode == http.StatusOK {
		return &whole{ReadCloser: resp.Body, ctx: ctx, size: resp.ContentLength}, resp.ContentLength, store.Token(resp.Header.Get("ETag")), nil
	}
	resp.Body.Close()
	switch code := resp.StatusCode; {
	case code == http.StatusNotModified:
		err = store.ErrNotModified
	case code == http.StatusNotFound, code == http.StatusGone:
		err = store.ErrNotFound
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		err = fmt.Errorf("%w: the server says %s", store.ErrDenied, resp.Status)
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		err = fmt.Errorf("%w: the server says %s", store.ErrUnreachable, resp.Status)
	default:
		err = fmt.Errorf("the server says %s", resp.Status)
	}
	return nil, 0, "", err
}

// whole fails unless all the bytes come that were promised.
type whole struct {
	io.ReadCloser
	ctx  context.Context // the request's own, to tell the caller's end from the network's
	size int64           // -1: unknown, the framing tells the end
	read int64
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.read += int64(n)
	switch {
	case err == nil, errors.Is(err, io.EOF) && (w.size < 0 || w.read == w.size):
		return n, err
	case w.ctx.Err() != nil:
		return n, w.ctx.Err()
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, store.ErrUnreachable) {
		return n, err
	}
	return n, fmt.Errorf("the body broke off: %w: %w", store.ErrUnreachable, err)
}
