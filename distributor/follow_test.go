package distributor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/store/storetest"
)

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h history
		m := mem.New()
		f := &faulty{}
		p := newPlace(t, &storetest.Faults{Store: m, Hook: f.hook})
		began := time.Now()
		clock := func() time.Time { return start.Add(time.Since(began)) }
		pub, err := distributor.NewPublisher(distributor.Config{Store: p.store, Repo: repoName, Release: releaseKey, Rollout: rolloutKey, Keyring: keyring(t, repoName), Now: clock})
		if err != nil {
			t.Fatal(err)
		}
		good := h.commit("", "prod/checkout=a")
		bad := h.commit(good, "prod/checkout=b")
		fixed := h.commit(bad, "prod/checkout=c")

		var mu sync.Mutex
		tip := good
		move := func(to string) {
			mu.Lock()
			defer mu.Unlock()
			tip = to
		}
		opened := map[string]int{}
		var told, troubles []string
		var log bytes.Buffer
		follower := &distributor.Follower{
			Publisher: pub, Every: time.Second, Options: distributor.PublishOptions{RolloutNow: true},
			Log: slog.New(slog.NewTextHandler(&log, nil)),
			Tip: func(context.Context) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				return tip, nil
			},
			Open: func(_ context.Context, commit string) (*distributor.Job, error) {
				opened[commit]++
				job := h.job(commit)
				if commit == bad {
					job.Build = func(context.Context, distributor.BuildInput) (*distributor.Build, error) {
						return nil, fmt.Errorf("%w: unknown field", distributor.ErrRefused)
					}
				}
				return job, nil
			},
			Trouble: func(err error) { troubles = append(troubles, fmt.Sprint(err != nil)) },
			Done: func(commit string, res *distributor.Result, err error) {
				told = append(told, fmt.Sprint(commit == good, commit == bad, commit == fixed, res != nil, errors.Is(err, distributor.ErrRefused)))
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- follower.Run(ctx) }()
		settle := func() {
			time.Sleep(time.Minute) // of the bubble's clock
			synctest.Wait()
		}
		settle()
		before, _ := newPlace(t, m).head("prod")
		time.Sleep(20 * time.Hour) // a quiet day: heads are signed anew before they are stale
		synctest.Wait()
		after, _ := newPlace(t, m).head("prod")
		if after.Manifest.Serial <= before.Manifest.Serial || after.Manifest.FreshUntil.Sub(clock()) < manifest.MaxFreshFor/2 {
			t.Errorf("20h later the head is %s, fresh for %s more", after.Mark(), after.Manifest.FreshUntil.Sub(clock()))
		}
		opened[bad], opened[good] = 0, 0
		move(bad)
		settle()
		// The store is away for some calls: the commit is published when it is back.
		f.mu.Lock()
		f.at, f.down = f.calls+1, 3
		f.mu.Unlock()
		move(fixed)
		settle()
		// Back to an older one: never on top.
		move(good)
		settle()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		p.now = clock()
		want := []string{
			"true false false true false",
			"false true false false true",
			"false false true true false",
			"true false false false false",
		}
		if strings.Join(told, "\n") != strings.Join(want, "\n") {
			t.Errorf("told %q", told)
		}
		if opened[bad] != 1 {
			t.Errorf("the refused commit was tried %d times", opened[bad])
		}
		if n := strings.Count(log.String(), "is not published"); n != 2 {
			t.Errorf("%d log lines on commits not published:\n%s", n, &log)
		}
		if got := strings.Join(troubles, " "); got != "true false" {
			t.Errorf("told of trouble: %s", got)
		}
		if n := strings.Count(log.String(), "tried again"); n != 1 {
			t.Errorf("%d log lines on the store being away:\n%s", n, &log)
		}
		if strings.Contains(dump(t, m)[manifest.KeyCommit(bad)], "epoch") {
			t.Error("the refused commit has an epoch in the index")
		}
		if _, epoch := newPlace(t, m).head("prod"); epoch != 2 {
			t.Errorf("prod runs %d", epoch)
		}
		p.fsck(m)
	})
}

// The forge is away for a day, and the branch is gone for another: following never stops, says each once, and asks ever less often.
func TestFollowThroughTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h history
		p := newPlace(t, nil)
		first := h.commit("", "prod/checkout=a")
		second := h.commit(first, "prod/checkout=b")
		away, gone := errors.New("dial tcp 10.0.0.1:443: connection refused"), errors.New("branch gone")
		var mu sync.Mutex
		tip, tipErr, asked := first, error(nil), 0
		set := func(commit string, err error) {
			mu.Lock()
			defer mu.Unlock()
			tip, tipErr, asked = commit, err, 0
		}
		var told []string
		follower := &distributor.Follower{
			Publisher: p.pub, Every: 10 * time.Second,
			Tip: func(context.Context) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				asked++
				if errors.Is(tipErr, away) {
					return "", fmt.Errorf("dial tcp 10.0.0.1:443->%d: connection refused", 40000+asked)
				}
				return tip, tipErr
			},
			Open:    func(_ context.Context, commit string) (*distributor.Job, error) { return h.job(commit), nil },
			Done:    func(_ string, res *distributor.Result, err error) { told = append(told, fmt.Sprint(res.Epoch, err)) },
			Trouble: func(err error) { told = append(told, fmt.Sprint("trouble ", err != nil)) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- follower.Run(ctx) }()
		later := func(d time.Duration) {
			time.Sleep(d) // of the bubble's clock
			synctest.Wait()
		}
		later(time.Minute)
		set("", away)
		later(24 * time.Hour)
		if asked < 200 || asked > 400 {
			t.Errorf("asked %d times in a day", asked)
		}
		set("", gone)
		later(24 * time.Hour)
		set(first, nil)
		later(10 * time.Minute)
		set(second, nil)
		later(time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if got := strings.Join(told, ", "); got != "1 <nil>, trouble true, trouble true, trouble false, 2 <nil>" {
			t.Errorf("told %s", got)
		}
	})
}

// Ended in the middle of the commit point, a publisher finds out whether it published.
func TestCancelledAtTheCommitPoint(t *testing.T) {
	for _, landed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var h history
			m := mem.New()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := newPlace(t, cutting{m, cancel, landed})
			job := h.job(h.commit("", "prod/checkout=a"))
			res, err := p.pub.Publish(ctx, job.Commit, job.Contains, job.Build, distributor.PublishOptions{Settings: settings})
			if errors.Is(err, distributor.ErrMaybePublished) == landed {
				t.Errorf("landed %t: %v", landed, err)
			}
			if landed != (res != nil && res.Epoch == 1 && !res.Already) {
				t.Errorf("landed %t: result %+v", landed, res)
			}
			if n := len(keysUnder(dump(t, m), "releases/")); (n == 1) != landed {
				t.Errorf("landed %t: %d releases", landed, n)
			}
		})
	}
}

// cutting ends the context while the release is written.
type cutting struct {
	*mem.Store
	cancel context.CancelFunc
	landed bool
}

func (c cutting) Create(ctx context.Context, key string, data []byte) (store.Token, error) {
	if !strings.HasPrefix(key, manifest.PrefixReleases) {
		return c.Store.Create(ctx, key, data)
	}
	if c.landed {
		if _, err := c.Store.Create(ctx, key, data); err != nil {
			return "", err
		}
	}
	c.cancel()
	return "", context.Canceled
}
