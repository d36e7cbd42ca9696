package distributor_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
)

// A whole bundle in the place of another one is as wrong as a broken one.
func TestSwappedBundle(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "staging/checkout=b")
	res := p.mustPublish(h.job(c1), true)
	prod, staging := manifest.KeyBundle(res.Cohorts["prod"].Bundle), manifest.KeyBundle(res.Cohorts["staging"].Bundle)
	if err := p.store.Put(t.Context(), prod, []byte(dump(t, p.store)[staging])); err != nil {
		t.Fatal(err)
	}
	if _, err := p.publish(h.job(h.commit(c1, "prod/checkout=c")), true); !errors.Is(err, distributor.ErrDamaged) || !strings.Contains(err.Error(), prod) {
		t.Errorf("publish: %v", err)
	}
	report, err := distributor.Fsck(t.Context(), p.store, nil, p.now)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Problems) != 1 || report.Problems[0].Key != prod || !strings.Contains(report.Problems[0].What, "cohort prod in epoch 1") {
		t.Errorf("problems %v", report.Problems)
	}
}

// resign replaces a release by a changed one with a genuine signature: what a broken publisher, or a thief of the key, could write.
func resign(t *testing.T, p *place, epoch uint64, change func(*manifest.Release)) {
	t.Helper()
	rel := p.release(epoch)
	change(&rel)
	env, err := manifest.Seal(manifest.KindRelease, rel, releaseKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.store.Put(t.Context(), manifest.KeyRelease(epoch), encode(t, env)); err != nil {
		t.Fatal(err)
	}
}

func TestFsckChain(t *testing.T) {
	for name, test := range map[string]struct {
		epoch  uint64
		change func(*manifest.Release)
		want   string
	}{
		"another predecessor": {2, func(r *manifest.Release) { r.Prev = "sha256:" + strings.Repeat("0", 64) }, "does not follow release 1"},
		"no predecessor":      {2, func(r *manifest.Release) { r.Prev = "" }, "does not follow release 1"},
		"first with one":      {1, func(r *manifest.Release) { r.Prev = "sha256:" + strings.Repeat("0", 64) }, "follows a release that does not verify"},
		"rewritten first":     {1, func(r *manifest.Release) { r.Subject = "other" }, "does not follow release 1"},
		"holds another epoch": {3, func(r *manifest.Release) {
			r.Cohorts["prod"] = manifest.ReleaseCohort{State: manifest.StateHolds, Epoch: 1}
		}, "says that epoch 1 stands for cohort prod, and epoch 2 does"},
		"a cohort left out":     {3, func(r *manifest.Release) { r.Policy.Cohorts["new"] = r.Policy.Cohorts["prod"] }, "declares cohort new, and says nothing of what it gets"},
		"unreadable but signed": {3, func(r *manifest.Release) { r.V = 2 }, "signed by a release key, but cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			var h history
			p := newPlace(t, nil)
			c1 := h.commit("", "prod/checkout=a")
			c2 := h.commit(c1, "prod/checkout=b")
			for _, c := range []string{c1, c2, h.commit(c2)} {
				p.mustPublish(h.job(c), true)
			}
			resign(t, p, test.epoch, test.change)
			report, err := distributor.Fsck(t.Context(), p.store, keyring(t, repoName), p.now)
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			for _, problem := range report.Problems {
				all = append(all, problem.String())
			}
			if !strings.Contains(strings.Join(all, "\n"), test.want) {
				t.Errorf("problems %q, want %q", all, test.want)
			}
		})
	}
}

// The index of commits decides nothing; that it lags behind the releases is worth a look.
func TestFsckIndexOfCommits(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), true)
	for name, test := range map[string]struct {
		index manifest.CommitIndex
		want  string
		fault bool
	}{
		"refused":     {manifest.CommitIndex{V: 1, Commit: c1, Reason: "bad", At: start}, "says that the commit was refused, and it is released as epoch 1", false},
		"another one": {manifest.CommitIndex{V: 1, Commit: strings.Repeat("9", 40), Epoch: 1, At: start}, "is about commit 9999", true},
	} {
		if err := p.store.Put(t.Context(), manifest.KeyCommit(c1), encode(t, test.index)); err != nil {
			t.Fatal(err)
		}
		report, err := distributor.Fsck(t.Context(), p.store, keyring(t, repoName), p.now)
		if err != nil {
			t.Fatal(err)
		}
		found := report.Notices
		if test.fault {
			found = report.Problems
		}
		if report.OK() == test.fault || len(found) == 0 || !strings.Contains(found[0].String(), test.want) {
			t.Errorf("%s: problems %v, notices %v", name, report.Problems, report.Notices)
		}
	}
}

// A head that assigns what no release carries is found even if it is signed: one epoch, two contents.
func TestFsckEquivocation(t *testing.T) {
	var h history
	p, other := newPlace(t, nil), newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), true)
	if err := other.store.Put(t.Context(), manifest.KeyStore, []byte(dump(t, p.store)[manifest.KeyStore])); err != nil {
		t.Fatal(err)
	}
	other.mustPublish(h.job(h.commit("", "prod/checkout=x")), true)
	foreign := dump(t, other.store)
	for _, key := range append(keysUnder(foreign, manifest.PrefixCohorts), keysUnder(foreign, manifest.PrefixHistory)...) {
		if err := p.store.Put(t.Context(), key, []byte(foreign[key])); err != nil {
			t.Fatal(err)
		}
	}
	report, err := distributor.Fsck(t.Context(), p.store, keyring(t, repoName), p.now)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Problems) != 1 || !strings.Contains(report.Problems[0].What, "one epoch, two contents") {
		t.Errorf("problems %v", report.Problems)
	}
}

// A release that this version cannot read, but that is genuine, is never built over.
func TestNewerReleaseIsNotJunk(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), true)
	c2 := h.commit(c1, "prod/checkout=b")
	p.mustPublish(h.job(c2), true)
	resign(t, p, 2, func(r *manifest.Release) { r.V = 2 })
	if _, err := p.publish(h.job(h.commit(c2, "prod/checkout=c")), true); err == nil || !strings.Contains(err.Error(), "newer muster") {
		t.Errorf("%v", err)
	}
}

// between publishes another commit right after the first release landed.
type between struct {
	*mem.Store
	then func()
}

func (b *between) Create(ctx context.Context, key string, data []byte) (store.Token, error) {
	token, err := b.Store.Create(ctx, key, data)
	if then := b.then; err == nil && then != nil && strings.HasPrefix(key, manifest.PrefixReleases) {
		b.then = nil
		then()
	}
	return token, err
}

// Announcing moves hosts to the newest release, not to the announcer's own.
func TestAnnounceNewest(t *testing.T) {
	var h history
	m := mem.New()
	c1 := h.commit("", "prod/checkout=a")
	c2 := h.commit(c1, "prod/checkout=b")
	b := &between{Store: m}
	b.then = func() { newPlace(t, m).mustPublish(h.job(c2), false) }
	p := newPlace(t, b)
	res := p.mustPublish(h.job(c1), true)
	if res.Epoch != 1 || res.Newest != 2 {
		t.Errorf("%+v", res)
	}
	if view, epoch := p.head("prod"); epoch != 2 || view.Manifest.Serial != 1 {
		t.Errorf("prod runs %d", epoch)
	}
	p.fsck(m)
}
