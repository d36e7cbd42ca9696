package collector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/verdict"
)

// The way of a release: published, assigned, reported, green.
func TestReleaseIsConfirmed(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod-eu", "eu-1", "eu-2")
	w.cohort("prod-us", "us-1")
	r := newRig(t, w, nil)
	ctx := t.Context()

	// Nothing yet: empty, not null.
	for path, want := range map[string]string{api.PathCohorts: `{"cohorts":{}}`, api.PathHosts: `[]`, api.PathReleases: `[]`} {
		if got := get(t, r.server.URL+path); got != want {
			t.Errorf("GET %s: %s, want %s", path, got, want)
		}
	}
	if _, err := r.client.Wait(ctx, 1, api.WaitQuery{}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("wait for what is not released: %v", err)
	}

	one := w.publish("prod-eu", "prod-us")
	r.read()
	st, err := r.client.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if c := st.Cohorts["prod-eu"]; c.Expected != 2 || codes(c.Verdicts) != "missing=2" || !strings.Contains(c.Why, "nothing is assigned yet") {
		t.Errorf("status: %+v", c)
	}
	w.assign("prod-eu", one)
	w.assign("prod-us", one)
	r.read()
	eu1, eu2, us1 := r.agent("prod-eu", "eu-1"), r.agent("prod-eu", "eu-2"), r.agent("prod-us", "us-1")
	eu1.runs(one).say()
	us1.runs(one).say()
	before := r.wait(one, api.WaitQuery{})
	if before.Green || before.Never || before.Confirmed != 2 || len(before.Waiting) != 1 || before.Waiting[0].Host != "eu-2" || before.Waiting[0].Verdict != verdict.Missing {
		t.Fatalf("wait: %+v", before)
	}
	// Who waits is told as soon as it changes, and not before.
	answer := make(chan api.Wait, 1)
	go func() { answer <- r.wait(one, api.WaitQuery{After: before.Version, Wait: 50 * time.Second}) }()
	eu2.runs(one).say()
	if g := <-answer; !g.Green || g.Confirmed != 3 || g.Version <= before.Version || g.Why != "3 confirmed" || len(g.Cohorts) != 2 {
		t.Errorf("wait: %+v", g)
	}
	if g := r.wait(one, api.WaitQuery{Cohort: "prod-us"}); !g.Green || g.Confirmed != 1 {
		t.Errorf("wait for one cohort: %+v", g)
	}

	// The second release changes one cohort; the deaf process is named.
	two := w.publish("prod-eu")
	w.assign("prod-eu", two)
	r.read()
	eu1.runs(two).say()
	eu2.runs(two)
	eu2.report.Confirmed, eu2.report.Phase, eu2.report.Grade = false, report.PhaseConfirming, manifest.GradeDisk
	eu2.report.Services["checkout"] = report.Service{State: "waiting", Epoch: one, Expected: two, Reason: "process still states epoch 1"}
	eu2.say()
	r.is("eu-2", verdict.Applying, "checkout: process still states epoch 1")
	g := r.wait(two, api.WaitQuery{})
	if g.Green || g.Confirmed != 2 || len(g.Waiting) != 1 || !strings.Contains(g.Why, "prod-eu: 1 confirmed, 1 of 2 hosts not: eu-2 applying: epoch 2 is installed, not confirmed: checkout: process still states epoch 1") {
		t.Errorf("wait: %+v", g)
	}
	w.advance(5*time.Minute + time.Second)
	r.read()
	eu1.say()
	eu2.say()
	r.is("eu-2", verdict.Lagging, "epoch 2 was assigned 5m1s ago")
	eu2.runs(two).report.Phase = report.PhaseIdle
	eu2.say()
	us1.say()
	if g := r.wait(two, api.WaitQuery{}); !g.Green || g.Confirmed != 3 {
		t.Errorf("wait: %+v", g)
	}
	// The first one is in it.
	if g := r.wait(one, api.WaitQuery{}); !g.Green {
		t.Errorf("wait for the first: %+v", g)
	}

	st, err = r.client.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := api.Cohort{Target: 2, Baseline: 2, Phase: manifest.PhaseDone, Mark: "1-2-0", Commit: fmt.Sprintf("%040x", 2), Subject: "change 2", Expected: 2, Verdicts: map[verdict.Code]int{verdict.Confirmed: 2}, Why: "to all hosts at once"}
	if diff := cmp.Diff(want, st.Cohorts["prod-eu"]); diff != "" {
		t.Errorf("status:\n%s", diff)
	}
	hosts, err := r.client.Hosts(ctx, "prod-eu", "confirmed")
	if err != nil || len(hosts) != 2 || hosts[0].Host != "eu-1" || hosts[0].Desired != 2 || hosts[0].Running != 2 || hosts[0].Grade != manifest.GradeProcess || hosts[0].Report != nil {
		t.Errorf("hosts: %+v, %v", hosts, err)
	}
	if none, err := r.client.Hosts(ctx, "", "silent"); err != nil || none == nil || len(none) != 0 {
		t.Errorf("silent hosts: %#v, %v", none, err)
	}
	if h := r.host("eu-2"); !bytes.Contains(h.Report, []byte(`"running":2`)) || !h.SeenAt.Equal(w.now()) {
		t.Errorf("host: %+v", h)
	}
	rels, err := r.client.Releases(ctx)
	if err != nil || len(rels) != 2 || rels[0].Epoch != 2 || rels[0].Cohorts["prod-us"].State != manifest.StateHolds || rels[0].Cohorts["prod-us"].Epoch != 1 {
		t.Errorf("releases: %+v, %v", rels, err)
	}
	if rel, err := r.client.Release(ctx, 1); err != nil || rel.Subject != "change 1" || rel.Author.Name != "Ana" {
		t.Errorf("release: %+v, %v", rel, err)
	}
	for what, err := range map[string]error{
		"host":    second(r.client.Host(ctx, "nobody")),
		"cohort":  second(r.client.Hosts(ctx, "nowhere", "")),
		"release": second(r.client.Release(ctx, 99)),
		"head":    func() error { _, _, err := r.client.GetHead(ctx, "nowhere", manifest.Mark{}, 0); return err }(),
	} {
		if !errors.Is(err, api.ErrNotFound) {
			t.Errorf("%s that is not there: %v", what, err)
		}
	}
	if _, err := r.client.Hosts(ctx, "", "fine"); !errors.Is(err, api.ErrRefused) || !strings.Contains(err.Error(), `"fine" is not known`) {
		t.Errorf("unknown verdict: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func TestNeverGreen(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod-eu", "eu-1")
	w.cohort("empty")
	r := newRig(t, w, nil)
	one := w.publish("prod-eu", "empty")
	w.cohort("late", "l-1")
	two := w.publish("prod-eu") // late is blocked: nothing stands
	w.assign("prod-eu", two)
	w.assign("empty", one)
	r.read()
	r.agent("prod-eu", "eu-1").runs(two).say()
	if g := r.wait(two, api.WaitQuery{Cohort: "prod-eu"}); !g.Green {
		t.Errorf("%+v", g)
	}
	if g := r.wait(two, api.WaitQuery{}); g.Green || !g.Never || !strings.Contains(g.Why, "empty: cohort empty has no hosts") || !strings.Contains(g.Why, "late: cohort late is blocked in release 2: services/checkout/base.yaml:3:1") {
		t.Errorf("%+v", g)
	}
	// Rolled back to what was before: the newer one never arrives by waiting.
	w.assign("prod-eu", one, func(m *manifest.Manifest) {
		m.Rollout.Phase, m.Rollout.Halts = manifest.PhaseHalted, []manifest.Stop{{By: "ana", Why: "INC-311", Since: w.now(), Epoch: two}}
	})
	r.read()
	if g := r.wait(two, api.WaitQuery{Cohort: "prod-eu"}); g.Green || !g.Never || !strings.Contains(g.Why, "halted by ana") {
		t.Errorf("%+v", g)
	}
}

// B089: two machines made from one image speak under one name.
func TestB089Clones(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	two := w.publish("prod")
	w.assign("prod", two)
	r.read()
	a, b := r.agent("prod", "web-1"), r.agent("prod", "web-1")
	b.key, b.report.Key, b.report.Boot = a.key, a.report.Key, "boot-clone"
	a.runs(two).say()
	r.is("web-1", verdict.Confirmed, "")
	b.runs(one).say() // an agent that was started anew, so far
	r.is("web-1", verdict.Applying, "")
	for range 4 {
		w.advance(20 * time.Second)
		for _, x := range []*agent{a, b} {
			x.say()
			r.is("web-1", verdict.Duplicate, "2 agents speak as web-1 (boot boot-web-1 with epoch 2, heard ")
			r.is("web-1", verdict.Duplicate, "boot boot-clone with epoch 1, heard ")
			if g := r.wait(two, api.WaitQuery{}); g.Green || len(g.Waiting) != 1 || g.Waiting[0].Verdict != verdict.Duplicate {
				t.Fatalf("a duplicate counts: %+v", g)
			}
		}
	}
	// A heartbeat of the one that did not speak last is no confirmation of what the other said.
	res, err := r.client.Report(t.Context(), a.heartbeat())
	if err != nil || res.Accepted || !res.SendSigned {
		t.Errorf("heartbeat of a clone: %+v, %v", res, err)
	}
	// The clone is stopped: after a while the host is one again.
	for range 11 {
		w.advance(time.Minute)
		a.say()
	}
	r.is("web-1", verdict.Confirmed, "")
}

// B091: silent, ill and removed are three states, and who was silent before is counted apart.
func TestB091SilentIllRemoved(t *testing.T) {
	w := newWorld(t)
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("h-%d", i))
	}
	w.cohort("prod", names...)
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	agents := map[string]*agent{}
	for _, n := range names {
		agents[n] = r.agent("prod", n).runs(one)
		agents[n].say()
	}
	if g := r.wait(one, api.WaitQuery{}); !g.Green || g.Confirmed != 10 {
		t.Fatalf("%+v", g)
	}
	w.advance(181 * time.Second)
	for _, n := range names[1:] {
		agents[n].say()
	}
	r.is("h-0", verdict.Silent, "last heard 3m1s ago")
	w.advance(time.Second)
	// The inventory gives one up.
	w.cohort("prod", names[:9]...)
	two := w.publish("prod")
	w.assign("prod", two)
	r.read()
	for _, n := range names[2:] {
		agents[n].runs(two).say()
	}
	ill := agents["h-1"]
	ill.report.Phase, ill.report.Code, ill.report.Reason, ill.report.Attempted = report.PhaseRefused, "unreachable", "fetch bundle: connection refused", two
	ill.say()
	r.is("h-0", verdict.Silent, "")
	r.is("h-1", verdict.Refused, "refused epoch 2 (unreachable) and keeps epoch 1: fetch bundle: connection refused")
	r.is("h-9", verdict.Retired, "left the inventory")
	g := r.wait(two, api.WaitQuery{})
	if g.Green || g.Confirmed != 7 || g.Owed != 1 || g.OwedHosts[0].Host != "h-0" || len(g.Waiting) != 1 || g.Waiting[0].Host != "h-1" {
		t.Errorf("%+v", g)
	}
	ill.runs(two).report.Phase = report.PhaseIdle
	ill.say()
	if g := r.wait(two, api.WaitQuery{}); !g.Green || g.Confirmed != 8 || g.Owed != 1 || g.Why != "8 confirmed, 1 owed" {
		t.Errorf("%+v", g)
	}
	if g := r.wait(two, api.WaitQuery{Strict: true}); g.Green || len(g.Waiting) != 1 {
		t.Errorf("strict: %+v", g)
	}
}

// A host that reports where it is not expected is told both places.
func TestUnexpectedHost(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod-eu", "eu-1")
	w.cohort("prod-us", "us-1")
	w.cohort("open")
	w.policy.Cohorts["open"] = func() manifest.CohortPolicy {
		p := w.policy.Cohorts["open"]
		p.Hosts = manifest.HostsPolicy{Expect: &manifest.Expect{Min: 3, Max: 3}}
		return p
	}()
	r := newRig(t, w, nil)
	one := w.publish("prod-eu", "prod-us", "open")
	for _, c := range []string{"prod-eu", "prod-us", "open"} {
		w.assign(c, one)
	}
	r.read()
	r.agent("prod-us", "eu-1").runs(one).say()
	hosts, err := r.client.Hosts(t.Context(), "prod-us", "unexpected")
	if err != nil || len(hosts) != 1 || !strings.Contains(hosts[0].Why, "reports in cohort prod-us, but the inventory has it in prod-eu") {
		t.Errorf("%+v, %v", hosts, err)
	}
	r.is("eu-1", verdict.Missing, "expected in cohort prod-eu") // where it is expected, it is missing
	r.agent("prod-us", "stray").runs(one).say()
	r.is("stray", verdict.Unexpected, "whose inventory does not have it")
	// A number instead of a list: everybody counts, and who is short is said.
	r.agent("open", "o-1").runs(one).say()
	r.is("o-1", verdict.Confirmed, "")
	if g := r.wait(one, api.WaitQuery{Cohort: "open"}); g.Green || g.Never || !strings.Contains(g.Why, "expects 2 hosts more") {
		t.Errorf("%+v", g)
	}
	st, err := r.client.Status(t.Context())
	if err != nil || st.Cohorts["open"].Expected != 3 || !strings.Contains(st.Cohorts["open"].Why, "2 more of the hosts") {
		t.Errorf("%+v, %v", st.Cohorts["open"], err)
	}
}

// B092: order and freshness come from counters and the collector's clock, whatever the host's clock says.
func TestB092ClocksAndLateReports(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	a := r.agent("prod", "web-1").runs(one)
	var first, last api.ReportItem
	for i, at := range []time.Time{w.now().Add(2 * time.Hour), w.now().Add(-24 * time.Hour), time.Unix(0, 0).UTC(), w.now().Add(time.Hour)} {
		a.counter++
		a.report.Counter, a.report.At = a.counter, at
		e := w.seal(manifest.KindReport, a.report, a.key)
		last = api.ReportItem{Signed: &e}
		if i == 0 {
			first = last
		}
		w.advance(10 * time.Second)
		if res, err := r.client.Report(t.Context(), last); err != nil || !res.Accepted {
			t.Fatalf("%+v, %v", res, err)
		}
		r.is("web-1", verdict.Confirmed, "")
		if h := r.host("web-1"); !h.SeenAt.Equal(w.now()) {
			t.Errorf("seen at %s, it is %s", h.SeenAt, w.now())
		}
	}
	if h := r.host("web-1"); h.SkewS != time.Hour.Seconds()-40 {
		t.Errorf("skew %v", h.SkewS)
	}
	seen := *r.host("web-1").SeenAt
	w.advance(100 * time.Second)
	for name, item := range map[string]api.ReportItem{"doubled": last, "late": first} {
		res, err := r.client.Report(t.Context(), item)
		if err != nil || res.Accepted || res.Counter != a.counter || !strings.Contains(res.Error, "late") {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
	// The old boot's reports, played again after a restart of the agent.
	a.report.Boot, a.counter = "boot-two", 0
	a.runs(one).say()
	newer := *r.host("web-1").SeenAt
	w.advance(100 * time.Second)
	for _, item := range []api.ReportItem{first, last} {
		if res, err := r.client.Report(t.Context(), item); err != nil || res.Accepted {
			t.Errorf("replayed: %+v, %v", res, err)
		}
	}
	if h := r.host("web-1"); !h.SeenAt.Equal(newer) || newer.Equal(seen) || h.Verdict != verdict.Confirmed {
		t.Errorf("a replayed report changed something: %+v", h)
	}
	w.advance(100 * time.Second)
	r.is("web-1", verdict.Silent, "")
}

// B094, the server's side: the mark of a long poll is that of the newest verified head, never one that was announced and could not be believed.
func TestB094MarkIsOfTheVerifiedHead(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	two := w.publish("prod")
	w.assign("prod", one)
	r.read()
	data, mark, err := r.client.GetHead(t.Context(), "prod", manifest.Mark{}, 0)
	if err != nil || mark != (manifest.Mark{Era: 1, Serial: 1}) {
		t.Fatalf("%s, %v", mark, err)
	}
	stored, err := w.store.Get(t.Context(), manifest.KeyHead("prod"), 1<<20)
	if err != nil || !bytes.Equal(stored.Data, data) {
		t.Errorf("not the stored bytes: %v", err)
	}
	if _, _, err := r.client.GetHead(t.Context(), "prod", mark, 20*time.Millisecond); !errors.Is(err, api.ErrNotModified) {
		t.Errorf("nothing new: %v", err)
	}
	// A forged head with a higher order: refused, in the store and by hand; waiters hear nothing of it.
	good := w.head("prod", two)
	forged := w.encode(manifest.Head{Manifest: w.seal(manifest.KindManifest, manifest.Manifest{V: 1, Store: storeID, Repo: repo, Cohort: "prod", Era: 1, Serial: 9}, strangerKey), Overrides: []manifest.Envelope{}})
	w.put(manifest.KeyHead("prod"), forged)
	if err := r.c.read(t.Context()); !errors.Is(err, manifest.ErrSignature) {
		t.Errorf("forged head in the store: %v", err)
	}
	if err := r.client.PutHead(t.Context(), "prod", forged); !errors.Is(err, api.ErrDenied) {
		t.Errorf("forged head by hand: %v", err)
	}
	if err := r.client.PutHead(t.Context(), "elsewhere", good); !errors.Is(err, api.ErrDenied) {
		t.Errorf("another cohort's head by hand: %v", err)
	}
	if _, _, err := r.client.GetHead(t.Context(), "prod", mark, 20*time.Millisecond); !errors.Is(err, api.ErrNotModified) {
		t.Errorf("the mark moved on a head that is not believed: %v", err)
	}
	// While the store shows it, verdicts go blind rather than green.
	w.advance(2*time.Hour + time.Second)
	r.agent("prod", "web-1").runs(one).say()
	r.is("web-1", verdict.Unknown, "no good head of cohort prod")

	// Many wait; the good one comes by hand, then they all have it.
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]int{}
	for range 50 {
		wg.Go(func() {
			data, m, err := r.client.GetHead(context.Background(), "prod", mark, 50*time.Second)
			mu.Lock()
			defer mu.Unlock()
			got[fmt.Sprint(m, err, bytes.Equal(data, good))]++
		})
	}
	if err := r.client.PutHead(t.Context(), "prod", good); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if got["1-2-0 <nil> true"] != 50 {
		t.Errorf("waiters got %v", got)
	}
	// Handed over again it changes nothing; the store goes back behind it: refused.
	if err := r.client.PutHead(t.Context(), "prod", good); err != nil {
		t.Errorf("again: %v", err)
	}
	w.put(manifest.KeyHead("prod"), data)
	if err := r.c.read(t.Context()); !errors.Is(err, manifest.ErrOrder) {
		t.Errorf("older head in the store: %v", err)
	}
	// A beat is not signed: by hand it may only rise, and what the store says goes before.
	w.put(manifest.KeyHead("prod"), good)
	r.read()
	beat := bytes.Replace(good, []byte(`"beat":0`), []byte(`"beat":900`), 1)
	if err := r.client.PutHead(t.Context(), "prod", beat); err != nil {
		t.Fatal(err)
	}
	if _, m, err := r.client.GetHead(t.Context(), "prod", manifest.Mark{}, 0); err != nil || m.Beat != 900 {
		t.Errorf("%s, %v", m, err)
	}
	r.read()
	if _, m, err := r.client.GetHead(t.Context(), "prod", manifest.Mark{}, 0); err != nil || m.Beat != 0 {
		t.Errorf("an unsigned beat stayed: %s, %v", m, err)
	}
}

// Floors survive a restart: an older head is refused by a collector that never saw the newer one in this life.
func TestFloorsSurviveRestart(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	old := w.head("prod", one)
	w.assign("prod", one)
	r.read()
	r.flush()
	r.restart()
	w.put(manifest.KeyHead("prod"), old)
	if err := r.c.read(t.Context()); !errors.Is(err, manifest.ErrOrder) {
		t.Errorf("an older head: %v", err)
	}
}

// B131: an order that nobody renews is an alarm with a sentence, and no outage.
func TestB131StaleOrder(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1", "web-2")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	a, b := r.agent("prod", "web-1").runs(one), r.agent("prod", "web-2").runs(one)
	a.report.Seen, b.report.Seen = "1-1-0", "1-1-0"
	a.say()
	b.report.Stale = true // a clock a day ahead
	b.counter++
	b.report.Counter, b.report.At = b.counter, w.now().Add(25*time.Hour)
	e := w.seal(manifest.KindReport, b.report, b.key)
	if res, err := r.client.Report(t.Context(), api.ReportItem{Signed: &e}); err != nil || !res.Accepted {
		t.Fatalf("%+v, %v", res, err)
	}
	r.is("web-1", verdict.Confirmed, "")
	r.is("web-2", verdict.Stale, "its clock is wrong (25h0m0s ahead)")
	w.advance(24*time.Hour + time.Minute)
	r.read()
	a.say()
	r.is("web-1", verdict.Stale, "order 1-1-0 should have been renewed by 2026-12-01T12:00:00Z, 1m0s ago: the host keeps what it runs; renew it with `muster rollout refresh prod`")
	if st, err := r.client.Status(t.Context()); err != nil || !st.Cohorts["prod"].Stale || !strings.Contains(st.Cohorts["prod"].Why, "should have been renewed") {
		t.Errorf("%+v, %v", st, err)
	}
	if _, _, err := r.client.GetHead(t.Context(), "prod", manifest.Mark{}, 0); err != nil {
		t.Errorf("a stale head is still served: %v", err)
	}
	w.assign("prod", one) // renewed, nothing else
	r.read()
	r.is("web-1", verdict.Confirmed, "")
}
