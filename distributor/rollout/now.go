// Package rollout decides which release a cohort's hosts run next, and writes that decision: one new head by compare-and-swap.
package rollout

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// ErrStopped refuses a forward move of a cohort that is halted, paused or frozen. The error says which, by whom and why.
var ErrStopped = errors.New("cohort does not move forward")

// ErrBehind refuses to take a cohort to an older release than its head names: the releases that this store shows are not all there are.
var ErrBehind = errors.New("head is ahead of the releases")

// ErrNothing says that the release has nothing for the cohort.
var ErrNothing = errors.New("nothing to assign")

// Input is what a decision about one cohort looks at.
type Input struct {
	Store, Repo, Cohort string
	Era                 uint64            // of the newest keyring
	Prev                *manifest.View    // the head that stands; nil if there is none
	Release             *manifest.Release // the newest that verifies
	Statement           manifest.Envelope // the plain statement that stands for the cohort after Release
	By                  string            // who decides
	Now                 time.Time
	// Base is the release of the target that stands, for Next: its policy is the one for what comes after it. nil: it is not known, or its policy is in force already.
	Base *manifest.Release
	// Named are the plain statements of earlier epochs that an action names, verified, whose bundles are there; for Act.
	Named map[uint64]manifest.Envelope
}

// Now assigns what stands after the release to every host of the cohort at once. Holds stay. Nothing changed is reported when the head assigns it already and has
// at least half of its freshness left. A cohort that is halted, paused or frozen is not moved (ErrStopped), but is kept fresh.
func Now(in Input) (m manifest.Manifest, changed bool, err error) {
	part, ok := in.Release.Cohorts[in.Cohort]
	if !ok || part.Epoch == 0 {
		return m, false, fmt.Errorf("cohort %s in release %d: %w", in.Cohort, in.Release.Epoch, ErrNothing)
	}
	if in.Prev == nil {
		m = manifest.Manifest{V: manifest.Version, Store: in.Store, Repo: in.Repo, Cohort: in.Cohort, Era: in.Era, Serial: 1}
		assignAll(&m, in, part, nil)
		stamp(&m, in.Now)
		return m, true, nil
	}
	prev := in.Prev.Manifest
	assigned, everywhere := assignedTo(prev)
	if assigned > part.Epoch {
		return m, false, fmt.Errorf("cohort %s: %w: it assigns epoch %d, and epoch %d stands in release %d; check the store with muster fsck", in.Cohort, ErrBehind, assigned, part.Epoch, in.Release.Epoch)
	}
	for _, st := range in.Prev.Statements {
		if st.Epoch == part.Epoch && st.Override == "" && st.Digest != in.Statement.Digest() {
			return m, false, fmt.Errorf("cohort %s: %w: its head carries another statement of epoch %d than release %d; check the store with muster fsck", in.Cohort, manifest.ErrEquivocation, part.Epoch, in.Release.Epoch)
		}
	}
	moves := assigned != part.Epoch || !everywhere
	idle := !moves && forNothing(&prev.Rollout)
	if !moves && !idle && prev.Era == in.Era && prev.FreshUntil.Sub(in.Now) >= manifest.MaxFreshFor/2 {
		return m, false, nil
	}
	m = prev
	m.V, m.Store, m.Repo, m.Era, m.Serial, m.Ext = manifest.Version, in.Store, in.Repo, max(in.Era, prev.Era), prev.Serial+1, nil
	if moves {
		if err := stopped(prev.Rollout, in.Cohort, in.Now); err != nil {
			return manifest.Manifest{}, false, err
		}
		assignAll(&m, in, part, in.Prev)
	}
	if idle {
		goOn(&m.Rollout, in.Now)
		m.Rollout.By = in.By
	}
	stamp(&m, in.Now)
	return m, true, nil
}

// Assigns reports whether the head sends every host that nothing holds to epoch.
func Assigns(v *manifest.View, epoch uint64) bool {
	if v == nil {
		return false
	}
	assigned, everywhere := assignedTo(v.Manifest)
	return assigned == epoch && everywhere
}

// assignedTo is the highest epoch that the waves and the baseline lead to, and whether all of them lead there.
func assignedTo(m manifest.Manifest) (epoch uint64, everywhere bool) {
	everywhere = true
	for _, a := range m.Assign {
		if len(a.Hosts) > 0 {
			continue // a hold
		}
		if epoch != 0 && a.Epoch != epoch {
			everywhere = false
		}
		epoch = max(epoch, a.Epoch)
	}
	return epoch, everywhere
}

// stopped tells what holds a cohort back.
func stopped(r manifest.Rollout, cohort string, now time.Time) error {
	say := func(word string, s manifest.Stop, next string) error {
		text := fmt.Sprintf("%s by %s since %s", word, s.By, s.Since.UTC().Format(time.RFC3339))
		if s.Why != "" {
			text += ": " + s.Why
		}
		return fmt.Errorf("cohort %s: %w: %s; %s", cohort, ErrStopped, text, next)
	}
	switch {
	case len(r.Halts) > 0:
		return say("halted", r.Halts[0], fmt.Sprintf("git revert and publish what failed, or `muster rollout resume %s --reason …`", cohort))
	case r.Phase == manifest.PhaseHalted || r.Phase == manifest.PhaseRollingBack:
		return fmt.Errorf("cohort %s: %w: %s since %s: %s", cohort, ErrStopped, r.Phase, r.Since.UTC().Format(time.RFC3339), r.Why)
	case r.Pause != nil && !past(r.Pause.Until, now):
		return say("paused", *r.Pause, fmt.Sprintf("`muster rollout resume %s --reason …` ends it", cohort))
	}
	for _, f := range r.Freezes {
		if !past(f.Until, now) {
			return say("frozen", f, fmt.Sprintf("wait for its end, or `muster unfreeze %s --reason …`", cohort))
		}
	}
	return nil
}

func past(until *time.Time, now time.Time) bool { return until != nil && !now.Before(*until) }

// assignAll makes m assign the standing epoch to everybody but the hosts on hold, and gives it the statements that this can lead to.
func assignAll(m *manifest.Manifest, in Input, part manifest.ReleaseCohort, prev *manifest.View) {
	m.Assign, m.Statements = nil, []manifest.Envelope{in.Statement}
	keep := map[uint64]bool{}
	if prev != nil {
		for _, a := range prev.Manifest.Assign {
			if len(a.Hosts) > 0 && !past(a.Until, in.Now) {
				m.Assign = append(m.Assign, a)
				keep[a.Epoch] = true
			}
		}
		for i, st := range prev.Statements {
			if st.Override == "" && keep[st.Epoch] && st.Epoch != part.Epoch {
				m.Statements = append(m.Statements, prev.Manifest.Statements[i])
			}
		}
	}
	m.Statements = append(m.Statements, part.Overridden...)
	m.Assign = append(m.Assign, manifest.Assignment{Epoch: part.Epoch, Why: "all hosts at once by " + in.By})

	active := func(stops []manifest.Stop) []manifest.Stop {
		return slices.DeleteFunc(slices.Clone(stops), func(s manifest.Stop) bool { return past(s.Until, in.Now) })
	}
	name := in.Release.Policy.Cohorts[in.Cohort].Rollout
	m.Rollout = manifest.Rollout{
		PolicyName: name, PolicyEpoch: in.Release.Epoch, Policy: in.Release.Policy.Rollouts[name],
		Target: part.Epoch, Baseline: part.Epoch, Phase: manifest.PhaseDone, Since: in.Now.UTC(),
		Why: fmt.Sprintf("epoch %d to all hosts at once", part.Epoch), By: in.By,
		Freezes: active(m.Rollout.Freezes), Holds: holdsOf(m, in.Now), Endings: m.Rollout.Endings,
	}
}

// stamp dates the manifest. Whole seconds: that is what people and logs compare.
func stamp(m *manifest.Manifest, now time.Time) {
	m.Issued = now.UTC().Truncate(time.Second)
	m.FreshUntil = m.Issued.Add(manifest.MaxFreshFor)
}
