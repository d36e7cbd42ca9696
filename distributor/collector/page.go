package collector

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/verdict"
)

// The page shows people what the API says: read-only, made on the server, of what is embedded here and nothing else. It works without JavaScript; with it, it follows the event
// stream instead of loading itself again.
//
//go:embed page
var pageFiles embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"plain": plain, "ago": ago, "short": short, "time": pageTime, "class": classOf, "commas": commas, "query": url.QueryEscape, "path": url.PathEscape,
	"rollout": withNow, "left": left, "outcome": outcomeClass, "sample": sampleText,
}).ParseFS(pageFiles, "page/*.html"))

const policyCSP = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// frame is what every page has.
type frame struct {
	Title   string
	Here    string // which tab
	Repo    string
	Store   string
	Who     string // "" without tokens
	Now     time.Time
	Trouble []string // what makes verdicts doubtful
	Old     string   // what was decided by hand and is over a day old
	Refresh bool
	Body    any
}

func (c *Collector) frame(who caller, title, here string, body any) *frame {
	c.mu.RLock()
	defer c.mu.RUnlock()
	f := &frame{Title: title, Here: here, Repo: c.repo, Store: c.store.URL(), Who: who.name, Now: c.now(), Refresh: true, Body: body}
	if c.readErr != "" {
		f.Trouble = append(f.Trouble, "The store cannot be read in whole: "+c.readErr)
	}
	if c.dbErr != "" {
		f.Trouble = append(f.Trouble, "The database cannot be written: "+c.dbErr)
	}
	active := map[string][]api.Active{}
	for _, name := range c.cohortNames(who) {
		if co := c.cohorts[name]; co != nil && co.view != nil {
			active[name] = standing.Active(co.view, f.Now, c.made)
		}
	}
	f.Old = standing.Old(active, f.Now)
	return f
}

// render writes one page.
func render(w http.ResponseWriter, status int, name string, f *frame) error {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, name, f); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policyCSP)
	h.Set("Referrer-Policy", "same-origin") // not no-referrer: the origin of the page's own forms would be null
	h.Set("X-Frame-Options", "DENY")
	w.WriteHeader(status)
	send(w, b.Bytes())
	return nil
}

// handlePages adds the page's paths.
func (c *Collector) handlePages(mux *http.ServeMux) {
	static := func(path, kind string) {
		data, err := pageFiles.ReadFile("page" + path)
		if err != nil {
			panic(err) // it is embedded
		}
		mux.Handle("GET "+path, c.wrap(anybody, func(w http.ResponseWriter, _ *http.Request, _ caller) error {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", "max-age=300")
			send(w, data)
			return nil
		}))
	}
	static("/page.css", "text/css; charset=utf-8")
	static("/page.js", "text/javascript; charset=utf-8")
	page := func(pattern string, h func(w http.ResponseWriter, r *http.Request, who caller) error) {
		mux.Handle("GET "+pattern, c.wrap(anybody, func(w http.ResponseWriter, r *http.Request, _ caller) error {
			who, known := c.identify(r)
			if !known || !who.person {
				to := "/login"
				if next := r.URL.RequestURI(); next != "/" {
					to += "?next=" + url.QueryEscape(next)
				}
				http.Redirect(w, r, to, http.StatusSeeOther)
				return nil
			}
			err := h(w, r, who)
			if err == nil {
				return nil
			}
			status, text := statusOf(err)
			return render(w, status, "error.html", c.frame(who, http.StatusText(status), "", text))
		}))
	}
	page("/{$}", c.pageCohorts)
	page("/hosts", c.pageHosts)
	page("/hosts/{host}", c.pageHost)
	page("/releases", c.pageReleases)
	page("/log", c.pageLog)
	page("/releases/{epoch}", c.pageRelease)
	mux.Handle("GET /login", c.wrap(anybody, c.pageLogin))
	mux.Handle("POST /login", c.wrap(anybody, c.postLogin))
	mux.Handle("POST /logout", c.wrap(anybody, c.postLogout))
}

// plain makes text of hosts and people fit for a page: what turns or hides text is shown as a mark. Escaping is the template's.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r), r == '\u2028', r == '\u2029':
			return '\ufffd'
		}
		return r
	}, s)
}

// ago is the time since t for people: "3m20s ago".
func ago(now, t time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero():
		return "never"
	case d < time.Second:
		return "now"
	case d < time.Hour:
		return d.Round(time.Second).String() + " ago"
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s") + " ago"
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

func pageTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// short is a commit as people say it.
func short(commit string) string { return commit[:min(12, len(commit))] }

func commas(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// classOf is the kind of a verdict, for its color: the word says the same.
func classOf(code verdict.Code) string {
	switch code {
	case verdict.Confirmed:
		return "good"
	case verdict.Applying:
		return "moving"
	case verdict.Failed, verdict.RolledBack, verdict.Refused, verdict.Drifted, verdict.Lagging, verdict.Duplicate, verdict.Unexpected:
		return "bad"
	case verdict.Silent, verdict.Missing, verdict.Unknown, verdict.Stale:
		return "quiet"
	}
	return "apart" // held, overridden, observing, not running, retired: as somebody wants it
}

// rolloutAt is a rollout with the time at which it is looked at.
type rolloutAt struct {
	Rollout *api.Rollout
	Now     time.Time
}

func withNow(r *api.Rollout, now time.Time) rolloutAt { return rolloutAt{r, now} }

// left is the time until t for people.
func left(now time.Time, t *time.Time) string {
	if d := t.Sub(now); d > 0 {
		return d.Round(time.Second).String() + " left"
	}
	return "its time is over"
}

// outcomeClass is the kind of a gate's outcome, for its color.
func outcomeClass(o manifest.Outcome) string {
	switch o {
	case manifest.OutcomePass:
		return "good"
	case manifest.OutcomeFail, manifest.OutcomeBroken:
		return "bad"
	}
	return "quiet"
}

// sampleText is a value, or a count of all; a dash where nothing was there.
func sampleText(v, of *float64) string {
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }
	switch {
	case v == nil:
		return "–"
	case of != nil:
		return number(*v) + " of " + number(*of)
	}
	return number(*v)
}
