package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/manifest"
)

// span is a time that ends by two clocks, whichever comes first: the wall's, which somebody may set, and the machine's running time, which nobody can. Running time counts from when
// this host learned of the span, sleep included. A start of the machine begins that clock anew: what was counted before stays counted, the time that the machine was off is not known to
// it, and the wall clock alone knows that.
type span struct {
	Until time.Time `json:"until"`
	Left  int64     `json:"left_us"` // running time that was left at Up of Boot
	Boot  string    `json:"boot"`
	Up    int64     `json:"up_us"`
}

// spanKept is how much running time may pass before the state is written for its sake: so much at most does a start of the machine give back.
const spanKept = time.Minute

func newSpan(until time.Time, left time.Duration, m probe.Moment) span {
	return span{Until: until.UTC(), Left: left.Microseconds(), Boot: m.Boot, Up: m.Up}
}

// left is the running time that is left at a moment.
func (s span) left(m probe.Moment) time.Duration {
	passed := m.Up - s.Up
	if m.Boot != s.Boot {
		passed = m.Up // since the machine started, at least
	}
	return time.Duration(s.Left-max(passed, 0)) * time.Microsecond
}

// over says whether either clock is past the end.
func (s span) over(wall time.Time, m probe.Moment) bool {
	return !wall.Before(s.Until) || s.left(m) <= 0
}

// end is when it is over if nobody sets the clock.
func (s span) end(wall time.Time, m probe.Moment) time.Time {
	if at := wall.Add(s.left(m)); at.Before(s.Until) {
		return at
	}
	return s.Until
}

// keep counts what has passed, and says whether that is worth a write.
func (s *span) keep(m probe.Moment) bool {
	left := max(s.left(m).Microseconds(), 0)
	if m.Boot == s.Boot && s.Left-left < spanKept.Microseconds() && (left > 0 || s.Left == 0) {
		return false
	}
	s.Left, s.Boot, s.Up = left, m.Boot, m.Up
	return true
}

// maxSpans bounds state.Spans; those that end first go first. A head cannot carry as many.
const maxSpans = 4 * manifest.MaxOverrides

// spanKey names one life of an override: each extension is another one, the steps in which it goes to its hosts are not.
func spanKey(o *manifest.VerifiedOverride) string {
	return fmt.Sprintf("%s/%d-%d", o.ID, o.Created.UnixMilli(), o.NotAfter.UnixMilli())
}

// noteSpans begins to count the running time of overrides that are new to this host. A host whose clock is wrong grants none of them more than it was signed for.
func (a *Agent) noteSpans(v *manifest.View) {
	for i := range v.Overrides {
		o := &v.Overrides[i]
		if o.Ended != nil || o.First == nil {
			continue
		}
		key := spanKey(o)
		if _, ok := a.st.Spans[key]; ok {
			continue
		}
		now := a.now()
		if !now.Before(o.NotAfter) {
			continue // it does not act any more by the wall clock, and should that be set back, it counts from then
		}
		left := min(o.NotAfter.Sub(now), o.NotAfter.Sub(o.Created))
		if a.st.Spans == nil {
			a.st.Spans = map[string]span{}
		}
		a.st.Spans[key] = newSpan(o.NotAfter, left, a.opts.Prober.Now())
		a.dirty = true
	}
	if over := len(a.st.Spans) - maxSpans; over > 0 {
		keys := sorted(a.st.Spans)
		slices.SortStableFunc(keys, func(x, y string) int { return a.st.Spans[x].Until.Compare(a.st.Spans[y].Until) })
		for _, key := range keys[:over] {
			delete(a.st.Spans, key)
		}
	}
}

// acting is a view without the overrides that are over by this host's running time, and without those that came by hand and whose hold is over. By the wall clock they end in Resolve.
func (a *Agent) acting(v *manifest.View) *manifest.View {
	if len(v.Overrides) == 0 {
		return v
	}
	a.noteSpans(v)
	m := a.opts.Prober.Now()
	w := *v
	w.Overrides = nil
	byHand := a.byHandActs()
	for _, o := range v.Overrides {
		if a.st.laidDown(&o, byHand) {
			continue
		}
		key := spanKey(&o)
		s, counted := a.st.Spans[key]
		if counted && o.Ended == nil {
			if s.keep(m) {
				a.st.Spans[key], a.dirty = s, true
				if s.Left == 0 {
					a.log.Info("an override is over by this host's running time", "override", o.ID, "not_after", o.NotAfter, "clock", a.now().UTC())
				}
			}
			if s.left(m) <= 0 {
				continue
			}
		}
		w.Overrides = append(w.Overrides, o)
	}
	return &w
}
