package verdict_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/verdict"
)

func TestProve(t *testing.T) {
	own, other := keys.FromSeed(1), keys.FromSeed(2)
	// claim is a host that signed what the head assigns, once change has had its way with the report, and spoil with the rest.
	claim := func(change func(*report.Report), spoil func(*verdict.Claim)) verdict.Claim {
		in := confirmed()
		r := *in.Report
		r.Key, r.At = own.Public(), now.Add(-time.Minute)
		r.Labels = map[string]string{}
		r.Store = "0123456789abcdef0123456789abcdef"
		r.Boot = "00112233445566778899aabbccddeeff"
		r.Agent, r.Reads = "test", 1
		in.View.Manifest.Repo, in.View.Manifest.Store = r.Repo, r.Store
		if change != nil {
			change(&r)
		}
		e, err := manifest.Seal(manifest.KindReport, r, own)
		if err != nil {
			t.Fatal(err)
		}
		c := verdict.Claim{Host: "web-1", View: in.View, Good: func(e uint64) bool { return e == 7 }, Signed: e, Now: now}
		if spoil != nil {
			spoil(&c)
		}
		return c
	}
	p, err := verdict.Prove(claim(nil, func(c *verdict.Claim) { c.Pinned = own.Public() }))
	if err != nil || p.Epoch != 7 || !p.Key.Equal(own.Public()) || !p.At.Equal(now.Add(-time.Minute)) {
		t.Fatalf("%+v, %v", p, err)
	}
	for name, c := range map[string]struct {
		change func(*report.Report)
		spoil  func(*verdict.Claim)
		forged bool
		says   string
	}{
		"not shown":         {spoil: func(c *verdict.Claim) { c.Signed = nil }, says: "does not hand out"},
		"not confirmed":     {change: func(r *report.Report) { r.Confirmed, r.Reason = false, "checkout: deaf" }, says: "checkout: deaf"},
		"other epoch":       {change: func(r *report.Report) { r.Running = 6 }, says: "runs epoch 6"},
		"wants other":       {change: func(r *report.Report) { r.Desired = 6 }, says: "wants epoch 6"},
		"other content":     {change: func(r *report.Report) { r.Content = content(6) }, says: "was signed"},
		"drifted":           {change: func(r *report.Report) { r.Drift, r.Drifted = []string{"checkout/a"}, 1 }, says: "confirmed"},
		"observing":         {change: func(r *report.Report) { r.Mode = report.ModeObserve }, says: "confirmed"},
		"under an override": {change: func(r *report.Report) { r.Override = "o-1" }, says: "epoch 7"},
		"older order":       {change: func(r *report.Report) { r.Seen = "1-19-0" }, says: "1-20-0 is the newest"},
		"newer order":       {change: func(r *report.Report) { r.Seen = "1-21-0" }, says: "newer than 1-20-0"},
		"none yet":          {change: func(r *report.Report) { r.Seen = "" }, says: "no order"},
		"other assignment":  {spoil: func(c *verdict.Claim) { c.Good = func(uint64) bool { return false } }, says: "assigns epoch 7"},
		"another's report":  {change: func(r *report.Report) { r.Host = "web-2" }, forged: true, says: "host web-2"},
		"another cohort":    {change: func(r *report.Report) { r.Cohort = "prod-us" }, forged: true, says: "another cohort"},
		"another store":     {change: func(r *report.Report) { r.Store = "f123456789abcdef0123456789abcdef" }, forged: true, says: "store"},
		"another key":       {spoil: func(c *verdict.Claim) { c.Pinned = other.Public() }, forged: true, says: "was known by"},
		"key it has not":    {change: func(r *report.Report) { r.Key = other.Public() }, forged: true, says: "signed"},
		"changed bytes": {spoil: func(c *verdict.Claim) {
			e := *c.Signed
			e.Payload = []byte(strings.Replace(string(e.Payload), `"counter":3`, `"counter":4`, 1))
			c.Signed = &e
		}, forged: true, says: "signed"},
		"no signature": {spoil: func(c *verdict.Claim) {
			e := *c.Signed
			e.Signatures = nil
			c.Signed = &e
		}, forged: true, says: "its report"},
		"another kind": {spoil: func(c *verdict.Claim) {
			e := *c.Signed
			e.PayloadType = strings.Replace(e.PayloadType, "report", "release", 1)
			c.Signed = &e
		}, forged: true, says: "its report"},
	} {
		_, err := verdict.Prove(claim(c.change, c.spoil))
		if err == nil || errors.Is(err, verdict.ErrForged) != c.forged || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want one that says %q (forged %v)", name, err, c.says, c.forged)
		}
	}
}
