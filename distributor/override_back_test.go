package distributor_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
)

// steer is the head of eu with another order.
func (p *place) steer(decide func(in rollout.Input, prev *manifest.View) (manifest.Manifest, bool, error)) error {
	p.t.Helper()
	o := p.operator(operatorKey)
	in, trust, err := o.Steering(p.t.Context(), "eu")
	if err != nil {
		p.t.Fatal(err)
	}
	in.Now, in.By = p.now, "ana"
	in.Named = map[uint64]manifest.Envelope{}
	for epoch := uint64(1); epoch < in.Release.Epoch; epoch++ {
		if env, at, err := o.Plain(p.t.Context(), "eu", epoch); err == nil && at == epoch {
			in.Named[epoch] = env
		}
	}
	_, err = rollout.Apply(p.t.Context(), p.store, trust, rolloutKey, "eu", p.now, func(prev *manifest.View) (manifest.Manifest, bool, error) {
		in := in
		in.Prev = prev
		return decide(in, prev)
	})
	return err
}

// Who is taken back from a release is taken back from it with an override on top, too: until that is over, or a release goes out that it was built for.
func TestRollbackUnderAnOverride(t *testing.T) {
	h, p := &history{}, newPlace(t, nil)
	one := h.commit("", "eu/web=one ")
	p.mustPublish(h.job(one), true)
	two := h.commit(one, "eu/web=two ")
	p.mustPublish(h.job(two), true)
	if _, err := p.set(h, "a", "+a", time.Hour); err != nil {
		t.Fatal(err)
	}
	p.is("set", "two +a", 3, "a")
	rollback := rollout.Action{Kind: rollout.Rollback, By: "ana", Why: "INC-1", To: 1, Now: true}
	act := func(in rollout.Input, _ *manifest.View) (manifest.Manifest, bool, error) {
		m, _, changed, err := rollout.Act(in, rollback, p.now)
		return m, changed, err
	}
	if err := p.steer(act); !errors.Is(err, rollout.ErrUnfit) || !strings.Contains(err.Error(), "--drop-overrides") {
		t.Errorf("it drops the override by the way: %v", err)
	}
	p.is("refused", "two +a", 3, "a")
	// The controller's way back asks nobody.
	if err := p.steer(func(in rollout.Input, prev *manifest.View) (manifest.Manifest, bool, error) {
		rollback.DropOverrides = true
		m, changed, err := act(in, prev)
		m.Rollout.Endings = nil
		return m, changed, err
	}); err != nil {
		t.Fatal(err)
	}
	p.is("back", "one ", 1, "")
	rollback = rollout.Action{Kind: rollout.Resume, By: "ana", Why: "it is fixed with the next one"}
	if err := p.steer(act); err != nil {
		t.Fatal(err)
	}
	three := h.commit(two, "eu/web=three ")
	p.mustPublish(h.job(three), true)
	p.is("the next release has it", "three +a", 4, "a")
}

// What has begun to end in steps is not extended: those that are out of it would come back, all at once.
func TestExtendWhatEnds(t *testing.T) {
	h, p := &history{}, newPlace(t, nil)
	p.mustPublish(h.job(h.commit("", "eu/web=one ")), true)
	if _, err := p.set(h, "a", "+a", time.Hour); err != nil {
		t.Fatal(err)
	}
	p.now = p.now.Add(50 * time.Minute)
	if err := p.steer(func(in rollout.Input, prev *manifest.View) (manifest.Manifest, bool, error) {
		m := prev.Manifest
		m.Serial++
		m.Issued, m.FreshUntil = p.now, p.now.Add(time.Hour)
		m.Rollout.Endings = []manifest.Ending{{Override: "a", Below: "8000000000000000", Salt: "a", Why: "it ends at noon"}}
		return m, true, nil
	}); err != nil {
		t.Fatal(err)
	}
	o := p.operator(operatorKey)
	found, err := o.Overrides(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	before, _ := p.head("eu")
	if _, err := o.Extend(t.Context(), found[0], time.Hour, "ben", "still"); !errors.Is(err, rollout.ErrUnfit) || !strings.Contains(err.Error(), "it ends at noon") || !strings.Contains(err.Error(), "set it again") {
		t.Errorf("%v", err)
	}
	if after, _ := p.head("eu"); after.Mark() != before.Mark() {
		t.Errorf("a head was written: %s after %s", after.Mark(), before.Mark())
	}
	// Ended it may be all the same.
	if _, err := o.End(t.Context(), found[0], "ben", "over"); err != nil {
		t.Error(err)
	}
}
