package verdict

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// LagAfter is how long a host may take for a release before it lags.
const LagAfter = 5 * time.Minute

// MissedReports is how many promised reports a host may miss before it is silent.
const MissedReports = 3

// serviceNotRunning is the state of a service whose unit is stopped on purpose.
const serviceNotRunning = "not running"

// Of judges one host. The first that applies, in the precedence of the codes, is the verdict.
func Of(in Input) Verdict {
	v := Verdict{}
	r := in.Report
	if r != nil {
		v.Desired, v.Running, v.Grade = r.Desired, r.Running, r.Grade
	}
	say := func(code Code, format string, args ...any) Verdict {
		v.Code, v.Why = code, clean(fmt.Sprintf(format, args...))
		return v
	}

	if in.ViewAge > 2*in.Poll {
		if in.ViewProblem != "" {
			return say(Unknown, "the collector has no good head of cohort %s since %s: %s", in.Cohort, rough(in.ViewAge), in.ViewProblem)
		}
		return say(Unknown, "the collector could not read the store for %s: check its access to the store", rough(in.ViewAge))
	}
	if newer, mark := newerThan(r, in.View); newer {
		return say(Unknown, "the host has seen order %s, which the collector has not read yet: it reads the store again within %s", mark, rough(in.Poll))
	}
	if in.Retired && in.RetiredWhy != "" {
		return say(Retired, "%s; it counts no more%s", in.RetiredWhy, backAgain(in))
	}
	if in.Retired {
		return say(Retired, "left the inventory of cohort %s: stop its agent, or put it back into hosts.list", in.Cohort)
	}
	if !in.Expected {
		if in.ExpectedIn != "" {
			return say(Unexpected, "reports in cohort %s, but the inventory has it in %s: correct `cohort` in its agent.yaml, or move it in the fleet's hosts.list", in.Cohort, in.ExpectedIn)
		}
		if in.Mismatch != "" {
			return say(Unexpected, "reports in cohort %s, but %s: correct `labels` or `cohort` in its agent.yaml, or the match in the fleet", in.Cohort, in.Mismatch)
		}
		return say(Unexpected, "reports in cohort %s, whose inventory does not have it: add it to hosts.list, or correct `cohort` in its agent.yaml", in.Cohort)
	}
	if in.Duplicate || r != nil && !in.Accepted {
		return say(Duplicate, "%s", duplicates(in))
	}
	if r == nil {
		if in.AlsoIn != "" {
			return say(Missing, "expected in cohort %s, and also in %s, but it has never reported here: each of them needs an agent of its own on it; start one, or take it out of hosts.list", in.Cohort, in.AlsoIn)
		}
		return say(Missing, "expected in cohort %s, but it has never reported: start muster-agent on it, or take it out of hosts.list", in.Cohort)
	}

	promised := time.Duration(r.Poll * float64(time.Second))
	last := in.Now.Sub(in.Received)
	if r.Phase == report.PhaseLeaving {
		return say(Silent, "its agent said that it stops, %s ago: start muster-agent on it again", rough(last))
	}
	if in.Now.Sub(in.silentFrom()) > MissedReports*promised {
		return say(Silent, "last heard %s ago, though it promised a report every %s: check that the host is up, and `systemctl status muster-agent` on it", rough(last), rough(promised))
	}
	if last > MissedReports*promised {
		return say(Unknown, "last heard %s ago, but the collector was not listening all that time: its next report is due within %s", rough(last), rough(promised))
	}

	switch r.Phase {
	case report.PhaseFailed:
		return say(Failed, "epoch %d failed here, the host went back to epoch %d and is still ill: %s: look at the service on the host, then correct the release and publish again", r.Attempted, r.Running, orUnsaid(reasons(r, nil)))
	case report.PhaseRolledBack:
		return say(RolledBack, "epoch %d failed here and the host went back to epoch %d%s: %s: correct the release and publish again", r.Attempted, r.Running, tries(r), orUnsaid(reasons(r, nil)))
	case report.PhaseRefused:
		code := ""
		if r.Code != "" {
			code = " (" + r.Code + ")"
		}
		return say(Refused, "refused epoch %d%s and keeps epoch %d%s: %s", r.Attempted, code, r.Running, tries(r), orUnsaid(reasons(r, nil)))
	}
	if n := max(r.Drifted, len(r.Drift)); n > 0 {
		then := "the agent restores what is released"
		if h := r.Held; h != nil {
			then = fmt.Sprintf("the host is held by %s%s (%s), and the agent restores what is released when that is over", orUnsaid(h.By), until(&h.Until), orUnsaid(h.Why))
		}
		return say(Drifted, "%s changed by hand on the host: %s: put the change into the config repo; %s", plural(n, "file"), some(r.Drift, n), then)
	}

	if in.View == nil {
		return say(Unknown, "cohort %s has no head in the store yet: assign a release with `muster publish --rollout=now`", in.Cohort)
	}
	res, err := manifest.Resolve(in.View, manifest.Host{Name: in.Host, Labels: r.Labels}, in.Now)
	if err != nil {
		return say(Unknown, "order %s assigns nothing to this host: %v", in.View.Mark(), err)
	}
	if res.Variants != nil {
		if in.Variants == nil {
			return say(Unknown, "the host variants of epoch %d could not be read from the store", res.Epoch())
		}
		res = res.WithVariants(in.Host, *in.Variants)
	}
	v.Desired = res.Epoch()

	confirmed, open := confirms(r, res)
	state := "runs it"
	if !confirmed {
		state = "does not confirm it yet"
	}
	if h := r.Held; h != nil {
		return say(Held, HeldOnHost+" by %s%s%s: %s: it ends by itself then, or with `muster-agent unhold` there", orUnsaid(h.By), until(&h.Until), because(h.Why), keeps(r, v.Desired, confirmed))
	}
	switch res.Source {
	case manifest.FromHold:
		end := heldUntil(in, res.Until)
		return say(Held, "held at epoch %d%s%s and %s: %s", v.Desired, until(end), because(res.Why), state, endHold(in, end))
	case manifest.FromOverride:
		return say(Overridden, "%s%s; the host %s", res.Why, until(res.Until), state)
	}

	observing := r.Mode == report.ModeObserve
	if !observing && !confirmed && !open.onlyStopped {
		waits := in.Now.Sub(in.Released)
		if in.Released.IsZero() || waits <= lagAfter(in.View) {
			return say(Applying, "%s", progress(r, v.Desired, open))
		}
		return say(Lagging, "epoch %d was assigned %s ago; %s", v.Desired, rough(waits), progress(r, v.Desired, open))
	}
	if why, stale := staleness(in); stale {
		return say(Stale, "%s", why)
	}
	switch {
	case open.onlyStopped:
		return say(NotRunning, "epoch %d is installed, but %s: start what is to run", v.Desired, some(open.services, len(open.services)))
	case observing && r.Running == v.Desired:
		return say(Observing, "observes only and would change nothing: set `mode: enforce` in its agent.yaml to let it apply")
	case observing:
		return say(Observing, "observes only and would go from epoch %d to %d: set `mode: enforce` in its agent.yaml to let it apply", r.Running, v.Desired)
	}
	v.Code, v.Why = Confirmed, clean("runs epoch "+strconv.FormatUint(v.Desired, 10)+gradeText(r.Grade)) // of nearly all hosts, at each look
	return v
}

// lagAfter is LagAfter, and while a rollout is under way the time over which it spreads its hosts beside it.
func lagAfter(v *manifest.View) time.Duration {
	ro := v.Manifest.Rollout
	spread, err := time.ParseDuration(ro.Policy.Spread)
	if err != nil || ro.Baseline == 0 || ro.Baseline == ro.Target && ro.Fallback == 0 {
		return LagAfter
	}
	return LagAfter + max(spread, 0)
}

// backAgain is the next step for a host that was retired by other means than the inventory.
func backAgain(in Input) string {
	if strings.HasPrefix(in.RetiredWhy, "retired by") {
		return fmt.Sprintf(": `muster hosts unretire %s` takes that back", in.Host)
	}
	return " until it reports again"
}

// silentFrom is when a host's silence began to count.
func (in Input) silentFrom() time.Time {
	if in.SilentFrom.After(in.Received) {
		return in.SilentFrom
	}
	return in.Received
}

// SilentSince is when a host whose verdict is silent became so, by the collector's clock.
func SilentSince(in Input) time.Time { return in.silentSince() }

// silentSince is when a host that is silent became so.
func (in Input) silentSince() time.Time {
	if in.Report.Phase == report.PhaseLeaving {
		return in.Received
	}
	return in.silentFrom().Add(MissedReports * time.Duration(in.Report.Poll*float64(time.Second)))
}

// newerThan reports whether a host has seen an order that the view does not know.
func newerThan(r *report.Report, v *manifest.View) (bool, string) {
	if r == nil || r.Seen == "" {
		return false, ""
	}
	seen, err := manifest.ParseMark(r.Seen)
	if err != nil {
		return false, ""
	}
	var known manifest.Mark
	if v != nil {
		known = v.Mark()
	}
	return seen.Compare(known) > 0, r.Seen
}

// open is what keeps a host from being confirmed.
type open struct {
	elsewhere   bool     // other epoch, content or override than assigned
	services    []string // "checkout: process still states epoch 6", sorted
	onlyStopped bool     // nothing but services that are not running
}

// confirms compares a report with what is assigned: the same epoch, content and override on disk, the host's own word that all is confirmed, and for every service
// the grade that the signed statement requires.
func confirms(r *report.Report, res manifest.Resolution) (bool, open) {
	var o open
	o.elsewhere = r.Running != res.Epoch() || r.Desired != res.Epoch() || r.Content != res.Content || r.Override != res.Override
	stopped := 0
	for _, name := range sorted(res.Evidence) {
		s, ok := r.Services[name]
		required := max(res.Evidence[name].Rank(), 1)
		if ok && s.Grade.Rank() >= required {
			continue
		}
		if ok && s.State == serviceNotRunning {
			stopped++
		}
		o.services = append(o.services, name+": "+serviceWhy(s, ok, res.Evidence[name]))
	}
	if o.elsewhere {
		return false, o
	}
	o.onlyStopped = stopped > 0 && stopped == len(o.services)
	return len(o.services) == 0 && r.Confirmed, o
}

// serviceWhy says why a service is not confirmed.
func serviceWhy(s report.Service, reported bool, required manifest.Grade) string {
	var parts []string
	for _, name := range sorted(s.Instances) {
		if i := s.Instances[name]; i.Reason != "" {
			parts = append(parts, name+": "+i.Reason)
		}
	}
	switch {
	case !reported:
		return "not reported"
	case s.State == serviceNotRunning:
		return serviceNotRunning
	case s.Reason != "":
		return s.Reason
	case len(parts) > 0:
		return strings.Join(parts, ", ")
	case s.Epoch != 0 && s.Expected != 0 && s.Epoch != s.Expected:
		return fmt.Sprintf("process still states epoch %d", s.Epoch)
	case s.Grade.Rank() > 0 && s.Grade.Rank() < required.Rank():
		return fmt.Sprintf("is known to run it only by %q, and %q is required", s.Grade, required)
	case s.State != "":
		return s.State
	}
	return "not confirmed"
}

// progress says what a host that is not there yet is doing.
func progress(r *report.Report, epoch uint64, o open) string {
	doing := ""
	switch r.Phase {
	case report.PhaseFetching:
		doing = "is fetching"
	case report.PhaseApplying:
		doing = "is applying"
	}
	switch {
	case doing != "" && r.Attempted == epoch:
		return fmt.Sprintf("%s epoch %d, runs epoch %d%s%s", doing, epoch, r.Running, tries(r), colon(r.Reason))
	case o.elsewhere && r.Running != epoch && r.Desired == epoch:
		return fmt.Sprintf("is to run epoch %d, runs epoch %d%s%s", epoch, r.Running, tries(r), colon(reasons(r, nil)))
	case o.elsewhere && r.Running != epoch:
		return fmt.Sprintf("is to run epoch %d, runs epoch %d and has not said yet that it knows", epoch, r.Running)
	case o.elsewhere:
		return fmt.Sprintf("is to run epoch %d, but what lies on its disk is something else (%s)", epoch, orUnsaid(r.Content))
	}
	return fmt.Sprintf("epoch %d is installed, not confirmed%s", epoch, colon(reasons(r, o.services)))
}

// reasons are the services' own reasons, or else the host's.
func reasons(r *report.Report, services []string) string {
	if len(services) == 0 {
		for _, name := range sorted(r.Services) {
			if s := r.Services[name]; s.Reason != "" {
				services = append(services, name+": "+s.Reason)
			}
		}
	}
	text := some(services, len(services))
	switch {
	case r.Reason == "" || strings.Contains(text, r.Reason):
		return text
	case text == "" || strings.Contains(r.Reason, text):
		return r.Reason
	}
	return r.Reason + " (" + text + ")"
}

// staleness says whether the order in force was not renewed in time, by the collector's clock or the host's.
func staleness(in Input) (string, bool) {
	m := &in.View.Manifest
	if in.Now.After(m.FreshUntil) {
		return fmt.Sprintf("order %s should have been renewed by %s, %s ago: the host keeps what it runs; renew it with `muster rollout refresh %s`",
			in.View.Mark(), m.FreshUntil.UTC().Format(time.RFC3339), rough(in.Now.Sub(m.FreshUntil)), in.Cohort), true
	}
	if !in.Report.Stale {
		return "", false
	}
	if in.Report.Seen == in.View.Mark().String() {
		return fmt.Sprintf("takes order %s for expired, which is fresh until %s: its clock is wrong%s; correct it", in.Report.Seen, m.FreshUntil.UTC().Format(time.RFC3339), skewText(in.Skew)), true
	}
	seen := in.Report.Seen
	if seen == "" {
		seen = "none"
	}
	return fmt.Sprintf("sees only an expired order (%s; the newest is %s): one of its sources serves an old head; check `sources` in its agent.yaml and what lies between", seen, in.View.Mark()), true
}

// keeps says what a host that is held by its own operator runs.
func keeps(r *report.Report, assigned uint64, confirmed bool) string {
	what := fmt.Sprintf("epoch %d", r.Running)
	switch {
	case r.Running == 0:
		what = "what it had, no release of muster"
	case r.Override != "":
		what += " with override " + r.Override
	}
	switch {
	case confirmed:
		return "it keeps " + what + ", which is what it is to run"
	case r.Running == assigned:
		return "it keeps " + what + " as it is"
	}
	return fmt.Sprintf("it keeps %s, and is to run epoch %d", what, assigned)
}

// heldUntil is when a hold ends: what whoever holds the host said, not the later time at which it goes by itself if no controller lets it go.
func heldUntil(in Input, assigned *time.Time) *time.Time {
	for _, s := range in.View.Manifest.Rollout.Holds {
		if s.Until != nil && slices.Contains(s.Hosts, in.Host) {
			return s.Until
		}
	}
	return assigned
}

// endHold is the next step for a hold.
func endHold(in Input, end *time.Time) string {
	unhold := fmt.Sprintf("`muster unhold %s %s --reason …`", in.Cohort, in.Host)
	switch {
	case end == nil:
		return unhold + " ends it"
	case !in.Now.Before(*end):
		return "it is let go as places of max_in_flight are free"
	}
	return "it ends by itself then, or with " + unhold
}

// maxSpeakers is how many of a host's agents a sentence names: those that spoke last.
const maxSpeakers = 3

func duplicates(in Input) string {
	if in.Report != nil && !in.Accepted {
		return fmt.Sprintf("an agent with another identity key speaks as %s; only the first key counts: stop the other agent, or give it a host name of its own; if the host was installed anew, `muster hosts accept %s` makes the new key count", in.Host, in.Host)
	}
	if len(in.Speakers) < 2 {
		return fmt.Sprintf("two agents speak as %s: give each a host name of its own", in.Host)
	}
	var who []string
	recent := slices.SortedStableFunc(slices.Values(in.Speakers), func(a, b Speaker) int { return b.Received.Compare(a.Received) })
	for _, s := range recent[:min(len(recent), maxSpeakers)] {
		who = append(who, fmt.Sprintf("boot %s with epoch %d, heard %s ago", s.Boot, s.Running, rough(in.Now.Sub(s.Received))))
	}
	if more := len(recent) - len(who); more > 0 {
		who = append(who, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%d agents speak as %s (%s): give each a host name of its own, and remove the agent's root directory from images before they are cloned", len(recent), in.Host, strings.Join(who, "; "))
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
