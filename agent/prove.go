package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// prove is the part of a change after the swap, also of one that a crash interrupted there: reload, confirm, and the verdict. It is not stopped by the end
// of ctx, except that it waits no longer for a confirmation; the trial stays noted then and goes on at the next start.
func (a *Agent) prove(ctx context.Context) error {
	t := a.st.Trial
	if err := a.keepLinks(); err != nil {
		return a.goBack(ctx, err)
	}
	reloads := len(a.st.Owed) > 0
	if err := a.reloadOwed(context.WithoutCancel(ctx), true); err != nil {
		return a.goBack(ctx, err)
	}
	a.phase = report.PhaseConfirming
	ended, err := a.awaitConfirmed(ctx, t)
	if ended && err == nil {
		ended, err = a.awaitHealthy(ctx, t)
	}
	switch {
	case err != nil:
		return a.goBack(ctx, err)
	case !ended && ctx.Err() != nil:
		return nil
	}
	// Also when a newer head cut the wait short: what runs now is then no trial any more, but the ground that the next one starts from.
	a.st.Trial = nil
	a.dirty = true
	if t.Back {
		a.sweepDue = true
		return nil
	}
	if a.want == nil || !a.want.is(a.cur) {
		a.sweepDue = true
		return nil // a repair of what runs, or the end of a trial that nobody wants any more
	}
	if reloads { // one may have changed what it was to load: confirmed is what lies there now
		if err := a.look(ctx, true); err != nil {
			return err
		}
		if len(a.drift) > 0 {
			a.log.Warn("files changed while services were reloaded", "dir", a.cur.Dir, "paths", strings.Join(head(a.drift, 20), " "), "count", len(a.drift))
			a.phase, a.code, a.tries = report.PhaseIdle, CodeDrift, 0
			a.reason = fmt.Sprintf("%s changed while services were reloaded; a reload may only read them", count(len(a.drift), "file"))
			a.sweepDue = true
			return nil
		}
	}
	a.conclude(ctx)
	a.sweepDue = true
	return nil
}

// goBack ends a trial that failed.
func (a *Agent) goBack(ctx context.Context, why error) error {
	t := a.st.Trial
	if t.Back {
		// The way back itself does not work: the release that was well before is ill too.
		a.st.Trial = nil
		a.dirty = true
		return fmt.Errorf("went back, and: %w", why)
	}
	bad := *t.Target
	if t.From == "" {
		a.st.Trial = nil
		a.failedHere(bad, report.PhaseFailed, fmt.Errorf("%w; there is no earlier release to go back to", why))
		a.probeAll(ctx)
		return why
	}
	a.log.Warn("going back", "from", bad.Epoch, "dir", t.From, "err", why)
	a.failedHere(bad, report.PhaseRolledBack, why)
	if err := a.swapBack(ctx, t); err != nil {
		a.st.Trial = nil
		err = fmt.Errorf("%w; going back: %w", why, err)
		a.setFailure(bad, report.PhaseFailed, err)
		return err
	}
	if err := a.prove(ctx); err != nil {
		a.setFailure(bad, report.PhaseFailed, fmt.Errorf("%w; %w", why, err))
	} else {
		a.setFailure(bad, report.PhaseRolledBack, why)
	}
	a.probeAll(ctx)
	return why
}

func (a *Agent) setFailure(t target, phase report.Phase, err error) {
	f := a.st.Failed[t.key()]
	f.Phase, f.Reason, f.Code = string(phase), report.CutReason(err.Error()), codeOf(err)
	a.st.fail(t.key(), f)
	a.dirty = true
	a.showFailure(t)
}

// swapBack makes the last known good current, or else what was current before the trial. Everything that changed has to be reloaded once more.
func (a *Agent) swapBack(ctx context.Context, t *trial) error {
	dir, was, files := t.From, t.Was, map[string]Change{}
	for name, c := range t.Files {
		files[name] = Change{Added: c.Removed, Changed: c.Changed, Removed: c.Added}
	}
	if good := a.lastGood(ctx, t); good != nil {
		dir, was, files = good.Dir, a.st.GoodTarget, good.Files
	}
	back := map[string]owed{}
	for name, c := range files {
		if len(a.cfg.Services[name].Reload) > 0 {
			back[name] = owed{Dir: dir, Change: c, Before: true}
		}
	}
	for name, o := range a.st.Owed {
		if _, ok := back[name]; !ok {
			back[name] = owed{Dir: dir, Change: o.Change, Before: true}
		}
	}
	a.st.Owed = back
	a.st.Trial = &trial{To: dir, Target: was, Waits: t.Well, Well: t.Well, Files: map[string]Change{}, Back: true}
	a.dirty = true
	if err := a.persist(); err != nil {
		a.log.Error("state not written", "err", err) // to be well again matters more
	}
	return a.returned(ctx)
}

// baseline is the epoch to which a failure of a rollout sends its hosts back.
func baseline(ro manifest.Rollout) uint64 {
	if ro.Fallback != 0 {
		return ro.Fallback
	}
	return ro.Baseline
}

// lastGood is the last known good, if it is another release than the one before the trial, and lies on the disk as it was signed: what ran before a trial may have been a canary that was on
// trial itself, or an override. If it was the baseline, to which the other hosts go back as well, that is the place, though this host may not have come to know that it is good: a cohort
// has never more than two releases.
func (a *Agent) lastGood(ctx context.Context, t *trial) *Staged {
	if t.Was != nil && t.Was.Override == "" && t.Base != 0 && t.Was.Epoch == t.Base {
		return nil
	}
	if a.st.GoodTarget == nil || a.st.Good == "" || a.st.Good == t.From || a.st.Good == t.To {
		return nil
	}
	good, err := a.opts.Installer.Stage(context.WithoutCancel(ctx), a.st.GoodTarget.resolution(), func(context.Context) (io.ReadCloser, error) {
		return nil, errNotHere // to be well again matters more than which release it is: nothing is fetched
	})
	if err != nil {
		a.log.Warn("the last known good is not on the disk as it was signed; going back to what ran before", "dir", a.st.Good, "err", err)
		return nil
	}
	return good
}

var errNotHere = errors.New("not on the disk")

// returned makes the earlier release current that a trial on its way back leads to.
func (a *Agent) returned(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	if err := a.opts.Installer.SwapBack(ctx, &Installed{Dir: a.st.Trial.To}); err != nil {
		return err
	}
	in, err := a.opts.Installer.Current(ctx)
	if err != nil {
		return err
	}
	if in == nil || in.Content == "" {
		return fmt.Errorf("%s is not complete", a.st.Trial.To)
	}
	a.landed(in, a.st.Trial.target(in), a.opts.Prober.Now)
	a.st.Previous = ""
	return a.look(ctx, true) // it may have been changed by hand before
}

// resume ends what a crash, or an end of the agent, left open. A change that was swapped gets its reloads and its window from the beginning, and then its
// verdict; one that was not swapped never happened. A host that was confirmed has neither, however often it starts (B081).
func (a *Agent) resume(ctx context.Context) error {
	if err := a.look(ctx, false); err != nil {
		return err
	}
	t := a.st.Trial
	switch {
	case t != nil && t.Back && (a.cur == nil || a.cur.Dir != t.To):
		if err := a.returned(ctx); err != nil {
			a.st.Trial = nil
			a.dirty = true
			return fmt.Errorf("going back to %s: %w", t.To, err)
		}
		return a.prove(ctx)
	case t != nil && a.cur != nil && a.cur.Dir == t.To:
		a.log.Info("going on with a change that was interrupted", "epoch", a.cur.Epoch, "owed", sorted(a.st.Owed))
		a.landed(a.cur, t.target(a.cur), func() probe.Moment {
			// The swap was some time before; how long, nobody knows any more. If the machine has started since, every process is younger.
			if now := a.opts.Prober.Now(); now.Boot == t.At.Boot {
				return now
			}
			return t.At
		})
		if t.From != "" {
			a.st.Previous = t.From
		}
		return a.prove(ctx)
	case t != nil:
		a.st.Trial = nil
		a.dirty = true
	}
	for name, o := range a.st.Owed {
		if a.cur != nil && o.Dir == a.cur.Dir {
			continue
		}
		a.dirty = true
		if o.Before && a.cur != nil {
			o.Dir = a.cur.Dir
			a.st.Owed[name] = o
		} else {
			delete(a.st.Owed, name)
		}
	}
	if a.cur != nil && a.cur.Content != "" {
		a.st.reconcile(a.cur.Services, a.opts.Prober.Now)
	}
	return nil
}

// target is what the trial leads to; where the state that knew it is lost, as much of it as the release's own record says.
func (t *trial) target(in *Installed) target {
	if t.Target != nil {
		return *t.Target
	}
	return target{Repo: in.Repo, Cohort: in.Cohort, Epoch: in.Epoch, Commit: in.Commit, Override: in.Override, Content: in.Content, Evidence: map[string]manifest.Grade{}}
}
