package forge

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// limit reads from an answer whether a limit refused the request, and how long to wait until it may be sent again. GitHub tells it by 403 or 429, with Retry-After, with the
// reset of the primary limit, or with its words alone: https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#exceeding-the-rate-limit
func (l *line) limit(a *answer, try int) (wait time.Duration, limited bool) {
	now := l.now()
	defer func() {
		if limited { // it holds for all that is sent, by whomever
			l.mu.Lock()
			if at := now.Add(wait); at.After(l.until) {
				l.until = at
			}
			l.mu.Unlock()
		}
	}()
	left, reset := a.header.Get("X-RateLimit-Remaining"), unix(a.header.Get("X-RateLimit-Reset"))
	if left == "0" && reset.After(now) {
		l.mu.Lock()
		l.until = now.Add(min(reset.Sub(now), longestStop) + time.Second)
		l.mu.Unlock()
	}
	if a.status != http.StatusForbidden && a.status != http.StatusTooManyRequests {
		return 0, false
	}
	if after := retryAfter(a.header.Get("Retry-After"), now); after > 0 {
		// Longer each time all the same: a server that says "at once" each time would be asked every second.
		return max(min(after, longestStop), time.Second<<min(2*try, 6)), true
	}
	if (left == "0" || left == "") && !reset.IsZero() {
		// Longer each time all the same: by a clock that is ahead the reset is long past.
		return max(min(reset.Sub(now), longestStop), 0) + time.Second<<min(2*try, 6), true
	}
	said := strings.ToLower(message(a.body))
	if a.status == http.StatusTooManyRequests || strings.Contains(said, "rate limit") || strings.Contains(said, "abuse detection") {
		return secondLimit << min(try, 4), true // a minute at least, and longer each time
	}
	return 0, false
}

func unix(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	return time.Unix(min(n, 1<<36), 0) // far enough, and no later than time can say
}

// retryAfter reads seconds or a date; RFC 9110 10.2.3.
func retryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(strings.TrimSpace(s)); err == nil && n >= 0 && n < 1<<24 {
		return time.Duration(max(n, 1)) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(at.Sub(now), time.Second)
	}
	return 0
}

// message is what an answer says, or its beginning.
func message(body []byte) string {
	var said struct {
		Message string `json:"message"`
		Docs    string `json:"documentation_url"`
	}
	if json.Unmarshal(body, &said) == nil && said.Message != "" {
		if strings.Contains(said.Docs, "rate-limit") && !strings.Contains(strings.ToLower(said.Message), "rate limit") {
			said.Message += " (a rate limit)"
		}
		return said.Message
	}
	return string(body[:min(len(body), 200)])
}
