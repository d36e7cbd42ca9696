package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/report"
)

// how much a settle does.
type how struct {
	verify  bool // recompute the content digest of what is on disk
	eager   bool // pauses and limits after failures do not count
	install bool // end after the swap
	hasty   bool // something new is to be done at once; what can wait does
}

var (
	tick        = how{}
	hinted      = how{hasty: true}
	full        = how{verify: true}
	once        = how{verify: true, eager: true}
	onceInstall = how{verify: true, eager: true, install: true}
)

// settle brings the host to what the newest verified head assigns to it, as far as that can be done now, and reports what it came to. Its error is for
// Once: the host is not where it should be, for a reason that is not a process that does not confirm.
func (a *Agent) settle(ctx context.Context, h how) error {
	err := a.bring(ctx, h)
	// A report says of heads only what is on disk (seen, told). Where this one is known there already, the report need not wait for the rest to be written: should
	// that be lost, the next start goes on with the change from its notes, reloads once more, and reports what it comes to.
	known := a.known()
	if known {
		a.publish(false)
	}
	if known && a.over && !h.eager { // with eager the agent ends here
		a.later = a.now().Add(a.timing.note)
	} else if perr := a.persist(); perr != nil {
		a.log.Error("state not written", "err", perr)
		a.note(report.PhaseRefused, perr)
		err = errors.Join(err, fmt.Errorf("%w: %w", ErrNotKept, perr))
		known = false
	}
	a.over = false
	if !known {
		a.publish(false)
	}
	a.standBy(ctx, h)
	// Nobody waits for it, and a fleet that applies at once has better things to do: it waits for a quiet moment, unless changes come so fast that there is none.
	if a.unswept++; a.sweepDue && (!h.hasty || a.unswept > maxUnswept) {
		a.sweep(ctx)
	}
	return err
}

// known says whether what the report would say of heads and assignments is what is on disk.
func (a *Agent) known() bool {
	return a.view != nil && a.seen == a.view.Mark().String() && a.told != nil && a.want != nil && a.told.key() == a.want.key() && a.toldWhy == a.why
}

func (a *Agent) bring(ctx context.Context, h how) error {
	a.moved = false
	if err := a.look(ctx, h.verify); err != nil {
		a.note(report.PhaseFailed, err)
		return err
	}
	if a.st.Trial != nil && !h.install && a.cfg.Mode == ModeEnforce {
		if err := a.resume(ctx); err != nil {
			a.log.Warn("a change that was interrupted did not end well", "err", err)
		}
	}
	if len(a.drift) > 0 {
		a.reportDrift(ctx)
	}
	if a.view == nil {
		a.phase, a.reason, a.code, a.tries = report.PhaseIdle, "no source has given a head that can be believed", CodeUnreachable, 0
		a.probeAll(ctx)
		return a.repairRunning(ctx, h)
	}
	a.moved = false // also what resume took
	r, err := a.resolve(ctx)
	if err != nil {
		a.note(report.PhaseRefused, err)
		a.probeAll(ctx)
		return errors.Join(err, a.repairRunning(ctx, h))
	}
	want := targetOf(r)
	a.want, a.why = &want, string(r.Source)
	if a.cfg.Mode == ModeObserve {
		return a.observe(ctx, h)
	}
	if hold := a.heldBack(want); hold != nil {
		return a.keep(ctx, want, hold)
	}
	if want.is(a.cur) && len(a.drift) == 0 {
		return a.stay(ctx, h)
	}
	early := a.early(r, want, h)
	if early || !a.due(want, h) {
		// What runs instead may still owe a reload, after a way back that did not work at once.
		if a.cur != nil && a.cur.Content != "" {
			if err := a.reloadOwed(context.WithoutCancel(ctx), false); err == nil && len(a.st.Owed) == 0 {
				if f := a.st.Failed[want.key()]; f.Phase == string(report.PhaseFailed) {
					f.Phase = string(report.PhaseRolledBack)
					a.st.fail(want.key(), f)
					a.dirty = true
				}
			}
		}
		a.showFailure(want)
		if early {
			a.showTurn(want)
		}
		a.probeAll(ctx)
		return a.repairRunning(ctx, h)
	}
	err = a.apply(ctx, want, h)
	if err != nil && !want.is(a.cur) {
		err = errors.Join(err, a.repairRunning(ctx, h))
	}
	return err
}

// keep is what is done about a host that is held: its processes are asked, and it is told that somebody holds it. Files, links and reloads are left alone, those that were changed by hand
// too: who holds a host may be working on it.
func (a *Agent) keep(ctx context.Context, want target, hold *report.Hold) error {
	a.fetches = 0
	a.probeAll(ctx)
	a.showHold(hold)
	if !want.is(a.cur) || len(a.drift) > 0 {
		return nil
	}
	a.attempt = want.Epoch
	if r := a.st.Running; r == nil || r.key() != want.key() {
		a.st.Running = &want
		a.dirty = true
	}
	if a.conclude(ctx); a.reason == "" {
		a.showHold(hold)
	}
	return nil
}

// look reads what is on disk.
func (a *Agent) look(ctx context.Context, verify bool) error {
	cur, err := a.opts.Installer.Current(ctx)
	if err != nil {
		return err
	}
	a.cur = cur
	switch {
	case cur == nil:
		a.content, a.drift = "", nil
		return nil
	case cur.Content == "": // its record is broken
		verify = true
	}
	if !verify {
		return nil
	}
	content, drift, err := a.opts.Installer.Verify(ctx)
	if err != nil {
		return err
	}
	a.content, a.drift = content, drift
	return nil
}

// reportDrift says what was changed by hand before it is repaired, so that it is known even where the repair takes a moment.
func (a *Agent) reportDrift(ctx context.Context) {
	a.log.Warn("files were changed by hand", "dir", a.cur.Dir, "paths", strings.Join(head(a.drift, 20), " "), "count", len(a.drift))
	a.phase, a.code, a.tries = report.PhaseIdle, CodeDrift, 0
	a.reason = fmt.Sprintf("%s changed on this host since release %d was installed", count(len(a.drift), "file"), a.cur.Epoch)
	a.publish(false)
	a.out.flush(ctx, a.timing.settle)
}

// repairRunning puts back the files of the release that runs, when it is not the one that is wanted or nobody says which one is. What an override that is over had brought is not put back:
// such a host is put right by its way out of it, which comes as soon as that is due.
func (a *Agent) repairRunning(ctx context.Context, h how) error {
	if a.cfg.Mode == ModeObserve || len(a.drift) == 0 || a.st.Running == nil || a.ended(*a.st.Running) || !a.due(*a.st.Running, h) || a.heldBack(*a.st.Running) != nil {
		return nil
	}
	phase, reason, code, tries, attempt := a.phase, a.reason, a.code, a.tries, a.attempt
	err := a.apply(ctx, *a.st.Running, h)
	if err == nil { // what is wrong with the wanted one is still what matters
		a.phase, a.reason, a.code, a.tries, a.attempt = phase, reason, code, tries, attempt
	}
	return err
}

// due says whether a release may be tried now: pauses after failures, and the limit of tries, are over.
func (a *Agent) due(t target, h how) bool {
	if h.eager {
		return true
	}
	now := a.now()
	if a.fetches > 0 && a.fetchKey == t.key() && now.Before(a.fetchAt) {
		return false
	}
	f, ok := a.st.Failed[t.key()]
	return !ok || f.Tries < maxTries && !now.Before(f.Next)
}

// showFailure keeps in the report why the wanted release does not run, while it is not tried.
func (a *Agent) showFailure(t target) {
	f, ok := a.st.Failed[t.key()]
	if !ok {
		return // it could not be fetched or verified; the report still says so
	}
	a.phase, a.reason, a.code, a.tries, a.attempt = report.Phase(f.Phase), f.Reason, f.Code, f.Tries, t.Epoch
	if f.Tries >= maxTries {
		a.reason += fmt.Sprintf("; given up after %d tries, publish a release that works here", f.Tries)
	}
}

// stay is the quiet case: the host has the wanted files. Reloads that are owed are run, processes are asked.
func (a *Agent) stay(ctx context.Context, h how) error {
	a.fetches = 0
	a.attempt = a.want.Epoch
	if r := a.st.Running; r == nil || r.key() != a.want.key() {
		a.st.Running = a.want
		a.dirty = true
	}
	lerr := a.keepLinks()
	if h.install {
		a.phase, a.reason, a.code, a.tries = report.PhaseConfirming, "", "", 0
		return lerr
	}
	err := a.reloadOwed(context.WithoutCancel(ctx), h.eager)
	a.probeAll(ctx)
	if name, o, ok := a.firstOwed(); ok {
		a.phase, a.reason, a.code, a.tries = report.PhaseFailed, o.Reason, CodeReload, o.Tries
		if o.Tries >= maxTries {
			a.reason += fmt.Sprintf("; given up after %d tries, reload %s by hand or publish a release that works here", o.Tries, name)
		}
		return err
	}
	a.conclude(ctx)
	return errors.Join(err, lerr)
}

func (a *Agent) firstOwed() (string, owed, bool) {
	for _, name := range sorted(a.st.Owed) {
		return name, a.st.Owed[name], true
	}
	return "", owed{}, false
}

// conclude says where the host stands after its files are those of the wanted release and every reload has run.
func (a *Agent) conclude(ctx context.Context) {
	_ = a.recheckLinks() // the reloads that have run since may have moved one; the services' states say it
	waiting := a.waiting()
	a.code, a.tries = "", 0
	if len(waiting) > 0 {
		// A process that goes on stating an older epoch is alive and did not hear: health is not broken, and going back would reload all the others for
		// one deaf process. So the host keeps the new files, reports phase confirming with the service's "process still states epoch N", and asks again at
		// each look. Whether that stops the rollout is the controller's decision, by its timeout. Going back is for failures only: a check, a reload, or a
		// process that answered before the change and does not after it.
		a.phase, a.reason = report.PhaseConfirming, waiting[0].Service+": "+waiting[0].Reason
		a.code = codeOf(a.linkTrouble())
		if n := len(waiting) - 1; n > 0 {
			a.reason += fmt.Sprintf(" (and %s more)", count(n, "service"))
		}
		a.waits++
		return
	}
	a.waits = 0
	a.phase, a.reason = report.PhaseIdle, ""
	if _, ok := a.st.Failed[a.want.key()]; ok {
		delete(a.st.Failed, a.want.key())
		a.dirty = true
	}
	a.promote()
}

// promote makes what runs the last known good, once the rollout that brought it is done: a canary that confirms is not known to be good yet, and what was stays on the disk until it is.
func (a *Agent) promote() {
	if a.view == nil || a.view.Manifest.Rollout.Baseline != a.want.Epoch || a.want.Override != "" || a.st.Good == a.cur.Dir {
		return
	}
	a.st.Good, a.st.GoodTarget = a.cur.Dir, a.want
	a.dirty, a.sweepDue = true, true
}

// maxUnswept releases may lie about beside the three that are kept.
const maxUnswept = 2

// sweep removes releases that nothing needs: at most the current, the previous and the last known good one stay, and two that stand by for the end of an override.
func (a *Agent) sweep(ctx context.Context, keep ...string) {
	a.sweepDue, a.unswept = false, 0
	for _, dir := range []string{a.st.Previous, a.st.Good} {
		if dir != "" {
			keep = append(keep, dir)
		}
	}
	if a.st.Trial != nil && a.st.Trial.From != "" {
		keep = append(keep, a.st.Trial.From)
	}
	for _, s := range a.st.Standby {
		keep = append(keep, s.Dir)
	}
	if err := a.opts.Installer.Sweep(ctx, keep...); err != nil {
		a.log.Warn("old releases not removed", "err", err)
	}
}

// note puts an error into the report.
func (a *Agent) note(phase report.Phase, err error) {
	a.phase, a.reason, a.code = phase, err.Error(), codeOf(err)
}

// notFetched counts a failure to fetch or verify: the release itself is not at fault, and the next try comes soon.
func (a *Agent) notFetched(t target, err error) {
	if a.fetchKey != t.key() {
		a.fetchKey, a.fetches = t.key(), 0
	}
	a.fetchAt = a.now().Add(backoff(a.fetches, a.timing.retry, a.cfg.Poll))
	a.fetches++
	phase := report.PhaseRefused
	switch codeOf(err) {
	case CodeUnreachable, CodeStalled, CodeNotFound:
		phase = report.PhaseFetching
	}
	a.note(phase, err)
	a.tries = a.fetches
	a.log.Warn("release not installed", "epoch", t.Epoch, "err", err, "again", a.fetchAt.UTC().Format(time.RFC3339))
}

// failedHere counts a try of a release that did not work on this host.
func (a *Agent) failedHere(t target, phase report.Phase, err error) {
	n := a.st.Failed[t.key()].Tries
	f := failed{Tries: n + 1, Next: a.now().Add(backoff(n, a.timing.again, a.timing.most)).UTC(), Reason: report.CutReason(err.Error()), Code: codeOf(err), Phase: string(phase)}
	a.st.fail(t.key(), f)
	a.dirty = true
	a.showFailure(t)
	attrs := []any{"epoch", t.Epoch, "tries", f.Tries, "err", err}
	if f.Tries < maxTries {
		attrs = append(attrs, "again", f.Next.Format(time.RFC3339))
	}
	a.log.Error("release failed on this host", attrs...)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func head(s []string, n int) []string { return s[:min(len(s), n)] }
