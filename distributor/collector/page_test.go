package collector

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// pageRig is a fleet with something of everything.
func pageRig(t *testing.T, tokens *Tokens) (*rig, *agent) {
	w := newWorld(t)
	var names []string
	for i := range 130 {
		names = append(names, fmt.Sprintf("web-%03d", i))
	}
	w.cohort("prod-eu", names...)
	w.cohort("staging", "st-1", "st-2")
	r := newRig(t, w, tokens)
	one := w.publish("prod-eu", "staging")
	two := w.publish("prod-eu")
	w.assign("prod-eu", two)
	w.assign("staging", one)
	r.read()
	say := func(a *agent) {
		t.Helper()
		if res, err := r.c.Report(t.Context(), a.signed()); err != nil || !res.Accepted {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	for i, name := range names[:124] {
		a := r.agent("prod-eu", name).runs(two)
		switch i {
		case 3:
			a.report.Confirmed, a.report.Phase, a.report.Grade = false, report.PhaseConfirming, manifest.GradeDisk
			a.report.Services["checkout"] = report.Service{State: "waiting", Epoch: one, Expected: two, Reason: "process still states epoch 1"}
		case 4:
			a.runs(one)
			a.report.Desired, a.report.Attempted, a.report.Phase, a.report.Reason, a.report.Confirmed = two, two, report.PhaseRolledBack, "checkout: </td><script>document.title='owned'</script>\u202eexit 1", false
		case 5:
			a.report.Drift, a.report.Drifted, a.report.Confirmed = []string{"checkout/<img src=x onerror=alert(1)>.yaml"}, 1, false
		}
		say(a)
	}
	st := r.agent("staging", "st-1").runs(one)
	st.report.Labels = map[string]string{"zone": "<b>eu</b>"}
	st.report.Services["checkout"] = report.Service{State: "confirmed", Epoch: one, Expected: one, Grade: manifest.GradeProcess, Instances: map[string]report.ServiceInstance{"a": {Epoch: one, State: "confirmed"}}}
	say(st)
	return r, st
}

func (r *rig) page(t *testing.T, client *http.Client, path string) (int, string, http.Header) {
	t.Helper()
	resp, err := client.Get(r.server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

// B100: what hosts say is text on every page, and nothing else may run there.
func TestB100PageEscapes(t *testing.T) {
	r, _ := pageRig(t, nil)
	for path, want := range map[string][]string{
		"/":                        {"prod-eu", "change 2", "Ana", `aria-label="121 of 130 hosts run what is assigned to them"`},
		"/hosts":                   {"1 to 100 of 132", "process still states epoch 1", "&lt;script&gt;", `rel="next"`},
		"/hosts?page=2":            {"101 to 132 of 132", `rel="prev"`},
		"/hosts?verdict=drifted":   {"1 to 1 of 1", "web-005", "&lt;img"},
		"/hosts?cohort=staging":    {"st-1", "st-2", "never reported"},
		"/hosts?find=web-00":       {"1 to 10 of 10"},
		"/hosts?find=%3Cscript%3E": {"No host is like that", "&lt;script&gt;"},
		"/hosts/web-004":           {"rolled back", "&lt;/td&gt;&lt;script&gt;"},
		"/hosts/web-005":           {"Changed by hand", "&lt;img src=x"},
		"/hosts/st-1":              {"zone=&lt;b&gt;eu", "confirmed", "process"},
		"/releases":                {"change 1", "change 2", "Ana"},
		"/releases/2":              {"change 2", "ana@example.com", "web-003", "prod-eu"},
	} {
		status, body, header := r.page(t, r.server.Client(), path)
		if status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
		for _, w := range want {
			if !strings.Contains(body, w) {
				t.Errorf("%s has no %q", path, w)
			}
		}
		for _, bad := range []string{"<script>d", "<img", "<b>eu", "\u202e", "style=", "onclick", "http://", "https://"} {
			if strings.Contains(body, bad) {
				t.Errorf("%s holds %q", path, bad)
			}
		}
		csp := header.Get("Content-Security-Policy")
		if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: policy %q", path, csp)
		}
	}
	for path, want := range map[string]int{"/hosts/nobody": 404, "/releases/99": 404, "/releases/x": 400, "/hosts?verdict=x": 400, "/hosts?cohort=x": 404, "/nothing": 404} {
		if status, body, _ := r.page(t, r.server.Client(), path); status != want {
			t.Errorf("%s: %d, want %d: %.200s", path, status, want, body)
		}
	}
}

func digestOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// With tokens a person signs in; the cookie only looks, only as far as the token, and ends with it.
func TestPageSignIn(t *testing.T) {
	tokens := &Tokens{
		Agents: []AgentToken{{digestOf("agent-token"), []string{"*"}}},
		People: []PersonToken{{"ana", digestOf("ana-token"), RoleOperator, []string{"staging"}}},
	}
	r, _ := pageRig(t, tokens)
	jar, _ := cookiejar.New(nil)
	client := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	status, _, header := r.page(t, client, "/hosts?cohort=staging")
	if status != http.StatusSeeOther || header.Get("Location") != "/login?next=%2Fhosts%3Fcohort%3Dstaging" {
		t.Errorf("without a token: %d to %q", status, header.Get("Location"))
	}
	if _, body, _ := r.page(t, client, "/login"); strings.Contains(body, repo) || strings.Contains(body, "mem:") || !strings.Contains(body, `type="password"`) {
		t.Error("the form tells a stranger something, or is none")
	}
	login := func(token, next string) *http.Response {
		t.Helper()
		resp, err := client.PostForm(r.server.URL+"/login", url.Values{"token": {token}, "next": {next}})
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	for _, wrong := range []string{"", "x", "agent-token", digestOf("ana-token")} {
		if resp := login(wrong, "/"); resp.StatusCode != http.StatusUnauthorized || len(resp.Cookies()) != 0 {
			t.Errorf("token %q: %d", wrong, resp.StatusCode)
		}
	}
	for next, want := range map[string]string{"/hosts": "/hosts", "/hosts?find=a%2Fb&page=2": "/hosts?find=a%2Fb&page=2", "/releases/3": "/releases/3", "": "/", "hosts": "/", "/%09/evil.example": "/", "/%2F/evil.example": "/", "/%5Cevil.example": "/", "/hosts/../..//evil.example": "/", "/\x00/evil.example": "/", "/\u0085/evil.example": "/", "/\u2028/evil.example": "/", "/ /evil.example": "/", "/\x7f/evil.example": "/", "//evil.example": "/", "https://evil.example": "/", "/\\evil.example": "/", "/\t/evil.example": "/", "/\n/evil.example": "/"} {
		if resp := login("ana-token", next); resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != want {
			t.Errorf("next %q: %d to %q", next, resp.StatusCode, resp.Header.Get("Location"))
		}
	}
	cookie := login("ana-token", "/").Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || strings.Contains(cookie.Value, "ana-token") || strings.Contains(cookie.Value, digestOf("ana-token")) {
		t.Errorf("%+v", cookie)
	}
	status, body, _ := r.page(t, client, "/")
	if status != http.StatusOK || !strings.Contains(body, "staging") || strings.Contains(body, "prod-eu") || !strings.Contains(body, "ana") {
		t.Errorf("signed in: %d", status)
	}
	if status, _, _ := r.page(t, client, "/hosts/web-004"); status != http.StatusNotFound {
		t.Errorf("a host of another cohort: %d", status)
	}
	// It changes nothing.
	resp, err := client.Post(r.server.URL+"/v1/hosts/retire", "application/json", strings.NewReader(`{"hosts":["st-1"]}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a cookie retires a host: %d", resp.StatusCode)
	}
	forged := strings.Replace(cookie.Value, cookie.Value[:4], "0000", 1)
	for what, value := range map[string]string{"forged": forged, "empty": "", "short": "a.b"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, r.server.URL+"/", nil)
		req.AddCookie(&http.Cookie{Name: cookieName, Value: value})
		resp, err := (&http.Client{CheckRedirect: client.CheckRedirect}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusSeeOther {
			t.Errorf("%s cookie: %d", what, resp.StatusCode)
		}
	}
	r.advance(sessionFor + time.Second)
	if status, _, _ := r.page(t, client, "/"); status != http.StatusSeeOther {
		t.Errorf("after its time: %d", status)
	}
}

// browser is a real one, with a directory of its own.
func browser(t *testing.T, flags ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if p, err := exec.LookPath(name); err == nil && path == "" {
			path = p
		}
	}
	if path == "" {
		t.Fatal("no browser: apt-get install chromium")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1200, 900), chromedp.WSURLReadTimeout(time.Minute))
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), append(opts, flags...)...)
	ctx, end := chromedp.NewContext(alloc)
	ctx, stop := context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(func() { stop(); end(); cancel() })
	return ctx
}

// steps does actions one after the other, and says which failed.
func steps(t *testing.T, ctx context.Context) func(what string, actions ...chromedp.Action[chromedp.Void]) {
	return func(what string, actions ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		err := chromedp.Do(ctx, actions...)
		// The page puts a new body in place whenever the collector says so: a node that was just found may be gone.
		for tries := 0; err != nil && strings.Contains(err.Error(), "Could not find node") && tries < 20; tries++ {
			err = chromedp.Do(ctx, actions...)
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// The page in a real browser: nothing of a host runs there, filters work, it follows without being loaded again, and it fits a narrow screen.
func TestPageInABrowser(t *testing.T) {
	r, st := pageRig(t, nil)
	dir := t.TempDir()
	if keep := os.Getenv("MUSTER_SCREENSHOTS"); keep != "" {
		dir = keep
	}
	ctx := browser(t)
	do := steps(t, ctx)
	text := func(selector string) string {
		t.Helper()
		// In one step: the page may put new elements in the place of the old ones at any time.
		got, err := chromedp.Run(ctx, chromedp.Evaluate[string](fmt.Sprintf("document.querySelector(%q).textContent", selector)))
		if err != nil {
			t.Fatalf("text of %s: %v", selector, err)
		}
		return strings.Join(strings.Fields(got), " ")
	}
	title := func() string {
		t.Helper()
		got, err := chromedp.Run(ctx, chromedp.Title())
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	shot := func(name string) {
		t.Helper()
		png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err != nil || len(png) < 5000 || !bytes.HasPrefix(png, []byte("\x89PNG")) {
			t.Errorf("%s: the screenshot is %d bytes, %v", name, len(png), err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	do("cohorts", chromedp.Navigate(r.server.URL+"/"), chromedp.WaitReady("#cohort-prod-eu"))
	if got := text("#cohort-prod-eu .sum"); !strings.Contains(got, "121 confirmed of 130 expected") || !strings.HasPrefix(title(), "Cohorts") {
		t.Errorf("%q, title %q", got, title())
	}
	shot("cohorts")
	do("a verdict", chromedp.Click(`#cohort-prod-eu .counts a.bad`), chromedp.WaitReady("table.hosts"))
	do("hosts", chromedp.Navigate(r.server.URL+"/hosts"), chromedp.WaitReady("table.hosts"))
	if got := text("table.hosts tbody tr:first-child"); !strings.Contains(got, "web-00") || title() == "owned" {
		t.Errorf("%q, title %q", got, title())
	}
	shot("hosts")
	do("host", chromedp.Navigate(r.server.URL+"/hosts/st-1"), chromedp.WaitReady("dl"))
	shot("host")
	do("release", chromedp.Navigate(r.server.URL+"/releases/2"), chromedp.WaitReady("section.card"))
	shot("release")
	// It follows.
	do("follow", chromedp.Navigate(r.server.URL+"/"), chromedp.WaitReady("#cohort-staging"))
	if got := text("#cohort-staging .sum"); !strings.Contains(got, "1 confirmed of 2") {
		t.Errorf("before: %q", got)
	}
	if _, err := r.c.Report(t.Context(), r.agent("staging", "st-2").runs(st.report.Running).signed()); err != nil {
		t.Fatal(err)
	}
	until(t, "the page shows the new count", func() bool { return strings.Contains(text("#cohort-staging .sum"), "2 confirmed of 2") })
	// A telephone: nothing is wider than the screen.
	do("narrow", chromedp.EmulateViewport(390, 800), chromedp.Navigate(r.server.URL+"/hosts"), chromedp.WaitReady("table.hosts"))
	if width, err := chromedp.Run(ctx, chromedp.Evaluate[int64]("document.documentElement.scrollWidth")); err != nil || width > 390 {
		t.Errorf("%d pixels wide on a screen of 390, %v", width, err)
	}
	shot("narrow")
}
