package agent

import (
	"fmt"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// turn is when this host takes a release that a wave brings. It is remembered, so that neither a restart nor another order of the same rollout begins the wait anew.
type turn struct {
	Key string    `json:"key"` // of the target
	At  time.Time `json:"at"`
}

// forward says whether a wave of the rollout under way assigns what is assigned. A rollback leads away from the target; a hold and an override are what a person wants now; and the
// cohort's first release has nothing before it that could be kept meanwhile.
func forward(r manifest.Resolution, ro manifest.Rollout) bool {
	byWave := r.Source == manifest.FromWave || r.Source == manifest.FromBaseline
	underWay := ro.Baseline != 0 && (ro.Baseline != ro.Target || ro.Fallback != 0)
	return byWave && underWay && r.Epoch() == ro.Target
}

// early says whether the host's turn to take what is assigned is still to come. The wait counts from the order that first told this host, also for a host that was away; by this
// host's clock alone it is never longer than its share of the spread. Nobody waits with the end of an override.
func (a *Agent) early(r manifest.Resolution, want target, h how) bool {
	m := a.view.Manifest
	spread, err := time.ParseDuration(m.Rollout.Policy.Spread)
	if h.eager || err != nil || spread <= 0 || a.cur == nil || a.cur.Content == "" || want.is(a.cur) || !forward(r, m.Rollout) || a.cur.Override != "" && want.Override == "" {
		return false
	}
	now := a.now().UTC()
	if a.st.Turn == nil || a.st.Turn.Key != want.key() {
		from := now
		if m.Issued.Before(now) {
			from = m.Issued
		}
		a.st.Turn = &turn{Key: want.key(), At: from.Add(time.Duration(manifest.Turn(a.cfg.Host, want.Epoch) * float64(spread))).UTC()}
		a.dirty = true
	}
	// A clock that was set back does not make the wait longer.
	if most := now.Add(spread); a.st.Turn.At.After(most) {
		a.st.Turn.At = most
		a.dirty = true
	}
	return now.Before(a.st.Turn.At)
}

// showTurn says in the report why the host does not take what is assigned yet.
func (a *Agent) showTurn(t target) {
	a.phase, a.code, a.tries = report.PhaseIdle, "", 0
	a.reason = fmt.Sprintf("takes epoch %d at %s: the rollout spreads its hosts over %s", t.Epoch, a.st.Turn.At.Format(time.RFC3339), a.view.Manifest.Rollout.Policy.Spread)
}
