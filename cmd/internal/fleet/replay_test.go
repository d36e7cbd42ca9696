package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/collector"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

// lab is a world in a bubble of time of its own: a store in memory, the real collector and the real controller, and a fleet that speaks to them without a network.
type lab struct {
	*world
	c     *collector.Collector
	hosts []*Host // of all cohorts
}

// staged is a policy of three waves, whose gate looks at what hosts report of their processes.
func staged() manifest.RolloutPolicy {
	p := standard()
	most := 0.05
	p.Waves = []manifest.Wave{{Count: 2, Bake: "2m"}, {Percent: 25, Bake: "2m"}, {Percent: 100, Bake: "2m"}}
	p.Gates = map[string]manifest.Gate{"probes": {Reported: "probe_failures", Max: &most, Every: "30s", Fails: 2, NoData: "wait"}}
	p.MaxInFlight, p.Watch = "10%", "30m"
	return p
}

const labHosts = 12

// newLab starts everything, with what configuration does to the hosts, and has all of them run the first release.
func newLab(t *testing.T, first map[string]string, effect func(files []bundle.File) Harm, cohorts ...string) *lab {
	t.Helper()
	return newLabIn(t, mem.New(), first, effect, cohorts...)
}

func newLabIn(t *testing.T, s store.Store, first map[string]string, effect func(files []bundle.File) Harm, cohorts ...string) *lab {
	t.Helper()
	l := &lab{world: newWorld(t, s, staged(), names(labHosts))}
	l.step = time.Second
	for i, name := range cohorts {
		l.cohort(name, nil)
		co := l.policy.Cohorts[name]
		co.Order = 200 + 100*i
		for _, host := range names(labHosts) {
			co.Hosts.List = append(co.Hosts.List, name+"-"+host)
		}
		l.policy.Cohorts[name] = co
	}
	var err error
	l.c, err = collector.New(collector.Config{Poll: time.Second}, collector.Deps{Store: l.store, Keyring: l.keyring, Now: func() time.Time { return time.Now().UTC() }})
	l.check(err)
	keeper, err := gate.NewKeeper(gate.Config{})
	l.check(err)
	controller := &rollout.Controller{Store: l.store, Signer: l.rollout, Seen: l.c, Gates: keeper, By: "test"}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 3)
	go func() { done <- l.c.Run(ctx) }()
	go func() { done <- keeper.Run(ctx) }()
	go func() { done <- controller.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 3 {
			l.check(<-done)
		}
		l.check(l.c.Close())
	})
	l.put(first)
	for name, co := range l.policy.Cohorts {
		f := l.world.fleet(Options{
			Hosts: co.Hosts.List, Cohort: name, Poll: 20 * time.Second, Latency: 2 * time.Millisecond, Ramp: 10 * time.Second,
			Link: func(string) ([]agent.Carrier, agent.Reporter, error) {
				return []agent.Carrier{agent.StoreCarrier{Store: l.store}}, l.c, nil
			},
			Effect: func(_ string, _ uint64, files []bundle.File) Harm { return effect(files) },
		})
		l.hosts = append(l.hosts, f.Hosts()...)
	}
	l.until("all run the first release", 5*time.Minute, func() bool { return l.at(1) == len(l.hosts) })
	return l
}

func (l *lab) put(files map[string]string) uint64 {
	l.t.Helper()
	res, err := l.publish(files, distributor.PublishOptions{})
	l.check(err)
	return res.Epoch
}

// at counts the hosts that run an epoch and confirm it.
func (l *lab) at(epoch uint64) int {
	n := 0
	for _, h := range l.hosts {
		if s := h.Status(); s.Running == epoch && s.Confirmed {
			n++
		}
	}
	return n
}

// had are the hosts that an epoch ever lay on.
func (l *lab) had(epoch uint64) (list []*Host) {
	for _, h := range l.hosts {
		moves, _ := h.Moves()
		for _, m := range moves {
			if m.Epoch == epoch {
				list = append(list, h)
				break
			}
		}
	}
	return list
}

// stopped waits until the cohort is halted and everybody runs the first release again, as it says itself.
func (l *lab) stopped(limit time.Duration) manifest.Rollout {
	l.t.Helper()
	l.until("it is halted, and all run epoch 1", limit, func() bool {
		return l.head("prod").Manifest.Rollout.Phase == manifest.PhaseHalted && l.at(1) == len(l.hosts)
	})
	r := l.head("prod").Manifest.Rollout
	l.t.Logf("halted: %s", r.Why)
	return r
}

// stays checks for a while that no host takes what was stopped.
func (l *lab) stays(epoch uint64) {
	l.t.Helper()
	before := len(l.had(epoch))
	time.Sleep(10 * time.Minute)
	if n := len(l.had(epoch)); n != before || l.at(1) != len(l.hosts) {
		l.t.Errorf("ten minutes later %d hosts had epoch %d, %d before; %d run epoch 1", n, epoch, before, l.at(1))
	}
}

// rows is a generated file: a list that programs read into a table of a fixed size.
func rows(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "feature-%04d: %d\n", i, i*7)
	}
	return b.String()
}

// A generated file doubles in size. Every schema takes it, and the program that loads it has room for 200 rows: it dies. The first host takes itself back, and nobody outside the first wave ever has it.
func TestReplayGeneratedFileDoubles(t *testing.T) {
	tooLarge := func(files []bundle.File) Harm {
		for _, f := range files {
			if bytes.Count(f.Data, []byte("\n")) > 200 {
				return Harm{Ill: true}
			}
		}
		return Harm{}
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, map[string]string{service + "/features.yaml": rows(120)}, tooLarge)
		twice := l.put(map[string]string{service + "/features.yaml": rows(120) + rows(120)})
		l.stopped(10 * time.Minute)
		if had := l.had(twice); len(had) < 1 || len(had) > 2 {
			t.Errorf("%d hosts had it; the first wave is 2", len(had))
		}
		l.stays(twice)
	})
	// The same, where the table is filled a while after the file was loaded: no host can see that at once, the gate does.
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, map[string]string{service + "/features.yaml": rows(120)}, func(files []bundle.File) Harm {
			h := tooLarge(files)
			h.After = time.Minute
			return h
		})
		twice := l.put(map[string]string{service + "/features.yaml": rows(120) + rows(120)})
		r := l.stopped(15 * time.Minute)
		if had := l.had(twice); len(had) != 2 || !strings.Contains(r.Why, "gate probes") {
			t.Errorf("%d hosts had it, %s", len(had), r.Why)
		}
		l.stays(twice)
	})
}

// A policy with blank fields is replicated to every region within seconds, and programs die of it. Here regions come one after the other: two hosts of the first have it, and no other region ever does.
func TestReplayBlankFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, map[string]string{setting: "quota: 100\nproject: shop\n"}, func(files []bundle.File) Harm {
			for _, f := range files {
				if strings.Contains(string(f.Data), "quota: \n") {
					return Harm{Ill: true, After: 20 * time.Second} // when it is first used
				}
			}
			return Harm{}
		}, "asia", "us")
		blank := l.put(map[string]string{setting: "quota: \nproject: \n"})
		l.stopped(15 * time.Minute)
		for _, h := range l.had(blank) {
			if strings.Contains(h.Name, "asia") || strings.Contains(h.Name, "us") {
				t.Errorf("%s, of another region, had it", h.Name)
			}
		}
		if n := len(l.had(blank)); n != 2 {
			t.Errorf("%d hosts had it", n)
		}
		l.stays(blank)
		// A release with nothing in it at all is no configuration: hosts keep what they have.
		if _, err := l.publish(map[string]string{}, distributor.PublishOptions{}); err == nil {
			time.Sleep(5 * time.Minute)
			if n := l.at(1); n != len(l.hosts) {
				t.Errorf("%d hosts keep their files when a release has none", n)
			}
		}
	})
}

// A release passes every gate and does harm later, on all hosts. While it is watched, they all come back, few at a time.
func TestReplayFailureAfterTheGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, map[string]string{setting: "cache_days: 30\n"}, func(files []bundle.File) Harm {
			if strings.Contains(string(files[0].Data), "cache_days: 3\n") {
				return Harm{Ill: true, After: 20 * time.Minute}
			}
			return Harm{}
		})
		late := l.put(map[string]string{setting: "cache_days: 3\n"})
		l.until("it went through all waves", 20*time.Minute, func() bool {
			r := l.head("prod").Manifest.Rollout
			return r.Phase == manifest.PhaseDone && r.Target == late
		})
		if r := l.head("prod").Manifest.Rollout; r.Fallback != 1 || l.at(late) < labHosts*9/10 {
			t.Errorf("it is not watched: %+v; %d hosts run it", r, l.at(late))
		}
		began := time.Now()
		r := l.stopped(time.Hour)
		t.Logf("all back %s after it was done", time.Since(began).Round(time.Second))
		if len(l.had(late)) != labHosts || len(r.Halts) != 1 || r.Halts[0].Epoch != late {
			t.Errorf("%d hosts had it; %+v", len(l.had(late)), r.Halts)
		}
		l.stays(late)
	})
}

// The last known good is not overwritten by what is tried: hosts of a bad canary come back from their own disk, although the store has lost the release that they come back to.
func TestReplayLastKnownGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := &losing{Store: mem.New(), gone: map[string]bool{}}
		l := newLabIn(t, lost, map[string]string{setting: "routes: 12\n"}, func(files []bundle.File) Harm {
			if strings.Contains(string(files[0].Data), "routes: 0\n") {
				return Harm{Ill: true, After: 30 * time.Second}
			}
			return Harm{}
		})
		good := l.head("prod").Statements[0].Bundle.Object
		bad := l.put(map[string]string{setting: "routes: 0\n"})
		l.until("the canary confirms it", 10*time.Minute, func() bool { return l.at(bad) == 2 })
		lost.lose(manifest.KeyBundle(good))
		l.stopped(15 * time.Minute)
		if n := len(l.had(bad)); n != 2 {
			t.Errorf("%d hosts had it", n)
		}
		if lost.asked() > 0 {
			t.Errorf("the lost bundle was asked for %d times: it lies on every host", lost.asked())
		}
	})
}

// There is no path around the stages. What is halted is not released at once either; who can write to the bucket, or holds the release key, moves no host.
func TestReplayGlobalPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, map[string]string{setting: "rules: 10\n"}, func(files []bundle.File) Harm {
			if strings.Contains(string(files[0].Data), "rules: many\n") {
				return Harm{Refused: errors.New("exit status 1")}
			}
			return Harm{}
		})
		bad := l.put(map[string]string{setting: "rules: many\n"})
		l.stopped(10 * time.Minute)

		// The same once more, now for everybody at once.
		again, err := l.publish(map[string]string{setting: "rules: many\n# again\n"}, distributor.PublishOptions{RolloutNow: true})
		l.check(err)
		if !slices.Equal(again.Waiting, []string{"prod"}) || len(again.Assigned) > 0 || !strings.Contains(fmt.Sprint(again.Warnings), "halted") {
			t.Errorf("a release for all at once, while the cohort is halted: %+v", again)
		}
		time.Sleep(5 * time.Minute)
		for _, epoch := range []uint64{bad, again.Epoch} {
			if n := len(l.had(epoch)); n > 0 {
				t.Errorf("%d hosts have epoch %d", n, epoch)
			}
		}

		// Who writes to the bucket puts a head there that sends everybody to the bad release: unsigned, signed by themselves, or by the release key.
		view := l.head("prod")
		honest, err := l.store.Get(t.Context(), manifest.KeyHead("prod"), manifest.MaxHeadBytes)
		l.check(err)
		m := view.Manifest
		m.Serial += 10
		m.Assign = []manifest.Assignment{{Epoch: bad, Why: "baseline"}}
		for name, by := range map[string]manifest.Signer{"their own key": keys.FromSeed(9), "the release key": keys.FromSeed(2)} {
			env, err := manifest.Seal(manifest.KindManifest, m, by)
			l.check(err)
			data, err := wire.Encode(manifest.Head{Manifest: *env, Overrides: []manifest.Envelope{}})
			l.check(err)
			l.overwrite(manifest.KeyHead("prod"), data)
			time.Sleep(5 * time.Minute)
			if n := len(l.had(bad)); n > 0 {
				t.Errorf("%s moved %d hosts", name, n)
			}
			if n := l.at(1); n != labHosts {
				t.Errorf("with a head of %s in the bucket %d hosts run what they ran", name, n)
			}
			l.overwrite(manifest.KeyHead("prod"), honest.Data)
		}
		l.until("the collector says who is right", 30*time.Minute, func() bool {
			hosts, err := l.c.Hosts(t.Context(), "prod", string(verdict.Confirmed))
			return err == nil && len(hosts) == labHosts
		})
	})
}

// overwrite is what somebody does who can write to the bucket.
func (l *lab) overwrite(key string, data []byte) {
	l.t.Helper()
	old, err := l.store.Get(context.Background(), key, manifest.MaxHeadBytes)
	l.check(err)
	_, err = l.store.Replace(context.Background(), key, data, old.Token)
	l.check(err)
}

// losing is a store that has lost objects.
type losing struct {
	store.Store

	mu   sync.Mutex
	gone map[string]bool
	n    int
}

func (s *losing) lose(key string) { s.mu.Lock(); defer s.mu.Unlock(); s.gone[key] = true }

// asked is how often somebody asked for what is lost.
func (s *losing) asked() int { s.mu.Lock(); defer s.mu.Unlock(); return s.n }

func (s *losing) Open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	s.mu.Lock()
	gone := s.gone[key]
	if gone {
		s.n++
	}
	s.mu.Unlock()
	if gone {
		return nil, 0, fmt.Errorf("%s: %w", key, store.ErrNotFound)
	}
	return s.Store.Open(ctx, key)
}
