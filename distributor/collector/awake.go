package collector

import (
	"context"
	"time"

	"github.com/muster-config/muster/distributor/verdict"
)

const (
	awakeEvery = 5 * time.Second
	// awakeGap is how long a collector may be late for itself. After more it stood still, as a process that is stopped does, or a machine that sleeps: nobody listened, and
	// who was not heard in that time is not silent.
	awakeGap = 15 * time.Second
)

// stayAwake notes that somebody listens, until ctx ends.
func (c *Collector) stayAwake(ctx context.Context) {
	t := time.NewTicker(awakeEvery)
	defer t.Stop()
	for {
		c.woke(c.now())
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// woke gives hosts that were not silent before a gap their time again.
func (c *Collector) woke(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gap := now.Sub(c.awake); !c.awake.IsZero() && gap > awakeGap {
		for cohort, co := range c.cohorts {
			for name, h := range co.hosts {
				if from := c.silentFrom(h, now); from.After(h.silentFrom) {
					h.silentFrom = from
					c.dirty.host(cohort, name, nil)
				}
			}
		}
		c.log.Warn("this process stood still: hosts get their time to report again", "for", gap.String())
		c.bump()
	}
	c.awake = now
}

// silentFrom is from when on silence of a host counts: from now, while this process has yet to notice that it stood still. Under c.mu.
func (c *Collector) silentFrom(h *host, now time.Time) time.Time {
	if c.awake.IsZero() || now.Sub(c.awake) <= awakeGap || h.report == nil {
		return h.silentFrom
	}
	from := h.received
	if h.silentFrom.After(from) {
		from = h.silentFrom
	}
	if from.After(c.awake) || c.awake.Sub(from) <= verdict.MissedReports*h.promised() {
		return now
	}
	return h.silentFrom
}
