package agent

import "time"

// Fast gives an agent short pauses.
func Fast(o Options) Options {
	o.timing = &timing{
		full: 10 * time.Minute, ask: 5 * time.Second, grace: 100 * time.Millisecond, stall: 300 * time.Millisecond, retry: 5 * time.Millisecond, again: 10 * time.Millisecond, most: 50 * time.Millisecond,
		probe: 2 * time.Millisecond, lazy: 50 * time.Millisecond, post: 200 * time.Millisecond, leave: 100 * time.Millisecond, settle: 500 * time.Millisecond,
	}
	return o
}

// Patient is Fast with the real pauses before a failed release is tried again.
func Patient(o Options) Options {
	o = Fast(o)
	o.timing.again, o.timing.most = time.Hour, time.Hour
	return o
}

// SetNow gives an agent another clock.
func SetNow(a *Agent, now func() time.Time) { a.now = now }
