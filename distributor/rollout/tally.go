package rollout

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// one is an eligible host: expected, reporting, not held; or one that fell silent with the target.
type one struct {
	*Host
	point     uint64
	at        uint64 // what the waves and the baseline tell it
	busy      bool   // applies it just now, as far as anybody knows
	takes     bool   // a place of max_in_flight: told, and not known to have done it
	confirmed bool
	blind     bool // can never confirm: it only observes, or its processes are stopped on purpose
}

// tally is what the hosts of a cohort are under the head.
type tally struct {
	hosts     []one // sorted by their place on the ring
	told      int   // to take the target
	takes     int   // places that are taken
	busy      int
	able      int      // of those told, that can confirm
	confirmed int      // of those told
	ill       []string // told, and failed, went back or refused it
	gone      []string // told, and silent since
	open      []string // told, and not confirmed
	others    int      // that keep the baseline, silent ones included
	mute      int      // of those, silent since the rollout began
	unheard   []string // told to take the target, and not heard of yet by an observer that has just begun
	expected  int
	missing   []string // of those expected, never heard
}

// tally sorts the hosts under the head that stands.
func (s *step) tally() tally {
	var t tally
	r := &s.prev.Rollout
	held := heldHosts(s.prev, s.now)
	for i := range s.seen.Hosts {
		h := &s.seen.Hosts[i]
		if held[h.Name] {
			continue
		}
		at := tells(s.prev.Assign, h, s.now)
		told := at == r.Target && r.Target != r.Baseline || r.Fallback != 0
		o := one{Host: h, at: at}
		switch h.Verdict {
		case verdict.Retired, verdict.Unexpected, verdict.Duplicate, verdict.Held:
			continue
		case verdict.Missing:
			t.expected++
			t.missing = append(t.missing, h.Name)
			if told && s.seen.Settling != "" {
				t.unheard = append(t.unheard, h.Name)
			}
			continue
		case verdict.Silent:
			t.expected++
			if h.Left || !h.Silent.After(s.toldAt(h)) {
				continue // its agent was stopped, or it was silent before: it takes the release when it comes back
			}
			if !told {
				t.others++
				t.mute++
				continue
			}
			t.gone = append(t.gone, h.Name)
			o.takes = !s.passedOver()
		case verdict.Confirmed, verdict.Stale, verdict.Drifted, verdict.NotRunning:
			o.takes = h.Running != at
			o.confirmed = !o.takes && h.Verdict == verdict.Confirmed
			o.blind = h.Verdict == verdict.NotRunning
		case verdict.Observing:
			o.blind = true
		case verdict.Overridden:
			o.blind = true
			o.takes = told && s.comes(h)
		case verdict.Failed, verdict.RolledBack, verdict.Refused:
			if told && h.Attempted == at {
				t.ill = append(t.ill, h.Name+" "+string(h.Verdict))
			} else {
				o.takes = told // what it was told before failed there, and it has not tried this one yet
			}
		case verdict.Lagging:
			o.takes = told // what is replaced now does not get there: it waits for nothing but its turn
		default: // applying, unknown
			o.busy, o.takes = true, true
			if h.Verdict == verdict.Applying && h.Running == baselineOf(r) && h.Waits.After(s.now.Add(turnMargin)) {
				o.busy = false // it waits for its turn of the spread: nothing is to be undone there
			}
		}
		if h.Verdict != verdict.Silent {
			t.expected++
		}
		t.hosts = append(t.hosts, o)
		if o.takes {
			t.takes++
		}
		if o.busy {
			t.busy++
		}
		if !told {
			t.others++
			continue
		}
		t.told++
		if !o.blind {
			t.able++
		}
		if o.confirmed {
			t.confirmed++
		} else {
			t.open = append(t.open, h.Name+" "+string(h.Verdict))
		}
	}
	t.along(saltOf(s.prev))
	slices.Sort(t.ill)
	slices.Sort(t.gone)
	slices.Sort(t.open)
	slices.Sort(t.missing)
	return t
}

// turnMargin is how long before its turn a host counts as busy: clocks differ.
const turnMargin = 5 * time.Second

// along sorts the hosts by their place on the ring of a salt.
func (t *tally) along(salt string) {
	for i := range t.hosts {
		t.hosts[i].point = manifest.Point(salt, t.hosts[i].Name)
	}
	slices.SortFunc(t.hosts, func(a, b one) int { return cmp.Or(cmp.Compare(a.point, b.point), cmp.Compare(a.Name, b.Name)) })
}

// heldHosts are those that a manifest gives an epoch by name.
func heldHosts(m *manifest.Manifest, now time.Time) map[string]bool {
	held := map[string]bool{}
	for _, a := range m.Assign {
		if !past(a.Until, now) {
			for _, h := range a.Hosts {
				held[h] = true
			}
		}
	}
	return held
}

// toldAt is when a host was told what it is told: as the observer heard it, or else not before the rollout began.
func (s *step) toldAt(h *Host) time.Time {
	began := s.prev.Rollout.Since
	if t := s.prev.Rollout.Started; t != nil {
		began = *t
	}
	if h.Told.After(began) {
		return h.Told
	}
	return began
}

// comes says whether a host under an override is on its way to what that leads to. One that was told long ago does not get there any more: it waits for nothing but its turn, as one that lags.
func (s *step) comes(h *Host) bool {
	return !s.overridden(h) && (h.Told.IsZero() || s.now.Sub(h.Told) <= verdict.LagAfter+duration(s.policy.Spread))
}

// overridden says whether a host under an override runs what that leads to.
func (s *step) overridden(h *Host) bool {
	res, err := manifest.Resolve(s.in.Prev, manifest.Host{Name: h.Name, Labels: h.Labels}, s.now)
	return err != nil || h.Running == res.Epoch()
}

// tells is what the waves and the baseline lead a host to; holds apart.
func tells(list []manifest.Assignment, h *Host, now time.Time) uint64 {
	for i := range list {
		switch a := &list[i]; {
		case len(a.Hosts) > 0 || past(a.Until, now):
		case a.Below != "":
			if under(a, h.Name) {
				return a.Epoch
			}
		case len(a.Match) > 0:
			if has(h.Labels, a.Match) {
				return a.Epoch
			}
		default:
			return a.Epoch
		}
	}
	return 0
}

func under(a *manifest.Assignment, host string) bool {
	below, err := strconv.ParseUint(a.Below, 16, 64)
	return err == nil && manifest.Point(a.Salt, host) < below
}

func has(labels, want map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// saltOf is the salt of the rollout that a manifest carries: the epoch that is rolled out, unless its assignments name another one.
func saltOf(m *manifest.Manifest) string {
	for _, a := range m.Assign {
		if a.Salt != "" && len(a.Hosts) == 0 {
			return a.Salt
		}
	}
	return strconv.FormatUint(m.Rollout.Target, 10)
}

// limit is how many of n hosts may be on their way at once: never more than the share says, but always one.
func (s *step) limit(n int) int { return InFlight(s.policy.MaxInFlight, n) }

// InFlight is what a policy's max_in_flight comes to for n hosts: one at least.
func InFlight(most string, n int) int {
	digits, isShare := strings.CutSuffix(most, "%")
	v, err := strconv.ParseFloat(digits, 64)
	switch {
	case err != nil:
		return 1
	case isShare:
		return max(1, int(math.Floor(v/100*float64(n)+1e-9)))
	}
	return max(1, int(v))
}

// needed is how many of n hosts must confirm.
func (s *step) needed(n int) int {
	return max(1, int(math.Ceil(s.policy.MinReported*float64(n)-1e-9)))
}

// some names the first of a list.
func some(list []string) string {
	if len(list) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:3], ", "), len(list)-3)
	}
	return strings.Join(list, ", ")
}
