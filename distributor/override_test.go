package distributor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store/mem"
)

// overridden is a cohort under each override that lives on it: what it says is appended to the file of its service.
func (c *commit) overridden(ctx context.Context, in distributor.BuildInput, name string) (list []distributor.OverriddenBuild, err error) {
	living, err := in.Overrides(ctx, name)
	if err != nil {
		return nil, err
	}
	for i := range living {
		index, err := living[i].Index(ctx, "")
		if err != nil {
			return nil, err
		}
		var patches []manifest.Patch
		for _, o := range living[:i+1] {
			patches = append(patches, o.Patches...)
		}
		list = append(list, distributor.OverriddenBuild{ID: living[i].ID, CohortBuild: c.under(in.Epoch, name, patches, index)})
	}
	return list, nil
}

func (c *commit) under(epoch uint64, cohort string, patches []manifest.Patch, stood *bundle.Index) distributor.CohortBuild {
	texts := maps.Clone(c.cohorts[cohort])
	for _, p := range patches {
		_, text, _ := strings.Cut(p.Values, `"`)
		texts[p.Service] += strings.TrimSuffix(text, `":1}`)
	}
	b := distributor.CohortBuild{Index: bundle.Index{Services: map[string]bundle.Service{}}, Evidence: map[string]manifest.Grade{}, Inputs: settings}
	for service, text := range texts {
		file := bundle.File{Path: service + "/" + service + ".txt", Mode: 0o644, Data: []byte(text)}
		digest := bundle.ContentDigest([]bundle.File{file})
		s := bundle.Service{Epoch: epoch, Digest: digest, Digest0: digest, Files: 1}
		if stood != nil && stood.Services[service].Digest0 == digest {
			s.Epoch = stood.Services[service].Epoch
		}
		b.Files, b.Index.Services[service], b.Evidence[service] = append(b.Files, file), s, manifest.GradeProcess
	}
	b.Content0 = bundle.ContentDigest(b.Files)
	return b
}

func (p *place) operator(by manifest.Signer) *distributor.Operator {
	p.t.Helper()
	o, err := distributor.OpenOperator(p.t.Context(), p.store, keyring(p.t, repoName), by, func() time.Time { return p.now })
	if err != nil {
		p.t.Fatal(err)
	}
	return o
}

// set makes an override of cohort eu, and puts it into the head.
func (p *place) set(h *history, id, values string, ttl time.Duration, hosts ...string) (*distributor.Made, error) {
	p.t.Helper()
	ctx := p.t.Context()
	o := p.operator(operatorKey)
	base, err := o.Base(ctx, "eu")
	if err != nil {
		return nil, err
	}
	patches := []manifest.Patch{{Service: "web", Values: `{"` + values + `":1}`}}
	made, err := o.Make(ctx, distributor.Change{ID: id, Author: "ana", Reason: "INC", TTL: ttl, Cohorts: map[string]distributor.ChangeOf{"eu": {Hosts: hosts, Patches: patches, Commit: base.Release.Commit, Over: base.Plain.Epoch}}},
		func(ctx context.Context, epoch uint64) (map[string]distributor.CohortBuild, error) {
			index, err := o.Index(base)(ctx, "")
			if err != nil {
				return nil, err
			}
			var all []manifest.Patch
			for _, l := range base.Living {
				all = append(all, l.Patches...)
			}
			return map[string]distributor.CohortBuild{"eu": h.commits[base.Release.Commit].under(epoch, "eu", append(all, patches...), index)}, nil
		})
	if err != nil {
		return nil, err
	}
	env, err := o.Envelope(made, "eu", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	_, err = o.Put(ctx, "eu", env)
	return made, err
}

// text is what host web-1 of eu is told to run as service web.
func (p *place) text() (string, manifest.Resolution) {
	p.t.Helper()
	res := p.runs("eu", "web-1")
	obj, err := p.store.Get(p.t.Context(), manifest.KeyBundle(res.Bundle.Object), bundle.MaxCompressed)
	if err != nil {
		p.t.Fatal(err)
	}
	plan, err := bundle.Scan(strings.NewReader(string(obj.Data)))
	if err != nil {
		p.t.Fatal(err)
	}
	text := ""
	if err := bundle.Extract(strings.NewReader(string(obj.Data)), plan, func(e bundle.Entry, data io.Reader) error {
		if e.Path == "web/web.txt" {
			b, err := io.ReadAll(data)
			text = string(b)
			return err
		}
		return nil
	}); err != nil {
		p.t.Fatal(err)
	}
	return text, res
}

func (p *place) is(what, text string, epoch uint64, override string) {
	p.t.Helper()
	got, res := p.text()
	if got != text || res.Epoch() != epoch || res.Override != override {
		p.t.Errorf("%s: %q of epoch %d, override %q; want %q of %d, %q", what, got, res.Epoch(), res.Override, text, epoch, override)
	}
}

// D005: releases carry what lives; at the end a host runs what the rollout says then.
func TestD005LifeOfAnOverride(t *testing.T) {
	h, p := &history{}, newPlace(t, nil)
	one := h.commit("", "eu/web=one ", "eu/db=db", "us/web=one ")
	p.mustPublish(h.job(one), true)
	if _, err := p.set(h, "a", "+a", time.Hour); err != nil {
		t.Fatal(err)
	}
	p.is("set", "one +a", 2, "a")
	if e := p.runs("us", "web-1").Epoch(); e != 1 {
		t.Errorf("the other cohort runs epoch %d", e)
	}
	// The same commit is released already, by the override's release too.
	if res := p.mustPublish(h.job(one), true); !res.Already || res.Epoch != 2 {
		t.Errorf("published again: %+v", res)
	}
	// One that changes another cohort only leaves it as it is.
	other := h.commit(one, "us/web=two ")
	p.mustPublish(h.job(other), true)
	p.is("another cohort's commit", "one +a", 2, "a")
	two := h.commit(other, "eu/web=two ")
	p.mustPublish(h.job(two), true)
	p.is("carried", "two +a", 4, "a")
	if s := p.index(&distributor.Result{Cohorts: map[string]distributor.CohortResult{"eu": {Bundle: p.runs("eu", "web-1").Bundle.Object}}}, "eu").Services["db"]; s.Epoch != 1 {
		t.Errorf("a service that nobody changed has epoch %d under the override", s.Epoch)
	}
	// A second one on the same path: its statement has both, and a host of it runs that one.
	if _, err := p.set(h, "b", "+b", 30*time.Minute); err != nil {
		t.Fatal(err)
	}
	p.is("the newer one", "two +a+b", 5, "b")
	three := h.commit(two, "eu/web=three ")
	p.mustPublish(h.job(three), true)
	p.is("both carried", "three +a+b", 6, "b")
	// A release that leaves the cohort alone carries them along, and whoever rolls out later finds them.
	alone := h.commit(three, "us/web=three ")
	p.mustPublish(h.job(alone), true)
	if n := len(p.release(7).Cohorts["eu"].Overridden); n != 2 {
		t.Errorf("release 7 carries %d overridden statements", n)
	}
	p.now = p.now.Add(31 * time.Minute)
	p.is("the newer one is over", "three +a", 6, "a")
	o := p.operator(operatorKey)
	found, err := o.Overrides(t.Context())
	if err != nil || len(found) != 1 || found[0].ID != "a" {
		t.Fatalf("%+v, %v", found, err)
	}
	if _, err := o.Extend(t.Context(), found[0], 2*time.Hour, "ben", "still"); err != nil {
		t.Fatal(err)
	}
	p.now = p.now.Add(time.Hour)
	p.is("longer", "three +a", 6, "a")
	if found, err = p.operator(operatorKey).Overrides(t.Context()); err != nil || len(found) != 1 || found[0].Author != "ben" {
		t.Fatalf("%+v, %v", found, err)
	}
	if _, err := p.operator(operatorKey).End(t.Context(), found[0], "ana", "fixed"); err != nil {
		t.Fatal(err)
	}
	p.is("ended", "three ", 6, "")
	p.mustPublish(h.job(h.commit(alone, "eu/web=four ")), true)
	if n := len(p.release(8).Cohorts["eu"].Overridden); n != 0 {
		t.Errorf("after its end a release carries it still")
	}
	p.is("after it", "four ", 8, "")
	p.fsck(p.store)
}

// What the key may not is refused before anything is written, and so is what hosts would refuse.
func TestD005OperatorsRights(t *testing.T) {
	h, p := &history{}, newPlace(t, nil)
	p.mustPublish(h.job(h.commit("", "eu/web=one ", "lab/web=one ")), true)
	before := dump(t, p.store)
	if _, err := p.set(h, "a", "+a", 3*time.Hour); !errors.Is(err, manifest.ErrSignature) {
		t.Errorf("longer than its key's longest: %v", err)
	}
	if err := p.operator(operatorKey).May("lab", time.Hour); !errors.Is(err, manifest.ErrSignature) {
		t.Errorf("a cohort that is not the key's: %v", err)
	}
	if _, err := distributor.OpenOperator(t.Context(), p.store, keyring(t, repoName), releaseKey, func() time.Time { return p.now }); !errors.Is(err, manifest.ErrSignature) {
		t.Errorf("a key that is no operator's: %v", err)
	}
	if len(dump(t, p.store)) != len(before) {
		t.Error("something was written")
	}
}

// Hosts keep the end of an override until it would have been over: until then one of the same id would act nowhere, so it is not made.
func TestOverrideIDIsTakenUntilItsEnd(t *testing.T) {
	h, p := &history{}, newPlace(t, nil)
	p.mustPublish(h.job(h.commit("", "eu/web=one ")), true)
	if _, err := p.set(h, "a", "+a", time.Hour); err != nil {
		t.Fatal(err)
	}
	found, err := p.operator(operatorKey).Overrides(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	if _, err := p.operator(operatorKey).End(t.Context(), found[0], "ana", "fixed"); err != nil {
		t.Fatal(err)
	}
	before := dump(t, p.store)
	if _, err := p.set(h, "a", "+b", time.Hour); !errors.Is(err, rollout.ErrUnfit) {
		t.Errorf("the id of one that was ended: %v", err)
	}
	if len(dump(t, p.store)) != len(before) {
		t.Error("something was written")
	}
	p.now = p.now.Add(time.Hour)
	if _, err := p.set(h, "a", "+b", time.Hour); err != nil {
		t.Errorf("when it is over: %v", err)
	}
	p.is("again", "one +b", 3, "a")
}

// One that was over in steps leaves its id in the order, which would keep another of this id from every host: it is not made. What is extended keeps its first reason.
func TestOverrideIDOfOneThatEndedInSteps(t *testing.T) {
	h, p := &history{}, newPlace(t, nil)
	p.mustPublish(h.job(h.commit("", "eu/web=one ")), true)
	if _, err := p.set(h, "a", "+a", time.Hour); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		found, err := p.operator(operatorKey).Overrides(t.Context())
		if err != nil || len(found) != 1 {
			t.Fatalf("%+v, %v", found, err)
		}
		p.now = p.now.Add(time.Minute)
		first, _, _ := strings.Cut(found[0].Reason, " (extended: ")
		if _, err := p.operator(operatorKey).Extend(t.Context(), found[0], time.Hour, "bo", strings.Repeat("ü", 1<<12)+"!"); err != nil {
			t.Fatal(err)
		}
		if found, err = p.operator(operatorKey).Overrides(t.Context()); err != nil || !strings.HasPrefix(found[0].Reason, first+" (extended: üü") || strings.Count(found[0].Reason, "(extended: ") != 1 {
			t.Fatalf("extended: %.80s, %v", found[0].Reason, err)
		}
	}
	if err := p.steer(func(in rollout.Input, prev *manifest.View) (manifest.Manifest, bool, error) {
		m, _, changed, err := rollout.Act(in, rollout.Action{Kind: rollout.Freeze, By: "ana", Why: "x", Until: new(p.now.Add(time.Hour))}, p.now)
		m.Rollout.Endings = []manifest.Ending{{Override: "a", Why: "it ends"}}
		return m, changed, err
	}); err != nil {
		t.Fatal(err)
	}
	p.now = p.now.Add(time.Hour)
	if _, err := p.set(h, "a", "+b", time.Hour); !errors.Is(err, rollout.ErrUnfit) || !strings.Contains(err.Error(), "was used before") {
		t.Errorf("the id of one that ended in steps: %v", err)
	}
	if _, err := p.set(h, "b", "+b", time.Hour); err != nil {
		t.Errorf("another id: %v", err)
	}
	p.is("another id", "one +b", 3, "b")
}

// An operator key is for overridden statements: a release that changes anything else beside them is not one, and the next commit is built on the one before.
func TestOverrideReleaseChangesNothingElse(t *testing.T) {
	for name, change := range map[string]func(*manifest.Release){
		"commit": func(r *manifest.Release) { r.Commit = strings.Repeat("ab", 20) },
		"policy": func(r *manifest.Release) {
			c := r.Policy.Cohorts["eu"]
			c.Rollout, c.Services = "standard", []string{}
			r.Policy.Cohorts["eu"] = c
		},
		"cohort": func(r *manifest.Release) { delete(r.Cohorts, "us") },
		"prev":   func(r *manifest.Release) { r.Prev = "sha256:" + strings.Repeat("0", 64) },
	} {
		t.Run(name, func(t *testing.T) {
			h, p := &history{}, newPlace(t, nil)
			one := h.commit("", "eu/web=one ", "us/web=one ")
			p.mustPublish(h.job(one), true)
			if _, err := p.set(h, "a", "+a", time.Hour); err != nil {
				t.Fatal(err)
			}
			rel := p.release(2)
			change(&rel)
			if name != "prev" {
				for c, part := range rel.Cohorts {
					part.Overridden = nil
					rel.Cohorts[c] = part
				}
			}
			env, err := manifest.Seal(manifest.KindRelease, rel, operatorKey)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.store.Put(t.Context(), manifest.KeyRelease(2), encode(t, env)); err != nil {
				t.Fatal(err)
			}
			res, err := p.publish(h.job(h.commit(one, "us/web=two ")), false)
			if err != nil || res.Epoch != 3 {
				t.Fatalf("%+v, %v", res, err)
			}
			if got := p.release(3).Prev; got == digestOf(encode(t, rel)) {
				t.Error("the next release follows it")
			}
		})
	}
}

func digestOf(payload []byte) string {
	return (&manifest.Envelope{Payload: payload}).Digest()
}

// Publishers and operators at once: every one gets an epoch of its own, and nothing is lost.
func TestOverridesAndPublishersRace(t *testing.T) {
	h, p := &history{}, newPlace(t, mem.New())
	last := h.commit("", "eu/web=one ")
	p.mustPublish(h.job(last), true)
	var jobs []*distributor.Job
	for i := range 4 {
		last = h.commit(last, fmt.Sprintf("eu/web=%d ", i))
		jobs = append(jobs, h.job(last))
	}
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range 3 {
		wg.Go(func() { _, errs[i] = p.set(h, fmt.Sprintf("o-%d", i), fmt.Sprint("+", i), time.Hour) })
	}
	wg.Go(func() {
		for _, j := range jobs {
			if _, err := p.publish(j, true); err != nil {
				errs[5] = err
			}
		}
	})
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	found, err := p.operator(operatorKey).Overrides(t.Context())
	if err != nil || len(found) != 3 {
		t.Errorf("%d overrides live, %v", len(found), err)
	}
	p.mustPublish(h.job(h.commit(last, "eu/web=end ")), true)
	text, _ := p.text()
	for _, want := range []string{"end ", "+0", "+1", "+2"} {
		if !strings.Contains(text, want) {
			t.Errorf("the newest one has %q, without %q", text, want)
		}
	}
	p.fsck(p.store)
}
