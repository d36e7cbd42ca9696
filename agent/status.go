package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// publish hands the host's state to the reports.
func (a *Agent) publish(lazy bool) {
	r := a.report()
	a.shot(r)
	a.out.put(r, lazy, a.watched())
}

// report is the host's state as it is now.
func (a *Agent) report() report.Report {
	r := report.Report{
		V: manifest.Version, Repo: a.cfg.Repo, Store: a.trust().Store, Cohort: a.cfg.Cohort, Host: a.cfg.Host, Labels: maps.Clone(a.cfg.Labels),
		Boot: a.boot, Key: a.id.Public(), Agent: a.opts.Version, Reads: manifest.Version, Attempted: a.attempt, Mode: a.cfg.Mode,
		Phase: a.phase, Reason: report.CutReason(a.reason), Code: a.code, Tries: a.tries, Drifted: len(a.drift), Poll: a.cfg.Poll.Seconds(),
		Services: map[string]report.Service{}, Drift: shown(a.drift), Content: a.content, Seen: a.seen,
	}
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	if a.view != nil {
		r.Stale = a.now().After(a.view.Manifest.FreshUntil)
	}
	if a.told != nil {
		r.Desired, r.Source = a.told.Epoch, a.toldWhy
	}
	if a.cur != nil {
		r.Running, r.Override = a.cur.Epoch, a.cur.Override
		lowest := manifest.GradeProcess
		all := true
		for name := range a.cur.Services {
			s := a.service(name)
			r.Services[name] = s
			all = all && s.State == stateConfirmed
			if s.Grade.Rank() < lowest.Rank() {
				lowest = s.Grade
			}
		}
		if len(a.cur.Services) > 0 && len(a.drift) == 0 {
			r.Grade = lowest
		}
		// A change without a verdict may still go back, however well every process has loaded it: health has to hold first.
		r.Confirmed = all && a.st.Trial == nil && a.want != nil && a.want.is(a.cur) && a.told != nil && a.told.is(a.cur) && len(a.drift) == 0 && a.content == a.want.Content
	}
	if t := a.st.Turn; t != nil && a.phase == report.PhaseIdle && a.told != nil && t.Key == a.told.key() && !a.told.is(a.cur) && a.now().Before(t.At) {
		at := t.At.UTC()
		r.WaitsUntil = &at
	}
	if doc := a.holding(); doc != nil {
		r.Held = doc.Hold
	}
	if r.Reason == "" && a.distrust != nil {
		// What runs is still what the newest believed head says; that no source repeats it is worth a look.
		r.Reason, r.Code = report.CutReason(a.distrust.Error()), codeOf(a.distrust)
	}
	return r
}

// shown are the paths that a report names: the first few, each within bounds.
func shown(paths []string) []string {
	var out []string
	for _, p := range head(paths, report.MaxDrift) {
		p = strings.ToValidUTF8(p, "?")
		out = append(out, strings.ToValidUTF8(p[:min(len(p), report.MaxPath)], "")) // the end may have cut a character in two
	}
	return out
}

func millis(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
