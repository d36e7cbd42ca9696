package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// Bounds of what the client reads.
const (
	maxAnswer      = 128 << 20 // a list of all hosts
	maxErrorAnswer = 64 << 10
	maxToken       = 4 << 10
	maxCA          = 4 << 20
)

// How long a request may take: answers are small, and a long poll is given its wait on top.
const requestTimeout = 30 * time.Second

// ClientOptions are what a Client may need beyond the URL.
type ClientOptions struct {
	Token     string       // bearer token, or
	TokenFile string       // the file it is in, read anew for each request, so that a new token needs no restart
	CAFile    string       // PEM certificates that sign the collector's, instead of the system's
	HTTP      *http.Client // instead of one of its own; CAFile is then not for it
}

// Client speaks to one collector. It never retries: that is the caller's, who knows what may wait. Safe for concurrent use.
type Client struct {
	base string // without a final slash
	opts ClientOptions
	http *http.Client
}

// NewClient makes a client for the collector at base, an http or https URL. A token goes over https or to this machine only.
func NewClient(base string, opts ClientOptions) (*Client, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, &usageError{"collector: not an http or https URL", "give it as https://collector:7070"}
	case u.User != nil:
		return nil, &usageError{"collector: the URL holds a user or a password", "put the token into a file and name it with token_file"}
	case u.RawQuery != "" || u.Fragment != "":
		return nil, &usageError{"collector: the URL has a query or a fragment", "give only scheme, host and path"}
	case u.Scheme == "http" && !loopback(u.Hostname()) && (opts.Token != "" || opts.TokenFile != ""):
		return nil, &usageError{fmt.Sprintf("collector: a token would go unprotected to %s", u.Host), "use https"}
	case opts.HTTP != nil && opts.CAFile != "":
		return nil, &usageError{"collector: a CA file and an HTTP client of its own exclude each other", ""}
	}
	c := &Client{base: strings.TrimSuffix(u.String(), "/"), opts: opts, http: opts.HTTP}
	if c.http == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost = 4
		if opts.CAFile != "" {
			pem, err := readRegular(opts.CAFile, maxCA)
			if err != nil {
				return nil, fmt.Errorf("collector: read the CA file: %w", err)
			}
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(pem) {
				return nil, &usageError{fmt.Sprintf("collector: %s holds no PEM certificate", opts.CAFile), ""}
			}
			t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		}
		c.http = &http.Client{Transport: t}
	}
	// A redirect would carry the token and the report to a place that nobody configured.
	h := *c.http
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &h
	if _, err := c.token(); err != nil {
		return nil, err
	}
	return c, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// URL is the collector's address.
func (c *Client) URL() string { return c.base }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// readRegular reads the beginning of a file. A named pipe nobody writes to does not hold it up: what is no regular file is refused.
func readRegular(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &usageError{path + " is not a regular file", "put a plain file, or a link to one, there"}
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

func (c *Client) token() (string, error) {
	if c.opts.TokenFile == "" {
		return c.opts.Token, nil
	}
	data, err := readRegular(c.opts.TokenFile, maxToken+1)
	if err != nil {
		return "", fmt.Errorf("collector: read the token file: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", &usageError{fmt.Sprintf("collector: %s does not hold a token: one line of printable characters", c.opts.TokenFile), ""}
	}
	return token, nil
}

// do sends one request. The caller closes the body, which ends the request's context too.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, body []byte, timeout time.Duration) (*http.Response, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	cancel := context.CancelFunc(func() {})
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	}
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, r)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("collector: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
		if method == http.MethodPut && strings.HasPrefix(path, PathObjects) {
			req.Header.Set("Content-Type", "application/octet-stream")
		}
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		cancel()
		return nil, c.lost(err)
	}
	resp.Body = &cancelBody{resp.Body, cancel}
	if resp.StatusCode/100 == 2 || resp.StatusCode == http.StatusNotModified {
		return resp, nil
	}
	defer resp.Body.Close()
	var said Error
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorAnswer))
	ok := err == nil && json.Unmarshal(data, &said) == nil && said.Error != ""
	if !ok {
		said = Error{}
	}
	return nil, statusError(resp, said, ok)
}

// lost is a request without an answer: broken off by the caller, or not reachable.
func (c *Client) lost(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // its text repeats method and address
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("ask the collector: %w", err)
	}
	return &connError{base: c.base, err: err}
}

type cancelBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}

// read reads a body of at most limit bytes.
func (c *Client) read(resp *http.Response, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, c.lost(err)
	}
	if int64(len(data)) > limit {
		return nil, &connError{base: c.base, err: fmt.Errorf("the answer is larger than %d bytes", limit)}
	}
	return data, nil
}

// ask sends a request and decodes its JSON answer into out. Keys that this version does not know are ignored here, and only here: the collector may be newer
// than who asks it, and nothing in an answer is trusted to configure a host.
func (c *Client) ask(ctx context.Context, method, path string, query url.Values, body []byte, timeout time.Duration, out any) error {
	resp, err := c.do(ctx, method, path, query, body, timeout)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := c.read(resp, maxAnswer)
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return &connError{base: c.base, err: fmt.Errorf("the answer to %s is not the API's: %w", path, err)}
	}
	return nil
}

// PostReports sends reports and gives one result for each, in order.
func (c *Client) PostReports(ctx context.Context, post ReportPost) (*ReportAnswer, error) {
	body, err := wire.Encode(post)
	if err != nil {
		return nil, fmt.Errorf("encode the reports: %w", err)
	}
	var answer ReportAnswer
	if err := c.ask(ctx, http.MethodPost, PathReports, nil, body, requestTimeout, &answer); err != nil {
		return nil, err
	}
	if len(answer.Results) != len(post.Reports) {
		return nil, &connError{base: c.base, err: fmt.Errorf("%d results for %d reports", len(answer.Results), len(post.Reports))}
	}
	return &answer, nil
}

// Report sends one report.
func (c *Client) Report(ctx context.Context, item ReportItem) (ReportResult, error) {
	answer, err := c.PostReports(ctx, ReportPost{Reports: []ReportItem{item}})
	if err != nil {
		return ReportResult{}, err
	}
	return answer.Results[0], nil
}

// GetHead answers with the cohort's head and its mark as soon as the mark is no longer after (the zero mark: as soon as there is a head), or with ErrNotModified
// when nothing came within wait. The bytes are not verified. ErrNotFound: there is no head of that cohort yet.
func (c *Client) GetHead(ctx context.Context, cohort string, after manifest.Mark, wait time.Duration) ([]byte, manifest.Mark, error) {
	q := url.Values{}
	if after != (manifest.Mark{}) {
		q.Set("after", after.String())
	}
	if wait = min(wait, MaxWait); wait > 0 {
		q.Set("wait", wait.String())
	}
	resp, err := c.do(ctx, http.MethodGet, PathHeads+url.PathEscape(cohort), q, nil, max(wait, 0)+requestTimeout)
	if err != nil {
		return nil, manifest.Mark{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified {
		return nil, after, ErrNotModified
	}
	data, err := c.read(resp, manifest.MaxHeadBytes)
	if err != nil {
		return nil, manifest.Mark{}, err
	}
	mark, err := manifest.ParseMark(resp.Header.Get(HeaderMark))
	if err != nil {
		return nil, manifest.Mark{}, &connError{base: c.base, err: fmt.Errorf("the answer's %s header: %w", HeaderMark, err)}
	}
	return data, mark, nil
}

// PutHead hands a newer head over, as stored. The collector verifies it; one that it knows already is no error.
func (c *Client) PutHead(ctx context.Context, cohort string, head []byte) error {
	return c.ask(ctx, http.MethodPut, PathHeads+url.PathEscape(cohort), nil, head, requestTimeout, nil)
}

// Object streams an immutable object through the collector: bundles, keyrings, releases. The size is the whole object's; a body that ends early is an error.
// Only ctx bounds its time.
func (c *Client) Object(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	resp, err := c.do(ctx, http.MethodGet, PathObjects+(&url.URL{Path: key}).EscapedPath(), nil, nil, 0)
	if err != nil {
		return nil, 0, err
	}
	if resp.StatusCode != http.StatusOK || resp.ContentLength < 0 {
		resp.Body.Close()
		return nil, 0, &connError{base: c.base, err: fmt.Errorf("the answer for %s has no length", key)}
	}
	return resp.Body, resp.ContentLength, nil
}

// Status is GET /v1/cohorts.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	var s Status
	if err := c.ask(ctx, http.MethodGet, PathCohorts, nil, nil, requestTimeout, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Hosts is GET /v1/hosts; "" is all cohorts, all verdicts.
func (c *Client) Hosts(ctx context.Context, cohort, verdict string) ([]Host, error) {
	q := url.Values{}
	if cohort != "" {
		q.Set("cohort", cohort)
	}
	if verdict != "" {
		q.Set("verdict", verdict)
	}
	var hosts []Host
	if err := c.ask(ctx, http.MethodGet, PathHosts, q, nil, requestTimeout, &hosts); err != nil {
		return nil, err
	}
	return hosts, nil
}

// Host is one host, with its last signed report's payload. A host that speaks in several cohorts is told in the one that expects it.
func (c *Client) Host(ctx context.Context, host string) (*Host, error) {
	var h Host
	if err := c.ask(ctx, http.MethodGet, PathHosts+"/"+url.PathEscape(host), nil, nil, requestTimeout, &h); err != nil {
		return nil, err
	}
	return &h, nil
}

// HostSigned is GET /v1/hosts/{host}?signed=true: with the envelope of the last report, as the host signed it. It is nil where the collector cannot give it now.
func (c *Client) HostSigned(ctx context.Context, host string) (*Host, error) {
	var h Host
	if err := c.ask(ctx, http.MethodGet, PathHosts+"/"+url.PathEscape(host), url.Values{"signed": {"true"}}, nil, requestTimeout, &h); err != nil {
		return nil, err
	}
	return &h, nil
}

// ChangeHosts does with hosts what change says: HostsRetire, HostsUnretire or HostsAccept.
func (c *Client) ChangeHosts(ctx context.Context, change string, q HostsChange) (*HostsChanged, error) {
	body, err := wire.Encode(q)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	var out HostsChanged
	if err := c.ask(ctx, http.MethodPost, PathHosts+"/"+url.PathEscape(change), nil, body, requestTimeout, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Releases is GET /v1/releases, newest first.
func (c *Client) Releases(ctx context.Context) ([]Release, error) {
	var list []Release
	if err := c.ask(ctx, http.MethodGet, PathReleases, nil, nil, requestTimeout, &list); err != nil {
		return nil, err
	}
	return list, nil
}

// Release is one release, or ErrNotFound.
func (c *Client) Release(ctx context.Context, epoch uint64) (*Release, error) {
	var r Release
	if err := c.ask(ctx, http.MethodGet, PathReleases+"/"+strconv.FormatUint(epoch, 10), nil, nil, requestTimeout, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// WaitQuery is what Wait asks beyond the epoch.
type WaitQuery struct {
	Cohort string // "" is every cohort of the release
	Strict bool   // count owed hosts in
	After  uint64 // Version of the last answer: wait for a newer one, for at most
	Wait   time.Duration
}

// Wait asks whether a release is green; ErrNotFound if the collector knows no such release (yet), ErrNoCohort if the release has no such cohort.
func (c *Client) Wait(ctx context.Context, epoch uint64, query WaitQuery) (*Wait, error) {
	q := url.Values{}
	if query.Cohort != "" {
		q.Set("cohort", query.Cohort)
	}
	if query.Strict {
		q.Set("strict", "true")
	}
	wait := min(max(query.Wait, 0), MaxWait)
	if query.After > 0 {
		q.Set("after", strconv.FormatUint(query.After, 10))
		q.Set("wait", wait.String())
	}
	var w Wait
	if err := c.ask(ctx, http.MethodGet, PathWait+strconv.FormatUint(epoch, 10), q, nil, wait+requestTimeout, &w); err != nil {
		return nil, err
	}
	return &w, nil
}
