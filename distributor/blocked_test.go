package distributor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// What is blocked keeps what stands, says why, and is built by the next commit that is good for it.
func TestBlockedCohorts(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "staging/checkout=a", "new/checkout=!bad from the start")
	first := p.mustPublish(h.job(c1), true)
	if c := first.Cohorts["new"]; c.State != manifest.StateBlocked || c.Epoch != 0 || c.Reason != "bad from the start" || c.Bundle != "" {
		t.Errorf("new: %+v", c)
	}
	c2 := h.commit(c1, "prod/checkout=!checkout: timeout_ms: unknown field", "staging/checkout=b")
	res := p.mustPublish(h.job(c2), true)
	want := distributor.CohortResult{State: manifest.StateBlocked, Epoch: 1, Bundle: first.Cohorts["prod"].Bundle, Content: first.Cohorts["prod"].Content, Size: first.Cohorts["prod"].Size, Reason: "checkout: timeout_ms: unknown field"}
	if diff := cmp.Diff(want, res.Cohorts["prod"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !slices.Equal(res.Blocked, []string{"new", "prod"}) || !slices.Equal(res.Changed, []string{"staging"}) || !slices.Equal(res.Assigned, []string{"staging"}) || res.Waiting != nil {
		t.Errorf("%+v", res)
	}
	if _, epoch := p.head("prod"); epoch != 1 {
		t.Errorf("prod runs %d", epoch)
	}
	report := p.fsck(p.store)
	if len(report.Notices) > 0 {
		t.Errorf("notices %v", report.Notices)
	}
	res = p.mustPublish(h.job(h.commit(c2, "prod/checkout=c", "new/checkout=a")), true)
	if res.Blocked != nil || !slices.Equal(res.Changed, []string{"new", "prod"}) || p.index(res, "prod").Services["checkout"].Epoch != 3 {
		t.Errorf("%+v", res)
	}
	p.fsck(p.store)
}

// A revert of what blocked a cohort gives it nothing new: it holds what stood all the time.
func TestBlockedThenReverted(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	c2 := h.commit(c1, "prod/checkout=!bad")
	p.mustPublish(h.job(c2), true)
	if c := p.mustPublish(h.job(h.commit(c2, "prod/checkout=a")), true).Cohorts["prod"]; c.State != manifest.StateHolds || c.Epoch != 1 {
		t.Errorf("%+v", c)
	}
	p.fsck(p.store)
}

// If no cohort can be built or held, no epoch is used, and the index of commits says why.
func TestEveryCohortBlocked(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	c2 := h.commit(c1, "prod/checkout=!bad", "staging/checkout=!bad")
	if _, err := p.publish(h.job(c2), true); !errors.Is(err, distributor.ErrRefused) || !strings.HasSuffix(err.Error(), "every cohort is blocked: bad (prod, staging)") {
		t.Errorf("%v", err)
	}
	all := dump(t, p.store)
	var ix manifest.CommitIndex
	if err := wire.Decode([]byte(all[manifest.KeyCommit(c2)]), &ix); err != nil || ix.Epoch != 0 || !strings.Contains(ix.Reason, "bad (prod, staging)") {
		t.Errorf("%+v, %v", ix, err)
	}
	if keys := keysUnder(all, manifest.PrefixReleases); len(keys) != 1 {
		t.Errorf("releases %v", keys)
	}
	p.fsck(p.store)
}

// Published again, a release in which a cohort is blocked is built once more: nothing comes of it while it is blocked, and a new release when it is not.
func TestBlockedAgain(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=!too slow on this machine", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	before := dump(t, p.store)
	if res := p.mustPublish(h.job(c1), true); !res.Already || res.Epoch != 1 || !slices.Equal(res.Blocked, []string{"prod"}) {
		t.Errorf("%+v", res)
	}
	if diff := cmp.Diff(before, dump(t, p.store)); diff != "" {
		t.Errorf("wrote (-before +after):\n%s", diff)
	}
	job := h.job(c1)
	build := job.Build
	job.Build = func(ctx context.Context, in distributor.BuildInput) (*distributor.Build, error) {
		h.commits[c1].cohorts["prod"]["checkout"] = "a"
		return build(ctx, in)
	}
	res := p.mustPublish(job, true)
	if res.Already || res.Epoch != 2 || res.Cohorts["prod"].State != manifest.StateBuilt || res.Cohorts["staging"].State != manifest.StateHolds {
		t.Errorf("%+v", res)
	}
	p.fsck(p.store)
}

// runs resolves what a host is told to run.
func (p *place) runs(cohort, host string) manifest.Resolution {
	p.t.Helper()
	view, _ := p.head(cohort)
	res, err := manifest.Resolve(view, manifest.Host{Name: host}, p.now)
	if err != nil {
		p.t.Fatal(err)
	}
	if res.Variants != nil {
		data := dump(p.t, p.store)[manifest.KeyBundle(res.Variants.Object)]
		doc, err := manifest.DecodeVariants([]byte(data))
		if err != nil {
			p.t.Fatal(err)
		}
		res = res.WithVariants(host, *doc)
	}
	return res
}

// Few variants are in the statement, many in an object that it names; either way each host gets its own bundle, and fsck knows all of them.
func TestVariants(t *testing.T) {
	for _, n := range []int{1, manifest.MaxVariants, manifest.MaxVariants + 1, 40} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			var h history
			p := newPlace(t, nil)
			changes := []string{"prod/checkout=a", "prod/search=a"}
			for i := range n {
				changes = append(changes, fmt.Sprintf("prod/search@web-%d=own %d", i, i))
			}
			c1 := h.commit("", changes...)
			res := p.mustPublish(h.job(c1), true)
			if res.Cohorts["prod"].Variants != n {
				t.Errorf("%+v", res)
			}
			seen := map[string]bool{}
			for i := range n {
				seen[p.runs("prod", fmt.Sprintf("web-%d", i)).Content] = true
			}
			if other := p.runs("prod", "db-1"); len(seen) != n || seen[other.Content] || other.Content != res.Cohorts["prod"].Content {
				t.Errorf("%d contents", len(seen))
			}
			report := p.fsck(p.store)
			bundles := n + 1
			if n > manifest.MaxVariants {
				bundles++
			}
			if report.Checked.Bundles != bundles || len(report.Notices) > 0 {
				t.Errorf("%+v, notices %v", report.Checked, report.Notices)
			}
			// Another service of the cohort: the hosts' own one stays at its epoch. And back to one bundle for all.
			c2 := h.commit(c1, "prod/checkout=b")
			res = p.mustPublish(h.job(c2), true)
			if res.Cohorts["prod"].Variants != n || p.index(res, "prod").Services["search"].Epoch != 1 {
				t.Errorf("%+v", res)
			}
			var back []string
			for i := range n {
				back = append(back, fmt.Sprintf("-prod/search@web-%d", i))
			}
			res = p.mustPublish(h.job(h.commit(c2, append(back, "prod/search=b")...)), true)
			if res.Cohorts["prod"].Variants != 0 || p.runs("prod", "web-0").Content != res.Cohorts["prod"].Content {
				t.Errorf("%+v", res)
			}
			p.fsck(p.store)
		})
	}
}

// Damage to a variant's bundle, or to the list of variants, is found by fsck, and never built on.
func TestVariantDamaged(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	changes := []string{"prod/search=a"}
	for i := range manifest.MaxVariants + 1 {
		changes = append(changes, fmt.Sprintf("prod/search@web-%d=own %d", i, i))
	}
	c1 := h.commit("", changes...)
	p.mustPublish(h.job(c1), true)
	view, _ := p.head("prod")
	for name, key := range map[string]string{"list": manifest.KeyBundle(view.Statements[0].VariantsObject.Object), "bundle": manifest.KeyBundle(p.runs("prod", "web-3").Bundle.Object)} {
		good := dump(t, p.store)[key]
		for kind, damage := range damages {
			if err := p.store.Put(t.Context(), key, damage([]byte(good))); err != nil {
				t.Fatal(err)
			}
			report, err := distributor.Fsck(t.Context(), p.store, nil, p.now)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(report.Problems, func(p distributor.Problem) bool { return p.Key == key }) {
				t.Errorf("%s %s: problems %v", name, kind, report.Problems)
			}
			if _, err := p.publish(h.job(h.commit(c1, "prod/search=b")), true); !errors.Is(err, distributor.ErrDamaged) || !strings.Contains(err.Error(), key) {
				t.Errorf("%s %s: publish: %v", name, kind, err)
			}
		}
		if err := p.store.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		report, err := distributor.Fsck(t.Context(), p.store, nil, p.now)
		if err != nil || !slices.ContainsFunc(report.Problems, func(p distributor.Problem) bool { return p.Key == key && p.What[:10] == "is missing" }) {
			t.Errorf("%s missing: %+v, %v", name, report, err)
		}
		if err := p.store.Put(t.Context(), key, []byte(good)); err != nil {
			t.Fatal(err)
		}
	}
}
