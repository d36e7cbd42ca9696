package rollout

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-config/muster/distributor/manifest"
)

// Waves are assignments by the ring of one salt, the rollout's epoch, and by label:
//
//	holds by name
//	{match} → target           waves by label that are over
//	{below X} → target         waves by percent and count: X only rises, so that waves nest and hosts keep their place
//	{below Y} → baseline       while a wave by label is told: Y falls
//	{match} → target           that wave
//	{} → baseline
//
// At the end there is only {} → target. Going back begins with {below Z} → baseline in front of all that, where Z rises, and ends with only {} → baseline.

// last says that a wave is the last one: then everybody gets the target.
func (s *step) last(wave int) bool { return wave >= len(s.policy.Waves) }

// current is the wave under way.
func (s *step) current() int { return max(1, min(s.prev.Rollout.Wave, len(s.policy.Waves))) }

// size is how many of the eligible hosts have the target when a wave by percent or count is over.
func (s *step) size(wave, n int) int { return sizeOf(&s.policy, wave, n) }

// told says whether everybody of a wave was told.
func (s *step) toldAll(wave int) bool {
	left := s.untold(wave, 0)
	return len(left) == 0 && (!s.last(wave) || everywhere(s.prev, s.prev.Rollout.Target))
}

// untold are the hosts of a wave that were not told yet, in the order in which they are.
func (s *step) untold(wave int, target uint64) (left []*one) {
	if target == 0 {
		target = s.prev.Rollout.Target
	}
	if everywhere(s.prev, target) {
		return nil
	}
	c := &s.count
	if w := s.policy.Waves[wave-1]; len(w.Match) > 0 && !s.last(wave) {
		for i := range slices.Backward(c.hosts) {
			if h := &c.hosts[i]; h.at != target && has(h.Labels, w.Match) {
				left = append(left, h)
			}
		}
		return left
	}
	x := s.ring(target)
	size, in := s.size(wave, len(c.hosts)), 0
	for i := range c.hosts {
		switch h := &c.hosts[i]; {
		case h.point < x:
			in++
		case in+len(left) < size:
			left = append(left, h)
		}
	}
	return left
}

// ring is how far the ring was told to take the target.
func (s *step) ring(target uint64) uint64 {
	for _, a := range s.prev.Assign {
		if a.Below != "" && a.Epoch == target && len(a.Hosts) == 0 {
			x, _ := strconv.ParseUint(a.Below, 16, 64)
			return x
		}
	}
	return 0
}

// tell makes the assignments of a wave for as many more hosts as there are places free. It says nothing moves if nobody is told.
func (s *step) tell(wave int) bool {
	r := &s.m.Rollout
	target := r.Target
	left := s.untold(wave, target)
	limit := s.limit(len(s.count.hosts))
	free := limit - s.count.takes
	if free < 0 {
		return false // more are on their way than may be, as far as anybody knows: of all hosts, where who looks at them is blind
	}
	_, due := s.holdsDue()
	free = max(0, free-due) // those whose hold is over come first
	more, cost := 0, 0
	for _, h := range left {
		if h.at != target && !h.takes && cost >= free {
			break
		}
		if h.at != target && !h.takes {
			cost++
		}
		more++
	}
	complete := more == len(left)
	// An order wakes the whole fleet: a few hosts together get one.
	if !complete && cost < batch(limit) {
		return false
	}
	if complete && more == 0 && !(s.last(wave) && !everywhere(&s.m, target)) && s.covers(wave) {
		return false // they all were told before
	}
	s.m.Assign = s.forward(wave, left, more)
	s.counted(wave)
	return true
}

// covers says whether the head has the assignment of a wave by label already.
func (s *step) covers(wave int) bool {
	w := s.policy.Waves[wave-1]
	if len(w.Match) == 0 || s.last(wave) {
		return true
	}
	return slices.ContainsFunc(s.m.Assign, func(a manifest.Assignment) bool { return sameLabels(a.Match, w.Match) && a.Epoch == s.m.Rollout.Target })
}

// forward are the assignments when more of left are told.
func (s *step) forward(wave int, left []*one, more int) []manifest.Assignment {
	r := &s.m.Rollout
	list, x := s.holds(), s.ring(r.Target)
	complete := more == len(left)
	if s.last(wave) && complete {
		return append(list, manifest.Assignment{Epoch: r.Target, Why: "all hosts are told"})
	}
	salt := saltOf(&s.m)
	current := s.policy.Waves[wave-1]
	byLabel := len(current.Match) > 0 && !s.last(wave)
	for i, w := range s.policy.Waves[:wave] {
		if n := i + 1; len(w.Match) > 0 && !s.last(n) && (n < wave || complete) {
			list = append(list, manifest.Assignment{Match: w.Match, Epoch: r.Target, Why: s.wave(n)})
		}
	}
	if !byLabel {
		for _, h := range left[:more] {
			x = max(x, after(h.point))
		}
	}
	if x > 0 {
		list = append(list, manifest.Assignment{Below: hex(x), Salt: salt, Epoch: r.Target, Why: s.wave(wave)})
	}
	if byLabel && !complete {
		y := uint64(math.MaxUint64)
		if more > 0 {
			y = left[more-1].point
		}
		list = append(list, manifest.Assignment{Below: hex(y), Salt: salt, Epoch: r.Baseline, Why: "not told yet"}, manifest.Assignment{Match: current.Match, Epoch: r.Target, Why: s.wave(wave)})
	}
	return append(list, manifest.Assignment{Epoch: r.Baseline, Why: "baseline"})
}

// counted notes who is told by the assignments that were made, and which statements they need.
func (s *step) counted(wave int) {
	r := &s.m.Rollout
	r.Told = 0
	for i := range s.count.hosts {
		if tells(s.m.Assign, s.count.hosts[i].Host, s.now) == r.Target {
			r.Told++
		}
	}
	if wave > 0 {
		r.Why = fmt.Sprintf("epoch %d, %s: %s", r.Target, s.wave(wave), share(r.Told, len(s.count.hosts)))
	}
	s.statements()
	s.moved = true
}

// holds are the assignments by name that are in force.
func (s *step) holds() (list []manifest.Assignment) {
	for _, a := range s.prev.Assign {
		if len(a.Hosts) > 0 && !past(a.Until, s.now) {
			list = append(list, a)
		}
	}
	return list
}

// wave names a wave: "wave 2 of 3 (25%)".
func (s *step) wave(n int) string { return waveName(&s.policy, n) }

func waveName(p *manifest.RolloutPolicy, n int) string {
	if n < 1 || n > len(p.Waves) {
		return "the time after its last wave"
	}
	w := p.Waves[n-1]
	what := ""
	switch {
	case w.Percent > 0:
		what = strconv.FormatFloat(w.Percent, 'g', -1, 64) + "%"
	case w.Count == 1:
		what = "1 host"
	case w.Count > 0:
		what = fmt.Sprintf("%d hosts", w.Count)
	default:
		var parts []string
		for k, v := range w.Match {
			parts = append(parts, k+"="+v)
		}
		slices.Sort(parts)
		what = strings.Join(parts, " ")
	}
	if what != "" {
		what = " (" + what + ")"
	}
	return fmt.Sprintf("wave %d of %d%s", n, len(p.Waves), what)
}

func share(k, n int) string { return fmt.Sprintf("%d of %d hosts are told", k, n) }

// everywhere says whether a manifest leads everybody whom nothing holds to an epoch.
func everywhere(m *manifest.Manifest, epoch uint64) bool {
	to, all := assignedTo(*m)
	return all && to == epoch
}

func hex(x uint64) string { return fmt.Sprintf("%016x", x) }

// after is the lowest threshold that has a point under it.
func after(point uint64) uint64 {
	if point == math.MaxUint64 {
		return point
	}
	return point + 1
}

func sameLabels(a, b map[string]string) bool { return len(a) > 0 && len(a) == len(b) && has(a, b) }
