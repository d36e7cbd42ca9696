package delivery

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/forge"
)

// Release is what is delivered.
type Release struct {
	Epoch   uint64
	Commit  string
	Subject string
	Cohorts map[string]Cohort
}

// Cohort is one cohort's part of a release.
type Cohort struct {
	Env    string // its label env; "" if it has none
	State  manifest.CohortState
	Epoch  uint64 // of what stands in it after this release; 0: nothing
	Reason string // blocked: why
}

// Of is a stored release as it is delivered.
func Of(rel *manifest.Release) Release {
	r := Release{Epoch: rel.Epoch, Commit: rel.Commit, Subject: rel.Subject, Cohorts: map[string]Cohort{}}
	for name, part := range rel.Cohorts {
		r.Cohorts[name] = Cohort{Env: rel.Policy.Cohorts[name].Labels["env"], State: part.State, Epoch: part.Epoch, Reason: part.Reason}
	}
	return r
}

// Per is what a deployment is made for.
type Per string

// What deployments are made for. A cohort without the label env is an environment of its own.
const (
	PerEnv    Per = "env"
	PerCohort Per = "cohort"
	PerNone   Per = "none"
)

// environments are the cohorts of a release that it changes, by the environment that they are told under.
func (r Release) environments(per Per) map[string][]string {
	out := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(r.Cohorts)) {
		c := r.Cohorts[name]
		if c.State == manifest.StateHolds {
			continue // nothing is delivered there
		}
		env := c.Env
		if env == "" || per == PerCohort {
			env = name
		}
		out[env] = append(out[env], name)
	}
	return out
}

// said is what is to be told of some cohorts.
type said struct {
	state forge.State
	text  string
	wave  int    // of the rollout that is furthest behind: a new one is worth telling at once
	backs []back // where it failed and was taken back
	blind bool   // of a cohort that is not green nothing was heard yet: it may have been taken back
	later bool   // a cohort is green by a newer release that contains it, not by this one
	since uint64 // that newer one, where it is all that is known: this one may have been taken back before it
	gone  bool   // it failed, and a newer one stands in its place: there is nothing to take back
}

// back is where a failed release was taken back from.
type back struct {
	cohort   string
	baseline uint64
	why      string
}

// tell says what became of a release in some cohorts. It is green only when the collector says green of each.
func (r Release) tell(names []string, w *api.Wait, rollouts map[string]api.Event, ended ends) said {
	out := said{state: forge.Success}
	confirmed, owed, waiting := 0, 0, 0
	var notes []string
	started := false
	for _, name := range names {
		part, g := r.Cohorts[name], w.Cohorts[name]
		confirmed, owed, waiting = confirmed+g.Confirmed, owed+g.Owed, waiting+len(g.Waiting)
		event, known := rollouts[name]
		state := event.Rollout
		newer := event.Target > r.Epoch // what the collector says now is said of that one
		failed, why := r.failed(name, event)
		gone := failed && g.Green
		if end := ended[name][r.Epoch]; !failed && newer && end.failed {
			failed, gone, why = true, true, end.why
		}
		switch {
		case part.State == manifest.StateBlocked:
			out.state = forge.Failure
			notes = append(notes, name+" is blocked: "+part.Reason)
			continue
		case failed && (!g.Green || newer):
			out.state = forge.Failure
			notes = append(notes, why)
			out.gone = out.gone || gone
			if state != nil && !gone {
				out.backs = append(out.backs, back{name, state.Baseline, why})
			}
			continue
		}
		if g.Green {
			started = true
			out.later = out.later || event.Target != r.Epoch
			if newer && !ended[name][r.Epoch].done {
				out.since = max(out.since, event.Target)
			}
			continue
		}
		out.blind = out.blind || !known
		if out.state == forge.Success {
			out.state = forge.InProgress
		}
		switch {
		case !known || event.Target < r.Epoch:
			notes = append(notes, name+" waits for its rollout")
		case state != nil && state.Phase != manifest.PhaseDone && len(state.Waves) > 1 && state.Wave <= len(state.Waves):
			started = true
			out.wave = max(out.wave, state.Wave)
			note := fmt.Sprintf("%s: wave %d of %d", name, state.Wave, len(state.Waves))
			if word := phaseWord(state); word != "" {
				note += ", " + word
			}
			notes = append(notes, note)
		default:
			started = true
			if g.Never {
				notes = append(notes, g.Why)
			}
		}
	}
	count := tally(confirmed, owed, waiting)
	switch {
	case out.state == forge.Failure:
		out.text = strings.Join(notes, "; ")
		return out
	case out.state == forge.InProgress && !started:
		out.state = forge.Queued
		out.text = strings.Join(notes, "; ")
		return out
	}
	out.text = count
	if len(notes) > 0 {
		out.text += "; " + strings.Join(notes, "; ")
	}
	return out
}

// stands is the epoch of what this release means for a cohort: its own, or the earlier one that the cohort keeps.
func (r Release) stands(name string) uint64 {
	if c := r.Cohorts[name]; c.State == manifest.StateHolds {
		return c.Epoch
	}
	return r.Epoch
}

// watchedBy reports whether a late failure would take it back yet, somewhere. A cohort whose own word is not as new as the collector's answer may be.
func (r Release) watchedBy(w *api.Wait, rollouts map[string]api.Event) bool {
	for name := range w.Cohorts {
		epoch := r.stands(name)
		if epoch == 0 {
			continue
		}
		e, heard := rollouts[name]
		if !heard || e.Target < epoch || e.Rollout != nil && e.Rollout.Target == epoch && e.Rollout.Fallback != 0 {
			return true
		}
	}
	return false
}

// keeps says what became of the cohorts in which a release changes nothing. The release is not delivered while what they keep is not: it may have been halted, or be under
// way. Only what is not green is worth a word.
func (r Release) keeps(w *api.Wait, rollouts map[string]api.Event, ended ends) said {
	out := said{state: forge.Success}
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(r.Cohorts)) {
		c := r.Cohorts[name]
		g, known := w.Cohorts[name]
		event, heard := rollouts[name]
		newer, end := event.Target > c.Epoch, ended[name][c.Epoch]
		if c.State == manifest.StateHolds && g.Green {
			out.later = out.later || newer
			if newer && !end.done && !end.failed {
				out.since = max(out.since, event.Target)
			}
		}
		taken := newer && end.failed
		if c.State != manifest.StateHolds || c.Epoch == 0 || g.Green && !taken || !known && len(w.Cohorts) > 0 { // a later release took it away
			continue
		}
		out.blind = out.blind || !heard
		failed, why := r.failed(name, event)
		if taken && !failed {
			failed, why = true, end.why
		}
		if failed {
			out.gone = out.gone || g.Green
			out.state = forge.Failure
			notes = slices.Insert(notes, 0, fmt.Sprintf("epoch %d, which stays: %s", c.Epoch, why))
			continue
		}
		if out.state == forge.Success {
			out.state = forge.InProgress
		}
		notes = append(notes, fmt.Sprintf("%s keeps epoch %d, which is not confirmed yet", name, c.Epoch))
	}
	out.text = strings.Join(notes, "; ")
	return out
}

// failed says whether this very release, or what it leaves in place, was taken back or stopped in a cohort, and why.
func (r Release) failed(name string, e api.Event) (bool, string) {
	s := e.Rollout
	if s == nil {
		return false, ""
	}
	epoch := r.stands(name)
	for _, h := range slices.Backward(s.Halts) {
		if h.Epoch == epoch {
			return true, name + " is halted: " + h.Why
		}
	}
	if s.Target != epoch {
		return false, ""
	}
	switch s.Phase {
	case manifest.PhaseRollingBack:
		return true, fmt.Sprintf("%s goes back to epoch %d: %s", name, s.Baseline, s.Why)
	case manifest.PhaseHalted:
		return true, name + " is halted: " + s.Why
	}
	return false, ""
}

// phaseWord is what keeps a wave from going on.
func phaseWord(s *api.Rollout) string {
	switch s.Phase {
	case manifest.PhaseBaking:
		return "baking"
	case manifest.PhaseAwaitingApproval:
		return "waits for an approval"
	case manifest.PhasePaused:
		return "paused"
	}
	return ""
}

// tally is "4,982 confirmed, 18 owed" when that is all, else "120 of 5,000 confirmed".
func tally(confirmed, owed, waiting int) string {
	if waiting > 0 {
		return fmt.Sprintf("%s of %s confirmed", cli.Number(confirmed), cli.Number(confirmed+owed+waiting))
	}
	s := cli.Number(confirmed) + " confirmed"
	if owed > 0 {
		s += ", " + cli.Number(owed) + " owed"
	}
	return s
}

// whole is what is told of the commit, by what is told of each environment, and of the cohorts that it leaves as they are.
func (r Release) whole(of map[string]said, kept said) forge.Status {
	s := forge.Status{Context: Context, State: forge.Good}
	var parts []string
	if len(of) == 0 {
		parts = append(parts, "nothing changes on any host")
	}
	for _, env := range slices.Sorted(maps.Keys(of)) {
		switch of[env].state {
		case forge.Failure:
			s.State = forge.Bad
			parts = slices.Insert(parts, 0, env+": "+of[env].text) // first: it is cut at its end
			continue
		case forge.Success:
		default:
			if s.State == forge.Good {
				s.State = forge.Pending
			}
		}
		parts = append(parts, env+": "+of[env].text)
	}
	switch kept.state {
	case forge.Failure:
		s.State = forge.Bad
		parts = slices.Insert(parts, 0, kept.text)
	case forge.InProgress, forge.Inactive:
		if s.State == forge.Good {
			s.State = forge.Pending
		}
		parts = append(parts, kept.text)
	}
	s.Description = r.mark() + strings.Join(parts, "; ")
	return s
}
