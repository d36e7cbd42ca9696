package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// A hold is an assignment by name, and a stop beside it that says who, why and until when. When its end has come, the controller lets its hosts go a few at a time, as places of
// max_in_flight are free. Where no controller runs they go by themselves: each assignment ends too, a few hosts' a minute after the other.

const (
	// MaxHeldHosts bounds the hosts of one hold.
	MaxHeldHosts = 200
	// holdSteps bounds the assignments that a hold makes of an epoch's hosts.
	holdSteps = 10
)

func (d *act) hold() error {
	r := &d.m.Rollout
	hosts, err := d.hosts()
	switch {
	case err != nil:
		return err
	case d.Until == nil || !d.Until.Truncate(time.Second).After(d.now):
		return d.unfit("a hold needs an end that is to come")
	case d.Why == "":
		return d.unfit("a hold needs a reason")
	}
	until := d.Until.UTC().Truncate(time.Second)
	to := map[uint64][]string{}
	same := true
	for _, h := range hosts {
		epoch, err := d.holdAt(h)
		if err != nil {
			return err
		}
		to[epoch] = append(to[epoch], h)
		same = same && slices.ContainsFunc(r.Holds, func(s manifest.Stop) bool {
			return s.By == d.By && s.Why == text("%s", d.Why) && s.Epoch == epoch && s.Until != nil && s.Until.Equal(until) && slices.Contains(s.Hosts, h)
		})
	}
	if same {
		return d.already("%s held like that already", isAre(hosts))
	}
	d.release(hosts)
	var list []manifest.Assignment
	said := ""
	for _, epoch := range sortedKeys(to) {
		stop := d.stop()
		stop.Until, stop.Hosts, stop.Epoch = &until, to[epoch], epoch
		r.Holds = append(r.Holds, stop)
		list = append(list, d.fading(to[epoch], epoch, text("hold by %s: %s", d.By, d.Why), until)...)
		said = join(said, fmt.Sprintf("%s held at epoch %d", isAre(to[epoch]), epoch))
		if err := d.carry(epoch); err != nil {
			return err
		}
	}
	if len(r.Holds) > manifest.MaxStops {
		return d.unfit("%d holds are in force, and no more than %d fit; `muster unhold %s HOST… --reason …` ends some", len(r.Holds)-len(to), manifest.MaxStops, d.in.Cohort)
	}
	d.m.Assign = append(list, d.m.Assign...)
	d.prune()
	d.said, d.changed = fmt.Sprintf("%s until %s: nothing but a person changes what %s before that", said, until.Format(time.RFC3339), theyRun(hosts)), true
	return nil
}

// hosts are those that the action names, each once.
func (d *act) hosts() ([]string, error) {
	if len(d.Hosts) == 0 {
		return nil, d.unfit("name the hosts")
	}
	if len(d.Hosts) > MaxHeldHosts {
		return nil, d.unfit("%d hosts are too many, at most %d may be named; `muster freeze %s` stops a cohort", len(d.Hosts), MaxHeldHosts, d.in.Cohort)
	}
	for _, h := range d.Hosts {
		if !manifest.ValidHost(h) {
			return nil, d.unfit("%.80q is not a host name", h)
		}
	}
	hosts := slices.Sorted(slices.Values(d.Hosts))
	return slices.Compact(hosts), nil
}

// holdAt is the epoch to hold a host at: the one that the person names, or that the host runs, or else, where nobody looks at hosts, the one that the head leads it to.
func (d *act) holdAt(host string) (uint64, error) {
	if d.To != 0 {
		return d.To, nil
	}
	res, err := manifest.Resolve(d.in.Prev, manifest.Host{Name: host}, d.now)
	if err == nil && res.Source == manifest.FromOverride {
		return 0, d.unfit("%s runs override %s, and a hold goes before overrides: it would take the override from it; name the epoch with --at if that is meant", host, res.Override)
	}
	if epoch := d.Runs[host]; epoch != 0 {
		return epoch, nil
	}
	if err != nil {
		return 0, d.unfit("nobody knows what %s runs; name the epoch with --at", host)
	}
	labelled := slices.ContainsFunc(d.prev.Assign, func(a manifest.Assignment) bool { return len(a.Match) > 0 && !past(a.Until, d.now) })
	if d.Runs != nil || res.Source != manifest.FromHold && labelled {
		return 0, d.unfit("nobody knows what %s runs; name the epoch with --at", host)
	}
	return res.Epoch(), nil
}

// carry gives the order the plain statement of an epoch.
func (d *act) carry(epoch uint64) error {
	for _, st := range d.in.Prev.Statements {
		if st.Epoch == epoch && st.Override == "" {
			return nil // its own are kept
		}
	}
	part := d.in.Release.Cohorts[d.in.Cohort]
	env, ok := d.in.Named[epoch]
	if !ok && epoch == part.Epoch {
		env, ok = d.in.Statement, true
	}
	if !ok {
		return d.unfit("the store has no statement of epoch %d for it that verifies; `muster log %s` lists its releases", epoch, d.in.Cohort)
	}
	if slices.ContainsFunc(d.m.Statements, func(e manifest.Envelope) bool { return e.Digest() == env.Digest() }) {
		return nil
	}
	if len(d.m.Statements) >= manifest.MaxStatements {
		return d.unfit("hosts are held at so many epochs that no further statement fits; `muster unhold %s HOST… --reason …` ends some", d.in.Cohort)
	}
	d.m.Statements = append(slices.Clone(d.m.Statements), env)
	return nil
}

// fading are the assignments of a hold's hosts. They end some time after the hold itself, a few hosts' at a time: until then a controller lets them go.
func (d *act) fading(hosts []string, epoch uint64, why string, from time.Time) (list []manifest.Assignment) {
	most := InFlight(d.prev.Rollout.Policy.MaxInFlight, len(hosts))
	most = max(most, (len(hosts)+holdSteps-1)/holdSteps)
	for part := range slices.Chunk(hosts, most) {
		from = from.Add(endingStep)
		end := from.UTC()
		list = append(list, manifest.Assignment{Hosts: part, Epoch: epoch, Why: why, Until: &end})
	}
	return list
}

// release takes hosts out of the assignments by name and out of the holds.
func (d *act) release(hosts []string) (freed []manifest.Assignment) {
	named := func(h string) bool { return slices.Contains(hosts, h) }
	var assign []manifest.Assignment
	for _, a := range d.m.Assign {
		if out := slices.DeleteFunc(slices.Clone(a.Hosts), func(h string) bool { return !named(h) }); len(out) > 0 {
			b := a
			b.Hosts = out
			freed = append(freed, b)
			if a.Hosts = slices.DeleteFunc(slices.Clone(a.Hosts), named); len(a.Hosts) == 0 {
				continue
			}
		}
		assign = append(assign, a)
	}
	d.m.Assign = assign
	var holds []manifest.Stop
	for _, s := range d.m.Rollout.Holds {
		s.Hosts = slices.DeleteFunc(slices.Clone(s.Hosts), named)
		if len(s.Hosts) > 0 {
			holds = append(holds, s)
		}
	}
	d.m.Rollout.Holds = holds
	return freed
}

func (d *act) unhold() error {
	hosts, err := d.hosts()
	if err != nil {
		return err
	}
	r := &d.m.Rollout
	held := heldHosts(d.prev, d.now)
	going := endingHolds(d.prev, d.now)
	rest := slices.DeleteFunc(slices.Clone(hosts), func(h string) bool { return !held[h] || going[h] })
	if len(rest) == 0 {
		if going[hosts[0]] {
			return d.already("%s let go already, as places of max_in_flight are free", isAre(hosts))
		}
		return d.already("%s not held", isAre(hosts))
	}
	now := d.now.UTC().Truncate(time.Second)
	to := map[uint64][]string{}
	for _, a := range d.release(rest) {
		to[a.Epoch] = append(to[a.Epoch], a.Hosts...)
	}
	var list []manifest.Assignment
	for _, epoch := range sortedKeys(to) {
		slices.Sort(to[epoch])
		to[epoch] = slices.Compact(to[epoch])
		list = append(list, d.fading(to[epoch], epoch, text("let go by %s%s", d.By, orNothing(": ", d.Why)), d.now)...)
		stop := d.stop()
		stop.Since, stop.Until, stop.Hosts, stop.Epoch = now, &now, to[epoch], epoch
		r.Holds = append(r.Holds, stop)
	}
	d.m.Assign = append(list, d.m.Assign...)
	d.prune()
	d.said, d.changed = fmt.Sprintf("%s held no longer, and let go as places of max_in_flight are free, or without a controller by %s", isAre(rest), list[len(list)-1].Until.Format(time.RFC3339)), true
	return nil
}

// prune drops the statements that no assignment leads to any more, and the holds of nobody.
func (d *act) prune() {
	d.m.Rollout.Holds = holdsOf(&d.m, d.now)
	s := newStep(d.prev.Rollout.Policy, d.in, d.in.Release.Cohorts[d.in.Cohort], Observed{}, d.now)
	added := d.m.Statements[min(len(d.prev.Statements), len(d.m.Statements)):]
	s.m = d.m
	s.statements()
	for _, e := range added {
		if !slices.ContainsFunc(s.m.Statements, func(o manifest.Envelope) bool { return o.Digest() == e.Digest() }) {
			s.m.Statements = append(s.m.Statements, e)
		}
	}
	d.m = s.m
}

// holdsOf are the holds that a manifest keeps: those in force, and those whose end has come while hosts of theirs are not let go yet.
func holdsOf(m *manifest.Manifest, now time.Time) []manifest.Stop {
	held := heldHosts(m, now)
	return slices.DeleteFunc(slices.Clone(m.Rollout.Holds), func(s manifest.Stop) bool {
		return past(s.Until, now) && !slices.ContainsFunc(s.Hosts, func(h string) bool { return held[h] })
	})
}

// endingHolds are the hosts that are still held, though the end of their hold has come.
func endingHolds(m *manifest.Manifest, now time.Time) map[string]bool {
	over, going := map[string]bool{}, map[string]bool{}
	for _, s := range m.Rollout.Holds {
		for _, h := range s.Hosts {
			if past(s.Until, now) {
				over[h] = true
			}
		}
	}
	for _, s := range m.Rollout.Holds {
		for _, h := range s.Hosts {
			if !past(s.Until, now) {
				delete(over, h)
			}
		}
	}
	for h := range heldHosts(m, now) {
		if over[h] {
			going[h] = true
		}
	}
	return going
}

// due are the hosts on hold that are to be let go, and how many places that takes: forward moves leave these free.
func (s *step) holdsDue() (names []string, places int) {
	going := endingHolds(s.prev, s.now)
	if len(going) == 0 {
		return nil, 0
	}
	for i := range s.seen.Hosts {
		if h := &s.seen.Hosts[i]; going[h.Name] && moves(h, tells(s.prev.Assign, h, s.now)) {
			places++
		}
	}
	return sortedKeys(going), places
}

// moves says whether a host that is told an epoch will apply something.
func moves(h *Host, to uint64) bool { return h.Running != to }

// letGo ends holds whose end has come, a few hosts at a time. While nothing may go forward, nobody is let go who would.
func (s *step) letGo() {
	if s.moved || s.seen.Mark != s.in.Prev.Mark() {
		return
	}
	names, _ := s.holdsDue()
	r := &s.prev.Rollout
	places := s.limit(len(s.count.hosts)) - s.count.takes
	still := stopped(*r, s.in.Cohort, s.now) != nil
	known := map[string]*Host{}
	for i := range s.seen.Hosts {
		known[s.seen.Hosts[i].Name] = &s.seen.Hosts[i]
	}
	free := map[string]bool{}
	for _, name := range names {
		h := known[name]
		switch {
		case h == nil: // it is not expected any more, or not known yet
			free[name] = s.seen.Settling == "" && s.seen.Unseen == ""
			continue
		case still && tells(s.prev.Assign, h, s.now) != r.Baseline:
			continue
		case moves(h, tells(s.prev.Assign, h, s.now)):
			if places <= 0 {
				continue
			}
			places--
		}
		free[name] = true
	}
	maps.DeleteFunc(free, func(_ string, goes bool) bool { return !goes })
	over := slices.ContainsFunc(s.prev.Assign, func(a manifest.Assignment) bool { return len(a.Hosts) > 0 && past(a.Until, s.now) })
	if len(free) == 0 && !over {
		return
	}
	var assign []manifest.Assignment
	for _, a := range s.prev.Assign {
		if len(a.Hosts) > 0 {
			a.Hosts = slices.DeleteFunc(slices.Clone(a.Hosts), func(h string) bool { return free[h] })
			if len(a.Hosts) == 0 || past(a.Until, s.now) {
				continue
			}
		}
		assign = append(assign, a)
	}
	s.m.Assign = assign
	s.m.Rollout.Holds = holdsOf(&s.m, s.now)
	s.statements()
	s.moved = true
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// isAre names hosts as the subject of a sentence.
func isAre(hosts []string) string {
	if len(hosts) == 1 {
		return hosts[0] + " is"
	}
	return some(hosts) + " are"
}

func theyRun(hosts []string) string {
	if len(hosts) == 1 {
		return "it runs"
	}
	return "they run"
}
