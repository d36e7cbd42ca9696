package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// fakeCollector is what a collector answers as time goes by; it holds a long poll as the real one does.
type fakeCollector struct {
	start    time.Time
	released time.Duration // the commit is there from then on
	down     [2]time.Duration
	steps    []step
	created  time.Time // of the release
	target   uint64    // of prod's head
	asked    int
}

type step struct {
	at   time.Duration
	wait api.Wait
}

func (c *fakeCollector) reach() error {
	c.asked++
	if t := time.Since(c.start); c.down[0] <= t && t < c.down[1] {
		return fmt.Errorf("%w: refused", unreachable{})
	}
	return nil
}

type unreachable struct{}

func (unreachable) Error() string { return "collector is not reachable" }
func (unreachable) ExitCode() int { return cli.Unreachable }

func (c *fakeCollector) Releases(context.Context) ([]api.Release, error) {
	if err := c.reach(); err != nil {
		return nil, err
	}
	if time.Since(c.start) < c.released {
		return nil, nil
	}
	return []api.Release{{Epoch: 8, Commit: "other", Kind: manifest.ReleaseCommit}, {Epoch: 7, Commit: "c0ffee", Kind: manifest.ReleaseCommit}}, nil
}

func (c *fakeCollector) Release(_ context.Context, epoch uint64) (*api.Release, error) {
	if epoch != 7 || time.Since(c.start) < c.released {
		return nil, fmt.Errorf("no release %d: %w", epoch, api.ErrNotFound)
	}
	return &api.Release{Epoch: 7, Created: c.created, Cohorts: map[string]api.ReleaseCohort{"prod": {Epoch: 7}}}, nil
}

func (c *fakeCollector) Status(context.Context) (*api.Status, error) {
	return &api.Status{Cohorts: map[string]api.Cohort{"prod": {Target: c.target, Phase: manifest.PhaseDone}, "next": {}}}, nil
}

func (c *fakeCollector) Wait(ctx context.Context, epoch uint64, q api.WaitQuery) (*api.Wait, error) {
	if err := c.reach(); err != nil {
		return nil, err
	}
	if epoch != 7 || time.Since(c.start) < c.released {
		return nil, fmt.Errorf("no release %d: %w", epoch, api.ErrNotFound)
	}
	if q.Cohort != "" && q.Cohort != "prod" {
		return nil, cli.Fail(cli.No, "it has prod", "release 7 has no cohort %q: %w", q.Cohort, api.ErrNoCohort)
	}
	deadline := time.Now().Add(q.Wait)
	for {
		var now *step
		for i := range c.steps {
			if time.Since(c.start) >= c.steps[i].at {
				now = &c.steps[i]
				now.wait.Version, now.wait.Epoch = uint64(i+1), 7
			}
		}
		if now.wait.Version > q.After || !time.Now().Before(deadline) {
			w := now.wait
			return &w, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		if err := c.reach(); err != nil {
			return nil, err
		}
		c.asked--
	}
}

func waiting(hosts ...string) (list []verdict.Waiting) {
	for _, h := range hosts {
		list = append(list, verdict.Waiting{Host: h, Verdict: verdict.Applying, Why: "swapping"})
	}
	return list
}

func TestWait(t *testing.T) {
	bubble := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when synctest's clock starts
	green := api.Wait{Green: true, Confirmed: 3}
	notGreen := api.Wait{Confirmed: 2, Waiting: waiting("web-3"), Why: "1 host waits", Cohorts: map[string]verdict.Green{"prod": {Waiting: waiting("web-3")}}}
	for _, tt := range []struct {
		name    string
		c       fakeCollector
		w       waiter
		code    int
		took    time.Duration
		asked   int // at most; 0: any
		err     string
		printed []string
	}{
		{"green at once", fakeCollector{steps: []step{{0, green}}}, waiter{epoch: 7, timeout: time.Minute}, cli.OK, 0, 1, "", []string{"epoch 7 is confirmed by 3 hosts\n"}},
		{
			"green later", fakeCollector{target: 7, steps: []step{{0, notGreen}, {30 * time.Second, green}}}, waiter{epoch: 7, timeout: time.Minute}, cli.OK, 30 * time.Second, 4,
			"", []string{"epoch 7: 2 confirmed, 1 waiting (web-3 applying)\n", "confirmed by 3 hosts\n"},
		},
		{
			"time is over", fakeCollector{target: 7, steps: []step{{0, notGreen}}}, waiter{epoch: 7, timeout: time.Minute}, cli.No, time.Minute, 5,
			"epoch 7 is not confirmed: 2 confirmed, 1 waiting", []string{"web-3  prod  applying  swapping\n"},
		},
		{"looks once", fakeCollector{target: 7, steps: []step{{0, notGreen}, {time.Second, green}}}, waiter{epoch: 7}, cli.No, 0, 1, "epoch 7 is not confirmed", nil},
		{
			"never", fakeCollector{steps: []step{{0, api.Wait{Never: true, Why: "prod has no expected host"}}}}, waiter{epoch: 7, timeout: time.Minute}, cli.No, 0, 1,
			"prod has no expected host", nil,
		},
		{
			"not released in time", fakeCollector{released: time.Hour, steps: []step{{0, green}}}, waiter{commit: "c0ffee", timeout: 10 * time.Second}, cli.No, 10 * time.Second, 12,
			"commit c0ffee is not released yet", []string{"commit c0ffee is not released yet"},
		},
		{"released later", fakeCollector{released: 5 * time.Second, steps: []step{{0, green}}}, waiter{commit: "c0ffee", timeout: 10 * time.Second}, cli.OK, 5 * time.Second, 0, "", nil},
		{"epoch released later", fakeCollector{released: 5 * time.Second, steps: []step{{0, green}}}, waiter{epoch: 7, timeout: 10 * time.Second}, cli.OK, 5 * time.Second, 0, "", nil},
		{"no such cohort", fakeCollector{steps: []step{{0, green}}}, waiter{epoch: 7, cohort: "prd", timeout: time.Minute}, cli.Usage, 0, 1, `no cohort "prd"`, nil},
		{"a cohort that is not in this release", fakeCollector{steps: []step{{0, green}}}, waiter{epoch: 7, cohort: "next", timeout: time.Minute}, cli.No, 0, 1, `release 7 has no cohort "next"`, nil},
		{
			"released and not assigned", fakeCollector{target: 6, steps: []step{{0, notGreen}}}, waiter{epoch: 7, timeout: time.Minute}, cli.No, 0, 1,
			"epoch 7 is released and not assigned: prod", []string{"web-3  prod  applying  swapping\n"},
		},
		{
			"released just now, assigned a moment later", fakeCollector{steps: []step{{0, notGreen}, {3 * time.Second, green}}, target: 6, created: bubble},
			waiter{epoch: 7, timeout: time.Minute}, cli.OK, 3 * time.Second, 0, "", nil,
		},
		{
			"what no host says", fakeCollector{steps: []step{{0, api.Wait{Never: true, Waiting: waiting("web-3"), Cohorts: map[string]verdict.Green{"prod": {Never: true, Waiting: waiting("web-3"), Why: "cohort prod is halted"}}}}}, target: 7},
			waiter{epoch: 7, timeout: time.Minute}, cli.No, 0, 1, "epoch 7 is not confirmed: 0 confirmed, 1 waiting", []string{"  prod: cohort prod is halted\n"},
		},
		{
			"refused", fakeCollector{released: time.Hour, steps: []step{{0, green}}}, waiter{commit: "c0ffee", timeout: time.Minute, refused: func(_ context.Context, commit string) string { return commit + " is bad" }},
			cli.No, 0, 1, "commit c0ffee was refused: c0ffee is bad", nil,
		},
		{
			"not refused", fakeCollector{released: 5 * time.Second, steps: []step{{0, green}}}, waiter{commit: "c0ffee", timeout: time.Minute, refused: func(context.Context, string) string { return "" }},
			cli.OK, 5 * time.Second, 0, "", nil,
		},
		{"no such cohort yet", fakeCollector{released: 5 * time.Second, steps: []step{{0, green}}}, waiter{epoch: 7, cohort: "prod", timeout: 10 * time.Second}, cli.OK, 5 * time.Second, 0, "", nil},
		{"no such epoch", fakeCollector{steps: []step{{0, green}}}, waiter{epoch: 9}, cli.No, 0, 1, "epoch 9 is not released yet", nil},
		{"not reachable at first", fakeCollector{down: [2]time.Duration{0, time.Hour}}, waiter{epoch: 7, timeout: time.Minute}, cli.Unreachable, 0, 1, "not reachable", nil},
		{
			"a restart of the collector", fakeCollector{target: 7, down: [2]time.Duration{10 * time.Second, 20 * time.Second}, steps: []step{{0, notGreen}, {5 * time.Second, notGreen}, {15 * time.Second, green}}},
			waiter{epoch: 7, timeout: time.Minute}, cli.OK, 20 * time.Second, 0, "", nil,
		},
		{
			"gone until the end", fakeCollector{target: 7, down: [2]time.Duration{10 * time.Second, time.Hour}, steps: []step{{0, notGreen}, {5 * time.Second, notGreen}}},
			waiter{epoch: 7, timeout: time.Minute}, cli.Unreachable, time.Minute, 0, "the collector does not answer", nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				tt.c.start = time.Now()
				tt.w.ask, tt.w.every, tt.w.progress, tt.w.out = &tt.c, time.Second, plain(&out), &out
				_, err := tt.w.run(t.Context())
				if code := cli.CodeOf(err); code != tt.code {
					t.Errorf("exit code %d (%v), want %d\n%s", code, err, tt.code, out.String())
				}
				if took := time.Since(tt.c.start); took < tt.took || took > tt.took+2*time.Second {
					t.Errorf("took %s, want %s\n%s", took, tt.took, out.String())
				}
				if tt.asked > 0 && tt.c.asked > tt.asked {
					t.Errorf("asked %d times, want at most %d", tt.c.asked, tt.asked)
				}
				if tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
					t.Errorf("error %v, want %q in it", err, tt.err)
				}
				for _, want := range tt.printed {
					if !strings.Contains(out.String(), want) {
						t.Errorf("printed\n%swant %q in it", out.String(), want)
					}
				}
			})
		})
	}
}

func TestWaitInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		c := &fakeCollector{start: time.Now(), steps: []step{{0, api.Wait{}}}}
		w := waiter{epoch: 7, timeout: time.Hour, every: time.Second, ask: c, progress: plain(io.Discard), out: io.Discard}
		if _, err := w.run(ctx); err == nil || !errors.Is(err, ctx.Err()) {
			t.Errorf("got %v, want %v", err, ctx.Err())
		}
	})
}
