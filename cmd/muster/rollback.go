package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
)

func (a *app) rollbackCmd() *cobra.Command {
	var s steering
	var q api.Act
	var to string
	var yes bool
	cmd := &cobra.Command{
		Use:   "rollback COHORT",
		Short: "take a cohort back to its baseline or an earlier release, and halt it",
		Long: `Takes every host of a cohort back to its baseline, or with --to to any earlier
release, and halts the cohort: no release goes out to it until one has again what was
there then (git revert), or somebody resumes. It makes no release, and needs neither
git nor the forge. A freeze does not stop it.

It shows what goes back, and asks for the word yes. Then one host goes first, and when
it confirms, the others, no more at once than the rollout policy's max_in_flight; the
controller does that. With --now all go at once, and the record says so: that needs no
controller and no collector.

Overrides stay in force, and hosts on hold stay what they are. With --drop-overrides
the overrides are taken from their hosts as well; it is needed where one was laid over
a newer release than the one that comes back, since there is none of it for that.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(q.Reason) == "" {
				return missingReason()
			}
			if to != "baseline" {
				n, err := strconv.ParseUint(to, 10, 64)
				if err != nil || n == 0 || n > manifest.MaxCounter {
					return cli.Fail(cli.Usage, "`muster log "+args[0]+"` lists its epochs", "--to %q is neither baseline nor an epoch", to)
				}
				q.To = n
			}
			return a.rollback(cmd.Context(), &s, args[0], q, yes)
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&q.Reason, "reason", "", "why, for those who ask later")
	cmd.Flags().StringVar(&to, "to", "baseline", "where to: baseline, or an earlier epoch")
	cmd.Flags().BoolVar(&q.Now, "now", false, "all hosts at once, without trying it on one first")
	cmd.Flags().BoolVar(&q.DropOverrides, "drop-overrides", false, "take the overrides from their hosts too")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().Var(fromOne[uint64]{to: &q.Epoch}, "epoch", "only if this epoch is the one that it runs or takes")
	return cmd
}

func (a *app) rollback(ctx context.Context, s *steering, cohort string, q api.Act, yes bool) error {
	through, err := s.through()
	if err != nil {
		return err
	}
	if !through && !q.Now && !s.conn.given() {
		return cli.Fail(cli.Usage, "give --collector, which says when the first host confirms it; or --now, which sends all hosts at once and lets the record say so", "without a collector it cannot go to one host first")
	}
	var p *goingBack
	if through {
		p, err = s.conn.goingBack(ctx, cohort, q)
		err = withoutCollector(err, "with --now the command writes the order itself")
	} else {
		p, err = s.goingBack(ctx, cohort, q)
	}
	if err != nil {
		return err
	}
	if p.so != "" {
		if a.json {
			return cli.PrintJSON(a.out, p.acted)
		}
		fmt.Fprintf(a.out, "%s: %s\n", cohort, cli.Printable(p.so))
		return nil
	}
	if !a.json {
		p.print(a.out, cohort, q)
	}
	if !yes && q.Epoch == 0 {
		q.Epoch = p.target // what the person looks at
	}
	if err := a.askWord(yes, "roll back", "not rolled back: nothing was changed"); err != nil {
		return err
	}
	if err := a.act(ctx, s, cohort, rollout.Rollback, q); err != nil {
		return err
	}
	if !a.json {
		fmt.Fprintf(a.errOut, "muster: note: `muster rollout status %s` shows how far it is; a release that restores what was taken back ends the halt, or `muster rollout resume %s --reason …`\n", cohort, cohort)
	}
	return nil
}

// askWord asks for the word yes.
func (a *app) askWord(yes bool, what, no string) error {
	if yes {
		return nil
	}
	fmt.Fprintf(a.errOut, "type yes to %s: ", what)
	line, err := bufio.NewReader(io.LimitReader(os.Stdin, 1000)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.TrimSpace(line) != "yes" {
		return cli.Fail(cli.No, "answer yes, or give --yes in a script", "%s", no)
	}
	return nil
}

// goingBack is what a rollback will do, for who decides on it.
type goingBack struct {
	target    uint64 // of the order as it stands
	from, to  uint64
	hosts     int        // 0: nobody counts them
	releases  [][]string // taken back, the newest first; and the one that comes back
	overrides []string
	held      []string
	so        string // it is so already
	acted     *api.Acted
}

func (p *goingBack) release(word string, epoch uint64, commit, author, subject string) {
	p.releases = append(p.releases, []string{"  " + word, "epoch " + strconv.FormatUint(epoch, 10), cli.Short(commit), author, subject})
}

// goingBack looks in the store, and refuses what would be refused.
func (s *steering) goingBack(ctx context.Context, cohort string, q api.Act) (*goingBack, error) {
	o, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	q.By = whoami()
	in, _, action, err := s.prepare(ctx, o, cohort, rollout.Rollback, q)
	if err != nil {
		return nil, err
	}
	h, err := o.history(ctx)
	if err != nil {
		return nil, err
	}
	view, err := h.Head(ctx, cohort)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	in.Prev, in.Now = view, now
	m, said, changed, err := rollout.Act(in, action, now)
	if err != nil {
		return nil, err
	}
	p := &goingBack{}
	if !changed {
		r := view.Manifest.Rollout
		p.so, p.acted = said, &api.Acted{Cohort: cohort, Said: said, Mark: view.Mark().String(), Target: r.Target, Phase: r.Phase}
		return p, nil
	}
	p.target = view.Manifest.Rollout.Target
	p.from, p.to = m.Rollout.Target, m.Rollout.Baseline
	for _, x := range m.Rollout.Halts {
		p.from = max(p.from, x.Epoch)
	}
	back, err := h.Queue(ctx, cohort, p.to)
	if err != nil {
		return nil, err
	}
	for _, rel := range slices.Backward(back) {
		if rel.Epoch <= p.from {
			p.release("back", rel.Epoch, rel.Commit, rel.Author.Name, rel.Subject)
		}
	}
	if d, err := h.Release(ctx, p.to); err == nil {
		p.release("to", p.to, d.Release.Commit, d.Release.Author.Name, d.Release.Subject)
	} else if !errors.Is(err, distributor.ErrNoRelease) {
		return nil, err
	}
	for _, x := range view.Living(now) {
		p.overrides = append(p.overrides, x.ID)
	}
	for _, x := range m.Rollout.Holds {
		p.held = append(p.held, x.Hosts...)
	}
	return p, nil
}

// goingBack asks the collector.
func (c *connection) goingBack(ctx context.Context, cohort string, q api.Act) (*goingBack, error) {
	client, err := c.open()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := cohortKnown(ctx, client, cohort); err != nil {
		return nil, err
	}
	co, err := client.Cohort(ctx, cohort)
	if err != nil {
		return nil, err
	}
	p := &goingBack{target: co.Target, to: q.To, from: co.Target, hosts: co.Expected}
	if r := co.Rollout; r != nil {
		if p.to == 0 {
			p.to = r.Baseline
			if r.Fallback != 0 {
				p.to = r.Fallback
			}
		}
	}
	list, err := client.Releases(ctx)
	if err != nil {
		return nil, err
	}
	if q.To != 0 && len(list) > 0 {
		named, oldest := false, list[0].Epoch
		for _, rel := range list {
			oldest = min(oldest, rel.Epoch)
			if part, ok := rel.Cohorts[cohort]; ok && rel.Epoch == q.To && part.Epoch != 0 {
				named, p.to = true, part.Epoch // the one that it left as it was
			}
		}
		if !named && q.To >= oldest {
			return nil, cli.Fail(cli.Usage, "`muster log "+cohort+"` lists its releases", "epoch %d: no such release of cohort %s", q.To, cohort)
		}
	}
	if r := co.Rollout; r != nil && p.to != 0 && p.to == r.Baseline {
		going := r.Phase == manifest.PhaseRollingBack && len(r.Halts) > 0 && !q.Now
		switch {
		case going:
			p.so = fmt.Sprintf("epoch %d goes back already: %s", r.Target, r.Why)
		case r.Phase == manifest.PhaseHalted && ledTo(ctx, client, cohort, p.to):
			p.so = fmt.Sprintf("every host is led to epoch %d already: it is halted", p.to)
		}
		if p.so != "" {
			p.acted = &api.Acted{Cohort: cohort, Said: p.so, Target: r.Target, Phase: r.Phase}
			return p, nil
		}
	}
	for _, rel := range list {
		part := rel.Cohorts[cohort]
		if part.State != manifest.StateBuilt {
			continue
		}
		switch {
		case rel.Epoch > p.to && rel.Epoch <= p.from:
			p.release("back", rel.Epoch, rel.Commit, rel.Author.Name, rel.Subject)
		case rel.Epoch == p.to:
			p.release("to", rel.Epoch, rel.Commit, rel.Author.Name, rel.Subject)
		}
	}
	for _, o := range co.Overrides {
		p.overrides = append(p.overrides, o.ID)
	}
	for _, x := range co.Active {
		if x.Kind == api.ActiveHold {
			p.held = append(p.held, x.Hosts...)
		}
	}
	return p, nil
}

// ledTo reports whether the order that the collector hands out leads every host to an epoch, those apart that are led by name. One that cannot be read does not.
func ledTo(ctx context.Context, client *api.Client, cohort string, epoch uint64) bool {
	data, _, err := client.GetHead(ctx, cohort, manifest.Mark{}, 0)
	if err != nil {
		return false
	}
	head, err := manifest.DecodeHead(data)
	if err != nil {
		return false
	}
	m, err := manifest.DecodeManifest(head.Manifest.Payload)
	if err != nil {
		return false
	}
	led := false
	for _, x := range m.Assign {
		if len(x.Hosts) > 0 {
			continue
		}
		if x.Epoch != epoch {
			return false
		}
		led = true
	}
	return led
}

func (p *goingBack) print(w io.Writer, cohort string, q api.Act) {
	line := func(format string, args ...any) { fmt.Fprintln(w, cli.Printable(fmt.Sprintf(format, args...))) }
	where := "all its hosts"
	if p.hosts > 0 {
		where = cli.Count(p.hosts, "host")
	}
	line("%s: back to epoch %d, on %s", cohort, p.to, where)
	if len(p.releases) > 0 {
		cli.PrintTable(w, p.releases)
	}
	if len(p.overrides) > 0 {
		stays := "stays in force; --drop-overrides takes it too"
		if q.DropOverrides {
			stays = "is taken from its hosts"
		}
		line("  override %s %s", cli.Names(p.overrides, 5), stays)
	}
	if len(p.held) > 0 {
		line("  on hold, and left as they are: %s", cli.Names(p.held, 5))
	}
	how := "one host first, and when it confirms the others, a few at a time"
	if q.Now {
		how = "all at once (--now)"
	}
	line("  %s; then the cohort is halted", how)
}
