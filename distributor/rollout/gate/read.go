package gate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	askFor    = 10 * time.Second // how long a source may take
	mostBytes = 4 << 20          // of an answer of Prometheus
	fewBytes  = 64 << 10         // of an answer that is one number
	mostText  = 200              // of what a source says is wrong: it is kept for each look
)

// reading is one number, or why there is none.
type reading struct {
	value   *float64
	trouble string
	down    bool // the source did not answer, or with what is no number: not the canary's doing
}

func noNumber(format string, args ...any) reading {
	return reading{trouble: fmt.Sprintf(format, args...)}
}
func down(format string, args ...any) reading {
	return reading{trouble: fmt.Sprintf(format, args...), down: true}
}

// number takes what is finite.
func finite(v float64) reading {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return noNumber("%v is no number", v)
	}
	return reading{value: &v}
}

// newClient makes a client that is bounded in everything: time, connections, headers; it follows redirects on the same host only, since where gates may ask is the operator's decision.
//
// check says of an address that is dialled (host:port, resolved) whether it may be.
func newClient(transport http.RoundTripper, check func(network, address string, c syscall.RawConn) error) *http.Client {
	if transport == nil {
		transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: askFor, Control: check}).DialContext, TLSHandshakeTimeout: askFor, ResponseHeaderTimeout: askFor,
			MaxIdleConns: 16, MaxConnsPerHost: 8, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
		}
	}
	return &http.Client{Transport: transport, Timeout: askFor, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch first := via[0].URL; {
		case len(via) >= 3:
			return refusal("more than 2 redirects")
		case r.URL.Host != first.Host || r.URL.Scheme != first.Scheme:
			return refusal("a redirect to another host is not followed")
		}
		return nil
	}}
}

// refusal is why this side did not go on: a text of our own, fit for everybody.
type refusal string

func (r refusal) Error() string { return string(r) }

// metadata are addresses beside the link-local ones at which clouds give credentials to whoever asks.
var metadata = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200")}

// farAway refuses to dial what only this machine can ask: what the release names must not reach a cloud's metadata service. A name may resolve to anything, so that this is checked when dialling.
func farAway(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || local(at.Addr()) {
		return refusal("link-local and metadata addresses are not asked")
	}
	return nil
}

func local(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return a.IsLinkLocalUnicast() || a.IsMulticast() || slices.Contains(metadata, a)
}

// parseAddress takes an address of http or https only.
func parseAddress(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, errors.New("not an address") // the error would repeat it, with what is secret in it
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, errors.New("neither http:// nor https:// with a host")
	}
	return u, nil
}

// masked is an address as people may see it: without user, password and parameters.
func masked(u *url.URL) string {
	m := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return m.String()
}

// fetch does one request; reason says why there is no body.
func fetch(client *http.Client, r *http.Request, most int64) (status int, body []byte, reason string) {
	res, err := client.Do(r)
	if err != nil {
		return 0, nil, unreachable(err)
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, most+1))
	switch {
	case err != nil:
		return 0, nil, unreachable(err)
	case int64(len(body)) > most:
		return 0, nil, fmt.Sprintf("the answer has more than %d KiB", most>>10)
	}
	return res.StatusCode, body, ""
}

// unreachable says why a source did not answer, without its address, which may carry a secret, and without what it said: the error of an answer that is no HTTP quotes it.
func unreachable(err error) string {
	var n net.Error
	var own refusal
	var name *net.DNSError
	var sys syscall.Errno
	var record tls.RecordHeaderError
	var cert *tls.CertificateVerificationError
	var verifies x509.UnknownAuthorityError
	switch {
	case errors.As(err, &own):
		return own.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &n) && n.Timeout():
		return fmt.Sprintf("no answer within %s", askFor)
	case errors.As(err, &name):
		return "its name cannot be resolved"
	case errors.As(err, &sys):
		return sys.Error()
	case errors.As(err, &record):
		return "it does not speak TLS"
	case errors.As(err, &cert), errors.As(err, &verifies):
		return "its certificate is not trusted"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "it ended the connection"
	}
	return "it does not answer as HTTP has it"
}

// plain is a number as JSON writes it, or with a sign in front.
var plain = regexp.MustCompile(`^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?$`)

// readNumber asks an address that answers with one number, as text or JSON.
func readNumber(ctx context.Context, client *http.Client, raw string) reading {
	u, err := parseAddress(raw)
	if err != nil {
		return down("the address cannot be asked: %v", err)
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil && local(a) { // by way of a proxy it would not be dialled here
		return down("%s is not asked: link-local and metadata addresses are not", masked(u))
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return down("the address cannot be asked")
	}
	r.Header.Set("Accept", "text/plain, application/json")
	status, body, reason := fetch(client, r, fewBytes)
	switch text := strings.TrimSpace(string(body)); {
	case reason != "":
		return down("the source is down: %s: %s", masked(u), reason)
	case status == http.StatusNoContent, status == http.StatusOK && text == "":
		return noNumber("%s answered with nothing", masked(u))
	case status != http.StatusOK:
		return down("the source is down: %s answered %d", masked(u), status)
	case text == "null":
		return noNumber("%s answered null", masked(u))
	case plain.MatchString(text):
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return noNumber("%s answered a number out of range", masked(u))
		}
		return finite(v)
	default:
		if v, err := strconv.ParseFloat(text, 64); err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
			return finite(v)
		}
		return down("%s answered with %s, not a number", masked(u), sort(body))
	}
}

// sort is what kind of thing an answer is. The answer itself is never told: an address of the release could read with it what is for the controller's eyes only.
func sort(body []byte) string {
	var v any
	switch text := strings.TrimSpace(string(body)); {
	case strings.HasPrefix(text, "<"):
		return "a page"
	case json.Unmarshal(body, &v) != nil:
		return "text"
	}
	switch v.(type) {
	case map[string]any:
		return "a JSON object"
	case []any:
		return "a JSON array"
	case string:
		return "a JSON string"
	}
	return "JSON"
}

func cut(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}
