// Package s3 is a store in an S3 bucket, the only importer of minio-go.
//
// Conditional writes are single-part PUTs that the client never repeats by itself: a write that won and whose answer was lost would come back as a lost
// race. After any doubtful answer the object is read and compared: equal bytes are success. Reads, blobs and deletions are tried again here (package
// retry) and nowhere above.
package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/retry"
	"github.com/muster-config/muster/distributor/store/stall"
)

// Options are what is not in the URL. The zero value is the default.
type Options struct {
	// Credentials replaces the usual AWS chain: environment, ~/.aws/credentials, the machine's or the pod's role.
	Credentials *credentials.Credentials
	// Transport replaces the network.
	Transport http.RoundTripper
	Retry     retry.Policy
	// StallWindow is how long an exchange may stand still; default stall.DefaultWindow.
	StallWindow time.Duration
}

// Store is a bucket, or what is below a prefix of it.
type Store struct {
	client  *minio.Client
	core    minio.Core
	creds   *credentials.Credentials
	address Address
	retry   retry.Policy
}

var _ store.Store = (*Store)(nil)

// Open makes a store from an s3:// URL. It makes no request.
func Open(raw string, o Options) (*Store, error) {
	a, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	if o.Transport == nil {
		o.Transport = network()
	}
	if o.Credentials == nil {
		o.Credentials = chain()
	}
	lookup := minio.BucketLookupAuto
	switch a.PathStyle {
	case "true":
		lookup = minio.BucketLookupPath
	case "false":
		lookup = minio.BucketLookupDNS
	}
	client, err := minio.New(a.Endpoint, &minio.Options{
		Creds: o.Credentials, Secure: !a.Plain, Region: a.Region, BucketLookup: lookup, MaxRetries: 1,
		Transport: &recorder{base: &stall.Transport{Base: o.Transport, Window: o.StallWindow}},
	})
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", a, err)
	}
	return &Store{client: client, core: minio.Core{Client: client}, creds: o.Credentials, address: a, retry: o.Retry}, nil
}

func network() http.RoundTripper {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          64,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: 5 * time.Second,
		DisableCompression:    true, // what is stored compressed stays so
	}
}

// chain asks for credentials where AWS's own tools do. A metadata service that does not answer costs two seconds.
func chain() *credentials.Credentials {
	return credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{},
		&credentials.FileAWSCredentials{},
		&credentials.IAM{Client: &http.Client{Timeout: 2 * time.Second}},
	})
}

// Static are fixed credentials.
func Static(accessKey, secretKey string) *credentials.Credentials {
	return credentials.NewStaticV4(accessKey, secretKey, "")
}

// URL is the address; it holds no secrets.
func (s *Store) URL() string { return s.address.String() }

// CheckCAS finds out whether the server does conditional writes: store.ErrNoCAS if not.
func (s *Store) CheckCAS(ctx context.Context) error { return store.CheckCAS(ctx, s) }

func (s *Store) name(key string) string {
	if s.address.Prefix == "" {
		return key
	}
	return s.address.Prefix + "/" + key
}

func (s *Store) fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s in s3://%s: %w", op, s.name(key), s.address.Bucket, err)
}

// Get reads an object.
func (s *Store) Get(ctx context.Context, key string, limit int64) (store.Object, error) {
	return s.GetIfChanged(ctx, key, "", limit)
}

// GetIfChanged reads an object unless it still has token.
func (s *Store) GetIfChanged(ctx context.Context, key string, token store.Token, limit int64) (store.Object, error) {
	o, err := s.get(ctx, key, token, limit)
	if errors.Is(err, store.ErrNotModified) {
		return store.Object{}, store.ErrNotModified
	}
	return o, s.fail("get", key, err)
}

func (s *Store) get(ctx context.Context, key string, token store.Token, limit int64) (o store.Object, err error) {
	if err := store.CheckKey(key); err != nil {
		return store.Object{}, err
	}
	err = retry.Do(ctx, s.retry, func() error {
		body, size, etag, err := s.open(ctx, key, token)
		if err != nil {
			return err
		}
		defer body.Close()
		if size > limit {
			return fmt.Errorf("%d bytes, at most %d allowed: %w", size, limit, store.ErrTooLarge)
		}
		if same(etag, token) { // a server, or a cache before it, that knows no If-None-Match
			return store.ErrNotModified
		}
		data, err := io.ReadAll(io.LimitReader(body, limit+1)) // a server need not say the size
		if err != nil {
			return err
		}
		if int64(len(data)) > limit {
			return fmt.Errorf("more than %d bytes: %w", limit, store.ErrTooLarge)
		}
		if etag == "" {
			etag = digestToken(data)
			if etag == token {
				return store.ErrNotModified
			}
		}
		o = store.Object{Data: data, Token: etag}
		return nil
	})
	return o, err
}

// Open streams an object.
func (s *Store) Open(ctx context.Context, key string) (r io.ReadCloser, size int64, err error) {
	if err := store.CheckKey(key); err != nil {
		return nil, 0, s.fail("open", key, err)
	}
	err = retry.Do(ctx, s.retry, func() error {
		r, size, _, err = s.open(ctx, key, "")
		return err
	})
	if err != nil {
		return nil, 0, s.fail("open", key, err)
	}
	return r, size, nil
}

func (s *Store) open(ctx context.Context, key string, token store.Token) (io.ReadCloser, int64, store.Token, error) {
	var opts minio.GetObjectOptions
	if token != "" && !strings.HasPrefix(string(token), digestPrefix) {
		opts.Set("If-None-Match", string(token))
	}
	ctx, x := record(ctx)
	body, info, _, err := s.core.GetObject(ctx, s.address.Bucket, s.name(key), opts)
	if err != nil {
		return nil, 0, "", s.classify(ctx, x, err)
	}
	return &whole{ReadCloser: body, ctx: ctx, left: info.Size}, info.Size, store.Token(x.etag), nil
}

// whole fails unless all the bytes come that were promised.
type whole struct {
	io.ReadCloser
	ctx  context.Context // the request's own, to tell the caller's end from the network's
	left int64
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.left -= int64(n)
	switch {
	case err == nil, errors.Is(err, io.EOF) && w.left == 0:
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

// List lists in byte order, as S3 does.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) (infos []store.Info, err error) {
	if limit <= 0 {
		return nil, nil
	}
	err = retry.Do(ctx, s.retry, func() error {
		infos, err = s.list(ctx, prefix, after, limit)
		return err
	})
	return infos, s.fail("list", prefix, err)
}

func (s *Store) list(ctx context.Context, prefix, after string, limit int) ([]store.Info, error) {
	ctx, x := record(ctx)
	listing, cancel := context.WithCancel(ctx)
	defer cancel()
	opts := minio.ListObjectsOptions{Prefix: s.name(prefix), Recursive: true, MaxKeys: min(limit, 1000)}
	if after != "" {
		opts.StartAfter = s.name(after)
	}
	var infos []store.Info
	for o := range s.client.ListObjects(listing, s.address.Bucket, opts) {
		if o.Err != nil {
			return nil, s.classify(ctx, x, o.Err)
		}
		key := o.Key
		if s.address.Prefix != "" {
			key = strings.TrimPrefix(key, s.address.Prefix+"/")
		}
		// Not every server keeps to start-after, and not every object is one of ours.
		if key <= after || store.CheckKey(key) != nil {
			continue
		}
		infos = append(infos, store.Info{Key: key, Size: o.Size, Modified: o.LastModified.UTC()})
		if len(infos) == limit {
			return infos, nil
		}
	}
	return infos, ctx.Err()
}

// Put stores a blob. It is not conditional, so the retry is safe.
func (s *Store) Put(ctx context.Context, key string, data []byte) error {
	if err := store.CheckKey(key); err != nil {
		return s.fail("put", key, err)
	}
	return s.fail("put", key, retry.Do(ctx, s.retry, func() error {
		_, err := s.put(ctx, key, data, condition{})
		return err
	}))
}

// Delete removes an object.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := store.CheckKey(key); err != nil {
		return s.fail("delete", key, err)
	}
	return s.fail("delete", key, retry.Do(ctx, s.retry, func() error {
		ctx, x := record(ctx)
		err := s.client.RemoveObject(ctx, s.address.Bucket, s.name(key), minio.RemoveObjectOptions{})
		if err = s.classify(ctx, x, err); errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	}))
}

// condition is what a PUT depends on.
type condition struct {
	absent bool        // If-None-Match: *
	token  store.Token // If-Match
}

// put sends one request: a single part whatever the size, for minio-go drops conditions on multipart uploads, with the digest in the signature and in a
// header, for trailers break older servers.
func (s *Store) put(ctx context.Context, key string, data []byte, cond condition) (store.Token, error) {
	sum := sha256.Sum256(data)
	opts := minio.PutObjectOptions{
		DisableMultipart:     true,
		DisableContentSha256: true, // no chunked signature: the digest of the whole is given below
		UserMetadata:         map[string]string{"X-Amz-Checksum-Sha256": base64.StdEncoding.EncodeToString(sum[:])},
	}
	ctx, x := record(ctx)
	x.conditional = cond != condition{}
	if cond.absent {
		opts.SetMatchETagExcept("*")
	}
	if cond.token != "" {
		// minio-go puts quotes around; a tag that has another form goes back exactly as it came.
		if bare, ok := quoted(string(cond.token)); ok {
			opts.SetMatchETag(bare)
		} else {
			x.ifMatch = string(cond.token)
		}
	}
	_, err := s.core.PutObject(ctx, s.address.Bucket, s.name(key), bytes.NewReader(data), int64(len(data)), "", hex.EncodeToString(sum[:]), opts)
	if err != nil {
		return "", s.classify(ctx, x, err)
	}
	if x.etag == "" {
		return digestToken(data), nil
	}
	return store.Token(x.etag), nil
}

const digestPrefix = "sha256:"

// digestToken stands in where a server gives no ETag: it tells changes apart, and cannot be swapped on.
func digestToken(data []byte) store.Token {
	sum := sha256.Sum256(data)
	return store.Token(digestPrefix + hex.EncodeToString(sum[:]))
}

// quoted gives the inside of an ordinary ETag, "x".
func quoted(etag string) (string, bool) {
	bare, ok := strings.CutPrefix(etag, `"`)
	if !ok {
		return "", false
	}
	bare, ok = strings.CutSuffix(bare, `"`)
	return bare, ok && bare != "" && bare != "*" && !strings.Contains(bare, `"`)
}

// same compares tags as RFC 9110 does for reading (weakly), and forgives missing quotes.
func same(a, b store.Token) bool {
	strip := func(t store.Token) string { return strings.Trim(strings.TrimPrefix(string(t), "W/"), `"`) }
	return strip(a) != "" && strip(a) == strip(b)
}

// MakeBucket makes the store's bucket: for servers that begin empty, as those of tests and demos do.
func (s *Store) MakeBucket(ctx context.Context) error {
	ctx, x := record(ctx)
	err := s.client.MakeBucket(ctx, s.address.Bucket, minio.MakeBucketOptions{Region: s.address.Region})
	var resp minio.ErrorResponse
	if errors.As(err, &resp) && resp.Code == "BucketAlreadyOwnedByYou" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make bucket %s: %w", s.address.Bucket, s.classify(ctx, x, err))
	}
	return nil
}
