package distributor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
)

func (p *place) history() *distributor.History {
	p.t.Helper()
	h, err := distributor.OpenHistory(p.t.Context(), p.store, keyring(p.t, repoName), p.now)
	if err != nil {
		p.t.Fatal(err)
	}
	return h
}

// lines are entries as a person would note them.
func lines(entries []distributor.Entry) (list []string) {
	for _, e := range entries {
		if r := e.Refused; r != nil {
			list = append(list, fmt.Sprintf("%s refused %s: %s", e.At.Sub(start), r.Commit[:4], r.Why))
			continue
		}
		if d := e.Decision; d != nil {
			list = append(list, fmt.Sprintf("%s %s %s", e.At.Sub(start), d.Cohort, d.What))
			continue
		}
		list = append(list, fmt.Sprintf("%s release %d", e.At.Sub(start), e.Release.Epoch))
	}
	return list
}

func TestLog(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	p.now = start.Add(time.Minute)
	c2 := h.commit(c1, "prod/checkout=b")
	p.mustPublish(h.job(c2), false)
	p.now = start.Add(20 * time.Hour)
	p.mustPublish(h.job(c2), true) // assigns prod, renews staging
	p.now = start.Add(21 * time.Hour)
	c3 := h.commit(c2, "staging/checkout=!bad")
	p.mustPublish(h.job(c3), true)
	want := []string{"21h0m0s release 3", "20h0m0s prod epoch 2 to all hosts", "1m0s release 2", "0s staging epoch 1 to all hosts", "0s prod epoch 1 to all hosts", "0s release 1"}
	log := func(cohort string, limit int) []string {
		entries, err := p.history().Log(t.Context(), cohort, limit)
		if err != nil {
			t.Fatal(err)
		}
		return lines(entries)
	}
	if diff := cmp.Diff(want, log("", 0)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for limit := 1; limit <= len(want); limit++ {
		if got := log("", limit); !slices.Equal(got, want[:limit]) {
			t.Errorf("limit %d: %q", limit, got)
		}
	}
	if got := log("staging", 0); !slices.Equal(got, []string{"21h0m0s release 3", "0s staging epoch 1 to all hosts", "0s release 1"}) {
		t.Errorf("staging: %q", got)
	}
	if got := log("nobody", 0); len(got) != 0 {
		t.Errorf("nobody: %q", got)
	}
	// The head itself tells, where its copies are lost; and what is not genuine is left out and named.
	for key := range dump(t, p.store) {
		if strings.HasPrefix(key, manifest.PrefixHistory) {
			if err := p.store.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, key := range []string{manifest.KeyRelease(2), manifest.KeyHistory("prod", manifest.Mark{Era: 1, Serial: 1})} {
		if err := p.store.Put(t.Context(), key, []byte("junk")); err != nil {
			t.Fatal(err)
		}
	}
	hist := p.history()
	entries, err := hist.Log(t.Context(), "", 0)
	want = []string{"21h0m0s release 3", "20h0m0s staging epoch 1 to all hosts", "20h0m0s prod epoch 2 to all hosts", "0s release 1"}
	if err != nil || !slices.Equal(lines(entries), want) || len(hist.Skipped) != 2 {
		t.Errorf("%q, skipped %q, %v", lines(entries), hist.Skipped, err)
	}
}

// Looking back reads a page of releases at a time, and never one twice.
// dated is a store whose objects are as old as a test says.
type dated struct {
	store.ReadStore
	of func(key string) time.Time
}

func (d dated) List(ctx context.Context, prefix, after string, n int) ([]store.Info, error) {
	infos, err := d.ReadStore.List(ctx, prefix, after, n)
	for i := range infos {
		infos[i].Modified = d.of(infos[i].Key)
	}
	return infos, err
}

// TestLogRefused: a commit that was refused leaves a trace, in its turn, until it is published after all.
func TestLogRefused(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	at := func(minutes int) { p.now = start.Add(time.Duration(minutes) * time.Minute) }
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), false)
	ages := map[string]time.Time{manifest.KeyCommit(c1): start}
	refuse := func(minutes int, commit, why string) {
		t.Helper()
		ages[manifest.KeyCommit(commit)] = start.Add(time.Duration(minutes) * time.Minute)
		ix := manifest.CommitIndex{V: 1, Commit: commit, Reason: why, At: start.Add(time.Duration(minutes) * time.Minute)}
		if err := p.store.Put(t.Context(), manifest.KeyCommit(commit), encode(t, ix)); err != nil {
			t.Fatal(err)
		}
	}
	refuse(1, strings.Repeat("a", 40), "limit: not an integer")
	at(2)
	c2 := h.commit(c1, "prod/checkout=b")
	p.mustPublish(h.job(c2), false)
	ages[manifest.KeyCommit(c2)] = p.now
	refuse(3, strings.Repeat("b", 40), "no fleet")
	refuse(-1, strings.Repeat("c", 40), "before all")
	want := []string{"3m0s refused bbbb: no fleet", "2m0s release 2", "1m0s refused aaaa: limit: not an integer", "0s release 1", "-1m0s refused cccc: before all"}
	// Whether the store says how old its objects are, or not; also with a clock that is some minutes ahead.
	for name, of := range map[string]func(string) time.Time{
		"unknown": func(string) time.Time { return time.Time{} },
		"dated":   func(key string) time.Time { return ages[key] },
		"ahead":   func(key string) time.Time { return ages[key].Add(10 * time.Minute) },
		"behind":  func(key string) time.Time { return ages[key].Add(-10 * time.Minute) },
	} {
		for limit := range len(want) + 2 {
			past, err := distributor.OpenHistory(t.Context(), dated{p.store, of}, keyring(t, repoName), p.now)
			if err != nil {
				t.Fatal(err)
			}
			entries, err := past.Log(t.Context(), "", limit)
			if err != nil {
				t.Fatal(err)
			}
			expect := want
			if limit > 0 {
				expect = want[:min(limit, len(want))]
			}
			if diff := cmp.Diff(expect, lines(entries)); diff != "" {
				t.Errorf("%s, limit %d: %s", name, limit, diff)
			}
		}
	}
	// Of one cohort it is nothing.
	entries, err := p.history().Log(t.Context(), "prod", 0)
	if diff := cmp.Diff([]string{"2m0s release 2", "0s release 1"}, lines(entries)); diff != "" || err != nil {
		t.Error(diff, err)
	}
	// What does not read is left out, and said.
	if err := p.store.Put(t.Context(), manifest.KeyCommit(strings.Repeat("d", 40)), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	hist, err := distributor.OpenHistory(t.Context(), dated{p.store, func(string) time.Time { return time.Time{} }}, keyring(t, repoName), p.now)
	if err != nil {
		t.Fatal(err)
	}
	if entries, err = hist.Log(t.Context(), "", 0); err != nil || len(entries) != len(want) || len(hist.Skipped) != 1 {
		t.Errorf("%d entries, %q, %v", len(entries), hist.Skipped, err)
	}
}

func TestLogOfManyReleases(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	id := ""
	for i := range 30 {
		id = h.commit(id, fmt.Sprintf("prod/checkout=%d", i))
		p.mustPublish(h.job(id), false)
	}
	entries, err := p.history().Log(t.Context(), "", 0)
	if err != nil || len(entries) != 30 || entries[0].Release.Epoch != 30 || entries[29].Release.Epoch != 1 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
}

func TestDetail(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "prod/search=a", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	c2 := h.commit(c1, "prod/checkout=b", "-prod/search", "prod/checkout@web-1=own", "staging/checkout=!bad")
	res := p.mustPublish(h.job(c2), true)
	hist := p.history()
	d, err := hist.Release(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	prod, staging := d.Cohorts["prod"], d.Cohorts["staging"]
	if d.Release.Commit != c2 || len(d.Keys) != 1 || hist.KeyName(d.Keys[0]) != "release" || d.Digest == "" {
		t.Errorf("%+v", d)
	}
	if prod.Statement.Bundle.Object != res.Cohorts["prod"].Bundle || prod.Index.Services["checkout"].Epoch != 2 || !slices.Equal(prod.Removed, []string{"search"}) || len(prod.Statement.Variants) != 1 {
		t.Errorf("prod %+v", prod)
	}
	if staging.State != manifest.StateBlocked || staging.Reason != "bad" || staging.Statement.Epoch != 1 || staging.Index.Services["checkout"].Epoch != 1 {
		t.Errorf("staging %+v", staging)
	}
	if _, err := hist.Release(t.Context(), 3); !errors.Is(err, distributor.ErrNoRelease) {
		t.Errorf("no release: %v", err)
	}
	// A damaged bundle is told, and hides nothing else.
	if err := p.store.Put(t.Context(), manifest.KeyBundle(res.Cohorts["prod"].Bundle), []byte("junk")); err != nil {
		t.Fatal(err)
	}
	if d, err = p.history().Release(t.Context(), 2); err != nil || !strings.Contains(d.Cohorts["prod"].Fault, "damaged") || d.Cohorts["prod"].Statement == nil || d.Cohorts["staging"].Fault != "" {
		t.Errorf("%+v, %v", d.Cohorts["prod"], err)
	}
}

// A commit is found by the index, and where that is missing or lies by the releases themselves.
func TestFind(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	c2 := h.commit(c1, "prod/checkout=b")
	bad := h.commit(c2, "prod/checkout=!bad")
	p.mustPublish(h.job(c1), false)
	p.mustPublish(h.job(c2), false)
	if _, err := p.publish(h.job(bad), false); err == nil {
		t.Fatal("published")
	}
	for name, damage := range map[string]func(key string) error{
		"whole":   func(string) error { return nil },
		"missing": func(key string) error { return p.store.Delete(t.Context(), key) },
		"junk":    func(key string) error { return p.store.Put(t.Context(), key, []byte("junk")) },
		"lying": func(key string) error {
			return p.store.Put(t.Context(), key, encode(t, manifest.CommitIndex{V: 1, Commit: c1, Epoch: 2, At: start}))
		},
		"refused before": func(key string) error {
			return p.store.Put(t.Context(), key, encode(t, manifest.CommitIndex{V: 1, Commit: c1, Reason: "no", At: start}))
		},
	} {
		if err := damage(manifest.KeyCommit(c1)); err != nil {
			t.Fatal(err)
		}
		if epoch, err := p.history().Find(t.Context(), c1); epoch != 1 || err != nil {
			t.Errorf("%s: %d, %v", name, epoch, err)
		}
	}
	_, err := p.history().Find(t.Context(), bad)
	var refused *distributor.RefusedCommit
	if !errors.As(err, &refused) || refused.Reason != "every cohort is blocked: bad (prod)" {
		t.Errorf("refused: %v", err)
	}
	if _, err := p.history().Find(t.Context(), strings.Repeat("9", 40)); !errors.Is(err, distributor.ErrNoRelease) {
		t.Errorf("never published: %v", err)
	}
}

func TestHistoryOfNoStore(t *testing.T) {
	if _, err := distributor.OpenHistory(t.Context(), mem.New(), nil, start); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v", err)
	}
}
