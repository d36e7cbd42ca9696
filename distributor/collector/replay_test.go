package collector

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// starts has the agent start and speak n times, as boot-<from> and those after it.
func (a *agent) starts(from, n int) {
	a.t.Helper()
	for i := range n {
		a.advance(time.Second)
		a.report.Boot, a.counter = fmt.Sprintf("boot-%d", from+i), 0
		a.say()
	}
}

// A report that somebody sends again is known to be old however often the agent started since, also after the collector did.
func TestReplayAfterManyStarts(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	two := w.publish("prod")
	r.read()
	a := r.agent("prod", "web-1").runs(one)
	a.report.Boot = "boot-0"
	var old []api.ReportItem
	old = append(old, a.say(), a.say())
	w.assign("prod", two)
	r.read()
	a.runs(two)
	a.starts(1, maxBoots+1)
	w.advance(30 * time.Second)
	before := r.host("web-1")
	for _, restarted := range []bool{false, true} {
		if restarted {
			r.flush()
			r.restart()
			r.read()
		}
		for range 2 {
			for i, item := range old {
				if res, err := r.client.Report(t.Context(), item); !errors.Is(err, api.ErrDenied) {
					t.Errorf("report %d again, restarted %t: %+v, %v", i, restarted, res, err)
				}
			}
		}
		after := r.host("web-1")
		if after.Verdict != verdict.Confirmed || after.Running != two || !after.SeenAt.Equal(*before.SeenAt) || string(after.Report) != string(before.Report) {
			t.Errorf("restarted %t: %s, running %d, seen %s\nbefore: %s, running %d, seen %s", restarted, after.Why, after.Running, after.SeenAt, before.Why, before.Running, before.SeenAt)
		}
	}
	a.rig = r
	a.client = r.client
	a.starts(100, 1)
	r.is("web-1", verdict.Confirmed, "")
}

// A host whose clock was ahead, and is right by now, is not cut off: a person lets it in, once.
func TestClockThatWentBack(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	a := r.agent("prod", "web-1").runs(one)
	ahead := func(start int) api.ReportItem {
		a.report.Boot, a.counter, a.report.Counter = fmt.Sprintf("ahead-%d", start), 1, 1
		a.report.At = w.now().AddDate(4, 0, 0)
		e := a.seal("report", a.report, a.key)
		return api.ReportItem{Signed: &e}
	}
	for i := range 3 {
		if res, err := r.client.Report(t.Context(), ahead(i)); err != nil || !res.Accepted {
			t.Fatalf("%+v, %v", res, err)
		}
		w.advance(time.Second)
	}
	a.starts(0, maxBoots-3) // its clock is right again; what runs is not asked for its time
	w.advance(time.Second)
	a.starts(50, 1)
	a.report.Boot, a.counter = "boot-51", 0
	w.advance(time.Second)
	if _, err := r.client.Report(t.Context(), a.signed()); !errors.Is(err, api.ErrDenied) {
		t.Fatalf("a start of before: %v", err)
	}
	if _, err := r.client.ChangeHosts(t.Context(), api.HostsAccept, api.HostsChange{Hosts: []string{"web-1"}, By: "ana"}); err != nil {
		t.Fatal(err)
	}
	a.say()
	a.starts(52, maxBoots+5) // those of the future are forgotten meanwhile, and are in nobody's way
	r.is("web-1", verdict.Confirmed, "")
	if _, err := r.client.ChangeHosts(t.Context(), api.HostsAccept, api.HostsChange{Hosts: []string{"web-1"}, By: "ana"}); err == nil {
		t.Error("there is nothing to accept any more")
	}
}

// A host may stand in the lists of two cohorts; where it does not belong it is told of both, and where nobody speaks for it, of the other.
func TestHostOfTwoCohorts(t *testing.T) {
	w := newWorld(t)
	w.cohort("mail", "box-1", "m-1")
	w.cohort("prod", "box-1", "p-1")
	w.cohort("staging", "s-1")
	r := newRig(t, w, nil)
	one := w.publish("mail", "prod", "staging")
	for _, name := range []string{"mail", "prod", "staging"} {
		w.assign(name, one)
	}
	r.read()
	r.agent("staging", "box-1").runs(one).say()
	why := func(cohort string) string {
		t.Helper()
		list, err := r.client.Hosts(t.Context(), cohort, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range list {
			if h.Host == "box-1" {
				return string(h.Verdict) + ": " + h.Why
			}
		}
		return ""
	}
	if got, want := why("staging"), "unexpected: reports in cohort staging, but the inventory has it in mail and prod: correct `cohort` in its agent.yaml, or move it in the fleet's hosts.list"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	mail := r.agent("mail", "box-1").runs(one)
	mail.say()
	if got := why("mail"); got[:9] != "confirmed" {
		t.Error(got)
	}
	if got, want := why("prod"), "missing: expected in cohort prod, and also in mail, but it has never reported here: each of them needs an agent of its own on it; start one, or take it out of hosts.list"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	r.agent("prod", "box-1").runs(one).say()
	if got := why("prod"); got[:9] != "confirmed" {
		t.Error(got)
	}
	if h := r.host("box-1"); h.Verdict != verdict.Confirmed || h.Cohort == "staging" {
		t.Errorf("%+v", h)
	}
}

// A head that is refused after a restart is said to be, and why: nobody is told to assign something over it.
func TestRefusedHeadAfterRestart(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	old := w.head("prod", one)
	w.put(manifest.KeyHead("prod"), old)
	r.read()
	two := w.publish("prod")
	w.assign("prod", two, func(m *manifest.Manifest) { m.Serial = 9 })
	r.read()
	r.flush()
	w.put(manifest.KeyHead("prod"), old)
	r.restart()
	refused := r.c.read(t.Context())
	if refused == nil {
		t.Fatal("an older head is taken")
	}
	st, err := r.c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if why := st.Cohorts["prod"].Why; strings.Contains(why, "publish --rollout=now") || !strings.Contains(why, "its order is not taken") || !strings.Contains(why, manifest.KeyHead("prod")) {
		t.Errorf("%s\nrefused: %v", why, refused)
	}
}
