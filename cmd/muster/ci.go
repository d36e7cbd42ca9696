package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/plan"
	"github.com/muster-config/muster/pipeline/source"
)

// checkName is that of the one check.
const checkName = "muster / validate"

// ci is `muster ci github` under way.
type ci struct {
	*app
	eval     evaluation
	forge    forging
	storeURL string
	now      func() time.Time
}

func (a *app) ciCmd() *cobra.Command { return group("ci", "what a workflow runs", a.ciGitHubCmd()) }

func (a *app) ciGitHubCmd() *cobra.Command {
	c := &ci{app: a, now: time.Now}
	cmd := &cobra.Command{
		Use:   "github",
		Short: "check a pull request in a workflow: one check, one comment, a summary",
		Long: `Reads the event that a GitHub workflow was started for, validates the head of the
pull request and what would come of merging it, plans it against the merge base, and
writes one check with annotations, one comment that is updated with each push, and the
job's summary. It takes four requests; printed at the end.

Without the right to write, as for pull requests of forks, it prints annotations for
the workflow, and the summary. What became of the writing never changes the exit code.

With --store, hosts are counted as the collector counted them last (inventory.json).
The whole history is needed: check out with fetch-depth: 0.

Exit codes: 0 valid, perhaps with warnings; 1 not valid.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return harmless(c.run(cmd.Context())) },
	}
	cmd.Flags().BoolVar(&c.eval.noCache, "no-cache", false, "evaluate everything anew; the cache is in MUSTER_CACHE, or the user's cache directory")
	cmd.Flags().StringVar(&c.storeURL, "store", "", "the store, to count the hosts that there are [MUSTER_STORE]")
	c.forge.flags(cmd, " [GITHUB_REPOSITORY]")
	return cmd
}

// judged is what became of a commit.
type judged struct {
	event    *forge.Event
	problems []eval.Problem // of the head
	merged   []eval.Problem // errors that only the would-be merge has
	plan     *plan.Plan
	notes    []string
	show     string // the command that shows all
}

func (j *judged) valid() bool {
	return !slices.ContainsFunc(j.problems, isError) && len(j.merged) == 0
}

func isError(p eval.Problem) bool { return p.Severity == eval.SeverityError }

func (c *ci) run(ctx context.Context) error {
	event, err := c.event()
	if err != nil {
		return err
	}
	if event.Head == "" {
		fmt.Fprintf(c.out, "nothing to check: %s\n", event.Why)
		return nil
	}
	j, err := c.judge(ctx, event)
	if err != nil {
		return err
	}
	if err := c.write(ctx, j); err != nil {
		return err
	}
	if !j.valid() {
		return cli.Fail(cli.No, "", "not valid: %s", countProblems(slices.Concat(j.problems, j.merged)))
	}
	return nil
}

// event reads what the workflow was started for.
func (c *ci) event() (*forge.Event, error) {
	path := os.Getenv("GITHUB_EVENT_PATH")
	if path == "" {
		return nil, cli.Fail(cli.Usage, "this command is for a GitHub workflow; `muster validate` and `muster plan` are for everywhere", "GITHUB_EVENT_PATH is not set")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the event: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 64<<20))
	if err != nil {
		return nil, fmt.Errorf("read the event: %w", err)
	}
	e, err := forge.ParseEvent(os.Getenv("GITHUB_EVENT_NAME"), data)
	if err != nil {
		return nil, cli.Fail(cli.Usage, "run it on pull_request, push or merge_group", "%w", err)
	}
	if c.forge.repo == "" {
		c.forge.repo = os.Getenv("GITHUB_REPOSITORY")
	}
	if c.forge.repo == "" {
		c.forge.repo = e.Repo
	}
	return e, nil
}

// judge evaluates the head, the would-be merge and the base.
func (c *ci) judge(ctx context.Context, e *forge.Event) (*judged, error) {
	repo, err := c.repo()
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	if _, err := repo.Resolve(e.Head); err != nil {
		return nil, cli.Fail(codeOr(err, cli.Usage), "check out with fetch-depth: 0, so that all commits are there", "%w", err)
	}
	j := &judged{event: e}
	merge := ""
	if e.Pull > 0 {
		if merge = mergeOf(repo, e); merge == "" {
			j.notes = append(j.notes, "what would come of merging it was not checked: GitHub made no merge of this head, so it has conflicts, or was pushed just now")
		}
	}
	base, err := c.base(ctx, repo, e, merge)
	if err != nil {
		return nil, err
	}
	if base == e.Head {
		j.notes = append(j.notes, "there is nothing before this commit to compare it with: it was only validated")
	}
	opts, notes := c.hosts(ctx)
	j.notes = append(j.notes, notes...)
	side := c.eval
	side.rev = e.Head
	j.show = planCommand(cli.Short(base), cli.Short(e.Head))
	if j.plan, j.problems, err = c.plan(ctx, &base, side, opts); err != nil {
		return nil, err
	}
	j.plan.Notes = append(j.plan.Notes, j.notes...)
	if merge != "" {
		if j.merged, err = c.merge(ctx, repo, e.Head, merge, j.problems); err != nil {
			return nil, err
		}
	}
	return j, nil
}

// mergeOf is the commit that GitHub made of the base branch and this head, "" if it is not here.
func mergeOf(repo *source.Repo, e *forge.Event) string {
	for _, rev := range []string{os.Getenv("GITHUB_SHA"), e.Merge, "HEAD"} {
		if rev == "" {
			continue
		}
		if second, err := repo.Resolve(rev + "^2"); err == nil && second == e.Head {
			if id, err := repo.Resolve(rev); err == nil {
				return id
			}
		}
	}
	return ""
}

// base is what the head is compared with: where its branch left the base branch; of a push what was there before.
func (c *ci) base(ctx context.Context, repo *source.Repo, e *forge.Event, merge string) (string, error) {
	with := e.Base
	if merge != "" {
		with = merge + "^1" // the base branch as it is now
	}
	if e.Name == "push" {
		if with != "" {
			if in, err := repo.Contains(e.Head, with); err == nil && in {
				return with, nil
			}
		}
		if e.Main != "" { // a new branch: what it changes against the default branch
			for _, rev := range []string{"refs/remotes/origin/" + e.Main, "refs/heads/" + e.Main} {
				if base, err := repo.MergeBase(ctx, rev, e.Head); err == nil && base != e.Head {
					return base, nil
				}
			}
		}
		if head, err := repo.Commit(e.Head); err == nil && len(head.Identity().Parents) == 0 {
			return e.Head, nil // the first commit: judge says so
		}
		with = e.Head + "^1" // a new default branch, or one that was rewritten
	}
	base, err := repo.MergeBase(ctx, with, e.Head)
	if errors.Is(err, source.ErrShallow) || errors.Is(err, source.ErrNoRev) {
		return "", cli.Fail(codeOr(err, cli.Usage), "check out with fetch-depth: 0, so that all commits are there", "%w", err)
	}
	return base, err
}

// merge evaluates the would-be merge and gives the errors that the head by itself has not.
func (c *ci) merge(ctx context.Context, repo *source.Repo, head, merge string, had []eval.Problem) ([]eval.Problem, error) {
	t, err := repo.Commit(merge)
	if err != nil {
		return nil, err
	}
	h, err := repo.Commit(head)
	if err != nil {
		return nil, err
	}
	if t.Identity().Tree == h.Identity().Tree {
		return nil, nil // the base branch has nothing that the head has not
	}
	r, err := c.evaluate(ctx, t, c.eval, pipeline.Options{})
	if err != nil {
		return nil, fmt.Errorf("the would-be merge: %w", err)
	}
	known := map[string]bool{}
	for _, p := range had {
		known[p.Service+"\x00"+p.Path+"\x00"+p.Message] = true
	}
	return slices.DeleteFunc(onlyErrors(r.Problems), func(p eval.Problem) bool { return known[p.Service+"\x00"+p.Path+"\x00"+p.Message] }), nil
}

// hosts reads who there is, as the collector wrote it down. Without that the fleet's own lists count.
func (c *ci) hosts(ctx context.Context) (plan.Options, []string) {
	url := c.storeURL
	if url == "" {
		url = os.Getenv("MUSTER_STORE")
	}
	if url == "" {
		return plan.Options{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	doc, err := readDocument(ctx, url)
	if err != nil {
		return plan.Options{}, []string{"hosts are counted by the fleet's own lists: " + cli.Printable(err.Error())}
	}
	opts := plan.Options{Inventory: []inventory.Host{}, Expected: map[string]int{}}
	for name, co := range doc.Cohorts {
		opts.Expected[name] = co.Expected
		for _, h := range co.Hosts {
			opts.Inventory = append(opts.Inventory, inventory.Host{Name: h.Host, Cohort: name, Labels: h.Labels})
		}
	}
	age := c.now().Sub(doc.At).Truncate(time.Second)
	note := fmt.Sprintf("hosts are counted as the collector knew them %s ago (%s)", max(0, age), doc.At.UTC().Format(time.RFC3339))
	if age > time.Hour {
		note += ": it should write that every 5 minutes; look after it"
	}
	return opts, []string{note}
}

func readDocument(ctx context.Context, url string) (*inventory.Document, error) {
	st, err := open.OpenRead(ctx, url)
	if err != nil {
		return nil, err
	}
	obj, err := st.Get(ctx, manifest.KeyInventory, inventory.MaxBytes)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("the store has no %s yet: no collector wrote it", manifest.KeyInventory)
	}
	if err != nil {
		return nil, err
	}
	return inventory.ParseDocument(obj.Data)
}
