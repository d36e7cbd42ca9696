package rollout_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/rollout"
)

// eager always has something new to look at, as a fleet that reports has.
type eager struct{ *site }

func (eager) Changed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// A cohort for which nothing can be written is tried every few seconds, not at each report, and goes on when it can be.
func TestFailedCohortRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := standard(bakeless(100)...)
		s := newSite(t, 5, p)
		s.controller(s.store).Step(t.Context())
		s.apply()
		s.publish(8, p)
		var well atomic.Bool
		var tried atomic.Int64
		st := &broken{Store: s.store, fault: func(int) string {
			if well.Load() {
				return ""
			}
			tried.Add(1)
			return "lost"
		}}
		c := s.controller(st)
		var log bytes.Buffer
		c.Seen, c.Log = rollout.Observations(eager{s}), slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := tried.Load(); n < 5 || n > 200 {
			t.Errorf("tried %d times in a minute", n)
		}
		well.Store(true)
		time.Sleep(10 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if r := s.head().Manifest.Rollout; r.Target != 8 {
			t.Errorf("it does not go on: %+v", r)
		}
		if n := strings.Count(log.String(), "rollout cannot go on"); n != 1 {
			t.Errorf("said %d times:\n%s", n, log.String())
		}
	})
}
