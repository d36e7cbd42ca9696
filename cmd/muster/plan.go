package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/plan"
	"github.com/muster-config/muster/pipeline/source"
)

func (a *app) planCmd() *cobra.Command {
	var e evaluation
	var from reading
	var base, format, list string
	var exitCode bool
	cmd := &cobra.Command{
		Use:   "plan [--base REV] [--rev REV]",
		Short: "say what a change does: which values and files, on which hosts, set where",
		Long: `Compares what the files on disk, or the commit --rev, render with what --base
renders: every value before and after, on which hosts, and the line that sets it;
files, services and cohorts that come and go; the waves in which hosts get it.
Without --base that is HEAD for the files on disk, and for a commit its first parent.

Hosts are counted by the fleet's lists, its inventory file or --inventory, else by
the number it expects.

With --store (or MUSTER_STORE) it says first what acts on the fleet now, by hand:
overrides, holds, freezes, halts, with who and until when; which values of the plan
lie under an override, so that their hosts see them when it ends; and which cohorts
publishing would block, since an override no longer fits.

Exit codes: 0 also when something changes; with --exit-code 6 then; 1 when the
change does not validate.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.json && !cmd.Flags().Changed("format") {
				format = "json"
			}
			if err := oneOf("format", format, "text", "json", "markdown"); err != nil {
				return err
			}
			if base == "" && cmd.Flags().Changed("base") {
				return cli.Fail(cli.Usage, "give a branch, a tag or a commit id", "--base is empty") // an unset variable of a script
			}
			opts, err := readInventory(list)
			if err != nil {
				return err
			}
			p, head, err := a.planned(cmd.Context(), &base, e, opts)
			if err != nil {
				return err
			}
			problems := head.Problems
			if err := a.acting(cmd.Context(), from, p, head); err != nil {
				return err
			}
			switch format {
			case "json":
				err = p.JSON(a.out)
			case "markdown":
				_, err = io.WriteString(a.out, p.Markdown(planCommand(base, e.rev)))
			default:
				if !p.Head.Valid {
					printProblems(a.out, onlyErrors(problems))
				}
				if !p.Head.Valid {
					fmt.Fprintln(a.out)
				}
				err = p.Text(a.out, plan.TextOptions{Colour: coloured(a.out)})
			}
			switch {
			case err != nil:
				return err
			case !p.Head.Valid:
				return cli.Fail(cli.No, "", "not valid: %s", countProblems(problems))
			case exitCode && p.Changes:
				return cli.Exit(cli.Differs)
			}
			return nil
		},
	}
	e.flags(cmd)
	from.flags(cmd)
	cmd.Flags().StringVar(&base, "base", "", "the commit to compare with; HEAD, or the first parent of --rev, if left out")
	cmd.Flags().StringVar(&format, "format", "text", "text, json or markdown (a comment for a pull request)")
	cmd.Flags().StringVar(&list, "inventory", "", "a CSV file of hosts (host,cohort,LABEL…), in place of the fleet's own")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 6 when something changes")
	return cmd
}

// planCommand shows all that a comment leaves out.
func planCommand(base, rev string) string {
	s := "muster plan --base " + base
	if rev != "" {
		s += " --rev " + rev
	}
	return s
}

func onlyErrors(problems []eval.Problem) []eval.Problem {
	return slices.DeleteFunc(slices.Clone(problems), func(p eval.Problem) bool { return p.Severity != eval.SeverityError })
}

// plan is planned with the problems of the change alone.
func (a *app) plan(ctx context.Context, base *string, e evaluation, opts plan.Options) (*plan.Plan, []eval.Problem, error) {
	p, head, err := a.planned(ctx, base, e, opts)
	if err != nil {
		return nil, nil, err
	}
	return p, head.Problems, nil
}

// planned evaluates both sides; an empty base is found first. The build is that of the change.
func (a *app) planned(ctx context.Context, base *string, e evaluation, opts plan.Options) (*plan.Plan, *pipeline.Rendered, error) {
	repo, err := a.repo()
	if err != nil {
		return nil, nil, err
	}
	defer repo.Close()
	// Both are read before either is evaluated: what is misspelt is said at once.
	var to source.Tree
	if *base == "" {
		*base = "HEAD"
		if e.rev != "" {
			if to, err = tree(repo, e.rev); err != nil {
				return nil, nil, err
			}
			parents := to.Identity().Parents
			if len(parents) == 0 {
				return nil, nil, cli.Fail(cli.Usage, "give what to compare with, such as --base main", "%s is the first commit: it has no parent to compare with", e.rev)
			}
			*base = cli.Short(parents[0])
		}
	}
	from, err := repo.Commit(*base)
	if err != nil {
		return nil, nil, fmt.Errorf("base: %w", err)
	}
	if to == nil {
		if to, err = tree(repo, e.rev); err != nil {
			return nil, nil, err
		}
	}
	was, _, err := a.side(ctx, from, *base, e)
	if err != nil {
		return nil, nil, fmt.Errorf("base: %w", err)
	}
	is, head, err := a.side(ctx, to, e.rev, e)
	if err != nil {
		return nil, nil, err
	}
	p := plan.Of(was, is, opts)
	if note := apart(repo, is, was, *base); note != "" {
		p.Notes = append(p.Notes, note)
	}
	return &p, head, nil
}

// side evaluates one side of a plan and names it as the user did.
func (a *app) side(ctx context.Context, t source.Tree, rev string, e evaluation) (plan.Side, *pipeline.Rendered, error) {
	r, err := a.evaluate(ctx, t, e, pipeline.Options{Leaves: true})
	if err != nil {
		return plan.Side{}, nil, err
	}
	s := plan.SideOf(r)
	if !s.WorkTree && !strings.HasPrefix(s.Commit, rev) {
		s.Name = fmt.Sprintf("%s (%s)", rev, cli.Short(s.Commit))
	}
	return s, r, nil
}

// apart is a note where base is not in the history of what is compared with it: then what others changed there shows the wrong way round.
func apart(repo *source.Repo, head, base plan.Side, name string) string {
	if head.Commit == "" {
		return ""
	}
	in, err := repo.Contains(head.Commit, base.Commit)
	if err != nil || in { // a shallow clone cannot tell
		return ""
	}
	return fmt.Sprintf("%s has commits that %s does not: what they changed shows here the other way round; rebase, or compare with `git merge-base`", name, head.Name)
}

// readInventory reads the list of hosts that the user gave.
func readInventory(file string) (plan.Options, error) {
	if file == "" {
		return plan.Options{}, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return plan.Options{}, cli.Fail(cli.Usage, "--inventory is a CSV file with a line host,cohort,LABEL… at its top", "inventory: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, inventory.MaxBytes+1))
	if err != nil {
		return plan.Options{}, cli.Fail(cli.Usage, "", "inventory %s: %w", file, errors.Unwrap(err))
	}
	hosts, err := inventory.ParseCSV(data)
	if err != nil {
		return plan.Options{}, cli.Fail(cli.Usage, "", "inventory %s: %w", file, err)
	}
	return plan.Options{Inventory: hosts}, nil
}
