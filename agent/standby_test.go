package agent_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// at is a start of the agent by a host's clocks.
func (r *rig) at(c *clocks) *agent.Agent {
	r.t.Helper()
	r.prober = c
	a := r.agent()
	agent.SetNow(a, c.now)
	return a
}

// overridden does one full sync and demands that the override acts.
func (r *rig) overridden(c *clocks) *agent.Agent {
	r.t.Helper()
	a := r.at(c)
	if res, err := a.Once(r.t.Context(), false); err != nil || res.Override != "inc-311" || !res.Confirmed {
		r.t.Fatalf("not taken: %+v, %v", res, err)
	}
	return a
}

// cut takes every source away.
func (r *rig) cut() {
	gone := cutOff(r.carriers[0])
	gone.object = func(string) (io.ReadCloser, int64, error) { return nil, 0, store.ErrUnreachable }
	r.carriers = []agent.Carrier{gone}
}

// back demands that a cut-off host leaves the override for a release.
func (r *rig) back(c *clocks, epoch uint64) {
	r.t.Helper()
	if res, _ := r.at(c).Once(r.t.Context(), false); res.Override != "" || res.Running != epoch || !res.Confirmed {
		r.t.Fatalf("after the end: %+v", res)
	}
}

// D005: a host that never had the plain release leaves the override at its end without any source, also after starts of the agent.
func TestD005StandsBy(t *testing.T) {
	r := newRig(t, "checkout")
	c := newClocks(time.Now())
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, c.now().Add(time.Hour))
	r.overridden(c)
	r.overridden(c)
	r.cut()
	r.overriddenCutOff(c)
	c.pass(time.Hour)
	r.back(c, 1)
	r.sound(1)
}

// overriddenCutOff is overridden for a host that reaches nobody.
func (r *rig) overriddenCutOff(c *clocks) {
	r.t.Helper()
	if res, _ := r.at(c).Once(r.t.Context(), false); res.Override != "inc-311" {
		r.t.Fatalf("%+v", res)
	}
}

// Each new head brings what stands by anew. The disk does not fill.
func TestD005StandsByForEachHead(t *testing.T) {
	r := newRig(t, "checkout")
	c := newClocks(time.Now())
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	end := c.now().Add(time.Hour)
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, end)
	r.overridden(c)
	var plain uint64
	for range 5 {
		plain = r.world.Release(files{"checkout/checkout.yaml": "2", "checkout/more.yaml": strings.Repeat("x", int(plain))}).Epoch
		r.world.Override(plain, files{"checkout/checkout.yaml": "emergency", "checkout/more.yaml": strings.Repeat("x", int(plain))}, end, canary(1))
		r.overridden(c)
		if n := len(r.names("releases")); n > 5 {
			t.Fatalf("%d releases are kept: %v", n, r.names("releases"))
		}
	}
	r.cut()
	c.pass(time.Hour)
	r.back(c, plain)
}

// A host that is held at an override by hand goes on to the plain release at its end as well.
func TestStandsByOnAHeldHost(t *testing.T) {
	r := newRig(t, "checkout")
	c := newClocks(time.Now().Truncate(time.Second))
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, c.now().Add(time.Hour))
	from := r.carriers[0]
	r.cut()
	res, err := r.at(c).ApplyOnce(t.Context(), from, agent.HoldOrder{By: "ana", Why: "INC-311", For: 2 * time.Hour})
	if err != nil || res.Override != "inc-311" || res.Held == nil {
		t.Fatalf("%+v, %v", res, err)
	}
	c.pass(time.Hour)
	r.back(c, 1)
}

// What is missing for the end of an override is said, and fetched as soon as it can be.
func TestStandbyIsLacking(t *testing.T) {
	r := newRig(t, "checkout")
	c := newClocks(time.Now())
	key := manifest.KeyBundle(r.world.Release(files{"checkout/checkout.yaml": "1"}).Bundle.Object)
	data, err := os.ReadFile(filepath.Join(r.store, key))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(r.store, key)); err != nil {
		t.Fatal(err)
	}
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, c.now().Add(time.Hour))
	saved := func() []string {
		t.Helper()
		in, content, drift, err := install.Verify(t.Context(), r.root)
		if err != nil {
			t.Fatal(err)
		}
		s, err := agent.SavedStatus(r.cfg.WithDefaults(), r.open, in, content, drift, "", c.now(), c.Now())
		if err != nil {
			t.Fatal(err)
		}
		return s.Warnings
	}
	warns := func(list []string) bool {
		return len(list) == 1 && strings.Contains(list[0], "epoch 1") && strings.Contains(list[0], "not on its disk")
	}
	if got := r.overridden(c).Status().Warnings; !warns(got) {
		t.Errorf("the agent says %q", got)
	}
	if got := saved(); !warns(got) {
		t.Errorf("without an agent: %q", got)
	}
	r.world.Put(key, data)
	if got := r.overridden(c).Status().Warnings; len(got) > 0 {
		t.Errorf("there again, and the agent says %q", got)
	}
	if got := saved(); len(got) > 0 {
		t.Errorf("there again, and without an agent: %q", got)
	}
	// What is changed on the disk is put right while there are sources.
	dir := slices.DeleteFunc(r.names("releases"), func(name string) bool { return !strings.HasPrefix(name, "1-") })
	if len(dir) != 1 {
		t.Fatalf("on the disk: %v", r.names("releases"))
	}
	if err := os.WriteFile(filepath.Join(r.root, "releases", dir[0], "checkout/checkout.yaml"), []byte("by hand"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.overridden(c)
	r.cut()
	c.pass(time.Hour)
	r.back(c, 1)
	r.sound(1)
}

// A running agent looks for it by itself, before the next full re-sync.
func TestStandbyIsFetchedLater(t *testing.T) {
	r := newRig(t, "checkout")
	col := newCollector(t)
	r.reporter = col
	st := r.world.Release(files{"checkout/checkout.yaml": "1"})
	key := manifest.KeyBundle(st.Bundle.Object)
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, time.Now().Add(time.Hour))
	away := make(chan struct{})
	f := &faulty{Carrier: r.carriers[0], name: "store", object: func(k string) (io.ReadCloser, int64, error) {
		select {
		case <-away:
			return nil, 0, nil
		default:
		}
		if k == key {
			return nil, 0, store.ErrUnreachable
		}
		return nil, 0, nil
	}}
	r.carriers = []agent.Carrier{&clockwork{Carrier: f, await: func(ctx context.Context, _ manifest.Mark) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}}
	r.cfg.Poll = 10 * time.Minute
	a := r.agent()
	stop := r.running(a)
	await(t, "the warning", func() bool { return len(a.Status().Warnings) == 1 })
	close(away)
	await(t, "the end of the warning", func() bool { return len(a.Status().Warnings) == 0 })
	stop()
	if !slices.ContainsFunc(r.names("releases"), func(name string) bool { return strings.HasPrefix(name, "1-") }) {
		t.Errorf("on the disk: %v", r.names("releases"))
	}
}

// The object that says which bundle is this host's is out of reach at the end as well.
func TestStandsByWithVariants(t *testing.T) {
	r := newRig(t, "checkout")
	c := newClocks(time.Now())
	r.world.Release(files{"checkout/checkout.yaml": "mine"}, func(st *manifest.Statement) {
		mine := manifest.Variant{Host: r.cfg.Host, Bundle: st.Bundle, Content: st.Content, Content0: st.Content0, Files: st.Files, Evidence: st.Evidence}
		data, err := wire.Encode(manifest.Variants{V: 1, Variants: []manifest.Variant{mine}})
		if err != nil {
			t.Fatal(err)
		}
		object := (&manifest.Envelope{Payload: data}).Digest()
		r.world.Put(manifest.KeyBundle(object), data)
		st.VariantsObject = &manifest.Object{Object: object, Size: int64(len(data)), Tar: object, TarSize: int64(len(data))}
		st.Bundle.Object, st.Content = (&manifest.Envelope{Payload: []byte("others")}).Digest(), (&manifest.Envelope{Payload: []byte("others'")}).Digest()
	})
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, c.now().Add(time.Hour))
	r.overridden(c)
	r.cut()
	c.pass(time.Hour)
	r.back(c, 1)
	if got := r.read("checkout/checkout.yaml"); got != "mine" {
		t.Errorf("%q", got)
	}
}

// Nobody waits for the turn of a rollout's spread with the end of an override, and files that were changed by hand meanwhile bring nothing of it back.
func TestD005EndHasNoTurn(t *testing.T) {
	r := newRig(t, "checkout")
	c := newClocks(time.Now())
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(1)
	r.confirmed(1)
	r.world.Override(2, files{"checkout/checkout.yaml": "emergency"}, c.now().Add(time.Hour), canary(1), func(m *manifest.Manifest) { m.Rollout.Policy.Spread = "1000h" })
	r.overridden(c)
	if err := os.WriteFile(filepath.Join(r.root, "current/checkout/checkout.yaml"), []byte("by hand"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.pass(time.Hour)
	a := r.at(c)
	stop := r.running(a)
	await(t, "the end", func() bool { s := a.Status(); return s.Confirmed && s.Override == "" && s.Running == 2 })
	stop()
	r.sound(2)
	for _, reload := range r.procs["checkout"].Reloads()[2:] {
		if !strings.HasPrefix(reload, "checkout 2 ") {
			t.Errorf("reloaded: %s", reload)
		}
	}
}

// A host that cannot take what follows an override that is over is not put back under it because somebody changed a file.
func TestRepairBringsNoOverrideBack(t *testing.T) {
	r := newRig(t, "checkout")
	c := newClocks(time.Now())
	r.patient = true
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, c.now().Add(time.Hour))
	r.overridden(c)
	edit := func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.root, "current/checkout/checkout.yaml"), []byte("by hand"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// While it acts, it is what is put back.
	edit()
	r.overridden(c)
	if got := r.read("checkout/checkout.yaml"); got != "emergency" {
		t.Errorf("repaired to %q", got)
	}
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Check = []string{"sh", "-c", `[ "$MUSTER_EPOCH" != 1 ]`} })
	edit()
	c.pass(time.Hour)
	res, err := r.at(c).Once(t.Context(), false)
	if err == nil || res.Confirmed || res.Desired != 1 || res.Code != agent.CodeCheck {
		t.Fatalf("%+v, %v", res, err)
	}
	if got := r.read("checkout/checkout.yaml"); got != "by hand" {
		t.Errorf("repaired to %q, of an override that is over", got)
	}
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Check = nil })
	r.back(c, 1)
	r.sound(1)
}

// The warning goes with the override, though what it asked for never came.
func TestStandbyWarningEnds(t *testing.T) {
	r := newRig(t, "checkout")
	c := newClocks(time.Now())
	st := r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	if err := os.Remove(filepath.Join(r.store, manifest.KeyBundle(st.Bundle.Object))); err != nil {
		t.Fatal(err)
	}
	r.world.Override(1, files{"checkout/checkout.yaml": "emergency"}, c.now().Add(time.Hour))
	a := r.overridden(c)
	if n := len(a.Status().Warnings); n != 1 {
		t.Fatalf("%d warnings", n)
	}
	c.pass(time.Hour)
	r.world.Assign(2)
	if res, err := a.Once(t.Context(), false); err != nil || !res.Confirmed || res.Running != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	if got := a.Status().Warnings; len(got) > 0 {
		t.Errorf("after the end: %q", got)
	}
}
