package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/pipeline/source"
)

func (a *app) waitCmd() *cobra.Command {
	var conn connection
	var storeURL string
	w := waiter{every: time.Second}
	p := prover{now: time.Now}
	cmd := &cobra.Command{
		Use:   "wait EPOCH|REV",
		Short: "wait until every expected host confirms a release, or say who does not and why",
		Long: `Waits until every expected host has confirmed that it runs the release: its
epoch, or a commit of the config repo (a branch, a tag, HEAD, an id). Only
digits mean an epoch. A commit that is not released yet is waited for; one that was
refused, or is released and that nobody assigned, ends the waiting, and so does a
cohort that is blocked or stopped. That a commit was refused is read from the
store, if one is given.

On a terminal it shows the hosts that are not confirmed, and why, as they come;
elsewhere it prints a line when something changed.

With --verify the collector's word is not enough. The head and the release are
checked against the keyring given, and each host's report against the host's own
signature: it must say that exactly what the head assigns to the host runs and is
confirmed, and that the host has seen this very head. Which release that is, its
cohorts, and the hosts that hosts.list names are taken from what was signed; each
cohort must be proven by one host at least, and by as many as hosts.expect says at
least. A host that the collector calls silent or retired must show a report from
before the release. Hosts of which only the collector speaks are named as claimed.

What that does not prove: that a host has not changed since it signed; that one
called silent or retired did not report since (a collector can withhold that; with
--strict the silent ones must confirm too); that a key is that host's (the collector takes
the first one it hears; with --pins FILE the keys are remembered, and another one
is refused from then on); and which hosts there are beyond those that the config
repo lists by name. The head shown may be up to a day old.

Exit codes: 0 when green; 1 when not, also when the time is over or a host is only
claimed; 4 when something is not signed as it must be; 5 when the collector is not
reachable.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if w.timeout < 0 {
				return cli.Fail(cli.Usage, "", "--timeout %s is negative", w.timeout)
			}
			if n, err := strconv.ParseUint(args[0], 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
				if n == 0 || n > manifest.MaxCounter {
					return cli.Fail(cli.Usage, "epochs begin with 1; `muster status` shows the newest", "epoch %s is out of range", args[0])
				}
				w.epoch = n
			} else {
				repo, err := source.Open(a.dir)
				if err != nil {
					return err
				}
				if w.commit, err = repo.Resolve(args[0]); err != nil {
					return err
				}
			}
			if err := p.open(); err != nil {
				return err
			}
			c, err := conn.open()
			if err != nil {
				return err
			}
			p.from = c
			w.ask, w.refused = c, refusals(storeURL, c)
			w.out, w.progress = a.out, progressOn(a.out)
			if a.json {
				w.out, w.progress = io.Discard, plain(io.Discard)
			}
			if st, err := c.Status(cmd.Context()); err == nil { // what is wrong with the collector, the waiting tells
				w.active = activeOf(st)
				w.said = printActive(w.out, st, w.cohort, time.Now())
			}
			start := time.Now()
			answer, err := w.run(cmd.Context())
			var proof *verified
			if err == nil && p.on {
				// What is only late gets at least a few seconds: reports are handed out once they are written.
				p.epoch, p.commit, p.cohort, p.strict = w.epoch, w.commit, w.cohort, w.strict
				proof, err = p.run(cmd.Context(), start.Add(max(w.timeout, 5*time.Second)), w.progress)
			}
			w.progress.end()
			proof.print(w.out, w.epoch)
			if answer == nil && a.json && cli.CodeOf(err) == cli.No {
				answer = &api.Wait{Epoch: w.epoch, Never: w.never, Why: err.Error()} // there is no release
			}
			if answer != nil && a.json {
				if perr := cli.PrintJSON(a.out, struct {
					api.Wait
					Verified *verified `json:"verified,omitempty"`
				}{tidy(*answer), proof}); perr != nil {
					return perr
				}
			}
			return err
		},
	}
	conn.flags(cmd)
	p.flags(cmd)
	cmd.Flags().StringVar(&storeURL, "store", "", "the store, which says why a commit was refused [MUSTER_STORE]")
	cmd.Flags().StringVar(&w.cohort, "cohort", "", "only this cohort")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 5*time.Minute, "how long to wait; 0 looks once")
	cmd.Flags().BoolVar(&w.strict, "strict", false, "count hosts in that were silent before the release was published")
	return cmd
}

// asker is the part of the collector's client that wait needs.
type asker interface {
	Releases(ctx context.Context) ([]api.Release, error)
	Release(ctx context.Context, epoch uint64) (*api.Release, error)
	Wait(ctx context.Context, epoch uint64, q api.WaitQuery) (*api.Wait, error)
	Status(ctx context.Context) (*api.Status, error)
}

// waiter waits for one release.
type waiter struct {
	ask      asker
	epoch    uint64 // or
	commit   string // its full id, until the epoch is known
	cohort   string
	strict   bool
	timeout  time.Duration
	every    time.Duration // between looks for a release that is not there yet, and after a lost answer
	progress progress
	out      io.Writer // what is found in the end
	// refused says why a commit was refused, "" if that is not known.
	refused func(ctx context.Context, commit string) string

	active     map[string][]api.Active // of each cohort, likewise
	said       []string                // what acts on the cohorts, as it was told at the beginning
	unassigned []string                // cohorts of the newest answer
	never      bool                    // the commit was refused
}

// run returns the last answer, if any was had, and nil when it is green.
func (w *waiter) run(ctx context.Context) (*api.Wait, error) {
	start := time.Now()
	outer := ctx
	// Once around is always done: the first look has its own time.
	ctx, cancel := context.WithTimeout(ctx, max(w.timeout, 10*time.Second))
	defer cancel()
	var answer *api.Wait // the newest
	var lost error       // the newest look had no answer
	for first := true; ; first = false {
		got, err := w.look(ctx, answer, max(0, w.timeout-time.Since(start)))
		switch {
		case outer.Err() != nil:
			return answer, outer.Err()
		case err == nil:
			answer, lost = got, nil
		case errors.Is(err, errNotYet):
			lost = nil
			w.progress.line(err.Error())
			if why := w.whyRefused(ctx); why != "" {
				w.never = true
				return nil, cli.Fail(cli.No, "correct it and commit; waiting does not help", "commit %s was refused: %s", cli.Short(w.commit), why)
			}
		case cli.CodeOf(err) != cli.Unreachable || first:
			return answer, err // a wrong address is said at once; what is refused stays so
		case ctx.Err() == nil:
			lost = err
			w.progress.line(fmt.Sprintf("the collector does not answer, trying on: %s", err))
		}
		over := time.Since(start) >= w.timeout || ctx.Err() != nil
		switch {
		case answer != nil && lost == nil && answer.Green:
			w.progress.end()
			w.progress.line(fmt.Sprintf("epoch %d is confirmed by %s%s", answer.Epoch, cli.Count(answer.Confirmed, "host"), owed(answer)))
			return answer, nil
		case lost != nil && over:
			return answer, cli.Fail(cli.Unreachable, "hosts keep their configuration without it; run the command again when it is back", "the collector does not answer: %w", lost)
		case answer == nil && over:
			return nil, cli.Fail(cli.No, "publish it with `muster publish`, or check that the collector reads the same store", "%s", w.notYet())
		case answer != nil && lost == nil && (answer.Never || over || len(w.unassigned) > 0):
			return answer, w.verdict(answer)
		case answer != nil && lost == nil:
			w.progress.answer(answer)
		}
		if answer == nil || lost != nil {
			select {
			case <-ctx.Done():
			case <-time.After(min(w.every, max(0, w.timeout-time.Since(start)))):
			}
		}
	}
}

var errNotYet = errors.New("not released yet, or the collector has not read it yet")

func (w *waiter) notYet() string {
	if w.commit != "" && w.epoch == 0 {
		return fmt.Sprintf("commit %s is not released yet", cli.Short(w.commit))
	}
	return fmt.Sprintf("epoch %d is not released yet", w.epoch)
}

// look asks once, for at most left: it answers as soon as something changed since answer.
func (w *waiter) look(ctx context.Context, answer *api.Wait, left time.Duration) (*api.Wait, error) {
	if w.epoch == 0 {
		releases, err := w.ask.Releases(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range releases {
			if r.Commit == w.commit && r.Kind == manifest.ReleaseCommit {
				w.epoch = max(w.epoch, r.Epoch)
			}
		}
		if w.epoch == 0 {
			return nil, fmt.Errorf("commit %s is %w", cli.Short(w.commit), errNotYet)
		}
	}
	q := api.WaitQuery{Cohort: w.cohort, Strict: w.strict}
	if answer != nil {
		q.After, q.Wait = answer.Version, min(left, w.progress.patience())
	}
	got, err := w.ask.Wait(ctx, w.epoch, q)
	switch {
	case errors.Is(err, api.ErrNoCohort): // in this release
		if kerr := cohortKnown(ctx, w.ask, w.cohort); kerr != nil {
			return nil, kerr
		}
	case errors.Is(err, api.ErrNotFound):
		return nil, fmt.Errorf("epoch %d is %w", w.epoch, errNotYet)
	case err == nil && !got.Green && !got.Never:
		if w.unassigned, err = w.notAssigned(ctx, got); err != nil {
			return nil, err
		}
	}
	return got, err
}

// settled is how old a release is when its heads are written and the collector has read them, unless nobody was to assign it.
const settled = 15 * time.Second

// notAssigned names the cohorts of a settled release that nobody assigned: waiting does not help them.
func (w *waiter) notAssigned(ctx context.Context, g *api.Wait) ([]string, error) {
	rel, err := w.ask.Release(ctx, w.epoch)
	if err != nil || time.Since(rel.Created) < settled {
		return nil, err
	}
	st, err := w.ask.Status(ctx)
	if err != nil {
		return nil, err
	}
	if st.Controller {
		return nil, nil // it knows why it waits, and the answer says so
	}
	var names []string
	for name, c := range g.Cohorts {
		// A cohort in another phase than done is on its way to somewhere: somebody steers, also those that come later.
		now := st.Cohorts[name]
		if now.Phase != manifest.PhaseDone && now.Phase != manifest.PhaseIdle && now.Phase != "" {
			return nil, nil
		}
		if !c.Green && now.Target < rel.Cohorts[name].Epoch && (now.Target == 0 || now.Phase == manifest.PhaseDone) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// whyRefused asks why a commit without a release was refused, if it was.
func (w *waiter) whyRefused(ctx context.Context) string {
	if w.commit == "" || w.epoch != 0 || w.refused == nil {
		return ""
	}
	return w.refused(ctx, w.commit)
}

// tally is "9 confirmed, 3 waiting (eu-1 applying, …), 1 owed".
func tally(g *api.Wait) string {
	s := fmt.Sprintf("%s confirmed, %s waiting", cli.Number(g.Confirmed), cli.Number(len(g.Waiting)))
	var who []string
	for _, h := range g.Waiting[:min(3, len(g.Waiting))] {
		who = append(who, fmt.Sprintf("%s %s", h.Host, h.Verdict))
	}
	if len(g.Waiting) > 3 {
		who = append(who, "…")
	}
	if who != nil {
		s += " (" + strings.Join(who, ", ") + ")"
	}
	return s + owed(g)
}

func owed(g *api.Wait) string {
	if g.Owed == 0 {
		return ""
	}
	return fmt.Sprintf(", %s owed", cli.Number(g.Owed))
}

// verdict prints who has not confirmed and why, and is the error that says so.
func (w *waiter) verdict(g *api.Wait) error {
	w.progress.end()
	rows := hostRows(g, true)
	if len(rows) > 0 {
		fmt.Fprintln(w.out, "not confirmed:")
		cli.PrintTable(w.out, rows)
	}
	// What the hosts do not say: the cohort is stopped, or nobody knows its hosts.
	var whys []string
	var stopped string
	for _, name := range slices.Sorted(maps.Keys(g.Cohorts)) {
		c := g.Cohorts[name]
		switch {
		case c.Green || c.Why == "" || slices.ContainsFunc(c.Waiting, func(h verdict.Waiting) bool { return strings.Contains(c.Why, h.Why) }):
		case w.saidAlready(name, c.Why):
			stopped = cmp.Or(stopped, ": "+strings.SplitN(c.Why, ": ", 2)[0])
		default:
			whys = append(whys, name+": "+c.Why)
			fmt.Fprintln(w.out, cli.Printable("  "+name+": "+c.Why))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.Cohorts)) {
		// What is said of a halt already is not said again.
		if c := g.Cohorts[name]; c.Rollout != "" && !c.Never && !slices.Contains(w.said, name+": "+c.Rollout) {
			fmt.Fprintln(w.out, cli.Printable("  "+name+": "+c.Rollout))
		}
	}
	hint := w.hint(g)
	if len(w.unassigned) > 0 {
		hint = "a rollout controller does it (`rollout_key` in collector.yaml, or `muster rollout run`); or publish with --rollout=now"
		return cli.Fail(cli.No, hint, "epoch %d is released and not assigned: %s", g.Epoch, cli.Names(w.unassigned, 10))
	}
	why := stopped
	if len(rows)+len(whys) == 0 && stopped == "" && g.Why != "" {
		why = ": " + g.Why
	}
	return cli.Fail(cli.No, hint, "epoch %d is not confirmed: %s confirmed, %s waiting%s%s", g.Epoch, cli.Number(g.Confirmed), cli.Number(len(g.Waiting)), owed(g), why)
}

// tidy makes empty lists print as [].
func tidy(g api.Wait) api.Wait {
	g.Waiting = append([]verdict.Waiting{}, g.Waiting...)
	g.OwedHosts = append([]verdict.Waiting{}, g.OwedHosts...)
	cohorts := map[string]verdict.Green{}
	for name, c := range g.Cohorts {
		c.Waiting = append([]verdict.Waiting{}, c.Waiting...)
		c.OwedHosts = append([]verdict.Waiting{}, c.OwedHosts...)
		cohorts[name] = c
	}
	g.Cohorts = cohorts
	return g
}
