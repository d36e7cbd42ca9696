package collector

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// A collector that stood still did not listen: nobody is silent for that, neither at once nor later. Who says nothing from then on is.
func TestStoodStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10
		f := newFleet(t, n)
		var still atomic.Int64
		f.c.now = func() time.Time { return time.Now().UTC().Add(time.Duration(still.Load())) }
		one := f.publish("prod")
		ctx, cancel := context.WithCancel(context.Background())
		defer func() { cancel(); f.wg.Wait() }()
		f.run(ctx)
		f.wg.Go(func() { _ = f.controller("one").Run(ctx) })
		f.until("the release everywhere", time.Minute, func() bool { return f.confirmed(one) == n && f.rollout().Phase == manifest.PhaseDone })
		silent := func() int {
			list, err := f.c.Hosts(ctx, "prod", string(verdict.Silent))
			if err != nil {
				t.Fatal(err)
			}
			return len(list)
		}
		f.leave()
		still.Add(int64(110 * time.Second))
		if got := silent(); got != 0 {
			t.Errorf("%d hosts are silent as soon as it goes on", got)
		}
		time.Sleep(2*awakeEvery + time.Second)
		if got := silent(); got != 0 {
			t.Errorf("%d hosts are silent soon after", got)
		}
		time.Sleep(5 * time.Minute)
		if got := silent(); got != n {
			t.Errorf("%d of %d hosts are silent in the end", got, n)
		}
	})
}
