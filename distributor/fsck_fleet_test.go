package distributor_test

import (
	"crypto/ed25519"
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// What hosts signed is held against the store, and so is what the collector says of them.
func TestFsckFleet(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a")
	p.mustPublish(h.job(c1), true)
	p.mustPublish(h.job(h.commit(c1, "prod/checkout=b")), true)
	view, _ := p.head("prod")
	st, err := manifest.DecodeStatement(p.release(2).Cohorts["prod"].Statement.Payload)
	if err != nil {
		t.Fatal(err)
	}
	key := keys.FromSeed(77)
	sealed := func(change func(*report.Report)) *manifest.Envelope {
		t.Helper()
		r := report.Report{
			V: 1, Repo: view.Manifest.Repo, Store: view.Manifest.Store, Cohort: "prod", Host: "web-1", Labels: map[string]string{}, Boot: strings.Repeat("b", 32), Counter: 1, Key: key.Public(),
			Agent: "test", Reads: 1, At: p.now, Seen: view.Mark().String(), Desired: 2, Attempted: 2, Running: 2, Content: st.Content, Mode: report.ModeEnforce, Phase: report.PhaseIdle,
			Grade: manifest.GradeProcess, Confirmed: true, Services: map[string]report.Service{}, Poll: 60,
		}
		change(&r)
		env, err := manifest.Seal(manifest.KindReport, r, key)
		if err != nil {
			t.Fatal(err)
		}
		return env
	}
	as := func(change func(*report.Report)) distributor.Seen {
		return distributor.Seen{Host: "web-1", Cohort: "prod", Desired: 2, Running: 2, Signed: sealed(change)}
	}
	plain := func(*report.Report) {}
	forged := as(plain)
	forged.Signed.Signatures[0].Sig = ed25519.Sign(ed25519.NewKeyFromSeed(make([]byte, 32)), []byte("x"))
	says := func(desired, running uint64) distributor.Seen {
		s := as(plain)
		s.Desired, s.Running = desired, running
		return s
	}
	for name, test := range map[string]struct {
		seen    distributor.Seen
		problem string // "": none
	}{
		"well":             {as(plain), ""},
		"nothing signed":   {distributor.Seen{Host: "web-1", Cohort: "prod"}, ""},
		"forged":           {forged, "is not signed by the key in it"},
		"another host":     {as(func(r *report.Report) { r.Host = "web-2" }), "is of host web-2"},
		"another store":    {as(func(r *report.Report) { r.Store = strings.Repeat("0", 32) }), "reports about store"},
		"other bytes":      {as(func(r *report.Report) { r.Content = "sha256:" + strings.Repeat("0", 64) }), "was signed as epoch 2"},
		"no such release":  {as(func(r *report.Report) { r.Running = 9 }), "of which the store has no release"},
		"no such override": {as(func(r *report.Report) { r.Override = "inc-1" }), "has no statement for cohort prod like it"},
		"a newer order":    {as(func(r *report.Report) { r.Seen = "1-99-0" }), "has seen order 1-99-0"},
		"collector, runs":  {says(2, 1), "signed that it runs epoch 2, and the collector says epoch 1"},
		"collector, wants": {says(1, 2), "is to run epoch 2 by the head in the store, and epoch 1 as the collector says"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := distributor.FsckFleet(t.Context(), p.store, nil, p.now, []distributor.Seen{test.seen})
			if err != nil {
				t.Fatal(err)
			}
			if got.Checked.Hosts != 1 {
				t.Errorf("checked %d hosts", got.Checked.Hosts)
			}
			found := ""
			for _, pr := range got.Problems {
				if pr.Key != "host prod/web-1" || pr.Next == "" {
					t.Errorf("problem %+v", pr)
				}
				found += pr.What + "\n"
			}
			if (test.problem == "") != (found == "") || !strings.Contains(found, test.problem) {
				t.Errorf("problems: %q", found)
			}
		})
	}
}
