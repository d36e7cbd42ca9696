package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/wire"
)

// reloadLimit bounds a check or a reload.
const reloadLimit = probe.DefaultLimit

// apply makes a release current: fetch, verify, unpack, check, note the owed reloads, swap, reload what changed, confirm. Before the swap a failure leaves
// the host untouched. After it a failure (a reload that fails, a process that answered before and does not any more) goes back to what was current and
// reloads again. A process that goes on stating an older epoch is no failure: see conclude.
func (a *Agent) apply(ctx context.Context, want target, h how) error {
	started := a.now()
	repair := want.is(a.cur)
	a.attempt, a.tries = want.Epoch, a.st.Failed[want.key()].Tries
	a.phase, a.reason, a.code = report.PhaseFetching, "", ""
	if !repair {
		a.publish(true)
	}
	staged, err := a.stage(ctx, want)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		a.notFetched(want, err)
		a.probeAll(ctx)
		return err
	}
	if err := a.checkLinks(staged); err != nil {
		a.notFetched(want, err) // it is this host that is to be put right, not the release: tried again until it is
		a.sweep(ctx, staged.Dir)
		a.probeAll(ctx)
		return err
	}
	a.fetches = 0
	a.phase = report.PhaseApplying
	// Floors are on disk before a command runs because of this head; without a command it is the same write as that of the trial.
	if a.hasCheck(staged) {
		if err := a.persist(); err != nil {
			a.notFetched(want, err)
			return err
		}
		err := a.check(ctx, staged)
		if err == nil {
			err = a.unspoiled(ctx, staged)
		}
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			a.failedHere(want, report.PhaseRefused, err)
			a.sweep(ctx) // what is refused is not kept: it would fill the disk, release by release
			a.probeAll(ctx)
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // nothing has happened yet
	}
	if hold := a.heldBack(want); hold != nil { // it came while the release was fetched and checked
		a.probeAll(ctx)
		a.showHold(hold)
		a.sweepDue = true
		return nil
	}
	if !repair {
		a.publish(true)
	}
	if err := a.swap(ctx, want, staged, repair); err != nil {
		a.notFetched(want, err)
		a.probeAll(ctx)
		return err
	}
	a.log.Info("release installed", "epoch", want.Epoch, "content", want.Content, "changed", staged.Changed, "elapsed", a.now().Sub(started).Round(time.Millisecond))
	if a.opts.Applied != nil {
		defer a.opts.Applied()
	}
	if h.install {
		if err := a.keepLinks(); err != nil {
			return err
		}
		// The service starts next and loads the files by itself. Its reload stays noted: should it be up already, the agent runs it.
		a.st.Trial = nil
		a.dirty = true
		a.phase = report.PhaseConfirming
		a.sweepDue = true
		return nil
	}
	if err := a.prove(ctx); err != nil {
		return err
	}
	a.over = true
	return nil
}

// unspoiled says whether the staged files are still those that were signed, after commands have seen them.
func (a *Agent) unspoiled(ctx context.Context, s *Staged) error {
	content, drift, err := a.opts.Installer.VerifyStaged(ctx, s)
	if err != nil {
		return err
	}
	if len(drift) > 0 || content != s.Content {
		return &Fault{Code: CodeCheck, Err: fmt.Errorf("a check changed the staged files (%s): a check may only read them", strings.Join(head(drift, 5), " "))}
	}
	return nil
}

// stage asks one carrier after the other for the bundle until one has brought the signed bytes.
func (a *Agent) stage(ctx context.Context, want target) (*Staged, error) {
	return a.stageFrom(ctx, want, func(ctx context.Context, c Carrier) (io.ReadCloser, error) {
		return openSteady(ctx, c, want.Bundle, a.timing.stall)
	})
}

func (a *Agent) stageFrom(ctx context.Context, want target, open func(ctx context.Context, c Carrier) (io.ReadCloser, error)) (*Staged, error) {
	var errs []error
	for _, c := range a.carriers() {
		staged, err := a.opts.Installer.Stage(ctx, want.resolution(), func(ctx context.Context) (io.ReadCloser, error) { return open(ctx, c) })
		if err == nil {
			return staged, nil
		}
		errs = append(errs, err)
		if code := codeOf(err); ctx.Err() != nil || errors.Is(err, errLater) || code == CodeNoSpace || code == CodeEmpty || code == CodeLocal || code == CodeOwner {
			return nil, err // another carrier would not help
		}
	}
	// What was refused says more than what was not reached.
	for _, err := range errs {
		switch codeOf(err) {
		case CodeUnreachable, CodeStalled, CodeNotFound:
		default:
			return nil, err
		}
	}
	return nil, errs[0]
}

// variants reads the document of a statement's host variants.
func (a *Agent) variants(ctx context.Context, o manifest.Object) (manifest.Variants, error) {
	var first error
	for _, c := range a.carriers() {
		doc, err := a.variantsFrom(ctx, c, o)
		if err == nil {
			return doc, nil
		}
		if first == nil {
			first = err
		}
	}
	return manifest.Variants{}, first
}

func (a *Agent) variantsFrom(ctx context.Context, c Carrier, o manifest.Object) (doc manifest.Variants, err error) {
	if o.Size > manifest.MaxVariantsBytes {
		return doc, fmt.Errorf("%w: %d bytes", manifest.ErrMalformed, o.Size)
	}
	body, err := openSteady(ctx, c, o, a.timing.stall)
	if err != nil {
		return doc, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, o.Size+1))
	if err != nil {
		return doc, err
	}
	if digestOf(data) != o.Object {
		return doc, &Fault{Code: CodeDigest, Err: fmt.Errorf("%s has other bytes than were signed", manifest.KeyBundle(o.Object))}
	}
	if err := wire.Decode(data, &doc); err != nil {
		return doc, fmt.Errorf("%w: %w", manifest.ErrMalformed, err)
	}
	return doc, nil
}

func (a *Agent) hasCheck(s *Staged) bool {
	return slices.ContainsFunc(s.Changed, func(name string) bool {
		_, in := s.Services[name]
		return in && len(a.cfg.Services[name].Check) > 0
	})
}

// check runs the host's own checks of the services that change, against the staged files.
func (a *Agent) check(ctx context.Context, s *Staged) error {
	for _, name := range s.Changed {
		cfg := a.cfg.Services[name]
		if _, in := s.Services[name]; !in || len(cfg.Check) == 0 {
			continue
		}
		res := a.run(ctx, name, cfg.Check, &s.Installed, Change{}, "check")
		if res.Err != nil {
			return &Fault{Code: CodeCheck, Err: fmt.Errorf("check of %s: %w", name, res.Err)}
		}
	}
	return nil
}

func (a *Agent) run(ctx context.Context, name string, argv []string, in *Installed, c Change, what string) probe.Result {
	dir := filepath.Join(in.Dir, name)
	res := a.opts.Prober.Run(ctx, probe.Command{Argv: argv, Dir: dir, Limit: reloadLimit, Env: map[string]string{
		"MUSTER_EPOCH":   strconv.FormatUint(in.Epoch, 10),
		"MUSTER_SERVICE": name,
		"MUSTER_DIR":     dir,
		"MUSTER_ADDED":   probe.List(c.Added),
		"MUSTER_CHANGED": probe.List(slices.Sorted(slices.Values(slices.Concat(c.Added, c.Changed)))),
		"MUSTER_REMOVED": probe.List(c.Removed),
	}})
	a.count(name+" "+what, res.Elapsed, res.Err)
	if res.Err != nil {
		// The output stays on this host: a program may print what must not leave it.
		a.log.Warn(what+" did not work", "service", name, "err", res.Err, "output", res.Output)
	}
	return res
}

// swap notes what will be owed, and makes the staged release current.
func (a *Agent) swap(ctx context.Context, want target, s *Staged, repair bool) error {
	t := &trial{To: s.Dir, Target: &want, Waits: []string{}, Well: []string{}, Files: s.Files, At: a.opts.Prober.Now()}
	// Files that were changed by hand are a place to go back to as well: the host was well with them. The repair comes after.
	if a.cur != nil && !repair && a.cur.Content != "" {
		t.From, t.Was = a.cur.Dir, a.st.Running
	}
	if a.view != nil {
		t.Base = baseline(a.view.Manifest.Rollout)
	}
	a.before(ctx, t, s)
	before, owedBefore := a.st.Trial, maps.Clone(a.st.Owed)
	a.st.Trial = t
	a.owe(s)
	a.noteLinks(&s.Installed)
	a.dirty = true
	undo := func(err error) error {
		a.st.Trial, a.st.Owed = before, owedBefore
		a.dirty = true
		return err
	}
	if err := a.persistQuickly(); err != nil {
		return undo(err)
	}
	if err := a.opts.Installer.Swap(ctx, s); err != nil {
		a.dirty, a.seen, a.told = true, "", nil // what was written may not last
		// It may have happened all the same, without being sure to last. Then what was current is put back.
		cur, cerr := a.opts.Installer.Current(ctx)
		if cerr == nil && (cur == nil || cur.Dir != s.Dir) {
			return undo(err)
		}
		if a.cur == nil || a.cur.Dir == s.Dir {
			return err // noted as under way: the next look decides
		}
		if berr := a.opts.Installer.SwapBack(ctx, a.cur); berr != nil {
			return errors.Join(err, berr)
		}
		return undo(err)
	}
	a.landed(&s.Installed, want, a.opts.Prober.Now)
	return nil
}

// owe notes a reload for each service whose files change with s, and takes over those that are still owed.
func (a *Agent) owe(s *Staged) {
	next := map[string]owed{}
	for name := range s.Services {
		old, before := a.st.Owed[name]
		c, changes := s.Files[name]
		if !before && !changes || len(a.cfg.Services[name].Reload) == 0 {
			continue
		}
		if before {
			c = merge(old.Change, c)
		}
		next[name] = owed{Dir: s.Dir, Change: c, Before: before}
	}
	a.st.Owed = next
}

// merge adds the files of two changes that a service has not heard of.
func merge(a, b Change) Change {
	union := func(x, y []string) []string {
		return slices.Compact(slices.Sorted(slices.Values(slices.Concat(x, y))))
	}
	return Change{Added: union(a.Added, b.Added), Changed: union(a.Changed, b.Changed), Removed: union(a.Removed, b.Removed)}
}

// landed records what has become current, at a moment after the swap.
func (a *Agent) landed(in *Installed, t target, at func() probe.Moment) {
	if a.cur != nil && a.cur.Dir != in.Dir {
		a.st.Previous = a.cur.Dir
	}
	a.cur, a.content, a.drift = in, in.Content, nil
	a.st.Running = &t
	a.st.reconcile(in.Services, at)
	for name := range in.Services {
		// What starts or writes from now on is told from what did before: for a tick of the kernel's clock, nothing that is to be told so is started.
		if a.cfg.Services[name].timed() {
			time.Sleep(a.st.Services[name].Since.Until())
		}
	}
	for name := range a.st.Owed {
		if s, ok := a.st.Services[name]; ok {
			s.Reloaded = false
			a.st.Services[name] = s
		}
	}
	a.health = map[string]health{} // what they said was about what was there before
	a.dirty = true
}

// reloadOwed runs the reloads that are owed and due, one after the other, in the order of names. It stops at the first that does not work.
func (a *Agent) reloadOwed(ctx context.Context, eager bool) error {
	for _, name := range sorted(a.st.Owed) {
		o := a.st.Owed[name]
		argv := a.cfg.Services[name].Reload
		if _, in := a.cur.Services[name]; !in || len(argv) == 0 {
			delete(a.st.Owed, name) // nothing to reload any more, or nothing to reload it with
			a.dirty = true
			continue
		}
		if !eager && (o.Tries >= maxTries || a.now().Before(o.Next)) {
			continue
		}
		a.dirty = true
		if unit := a.cfg.Services[name].Unit; unit != "" {
			// It is looked at after the swap: what starts from then on loads the new files by itself. On the way back from a change that took it down, the
			// reload is what may bring it up again.
			t := a.st.Trial
			downed := t != nil && t.Back && slices.Contains(t.Well, name)
			if _, stopped, _ := a.askUnit(ctx, unit); stopped != "" && !downed {
				a.log.Info("not reloaded", "service", name, "why", stopped)
				delete(a.st.Owed, name)
				continue
			}
		}
		if res := a.run(ctx, name, argv, a.cur, o.Change, "reload"); res.Err != nil {
			o.Next = a.now().Add(backoff(o.Tries, a.timing.again, a.timing.most)).UTC()
			o.Tries++
			o.Reason = report.CutReason(fmt.Sprintf("reload of %s: %v", name, res.Err))
			a.st.Owed[name] = o
			return &Fault{Code: CodeReload, Err: fmt.Errorf("reload of %s: %w", name, res.Err)}
		}
		delete(a.st.Owed, name)
		a.reloaded(name)
		if s, ok := a.st.Services[name]; ok {
			s.Reloaded = true
			a.st.Services[name] = s
		}
	}
	return nil
}
