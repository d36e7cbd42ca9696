package collector

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A person who shows a token to the page gets a cookie instead of it: who, until when, and a MAC under the collector's secret. It opens what a token opens for reading, ends by
// itself, and ends at once when the token is taken out of the tokens file.
const (
	cookieName = "muster"
	sessionFor = 12 * time.Hour
	maxForm    = 8 << 10
)

func (c *Collector) sessionMAC(sum, until string) string {
	mac := hmac.New(sha256.New, c.secret)
	mac.Write([]byte("muster page session\n" + sum + "\n" + until))
	return hex.EncodeToString(mac.Sum(nil))
}

// session is the cookie of a person.
func (c *Collector) session(sum string) string {
	until := strconv.FormatInt(c.now().Add(sessionFor).Unix(), 10)
	return sum + "." + until + "." + c.sessionMAC(sum, until)
}

// fromSession is whose cookie a request has.
func (c *Collector) fromSession(r *http.Request) (caller, bool) {
	cookie, err := r.Cookie(cookieName)
	if err != nil || len(cookie.Value) > 512 {
		return caller{}, false
	}
	parts := strings.Split(cookie.Value, ".")
	if len(parts) != 3 || subtle.ConstantTimeCompare([]byte(parts[2]), []byte(c.sessionMAC(parts[0], parts[1]))) != 1 {
		return caller{}, false
	}
	until, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || c.now().Unix() >= until {
		return caller{}, false
	}
	who, ok := c.tokens.bySum(parts[0])
	who.agent, who.hand = false, false // it is for looking
	return who, ok && who.person
}

type loginBody struct {
	Next   string
	Failed bool
}

func (c *Collector) pageLogin(w http.ResponseWriter, r *http.Request, _ caller) error {
	if c.tokens == nil {
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
	if c.tokens == nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return nil
	}
	token := strings.TrimSpace(r.PostForm.Get("token"))
	who, ok := c.tokens.lookup(token)
	if !ok || !who.person {
		return c.showLogin(w, http.StatusUnauthorized, loginBody{Next: next, Failed: true})
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
	if !strings.HasPrefix(s, "/") || strings.HasPrefix(s, "//") || strings.ContainsAny(s, "\\\r\n") || len(s) > 500 {
		return "/"
	}
	return s
}
