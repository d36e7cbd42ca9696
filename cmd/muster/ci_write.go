package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/plan"
)

// ciPatience is how long a workflow waits for GitHub's limits and failures, for each thing it writes.
const ciPatience = 3 * time.Minute

// write tells what was found: on GitHub where that may be, and always in what is printed.
func (c *ci) write(ctx context.Context, j *judged) error {
	if err := c.print(j); err != nil {
		return err
	}
	if path := os.Getenv("GITHUB_STEP_SUMMARY"); path != "" {
		if err := forge.AppendSummary(path, j.summary()); err != nil {
			c.note("%s", err)
		}
	}
	client, err := c.forge.client(ciPatience)
	switch {
	case err != nil:
		c.note("nothing is written on GitHub: %s", forgeNote(err))
	case client == nil:
		c.note("nothing is written on GitHub: there is no token; set GITHUB_TOKEN for a check and a comment")
	}
	checked := false
	if client != nil {
		checked = c.onGitHub(ctx, client, j)
		fmt.Fprintln(c.out, client.Calls())
	}
	if checked {
		return ctx.Err()
	}
	left, err := forge.PrintAnnotations(c.out, j.annotations())
	if err != nil {
		return err
	}
	if left > 0 {
		c.note("%s more; GitHub shows ten of a kind", cli.Count(left, "finding"))
	}
	return ctx.Err()
}

// print writes the report for the log. What others wrote is in it, so a runner must not listen.
func (c *ci) print(j *judged) error {
	if os.Getenv("GITHUB_ACTIONS") == "true" {
		end, err := forge.Deaf(c.out)
		if err != nil {
			return err
		}
		defer func() { _ = end() }()
	}
	printProblems(c.out, j.counted())
	if len(j.merged) > 0 {
		fmt.Fprintln(c.out, "only after the merge:")
		printProblems(c.out, j.merged)
	}
	if len(j.problems)+len(j.merged) > 0 {
		fmt.Fprintln(c.out)
	}
	return j.plan.Text(c.out, plan.TextOptions{})
}

// onGitHub writes the check and the comment, and reports whether the check is there. Nothing that goes wrong here is an error: the exit code is about the config.
func (c *ci) onGitHub(ctx context.Context, client *forge.Client, j *judged) (checked bool) {
	k := j.check()
	if run := os.Getenv("GITHUB_RUN_ID"); run != "" {
		k.ExternalID = run + "/" + os.Getenv("GITHUB_RUN_ATTEMPT") + "/" + os.Getenv("GITHUB_JOB")
		if server := os.Getenv("GITHUB_SERVER_URL"); server != "" {
			k.Details = fmt.Sprintf("%s/%s/actions/runs/%s", server, client.Repo(), run)
		}
	}
	url, err := client.Check(ctx, k)
	checked = url != ""
	if err != nil {
		c.wrote("the check", j, err)
	} else {
		fmt.Fprintf(forge.Mute(c.out), "check: %s\n", cli.Printable(url))
	}
	if j.event.Pull == 0 || ctx.Err() != nil {
		return checked
	}
	if errors.Is(err, forge.ErrUnreachable) || errors.Is(err, forge.ErrLimited) {
		c.note("the comment is not on GitHub either: it was not tried") // it would wait as long again, for nothing
		return checked
	}
	now, err := client.Pull(ctx, j.event.Pull)
	if err == nil && now.Head != j.event.Head {
		c.note("the comment is left to a later run: the pull request's head is %s now, and this is about %s", cli.Short(now.Head), cli.Short(j.event.Head))
		return checked
	}
	if err == nil {
		if url, err = client.Comment(ctx, forge.Sticky{Pull: j.event.Pull, Kind: "plan", Body: j.comment()}); err == nil {
			fmt.Fprintf(forge.Mute(c.out), "comment: %s\n", cli.Printable(url))
		}
	}
	if err != nil {
		c.wrote("the comment", j, err)
	}
	return checked
}

// wrote says why something is not on GitHub.
func (c *ci) wrote(what string, j *judged, err error) {
	why := forgeNote(err)
	if j.event.Fork && (errors.Is(err, forge.ErrDenied) || errors.Is(err, forge.ErrNotFound)) {
		why = "the workflow of a fork's pull request may only read (" + cli.Printable(err.Error()) + ")"
	}
	c.note("%s is not on GitHub: %s", what, why)
}

func (c *ci) note(format string, args ...any) {
	fmt.Fprintf(c.errOut, "muster: note: %s\n", harmless(fmt.Errorf(format, args...)))
}
