package collector

import (
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// Guessing tokens at the page's form is slow: who failed often has to wait.
const (
	maxFailed    = 10 // attempts of one address within failedFor
	failedFor    = time.Minute
	maxAddresses = 10_000 // all others are one
)

// logins are the failed attempts to sign in.
type logins struct {
	mu     sync.Mutex
	failed map[netip.Addr]*attempts
	said   time.Time // when the log last had a line about it
}

type attempts struct {
	first time.Time
	count int
}

// addressOf is where a request comes from; of IPv6 the network, as one machine has all of it.
func addressOf(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		if net, err := addr.Prefix(64); err == nil {
			return net.Addr()
		}
	}
	return addr
}

// wait is how long an address has to wait before it may try again; 0 if it may now.
func (l *logins) wait(addr netip.Addr, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.failed[l.room(addr, now)]
	if a == nil || a.count < maxFailed {
		return 0
	}
	return max(0, failedFor-now.Sub(a.first))
}

// fail counts a failed attempt, and says whether the log is to have a line about it: one a minute.
func (l *logins) fail(addr netip.Addr, now time.Time) (say bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = map[netip.Addr]*attempts{}
	}
	addr = l.room(addr, now)
	a := l.failed[addr]
	if a == nil || now.Sub(a.first) >= failedFor {
		a = &attempts{first: now}
		l.failed[addr] = a
	}
	a.count++
	if !l.said.IsZero() && now.Sub(l.said) < failedFor {
		return false
	}
	l.said = now
	return true
}

// room is the address under which attempts are counted: its own, or that of all for whom there is no room. Under l.mu.
func (l *logins) room(addr netip.Addr, now time.Time) netip.Addr {
	if l.failed[addr] != nil || len(l.failed) < maxAddresses {
		return addr
	}
	for known, a := range l.failed {
		if now.Sub(a.first) >= failedFor {
			delete(l.failed, known)
		}
	}
	if len(l.failed) < maxAddresses {
		return addr
	}
	return netip.Addr{}
}

// unknownToken counts a request with a token that nobody has, and is an error once too many came from where it is from. Whoever has a token is never held up by
// others at the same address: this comes after the look for it. It keeps the log, and who has forgotten a new token on all hosts, from being flooded.
func (c *Collector) unknownToken(w http.ResponseWriter, r *http.Request) error {
	if r.Header.Get("Authorization") == "" {
		return nil // nobody tries one: a browser that is not signed in
	}
	c.count.tokensUnknown.Add(1)
	from, now := addressOf(r), c.now()
	wait := c.bearers.wait(from, now)
	if c.bearers.fail(from, now) {
		c.log.Warn("a request had a token that nobody has; more is only counted, in muster_tokens_unknown_total", "from", from, "for", failedFor)
	}
	if wait == 0 {
		return nil
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	return refuse(http.StatusTooManyRequests, "give this machine a token that the collector's tokens_file has", "too many requests with a token that the collector does not know")
}
