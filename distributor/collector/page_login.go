package collector

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"math"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
)

// A person who shows a token to the page gets a cookie instead of it: who, until when, and a MAC under the collector's secret. It opens what a token opens for reading, ends by
// itself, and with the token: when the tokens file does not have it any more. It tells nothing of the token, not even the digest that the tokens file has.
const (
	cookieName = "muster"
	sessionFor = 12 * time.Hour
	maxForm    = 8 << 10
)

func (c *Collector) sessionMAC(text string) string {
	mac := hmac.New(sha256.New, c.secret)
	mac.Write([]byte("muster page session\n" + text))
	return hex.EncodeToString(mac.Sum(nil))
}

// sessionOf is what a cookie calls the token with that digest.
func (c *Collector) sessionOf(sum string) string { return c.sessionMAC("token\n" + sum) }

// session is the cookie of a person.
func (c *Collector) session(sum string) string {
	text := c.sessionOf(sum) + "." + strconv.FormatInt(c.now().Add(sessionFor).Unix(), 10)
	return text + "." + c.sessionMAC("cookie\n"+text)
}

// fromSession is whose cookie a request has.
func (c *Collector) fromSession(tokens *Tokens, r *http.Request) (caller, bool) {
	cookie, err := r.Cookie(cookieName)
	if err != nil || len(cookie.Value) > 512 {
		return caller{}, false
	}
	parts := strings.Split(cookie.Value, ".")
	if len(parts) != 3 || subtle.ConstantTimeCompare([]byte(parts[2]), []byte(c.sessionMAC("cookie\n"+parts[0]+"."+parts[1]))) != 1 {
		return caller{}, false
	}
	until, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || c.now().Unix() >= until {
		return caller{}, false
	}
	var who caller
	for _, p := range tokens.People {
		if subtle.ConstantTimeCompare([]byte(parts[0]), []byte(c.sessionOf(p.SHA256))) == 1 {
			who = p.caller()
		}
	}
	who.hand = false // it is for looking
	return who, who.person
}

type loginBody struct {
	Next    string
	Trouble string
}

func (c *Collector) pageLogin(w http.ResponseWriter, r *http.Request, _ caller) error {
	if c.tokens.Load() == nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return nil
	}
	return c.showLogin(w, http.StatusOK, loginBody{Next: safeNext(r.URL.Query().Get("next"))})
}

func (c *Collector) showLogin(w http.ResponseWriter, status int, body loginBody) error {
	// Who is not let in learns nothing: not even which repo it is.
	return render(w, status, "login.html", &frame{Title: "Sign in", Now: c.now(), Body: body})
}

func (c *Collector) postLogin(w http.ResponseWriter, r *http.Request, _ caller) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return refuse(http.StatusBadRequest, "", "the form cannot be read")
	}
	next := safeNext(r.PostForm.Get("next"))
	tokens := c.tokens.Load()
	if tokens == nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return nil
	}
	from := addressOf(r)
	if wait := c.logins.wait(from, c.now()); wait > 0 {
		c.count.loginsHeld.Add(1)
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		return c.showLogin(w, http.StatusTooManyRequests, loginBody{Next: next, Trouble: "Too many attempts failed from where you are: try again in a minute."})
	}
	token := strings.TrimSpace(r.PostForm.Get("token"))
	who, ok := tokens.lookup(token)
	if !ok || !who.person {
		c.count.loginsFailed.Add(1)
		if c.logins.fail(from, c.now()) {
			c.log.Warn("somebody failed to sign in to the page; more is only counted, in muster_logins_failed_total", "from", from, "for", failedFor)
		}
		return c.showLogin(w, http.StatusUnauthorized, loginBody{Next: next, Trouble: "No person has that token."})
	}
	sum := sha256.Sum256([]byte(token))
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: c.session(hex.EncodeToString(sum[:])), Path: "/", MaxAge: int(sessionFor.Seconds()), HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, next, http.StatusSeeOther)
	return nil
}

func (c *Collector) postLogout(w http.ResponseWriter, r *http.Request, _ caller) error {
	http.SetCookie(w, &http.Cookie{Name: cookieName, Path: "/", MaxAge: -1, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/login", http.StatusSeeOther)
	return nil
}

// safeNext is a path of this page, never another place.
func safeNext(s string) string {
	// Browsers take a backslash for a slash, and leave out tabs and line ends: what is no path any more then is none.
	odd := func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' }
	u, err := url.ParseRequestURI(s)
	if err != nil || len(s) > 500 || strings.ContainsFunc(s, odd) || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(s, "/") {
		return "/"
	}
	if path.Clean(u.Path) != u.Path || strings.ContainsFunc(u.Path, odd) {
		return "/" // also "//", however it is written
	}
	return s
}
