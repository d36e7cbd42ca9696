package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/source"
)

// printFound says what is wrong with the services of a commit that was published all the same.
func (p *publishing) printFound(job *publish.Prepared, res *distributor.Result) {
	problems := job.Problems()
	wrong := slices.ContainsFunc(problems, func(p eval.Problem) bool { return p.Severity == eval.SeverityError })
	if wrong {
		printProblems(p.errOut, problems)
	}
	if wrong && len(res.Blocked) == 0 {
		fmt.Fprintln(p.errOut, "muster: note: no cohort carries what is not valid: nothing is blocked by it")
	}
}

// printPublished says what the release came to.
func (p *publishing) printPublished(res *distributor.Result, commit distributor.Commit) error {
	for _, w := range res.Warnings {
		fmt.Fprintf(p.errOut, "muster: warning: %s\n", cli.Printable(w))
	}
	if p.json {
		return cli.PrintJSON(p.out, res)
	}
	again := ""
	if res.Already {
		again = " (published before)"
	}
	fmt.Fprintf(p.out, "epoch %d is commit %s%s: %s\n", res.Epoch, cli.Short(res.Commit), again, cli.Printable(commit.Subject))
	rows := [][]string{{"COHORT", "STATE", "EPOCH", "SIZE", "ROLLOUT"}}
	for _, name := range slices.Sorted(maps.Keys(res.Cohorts)) {
		c := res.Cohorts[name]
		epoch, size := fmt.Sprint(c.Epoch), cli.Number(int(c.Size))+" B"
		if c.Epoch == 0 {
			epoch, size = "-", "-"
		}
		rows = append(rows, []string{name, string(c.State), epoch, size, p.assigned(res, name)})
	}
	cli.PrintTable(p.out, rows)
	if len(res.Waiting) > 0 && !p.now {
		fmt.Fprintf(p.errOut, "muster: note: a rollout controller takes it from here (`rollout_key` in collector.yaml, or `muster rollout run`): `muster rollout status %s` shows how far it is, and what it waits for: a rollout under way, and its watch, end first; publish --rollout=now assigns at once\n", res.Waiting[0])
	}
	for _, name := range res.Blocked {
		fmt.Fprintln(p.out, cli.Printable(blockedLine(name, res.Cohorts[name].Epoch, res.Cohorts[name].Reason)))
	}
	return nil
}

// assigned says what became of a cohort's hosts.
func (p *publishing) assigned(res *distributor.Result, name string) string {
	switch c := res.Cohorts[name]; {
	case slices.Contains(res.Assigned, name):
		return "assigned now"
	case slices.Contains(res.Waiting, name) && p.now:
		return "not assigned: stopped"
	case slices.Contains(res.Waiting, name):
		return "waits for its rollout"
	case c.State == manifest.StateBlocked && c.Epoch == 0:
		return "nothing to run yet"
	}
	return "as before"
}

// blockedLine says why a cohort got nothing, and what its hosts run.
func blockedLine(cohort string, stands uint64, reason string) string {
	what := "nothing stands yet"
	if stands > 0 {
		what = fmt.Sprintf("epoch %d still stands", stands)
	}
	return fmt.Sprintf("%s is blocked (%s): %s", cohort, what, reason)
}

// uncommitted counts the files on disk that differ from HEAD: changed, new and not ignored, or gone. A repository without a work tree has none.
func uncommitted(repo *source.Repo) int {
	disk, err := repo.WorkTree()
	if err != nil {
		return 0
	}
	head, err := repo.Commit("HEAD")
	if err != nil {
		return 0
	}
	n := 0
	for _, name := range head.Files() {
		was, err := fs.ReadFile(head.FS(), name)
		is, derr := fs.ReadFile(disk.FS(), name)
		if err != nil || derr != nil || !bytes.Equal(was, is) {
			n++
		}
	}
	for _, name := range disk.Files() {
		if _, err := fs.Stat(head.FS(), name); err != nil {
			n++
		}
	}
	return n
}

func (a *app) noteUncommitted(repo *source.Repo) {
	switch n := uncommitted(repo); {
	case n == 1:
		fmt.Fprintln(a.errOut, "muster: note: 1 changed file is not in this commit")
	case n > 1:
		fmt.Fprintf(a.errOut, "muster: note: %s are not in this commit\n", cli.Count(n, "changed file"))
	}
}
