package gate

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// TestB101: what a source may answer that is no number. None of it is a pass or a failure; each says what is the matter.
func TestB101(t *testing.T) {
	vector := func(result string) string {
		return `{"status":"success","data":{"resultType":"vector","result":` + result + `}}`
	}
	type odd struct {
		status int
		body   string
		says   string
		want   manifest.Outcome
	}
	inconclusive := manifest.OutcomeInconclusive
	servers := map[string]map[string]odd{
		"prometheus": {
			"empty":       {200, vector(`[]`), "the query found nothing", inconclusive},
			"NaN":         {200, vector(`[{"metric":{},"value":[1,"NaN"]}]`), "NaN is no number", inconclusive},
			"+Inf":        {200, vector(`[{"metric":{},"value":[1,"+Inf"]}]`), "+Inf is no number", inconclusive},
			"null":        {200, vector(`[{"metric":{},"value":[1,null]}]`), "null is no number", inconclusive},
			"text":        {200, `{"status":"success","data":{"resultType":"string","result":[1,"0"]}}`, "gives text, not a number", inconclusive},
			"word":        {200, vector(`[{"metric":{},"value":[1,"many"]}]`), "a value that is no number", inconclusive},
			"two series":  {200, vector(`[{"metric":{"a":"1"},"value":[1,"0"]},{"metric":{"a":"2"},"value":[1,"0"]}]`), "2 series, not one", inconclusive},
			"histogram":   {200, vector(`[{"metric":{},"histogram":[1,{"count":"1"}]}]`), "gives a histogram", inconclusive},
			"no values":   {200, vector(`[{"metric":{}}]`), "a sample that cannot be read", inconclusive},
			"no result":   {200, `{"status":"success","data":{"resultType":"vector","result":null}}`, "the query found nothing", inconclusive},
			"other type":  {200, `{"status":"success","data":{"resultType":"streams","result":[]}}`, `an answer of type "streams"`, inconclusive},
			"no JSON":     {200, `<html>Sign in</html>`, "no answer of Prometheus", inconclusive},
			"cut off":     {200, `{"status":"success","data":{"resu`, "no answer of Prometheus", inconclusive},
			"nothing":     {200, ``, "no answer of Prometheus", inconclusive},
			"500":         {500, `oh`, "the source is down: prometheus at", inconclusive},
			"503":         {503, `{"status":"error","errorType":"timeout","error":"query timed out"}`, "answered 503 query timed out", inconclusive},
			"401":         {401, `no`, "answered 401", inconclusive},
			"404":         {404, `no`, "answered 404", inconclusive},
			"execution":   {422, `{"status":"error","errorType":"execution","error":"many-to-many matching not allowed"}`, "cannot be executed: many-to-many", inconclusive},
			"parse error": {400, `{"status":"error","errorType":"bad_data","error":"1:4: parse error: \u001b[31munexpected"}`, "the query is wrong: 1:4: parse error: [31munexpected", manifest.OutcomeBroken},
			"400 by else": {400, `{"message":"bad gateway"}`, "answered 400", inconclusive},
			"huge":        {200, strings.Repeat(" ", mostBytes+1), "more than 4096 KiB", inconclusive},
			"scalar":      {200, `{"status":"success","data":{"resultType":"scalar","result":[1,"0.5"]}}`, "1 of 1 looks", manifest.OutcomePass},
			"one series":  {200, vector(`[{"metric":{},"value":[1,"5e-1"]}]`), "0.5 to 0.5, at most 1 allowed", manifest.OutcomePass},
		},
		"http": {
			"empty":    {200, " \n", "answered with nothing", inconclusive},
			"204":      {204, "", "answered with nothing", inconclusive},
			"NaN":      {200, "NaN", "NaN is no number", inconclusive},
			"+Inf":     {200, "+Inf", "+Inf is no number", inconclusive},
			"infinity": {200, "infinity", "+Inf is no number", inconclusive},
			"null":     {200, "null", "answered null", inconclusive},
			"text":     {200, "all is well", "answered with text, not a number", inconclusive},
			"string":   {200, `"0"`, "answered with a JSON string, not a number", inconclusive},
			"object":   {200, `{"value":0}`, "answered with a JSON object, not a number", inconclusive},
			"two":      {200, "0\n0\n", "not a number", inconclusive},
			"hex":      {200, "0x1p-2", "not a number", inconclusive},
			"too big":  {200, "1e999", "out of range", inconclusive},
			"500":      {500, "0", "answered 500", inconclusive},
			"huge":     {200, strings.Repeat("0", fewBytes+1), "more than 64 KiB", inconclusive},
			"number":   {200, "0.5\n", "0.5 to 0.5", manifest.OutcomePass},
			"JSON":     {200, "5e-1", "0.5 to 0.5", manifest.OutcomePass},
		},
	}
	for kind, cases := range servers {
		for name, c := range cases {
			t.Run(kind+" "+name, func(t *testing.T) {
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(c.status)
					io.WriteString(w, c.body)
				}))
				defer server.Close()
				g := bound(1)
				if kind == "http" {
					g = gateOf(func(g *manifest.Gate) { g.HTTP, g.Max = server.URL+"/x?token=geheim", num(1) })
				}
				v := once(t, g, server.URL)
				if v.Outcome != c.want || !strings.Contains(v.Why, c.says) {
					t.Errorf("%s: %s; want %s, %q", v.Outcome, v.Why, c.want, c.says)
				}
				if strings.Contains(v.Why, "geheim") || strings.ContainsRune(v.Why, 0x1b) {
					t.Errorf("says %q", v.Why)
				}
				if err := v.Validate(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	t.Run("nobody listens", func(t *testing.T) {
		server := httptest.NewServer(nil)
		server.Close()
		if v := once(t, bound(1), server.URL); v.Outcome != inconclusive || !strings.Contains(v.Why, "the source is down: prometheus at http://127.0.0.1") {
			t.Errorf("%s: %s", v.Outcome, v.Why)
		}
	})
}

// once asks one look of a real server, and judges it.
func once(t *testing.T, g manifest.Gate, prometheus string) manifest.GateVerdict {
	t.Helper()
	k, err := NewKeeper(Config{Prometheus: prometheus})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	q := ask(g)
	q.From, q.Bake, q.Now = time.Now().Add(-31*time.Second), 30*time.Second, time.Now()
	changed := k.Changed()
	k.Judge(ctx, q)
	<-changed
	v := k.Judge(ctx, q)[0]
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return v
}

// TestRedirects: to the same host only.
func TestRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "0") }))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/here":
			http.Redirect(w, r, "/there", http.StatusFound)
		case "/away":
			http.Redirect(w, r, other.URL+"?token=geheim", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		default:
			io.WriteString(w, "0.25")
		}
	}))
	defer server.Close()
	for path, c := range map[string]struct {
		want manifest.Outcome
		says string
	}{"/here": {manifest.OutcomePass, "0.25"}, "/away": {manifest.OutcomeInconclusive, "a redirect to another host is not followed"}, "/round": {manifest.OutcomeInconclusive, "more than 2 redirects"}} {
		v := once(t, gateOf(func(g *manifest.Gate) { g.HTTP, g.Max = server.URL+path, num(1) }), "")
		if v.Outcome != c.want || !strings.Contains(v.Why, c.says) || strings.Contains(v.Why, "geheim") {
			t.Errorf("%s: %s: %s", path, v.Outcome, v.Why)
		}
	}
}

// TestAddresses: only http and https; a wrong address is told without what may be secret in it.
func TestAddresses(t *testing.T) {
	for _, raw := range []string{"ftp://geheim@x", "file:///geheim", "http://", "://geheim", "http://geheim:x y@h/%zz"} {
		_, err := NewKeeper(Config{Prometheus: raw})
		if err == nil || strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), "prometheus.url") {
			t.Errorf("%s: %v", raw, err)
		}
		if r := readNumber(t.Context(), http.DefaultClient, raw); r.value != nil || strings.Contains(r.trouble, "geheim") {
			t.Errorf("%s: %+v", raw, r)
		}
	}
	u, err := url.Parse("https://ana:geheim@p:9090/x?key=geheim#geheim")
	if err != nil {
		t.Fatal(err)
	}
	if got := masked(u); got != "https://p:9090/x" {
		t.Error(got)
	}
}

// TestFarAway: http gates reach no link-local or metadata address, by number or by name, and no host that collector.yaml does not name.
func TestFarAway(t *testing.T) {
	for address, want := range map[string]bool{"169.254.169.254:80": false, "[fe80::1%eth0]:80": false, "[::ffff:169.254.1.1]:80": false, "[fd00:ec2::254]:80": false, "100.100.100.200:80": false, "nonsense": false,
		"127.0.0.1:9090": true, "10.0.0.7:443": true, "[2001:db8::1]:443": true} {
		if err := farAway("tcp", address, nil); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
	client := newClient(nil, farAway)
	defer client.CloseIdleConnections()
	for _, raw := range []string{"http://169.254.169.254/latest/meta-data/", "http://[fe80::1]/", "http://[::ffff:169.254.169.254]/"} {
		if r := readNumber(t.Context(), client, raw); r.value != nil || !r.down || !strings.Contains(r.trouble, "link-local and metadata addresses") {
			t.Errorf("%s: %+v", raw, r)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "0.5") }))
	defer server.Close()
	at := strings.TrimPrefix(server.URL, "http://")
	for name, c := range map[string]struct {
		hosts []string
		want  string // of what is wrong
	}{"any": {nil, ""}, "the host": {[]string{"127.0.0.1"}, ""}, "host and port": {[]string{"x", at}, ""}, "another": {[]string{"localhost"}, "it asks " + at + ", which gates.http_hosts in collector.yaml does not name"}, "none": {[]string{}, "does not name"}} {
		k, err := NewKeeper(Config{HTTPHosts: c.hosts})
		if err != nil {
			t.Fatal(err)
		}
		looks, broken := k.ask(t.Context(), Question{Wave: 1, From: begin}, gateOf(func(g *manifest.Gate) { g.HTTP, g.Max = server.URL, num(1) }), 1, 1)
		if ok := len(looks) == 1 && looks[0].Canary != nil && *looks[0].Canary == 0.5; ok != (c.want == "") || !strings.Contains(broken, c.want) || c.want == "" && broken != "" {
			t.Errorf("%s: %+v, %q", name, looks, broken)
		}
		k.client.CloseIdleConnections()
	}
}

// TestNothingRead: what a source says is not told, whatever it is: neither a body that is no number, nor the banner of what does not speak HTTP.
func TestNothingRead(t *testing.T) {
	client := newClient(nil, farAway)
	defer client.CloseIdleConnections()
	for _, body := range []string{"geheim", `"geheim"`, `{"key":"geheim"}`, `["geheim"]`, "<html>geheim", "1 geheim"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, body) }))
		r := readNumber(t.Context(), client, server.URL)
		server.Close()
		if r.value != nil || strings.Contains(r.trouble, "geheim") || !strings.Contains(r.trouble, "not a number") {
			t.Errorf("%s: %+v", body, r)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "SSH-2.0-geheim\r\n")
			c.Close()
		}
	}()
	for _, scheme := range []string{"http://", "https://"} {
		if r := readNumber(t.Context(), client, scheme+l.Addr().String()); r.value != nil || !r.down || strings.Contains(r.trouble, "geheim") || strings.Contains(r.trouble, "SSH") {
			t.Errorf("%s: %+v", scheme, r)
		}
	}
}

// What a source says is wrong is kept for each look: little of it.
func TestLongComplaints(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	for status, kind := range map[int]string{422: "execution", 400: "bad_data", 503: "timeout"} {
		s := &source{answer: func(*http.Request) (int, string) {
			return status, `{"status":"error","errorType":"` + kind + `","error":"` + long + `"}`
		}}
		base, err := parseAddress("http://prometheus")
		if err != nil {
			t.Fatal(err)
		}
		list, broken := prometheus{client: newClient(s, nil), base: base}.ask(t.Context(), "up", begin, time.Second, 1)
		if len(list) == 1 {
			broken = list[0].trouble
		}
		if broken == "" || len(broken) > 2*mostText {
			t.Errorf("%d: %d bytes", status, len(broken))
		}
	}
}
