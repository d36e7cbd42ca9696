package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/muster-config/muster/distributor/store"
)

// exchange is what minio-go does not tell of the last request of a call, and what it cannot be told.
type exchange struct {
	conditional bool   // a conditional write
	ifMatch     string // sent as it is
	status      int
	etag        string // as it came
	date        string
	body        struct { // of an error
		Region     string `xml:"Region"`
		ServerTime string `xml:"ServerTime"`
	}
}

type exchangeKey struct{}

func record(ctx context.Context) (context.Context, *exchange) {
	x := &exchange{}
	return context.WithValue(ctx, exchangeKey{}, x), x
}

// recorder is the transport that keeps the exchange of a call.
type recorder struct{ base http.RoundTripper }

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	x, _ := req.Context().Value(exchangeKey{}).(*exchange)
	if x == nil {
		return r.base.RoundTrip(req)
	}
	if x.ifMatch != "" {
		req = req.Clone(req.Context())
		req.Header.Set("If-Match", x.ifMatch) // not signed: a signature covers the headers that it lists
	}
	x.status, x.etag, x.date = 0, "", ""
	resp, err := r.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	x.status, x.etag, x.date = resp.StatusCode, resp.Header.Get("ETag"), resp.Header.Get("Date")
	if resp.StatusCode >= 300 && resp.Body != nil {
		data, rerr := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		resp.Body.Close()
		if rerr == nil {
			_ = xml.Unmarshal(data, &x.body) // what is not XML has no region and no time
		}
		resp.Body = io.NopCloser(bytes.NewReader(data))
	}
	return resp, nil
}

// classify decides the fate of a failed request.
func (s *Store) classify(ctx context.Context, x *exchange, err error) error {
	if err == nil {
		return nil
	}
	var resp minio.ErrorResponse
	if !errors.As(err, &resp) || x.status == 0 {
		return s.unanswered(ctx, x, err)
	}
	detail := fmt.Sprintf("the server says %d %s", x.status, resp.Code)
	if msg := strings.Join(strings.Fields(resp.Message), " "); msg != "" && msg != resp.Code {
		detail += fmt.Sprintf(": %.200s", strings.TrimSuffix(msg, "."))
	}
	switch resp.Code {
	case "NoSuchBucket":
		return fmt.Errorf("there is no bucket %q at %s", s.address.Bucket, s.address.Endpoint)
	case "RequestTimeTooSkewed":
		return s.skew(x, detail)
	case "AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException", "InvalidRegion", "TemporaryRedirect":
		if region := x.body.Region; region != "" {
			return fmt.Errorf("the bucket is in region %s, not %s; say region=%s in the store's URL", region, s.address.Region, region)
		}
		return fmt.Errorf("the region %s seems wrong; say region=… in the store's URL: %s", s.address.Region, detail)
	}
	switch {
	case x.status == http.StatusNotModified:
		return store.ErrNotModified
	case x.status == http.StatusNotFound:
		return store.ErrNotFound
	case x.status == http.StatusPreconditionFailed:
		return errPrecondition
	case x.status == http.StatusConflict:
		return errBusy
	case x.status == http.StatusForbidden, x.status == http.StatusUnauthorized:
		if v, cerr := s.creds.GetWithContext(nil); cerr == nil && v.AccessKeyID == "" {
			return fmt.Errorf("%w: no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials", store.ErrDenied)
		}
		return fmt.Errorf("%w: %s", store.ErrDenied, detail)
	case x.status == http.StatusNotImplemented && x.conditional:
		return fmt.Errorf("%w: %s", store.ErrNoCAS, detail)
	case x.status == http.StatusNotImplemented:
		return errors.New(detail)
	case x.status >= 500, x.status == http.StatusTooManyRequests, x.status == http.StatusRequestTimeout, resp.Code == "RequestTimeout", resp.Code == "SlowDown":
		return fmt.Errorf("%w: %s", store.ErrUnreachable, detail)
	}
	return errors.New(detail)
}

func (s *Store) skew(x *exchange, detail string) error {
	theirs, err := time.Parse(time.RFC3339, x.body.ServerTime)
	if err != nil {
		theirs, err = http.ParseTime(x.date)
	}
	if err != nil {
		return fmt.Errorf("clock skew: set this machine's clock right: %w: %s", store.ErrUnreachable, detail)
	}
	return &store.SkewError{Skew: time.Since(theirs)}
}

// unanswered is an error without an answer from the server.
func (s *Store) unanswered(ctx context.Context, x *exchange, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // the rest is our own URL again
	}
	if errors.Is(err, store.ErrUnreachable) {
		return fmt.Errorf("%s: %w", s.address.Endpoint, err)
	}
	var op *net.OpError
	var dns *net.DNSError
	if errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns) {
		return fmt.Errorf("%w (%w): %s: %w", store.ErrUnreachable, errNotSent, s.address.Endpoint, err)
	}
	return fmt.Errorf("%w: %s: %w", store.ErrUnreachable, s.address.Endpoint, err)
}
