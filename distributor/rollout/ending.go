package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// sameByNow is why an override ends that git has overtaken.
const sameByNow = "the config repo says the same by now"

// endingStep is how long hosts have for a step in which some of them leave an override, if there is so much time.
const endingStep = time.Minute

// endings takes hosts out of overrides a few at a time: of one that is about to end, so that its end is no step of the whole cohort at once, and of one that says what the config repo
// says by now. Hosts that hear of nothing end it by their own clocks. What has begun to end ends, whatever comes meanwhile: those that are out would come back, all at once.
func (s *step) endings() {
	if s.moved || s.seen.Mark != s.in.Prev.Mark() || len(s.in.Prev.Overrides) == 0 {
		return
	}
	if s.seen.Settling != "" {
		return // the few hosts that are known would be taken for all
	}
	before := map[string]manifest.Ending{}
	for _, e := range s.prev.Rollout.Endings {
		before[e.Override] = e
	}
	var list []manifest.Ending
	changed := false
	places := InFlight(s.policy.MaxInFlight, len(s.count.hosts)) - s.count.takes
	for i := range s.count.hosts {
		// Who left one for an older one below it, and is not there yet, takes a place here.
		if h := &s.count.hosts[i]; h.Verdict == verdict.Overridden && !h.takes && s.comes(h.Host) {
			places--
		}
	}
	for _, o := range s.in.Prev.Living(s.now) {
		e, begun := before[o.ID]
		covered := s.covered(&o)
		out, why := s.outBy(&o, len(covered))
		if begun && (e.By != "" || e.Why == sameByNow) {
			out, why = len(covered), e.Why // dropped with a rollback, say: it does not wait for its time
		}
		switch {
		case begun && (e.Below == "" || why == ""):
			list = append(list, e)
			continue
		case why == "":
			continue
		case e.By != "" && s.m.Rollout.Phase == manifest.PhaseRollingBack:
			list = append(list, e) // hosts go straight to where the rollback leads, not by the way of what they leave
			continue
		case e.By != "" && len(covered) == 0:
			list = append(list, manifest.Ending{Override: o.ID, Why: why, By: e.By}) // who is not there now does not take it again
			changed = true
			continue
		}
		x, _ := strconv.ParseUint(e.Below, 16, 64)
		left := 0 // of those covered, hosts that are out
		for left < len(covered) && covered[left].point < x {
			left++
		}
		more := min(out, len(covered)) - left
		if more = min(more, places); more > 0 {
			places -= more
			e = manifest.Ending{Override: o.ID, Why: why, By: e.By}
			if left+more < len(covered) {
				e.Below, e.Salt = hex(after(covered[left+more-1].point)), o.ID
			}
			begun, changed = true, true
		}
		if begun {
			list = append(list, e)
		}
	}
	if changed {
		s.m.Rollout.Endings, s.moved = list, true
	}
}

// placed is a host and its place on the ring of an override.
type placed struct {
	point uint64
	name  string
}

// covered are the hosts of an override that report, by their place on its ring.
func (s *step) covered(o *manifest.VerifiedOverride) (list []placed) {
	for i := range s.count.hosts {
		if name := s.count.hosts[i].Name; len(o.Hosts) == 0 || slices.Contains(o.Hosts, name) {
			list = append(list, placed{manifest.Point(o.ID, name), name})
		}
	}
	slices.SortFunc(list, func(a, b placed) int { return cmp.Or(cmp.Compare(a.point, b.point), cmp.Compare(a.name, b.name)) })
	return list
}

// outBy is how many of n hosts are to be out of an override by now, and why; "" while it is not to end.
func (s *step) outBy(o *manifest.VerifiedOverride, n int) (out int, why string) {
	if n == 0 {
		return 0, ""
	}
	if s.saysTheSame(o) {
		return n, sameByNow
	}
	at := InFlight(s.policy.MaxInFlight, n)
	steps := (n + at - 1) / at
	// Of a short override the steps take a tenth: then they may be shorter than hosts need, and places that are taken hold them up; what is left ends by the hosts' own clocks.
	lead := min(time.Duration(steps)*endingStep, o.NotAfter.Sub(o.Created)/10)
	begin := o.NotAfter.Add(-lead)
	if s.now.Before(begin) {
		return 0, ""
	}
	step := int(s.now.Sub(begin) / max(lead/time.Duration(steps), 1))
	return min(n, (step+1)*at), endsAt(o)
}

func endsAt(o *manifest.VerifiedOverride) string {
	return fmt.Sprintf("it ends at %s", o.NotAfter.UTC().Format(time.RFC3339))
}

// saysTheSame reports whether the release that everybody is led to is, file by file, what it is under the override.
func (s *step) saysTheSame(o *manifest.VerifiedOverride) bool {
	if !everywhere(s.prev, s.prev.Rollout.Target) {
		return false
	}
	var plain, under *manifest.VerifiedStatement
	for i := range s.in.Prev.Statements {
		st := &s.in.Prev.Statements[i]
		switch {
		case st.Epoch != s.prev.Rollout.Target:
		case st.Override == "":
			plain = st
		case st.Override == o.ID:
			under = st
		}
	}
	if plain == nil || under == nil || plain.Content != under.Content || plain.Content0 != under.Content0 {
		return false
	}
	if (plain.VariantsObject == nil) != (under.VariantsObject == nil) || plain.VariantsObject != nil && plain.VariantsObject.Object != under.VariantsObject.Object {
		return false
	}
	return slices.EqualFunc(plain.Variants, under.Variants, func(a, b manifest.Variant) bool { return a.Host == b.Host && a.Content == b.Content })
}
