package agent

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/report"
)

type reportCounter struct{ n int }

func (c *reportCounter) Report(context.Context, api.ReportItem) (api.ReportResult, error) {
	c.n++
	return api.ReportResult{Accepted: true, Counter: uint64(c.n)}, nil
}

// What is put at one instant is one report, however the goroutines happen to run.
func TestReportsOfOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		to := &reportCounter{}
		q := newReports(to, &identity{key}, newCounts(), time.Hour, func() time.Duration { return time.Hour }, time.Now, slog.New(slog.DiscardHandler), defaultTiming())
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.run(ctx)
		}()
		for want := 1; want < 200; want++ {
			for range 3 {
				q.put(report.Report{Host: "a"}, false, false)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if to.n != want {
				t.Fatalf("%d reports where %d are due", to.n, want)
			}
		}
		stop()
		<-done
	})
}
