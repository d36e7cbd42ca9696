package distributor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/dir"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/wire"
)

func TestFirstRelease(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "prod/search=b", "staging/checkout=c")
	res := p.mustPublish(h.job(c1), true)
	if res.Epoch != 1 || res.Already || !slices.Equal(res.Changed, []string{"prod", "staging"}) || !slices.Equal(res.Assigned, []string{"prod", "staging"}) || res.Waiting != nil {
		t.Errorf("result %+v", res)
	}
	for cohort, services := range map[string]int{"prod": 2, "staging": 1} {
		if _, epoch := p.head(cohort); epoch != 1 {
			t.Errorf("cohort %s runs %d", cohort, epoch)
		}
		if index := p.index(res, cohort); len(index.Services) != services || index.Epoch != 1 || index.Commit != c1 || index.Repo != repoName {
			t.Errorf("index %+v", index)
		}
	}
	report := p.fsck(p.store)
	want := distributor.Checked{Keyrings: 1, Releases: 1, Statements: 2, Bundles: 2, Sources: 1, Heads: 2, History: 2, Commits: 1}
	if diff := cmp.Diff(want, report.Checked); diff != "" {
		t.Errorf("checked (-want +got):\n%s", diff)
	}
	if len(report.Notices) > 0 {
		t.Errorf("notices %v", report.Notices)
	}
}

func TestResultJSON(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	res := p.mustPublish(h.job(h.commit("", "prod/checkout=a")), false)
	c := res.Cohorts["prod"]
	want := fmt.Sprintf(`{"changed":["prod"],"cohorts":{"prod":{"bundle":%q,"content":%q,"epoch":1,"size":%d,"state":"built"}},"commit":%q,"epoch":1}`, c.Bundle, c.Content, c.Size, res.Commit)
	var got, wanted any
	for data, v := range map[string]*any{string(encode(t, res)): &got, want: &wanted} {
		if err := json.Unmarshal([]byte(data), v); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !slices.Equal(res.Waiting, []string{"prod"}) {
		t.Errorf("waiting %v", res.Waiting)
	}
}

// B019: a commit that changes nothing gets a release in which every cohort holds; no head is written.
func TestB019NothingChanged(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	before := dump(t, p.store)
	res := p.mustPublish(h.job(h.commit(c1)), true)
	if res.Epoch != 2 || len(res.Changed) != 0 || res.Changed == nil || res.Assigned != nil || res.Waiting != nil {
		t.Errorf("result %+v", res)
	}
	if c := res.Cohorts["prod"]; c.State != manifest.StateHolds || c.Epoch != 1 || c.Bundle == "" {
		t.Errorf("prod %+v", c)
	}
	after := dump(t, p.store)
	for key := range after {
		if (strings.HasPrefix(key, "cohorts/") || strings.HasPrefix(key, "history/") || strings.HasPrefix(key, "bundles/")) && after[key] != before[key] {
			t.Errorf("%s was written", key)
		}
	}
	p.fsck(p.store)
}

// B019: one cohort's change leaves the other's head and bundle alone.
func TestB019OtherCohortChanged(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "prod/search=a", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	res := p.mustPublish(h.job(h.commit(c1, "prod/search=b")), true)
	if !slices.Equal(res.Changed, []string{"prod"}) || !slices.Equal(res.Assigned, []string{"prod"}) {
		t.Errorf("result %+v", res)
	}
	services := p.index(res, "prod").Services
	if services["checkout"].Epoch != 1 || services["search"].Epoch != 2 {
		t.Errorf("service epochs %+v", services)
	}
	if view, epoch := p.head("staging"); epoch != 1 || view.Manifest.Serial != 1 {
		t.Errorf("staging: serial %d, epoch %d", view.Manifest.Serial, epoch)
	}
	if view, epoch := p.head("prod"); epoch != 2 || view.Manifest.Serial != 2 {
		t.Errorf("prod: serial %d, epoch %d", view.Manifest.Serial, epoch)
	}
	p.fsck(p.store)
}

// A head that does not assign what stands is moved, also by a release in which the cohort holds.
func TestHoldingCohortThatWaits(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), false)
	res := p.mustPublish(h.job(h.commit(c1)), true)
	if !slices.Equal(res.Assigned, []string{"prod"}) {
		t.Errorf("result %+v", res)
	}
	if _, epoch := p.head("prod"); epoch != 1 {
		t.Errorf("prod runs %d", epoch)
	}
}

// B021: the skip key is the commit and the settings.
func TestB021OtherSettings(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), true)
	before := dump(t, p.store)
	if res := p.mustPublish(h.job(c1), true); res.Epoch != 1 || !res.Already || res.Cohorts["prod"].State != manifest.StateBuilt {
		t.Errorf("again: %+v", res)
	}
	if diff := cmp.Diff(before, dump(t, p.store)); diff != "" {
		t.Errorf("publishing again wrote (-before +after):\n%s", diff)
	}
	job := h.job(c1)
	job.Settings = "sha256:" + strings.Repeat("1", 64)
	build := job.Build
	job.Build = func(ctx context.Context, in distributor.BuildInput) (*distributor.Build, error) {
		b, err := build(ctx, in)
		if err == nil {
			b.Settings = job.Settings
		}
		return b, err
	}
	if res := p.mustPublish(job, true); res.Epoch != 2 || res.Already {
		t.Errorf("other settings: %+v", res)
	}
	p.fsck(p.store)
}

// B014: rewritten, older and unknown history is refused, no epoch is used, and the next good commit is published.
func TestB014RewrittenHistory(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), true)
	c2 := h.commit(c1, "prod/checkout=b")
	p.mustPublish(h.job(c2), true)
	sibling := h.commit(c1, "prod/checkout=x")
	shallow := h.job(h.commit(sibling, "prod/checkout=y"))
	errShallow := errors.New("shallow clone")
	shallow.Contains = func(context.Context, string) (bool, error) { return false, errShallow }
	before := keysUnder(dump(t, p.store), "releases/")
	for name, job := range map[string]*distributor.Job{"sibling": h.job(sibling), "older": h.job(c1), "shallow": shallow} {
		_, err := p.publish(job, true)
		if !errors.Is(err, distributor.ErrRewritten) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "older" && !strings.Contains(fmt.Sprint(err), "it was released before, as epoch 1") {
			t.Errorf("older: %v", err)
		}
		if name == "shallow" && !errors.Is(err, errShallow) {
			t.Errorf("shallow: %v", err)
		}
	}
	if after := keysUnder(dump(t, p.store), "releases/"); !slices.Equal(before, after) {
		t.Errorf("releases %v, before %v", after, before)
	}
	if _, epoch := p.head("prod"); epoch != 2 {
		t.Errorf("prod runs %d", epoch)
	}
	if res := p.mustPublish(h.job(h.commit(h.commit(c2), "prod/checkout=c")), true); res.Epoch != 3 {
		t.Errorf("next good commit: %+v", res)
	}
	p.fsck(p.store)
}

func TestRefusedCommitIsRecorded(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	bad := h.job(c1)
	bad.Build = func(context.Context, distributor.BuildInput) (*distributor.Build, error) {
		return nil, fmt.Errorf("%w: checkout: timeout_ms: unknown field", distributor.ErrRefused)
	}
	if _, err := p.publish(bad, true); !errors.Is(err, distributor.ErrRefused) {
		t.Fatal(err)
	}
	all := dump(t, p.store)
	var ix manifest.CommitIndex
	if err := wire.Decode([]byte(all[manifest.KeyCommit(c1)]), &ix); err != nil || ix.Epoch != 0 || !strings.Contains(ix.Reason, "unknown field") {
		t.Errorf("index %+v, %v", ix, err)
	}
	if keys := keysUnder(all, "releases/"); len(keys) > 0 {
		t.Errorf("releases %v", keys)
	}
	p.fsck(p.store)
	if res := p.mustPublish(h.job(c1), true); res.Epoch != 1 {
		t.Errorf("repaired: %+v", res)
	}
	if _, err := p.publish(bad, true); err != nil {
		t.Errorf("already released: %v", err)
	}
	p.fsck(p.store)
}

func TestRemovedCohort(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "old/checkout=a")
	p.mustPublish(h.job(c1), true)
	job := h.job(h.commit(c1, "-old/checkout"))
	if _, err := p.publish(job, true); !errors.Is(err, distributor.ErrRefused) || !strings.Contains(err.Error(), "cohort old is gone") {
		t.Fatal(err)
	}
	res, err := p.pub.Publish(t.Context(), job.Commit, job.Contains, job.Build, distributor.PublishOptions{Settings: settings, RemoveCohorts: []string{"old"}})
	if err != nil || res.Epoch != 2 || len(res.Cohorts) != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	p.fsck(p.store)
}

// B050: publishers in a race. Epochs rise with no gap, each has one release, every commit is released at most once and never on top of one that contains it.
func TestB050ConcurrentPublishers(t *testing.T) {
	for _, n := range []int{2, 8} {
		for kind, place := range map[string]func() (open func() store.Store){
			"mem": func() func() store.Store {
				m := mem.New()
				return func() store.Store { return m }
			},
			"dir": func() func() store.Store {
				path := t.TempDir()
				return func() store.Store {
					st, err := dir.Open(path) // each publisher its own, as in another process
					if err != nil {
						t.Error(err)
					}
					return st
				}
			},
		} {
			t.Run(fmt.Sprintf("%s/%d", kind, n), func(t *testing.T) {
				for range 5 {
					race(t, place(), n)
				}
			})
		}
	}
}

func race(t *testing.T, open func() store.Store, n int) {
	t.Helper()
	var h history
	jobs := make([]*distributor.Job, n)
	id := ""
	for i := range jobs {
		id = h.commit(id, fmt.Sprintf("prod/checkout=%d", i), fmt.Sprintf("staging/s%d=x", i%3))
		jobs[i] = h.job(id)
	}
	st := open()
	p := newPlace(t, st)
	var wg sync.WaitGroup
	errs := make([]error, n)
	results := make([]*distributor.Result, n)
	for i, job := range jobs {
		pub := newPlace(t, open())
		wg.Go(func() { results[i], errs[i] = pub.publish(job, true) })
	}
	wg.Wait()
	released := 0
	for i, err := range errs {
		switch {
		case err == nil:
			released++
			if got := p.release(results[i].Epoch).Commit; got != jobs[i].Commit.ID {
				t.Errorf("epoch %d is commit %s, its publisher says %s", results[i].Epoch, got, jobs[i].Commit.ID)
			}
		case !errors.Is(err, distributor.ErrRewritten):
			t.Errorf("publisher %d: %v", i, err)
		}
	}
	if errs[n-1] != nil {
		t.Errorf("the newest commit was not released: %v", errs[n-1])
	}
	report := p.fsck(st)
	if report.Newest != uint64(released) || report.Checked.Releases != released {
		t.Errorf("%d releases up to epoch %d, %d publishers were told so", report.Checked.Releases, report.Newest, released)
	}
	for e := uint64(2); e <= report.Newest; e++ {
		if a, b := p.release(e-1).Commit, p.release(e).Commit; a == b || !h.contains(b, a) {
			t.Errorf("epoch %d (%s) is not a descendant of epoch %d (%s)", e, b, e-1, a)
		}
	}
	newest := p.release(report.Newest)
	for cohort, part := range newest.Cohorts {
		if _, epoch := p.head(cohort); epoch != part.Epoch {
			t.Errorf("cohort %s runs %d, %d stands", cohort, epoch, part.Epoch)
		}
	}
}

// An epoch held by junk is burnt and skipped, whatever number it has.
func TestJunkHoldsEpoch(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), true)
	first := dump(t, p.store)[manifest.KeyRelease(1)]
	for epoch, junk := range map[uint64]string{2: "junk", 3: first, 1 << 50: "", manifest.MaxCounter: "{}"} {
		if err := p.store.Put(t.Context(), manifest.KeyRelease(epoch), []byte(junk)); err != nil {
			t.Fatal(err)
		}
	}
	res := p.mustPublish(h.job(h.commit(c1, "prod/checkout=b")), true)
	if res.Epoch != 4 {
		t.Errorf("epoch %d", res.Epoch)
	}
	if _, epoch := p.head("prod"); epoch != 4 {
		t.Errorf("prod runs %d", epoch)
	}
	report, err := distributor.Fsck(t.Context(), p.store, nil, p.now)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, problem := range report.Problems {
		keys = append(keys, problem.Key)
	}
	want := []string{manifest.KeyRelease(2), manifest.KeyRelease(3), manifest.KeyRelease(1 << 50), manifest.KeyRelease(manifest.MaxCounter)}
	if !slices.Equal(keys, want) || report.Newest != 4 || report.Keyring != "the store's own" {
		t.Errorf("problems %v, newest %d", report.Problems, report.Newest)
	}
}

// B046: a head that vanishes between read and write is an error, not a new beginning.
func TestB046HeadVanishes(t *testing.T) {
	var h history
	m := mem.New()
	c1 := h.commit("", "prod/checkout=a")
	newPlace(t, m).mustPublish(h.job(c1), true)
	p := newPlace(t, vanishing{m})
	res, err := p.publish(h.job(h.commit(c1, "prod/checkout=b")), true)
	if !errors.Is(err, rollout.ErrVanished) || !strings.Contains(err.Error(), "cohorts/prod.json") {
		t.Fatalf("%v", err)
	}
	if res == nil || res.Epoch != 2 || res.Assigned != nil {
		t.Errorf("result %+v", res)
	}
	if keys := keysUnder(dump(t, m), "cohorts/"); len(keys) > 0 {
		t.Errorf("heads %v", keys)
	}
}

// vanishing deletes a head before it is replaced.
type vanishing struct{ *mem.Store }

func (v vanishing) Replace(ctx context.Context, key string, data []byte, token store.Token) (store.Token, error) {
	if strings.HasPrefix(key, "cohorts/") {
		if err := v.Delete(ctx, key); err != nil {
			return "", err
		}
	}
	return v.Store.Replace(ctx, key, data, token)
}

// Publishing a released commit again repairs missing heads, above the order that agents remember, and renews those past half of their freshness.
func TestRepairHeads(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	c2 := h.commit(c1, "prod/checkout=b")
	p.mustPublish(h.job(c2), true)
	old, _ := p.head("prod")
	if err := p.store.Delete(t.Context(), manifest.KeyHead("prod")); err != nil {
		t.Fatal(err)
	}
	// Anybody who may write the bucket can put a copy there; it must not drive the order up.
	junk := manifest.KeyHistory("prod", manifest.Mark{Era: 1, Serial: manifest.MaxCounter})
	if err := p.store.Put(t.Context(), junk, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	res := p.mustPublish(h.job(c2), true)
	if !res.Already || !slices.Equal(res.Assigned, []string{"prod"}) {
		t.Errorf("result %+v", res)
	}
	view, epoch := p.head("prod")
	if epoch != 2 || view.Manifest.Serial <= old.Manifest.Serial || view.Manifest.Serial > old.Manifest.Serial+3 {
		t.Errorf("epoch %d, serial %d after %d", epoch, view.Manifest.Serial, old.Manifest.Serial)
	}
	if err := p.store.Delete(t.Context(), junk); err != nil {
		t.Fatal(err)
	}
	p.fsck(p.store)

	p.now = start.Add(manifest.MaxFreshFor/2 - time.Second)
	if res := p.mustPublish(h.job(c2), true); res.Assigned != nil {
		t.Errorf("still fresh: %+v", res)
	}
	p.now = start.Add(manifest.MaxFreshFor/2 + time.Second)
	if res := p.mustPublish(h.job(c2), true); !slices.Equal(res.Assigned, []string{"prod", "staging"}) {
		t.Errorf("past half: %+v", res)
	}
	if view, epoch := p.head("staging"); epoch != 1 || view.Manifest.Serial != 2 || !view.Manifest.FreshUntil.Equal(p.now.Add(manifest.MaxFreshFor)) {
		t.Errorf("staging: epoch %d, serial %d, fresh until %v", epoch, view.Manifest.Serial, view.Manifest.FreshUntil)
	}
	p.fsck(p.store)
}

// What a person stopped stays, and is told; its freshness does not matter for that.
func TestFrozenCohort(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	obj, err := p.store.Get(t.Context(), manifest.KeyHead("prod"), manifest.MaxHeadBytes)
	if err != nil {
		t.Fatal(err)
	}
	view, _ := p.head("prod")
	m := view.Manifest
	m.Serial++
	m.Rollout.Freezes = []manifest.Stop{{By: "ana", Why: "black friday", Since: start}}
	env, err := manifest.Seal(manifest.KindManifest, m, rolloutKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.store.Replace(t.Context(), manifest.KeyHead("prod"), encode(t, manifest.Head{Manifest: *env}), obj.Token); err != nil {
		t.Fatal(err)
	}
	res, err := p.publish(h.job(h.commit(c1, "prod/checkout=b", "staging/checkout=b")), true)
	if err != nil || !slices.Equal(res.Waiting, []string{"prod"}) || !slices.Equal(res.Assigned, []string{"staging"}) {
		t.Errorf("%+v, %v", res, err)
	}
	if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "frozen by ana since 2026-11-30T12:00:00Z: black friday") {
		t.Errorf("warnings %q", res.Warnings)
	}
	if _, epoch := p.head("prod"); epoch != 1 {
		t.Errorf("prod runs %d", epoch)
	}
}

// What git lets a person write in a name, a subject and a time must not stand in the way.
func TestOddCommitText(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	job := h.job(h.commit("", "prod/checkout=a"))
	odd := manifest.Person{Name: "A\x1b[31mna\xff", Email: "a\tb", At: time.Date(1901, 1, 1, 0, 0, 0, 0, time.UTC)}
	job.Commit.Author, job.Commit.Subject = odd, strings.Repeat("é", 5000)+"\x00"
	build := job.Build
	job.Build = func(ctx context.Context, in distributor.BuildInput) (*distributor.Build, error) {
		b, err := build(ctx, in)
		b.Commit = job.Commit
		return b, err
	}
	p.mustPublish(job, true)
	if rel := p.release(1); rel.Author.Name != "A [31mna\uFFFD" || rel.Author.At.Year() != 1970 || len(rel.Subject) > manifest.MaxTextBytes || !strings.HasSuffix(rel.Subject, "é…") {
		t.Errorf("%+v, subject of %d bytes", rel.Author, len(rel.Subject))
	}
	p.fsck(p.store)
}

func TestForeignKeys(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), true)
	config := func(change func(*distributor.Config)) error {
		c := distributor.Config{Store: p.store, Repo: repoName, Release: releaseKey, Rollout: rolloutKey, Keyring: keyring(t, repoName), Now: func() time.Time { return start }}
		change(&c)
		pub, err := distributor.NewPublisher(c)
		if err != nil {
			t.Fatal(err)
		}
		job := h.job(c1)
		_, err = pub.Publish(t.Context(), job.Commit, job.Contains, job.Build, distributor.PublishOptions{Settings: settings})
		return err
	}
	if err := config(func(c *distributor.Config) { c.Release = rolloutKey }); !errors.Is(err, manifest.ErrSignature) {
		t.Errorf("other release key: %v", err)
	}
	if err := config(func(c *distributor.Config) { c.Rollout = releaseKey }); !errors.Is(err, manifest.ErrSignature) {
		t.Errorf("other rollout key: %v", err)
	}
	if err := config(func(c *distributor.Config) { c.Repo, c.Keyring = "other", keyring(t, "other") }); !errors.Is(err, manifest.ErrKeyring) {
		t.Errorf("other keyring: %v", err)
	}
	if err := config(func(c *distributor.Config) { c.Repo = "other" }); !errors.Is(err, manifest.ErrForeign) {
		t.Errorf("other repo: %v", err)
	}
	if _, err := p.publish(h.job(c1), true); err != nil {
		t.Error(err)
	}
}

// A service's epoch changes exactly when its epoch-0 digest does.
func TestServiceEpochs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var h history
		p := newPlace(t, nil)
		id := h.commit("", "prod/a=0", "staging/a=0")
		type state struct {
			text  string
			epoch uint64
		}
		have := map[string]state{} // "cohort/service"
		for step := range rapid.IntRange(1, 8).Draw(rt, "commits") {
			if step > 0 {
				var changes []string
				for range rapid.IntRange(0, 3).Draw(rt, "changes") {
					cohort := rapid.SampledFrom([]string{"prod", "staging"}).Draw(rt, "cohort")
					service := rapid.SampledFrom([]string{"b", "c", "d"}).Draw(rt, "service")
					if rapid.IntRange(0, 5).Draw(rt, "remove") == 0 {
						changes = append(changes, "-"+cohort+"/"+service)
					} else {
						changes = append(changes, fmt.Sprintf("%s/%s=%d", cohort, service, rapid.IntRange(0, 2).Draw(rt, "text")))
					}
				}
				id = h.commit(id, changes...)
			}
			res := p.mustPublish(h.job(id), rapid.Bool().Draw(rt, "rollout"))
			next := map[string]state{}
			for cohort, services := range h.commits[id].cohorts {
				index := p.index(res, cohort)
				for service, text := range services {
					name := cohort + "/" + service
					epoch := index.Services[service].Epoch
					old, was := have[name]
					changed := !was || old.text != text
					if changed && epoch != res.Epoch || !changed && epoch != old.epoch {
						rt.Fatalf("epoch %d: %s has service epoch %d; changed %t, before %+v", res.Epoch, name, epoch, changed, old)
					}
					next[name] = state{text, epoch}
				}
				if len(index.Services) != len(services) {
					rt.Fatalf("cohort %s has %d services, want %d", cohort, len(index.Services), len(services))
				}
			}
			have = next
		}
		p.fsck(p.store)
	})
}
