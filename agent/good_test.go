package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/distributor/manifest"
)

// canary makes an order under which epoch is tried while base is what the cohort is known to run well with.
func canary(base uint64) func(*manifest.Manifest) {
	return func(m *manifest.Manifest) {
		m.Rollout.Baseline, m.Rollout.Phase, m.Rollout.Wave = base, manifest.PhaseBaking, 1
		if m.Rollout.Target != base {
			m.Assign = append(m.Assign, manifest.Assignment{Epoch: base, Why: "baseline"})
			m.Assign[0] = manifest.Assignment{Below: "ffffffffffffffff", Salt: "x", Epoch: m.Rollout.Target, Why: "wave 1 of 2"}
		}
	}
}

// goodDir is what the state calls the last known good.
func goodDir(t *testing.T, r *rig) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(r.root, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), `"good":"`)
	dir, _, _ := strings.Cut(rest, `"`)
	return filepath.Base(dir)
}

// TestLastKnownGood: a canary that confirms, and another one after it, do not take the place of the last known good. It stays on the disk, so that the way back needs no store, and
// it takes its place only when the rollout is done.
func TestLastKnownGood(t *testing.T) {
	r := newRig(t, "checkout")
	for _, text := range []string{"1", "2", "3"} {
		r.world.Release(files{"checkout/checkout.yaml": text})
	}
	r.world.Assign(1)
	r.confirmed(1)
	first := goodDir(t, r)
	if !strings.HasPrefix(first, "1-") {
		t.Fatalf("last known good is %q", first)
	}
	for _, epoch := range []uint64{2, 3} {
		r.world.Assign(epoch, canary(1))
		r.confirmed(epoch)
		if got := goodDir(t, r); got != first {
			t.Errorf("with canary %d the last known good is %q", epoch, got)
		}
	}
	// Both were bad, and the store has lost its bundles: nothing can be fetched any more.
	if err := os.RemoveAll(filepath.Join(r.store, "bundles")); err != nil {
		t.Fatal(err)
	}
	r.world.Assign(1, func(m *manifest.Manifest) {
		m.Rollout.Target, m.Rollout.Phase = 3, manifest.PhaseRollingBack
	})
	r.confirmed(1)

	r.world.Release(files{"checkout/checkout.yaml": "4"})
	r.world.Assign(4, canary(1))
	r.confirmed(4)
	r.world.Assign(4)
	r.confirmed(4)
	if got := goodDir(t, r); !strings.HasPrefix(got, "4-") {
		t.Errorf("once 4 is rolled out the last known good is %q", got)
	}
}

// TestBackToLastKnownGood: where a release fails that came after an unproven one, the host goes back to the last known good, reloads what differs, and tells the files.
func TestBackToLastKnownGood(t *testing.T) {
	r := newRig(t, "checkout", "search")
	r.world.Release(files{"checkout/checkout.yaml": "1", "search/search.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "1", "search/search.yaml": "2", "search/more.yaml": "2"})
	r.world.Release(files{"checkout/checkout.yaml": "3", "search/search.yaml": "2", "search/more.yaml": "2"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Assign(2, canary(1))
	r.confirmed(2)
	r.world.Assign(3, canary(1))
	r.edit("checkout", func(c *agent.ServiceConfig) {
		c.Reload = []string{"/bin/sh", "-c", `[ "$MUSTER_EPOCH" != 3 ] || exit 1; ` + r.procs["checkout"].Hook[2]}
	})
	res, err := r.once()
	if err == nil || res.Running != 1 || res.Desired != 3 {
		t.Fatalf("%+v, %v; want it back at 1", res, err)
	}
	r.sound(1)
	if got := r.read("search/search.yaml"); got != "1" {
		t.Errorf("search.yaml is %q", got)
	}
	reloads := r.procs["search"].Reloads()
	if last := reloads[len(reloads)-1]; last != "search 1 a= c=search.yaml r=more.yaml" {
		t.Errorf("search was last told %q", last)
	}
	// What is left of the last known good is enough to go back; without it the host goes to what ran before.
	r = newRig(t, "checkout")
	for _, text := range []string{"1", "2", "3"} {
		r.world.Release(files{"checkout/checkout.yaml": text})
	}
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Assign(2, canary(1))
	r.confirmed(2)
	if err := os.RemoveAll(filepath.Join(r.root, "releases", goodDir(t, r))); err != nil {
		t.Fatal(err)
	}
	r.world.Assign(3, canary(1))
	r.edit("checkout", func(c *agent.ServiceConfig) {
		c.Reload = []string{"/bin/sh", "-c", `[ "$MUSTER_EPOCH" != 3 ] || exit 1; ` + r.procs["checkout"].Hook[2]}
	})
	if res, err = r.once(); err == nil || res.Running != 2 {
		t.Fatalf("%+v, %v; want it back at 2", res, err)
	}
	r.sound(2)
}

// A host that has not come to know that the rollout of the baseline is done goes back to the baseline all the same, and not to what was before: that would be a third release in the cohort.
func TestBackToBaseline(t *testing.T) {
	for name, watched := range map[string]bool{"rolled out": false, "watched": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			for _, text := range []string{"1", "2", "3"} {
				r.world.Release(files{"checkout/checkout.yaml": text})
			}
			r.world.Assign(1)
			r.confirmed(1)
			r.world.Assign(2, canary(1)) // it never hears that this one is done
			r.confirmed(2)
			if got := goodDir(t, r); !strings.HasPrefix(got, "1-") {
				t.Fatalf("the last known good is %q", got)
			}
			r.world.Assign(3, canary(2), func(m *manifest.Manifest) {
				if watched {
					m.Rollout.Baseline, m.Rollout.Fallback, m.Rollout.Phase = 3, 2, manifest.PhaseDone
				}
			})
			r.edit("checkout", func(c *agent.ServiceConfig) {
				c.Reload = []string{"/bin/sh", "-c", `[ "$MUSTER_EPOCH" != 3 ] || exit 1; ` + r.procs["checkout"].Hook[2]}
			})
			res, err := r.once()
			if err == nil || res.Running != 2 || res.Desired != 3 {
				t.Fatalf("%+v, %v; want it back at 2", res, err)
			}
			r.sound(2)
		})
	}
}
