package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/keydir"
	"github.com/muster-config/muster/cmd/internal/through"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/amend"
	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/source"
)

// overridePull is one call of `override pr`.
type overridePull struct {
	from    reading
	conn    connection
	forge   forging
	cohorts []string
	base    string
	branch  string
	into    string
	noCache bool
}

func (a *app) overridePullCmd() *cobra.Command {
	var p overridePull
	cmd := &cobra.Command{
		Use:   "pr ID",
		Short: "bring what an override says into the config repo, as a branch and a pull request",
		Long: `Makes a commit in the config repo (-C DIR) on a new branch that has the same effect
as a living override: its values are put into the least specific layer in which
exactly the overridden cohorts and hosts get them, and nobody else another file. That
is found by evaluating, and each file and line is shown. If one layer does not do
it, the fewest are taken; if none do, it says so.

Comments and layout of the files stay. The work tree, the index and what is checked
out stay as they are: only objects and the branch are written.

With --github OWNER/NAME and a token the same branch is made on GitHub, with a pull
request. The commit that it is based on must be there already.

Once that is merged and published, the override ends by itself, since git says the
same.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.overridePull(cmd.Context(), &p, args[0]) },
	}
	p.from.flags(cmd)
	p.conn.flags(cmd)
	p.forge.flags(cmd, ": the branch and a pull request are made there [MUSTER_GITHUB]")
	cmd.Flags().StringSliceVar(&p.cohorts, "cohort", nil, "only what it says on these cohorts")
	cmd.Flags().StringVar(&p.base, "base", "HEAD", "the commit to change")
	cmd.Flags().StringVar(&p.branch, "branch", "", "the new branch; muster/override-ID if left out")
	cmd.Flags().StringVar(&p.into, "into", "", "with --github: the branch that the pull request is for; the one checked out if left out")
	cmd.Flags().BoolVar(&p.noCache, "no-cache", false, "evaluate everything anew")
	return cmd
}

// overridePulled is `override pr --json`.
type overridePulled struct {
	ID     string        `json:"id"`
	Branch string        `json:"branch"`
	Commit string        `json:"commit"` // "" when git says the same already
	Places []amend.Place `json:"places"`
	Same   []string      `json:"same"` // services of which the commit says the same already
	Pull   string        `json:"pull_request,omitempty"`
}

// past opens the store to look back, or sees it through a collector when only that is given.
func (p *overridePull) past(ctx context.Context) (*distributor.History, error) {
	if p.from.storeURL != "" || os.Getenv("MUSTER_STORE") != "" || !p.conn.given() {
		return p.from.history(ctx)
	}
	ring := p.from.keyring
	if dir := orEnv(p.from.dir, "MUSTER_KEYS"); ring == "" && dir != "" {
		ring = filepath.Join(dir, keydir.Keyring)
	}
	var keyring []byte
	if ring != "" {
		var err error
		if keyring, _, err = keydir.ReadKeyring(ring); err != nil {
			return nil, err
		}
	}
	client, err := p.conn.open()
	if err != nil {
		return nil, err
	}
	return distributor.OpenHistory(ctx, through.New(client), keyring, time.Now())
}

func orEnv(s, name string) string {
	if s == "" {
		return os.Getenv(name)
	}
	return s
}

func (a *app) overridePull(ctx context.Context, p *overridePull, id string) error {
	github, err := p.openForge()
	if err != nil {
		return err
	}
	h, err := p.past(ctx)
	if err != nil {
		return err
	}
	found, err := h.Overrides(ctx)
	if err != nil {
		return err
	}
	a.noteSkipped(h)
	if found, err = livingOf(found, id, p.cohorts); err != nil {
		return err
	}
	var parts []amend.Part
	for _, f := range found {
		for _, patch := range f.Patches {
			parts = append(parts, amend.Part{Cohort: f.Cohort, Hosts: f.Hosts, Service: patch.Service, Values: patch.Values})
		}
	}
	repo, err := a.repo()
	if err != nil {
		return err
	}
	defer repo.Close()
	tree, err := repo.Commit(p.base)
	if err != nil {
		return fmt.Errorf("base: %w", err)
	}
	res, err := amend.Find(ctx, id, tree, pipeline.Options{Cache: a.cache(evaluation{noCache: p.noCache})}, parts)
	if errors.Is(err, amend.ErrNoPlace) {
		return cli.Fail(cli.No, "change the layers so that there is one, or put the values in by hand: `muster explain` shows what sets them now", "override %s: %w", id, err)
	}
	if err != nil {
		return cli.Fail(codeOr(err, cli.No), "", "override %s: %w", id, err)
	}
	done := overridePulled{ID: id, Branch: p.branch, Places: append([]amend.Place{}, res.Places...), Same: append([]string{}, res.Same...)}
	if len(res.Files) == 0 {
		if a.json {
			return jsonOf(a, done)
		}
		fmt.Fprintf(a.out, "%s says the same already: publish it, and override %s ends by itself\n", cli.Printable(p.base), id)
		return nil
	}
	if done.Branch == "" {
		done.Branch = "muster/override-" + id
	}
	f := found[0]
	now := time.Now().UTC().Truncate(time.Second)
	who := author(now)
	title, message := messageOf(f, res)
	done.Commit, err = repo.Branch(done.Branch, source.NewCommit{Parent: p.base, Files: res.Files, Message: message, Author: who})
	if errors.Is(err, source.ErrBranchExists) {
		return cli.Fail(cli.Conflict, "give another name with --branch, or delete it: git branch -D "+done.Branch, "%w", err)
	}
	if err != nil {
		return err
	}
	if !a.json {
		for _, at := range res.Places {
			where := at.File
			if at.Line > 0 {
				where = fmt.Sprintf("%s:%d", at.File, at.Line)
			}
			fmt.Fprintf(a.out, "%s  %s %s (%s)\n", where, at.Service, cli.Printable(at.Path), at.Layer)
		}
		fmt.Fprintf(a.out, "branch %s: commit %s on %s\n", done.Branch, cli.Short(done.Commit), cli.Short(tree.Identity().Commit))
	}
	if github != nil {
		into := p.into
		if into == "" {
			into = repo.Head()
		}
		if into == "" {
			return cli.Fail(cli.Usage, "name the branch that it is for, as in --into main", "no branch is checked out: --into is missing")
		}
		pull, made, err := github.Propose(ctx, forge.Proposal{
			Branch: into, Name: done.Branch, Parent: tree.Identity().Commit, Files: res.Files, Message: message, Author: who.Name, Email: who.Email, At: who.At, Title: title, Body: bodyOf(f, res),
		})
		if err != nil {
			return cli.Fail(codeOr(err, cli.Unreachable), "the branch is in this repository: push it and open the pull request by hand", "%s", forgeNote(err))
		}
		done.Pull = pull.URL
		if !a.json {
			word := "is there already"
			if made {
				word = "made"
			}
			fmt.Fprintf(a.out, "pull request #%d %s: %s\n", pull.Number, word, cli.Printable(pull.URL))
		}
	}
	if a.json {
		return jsonOf(a, done)
	}
	if github == nil {
		fmt.Fprintf(a.out, "push it: git push origin %s\n", done.Branch)
	}
	fmt.Fprintf(a.out, "when it is merged and published, override %s ends by itself\n", id)
	return nil
}

func jsonOf(a *app, done overridePulled) error { return cli.PrintJSON(a.out, done) }

func (p *overridePull) openForge() (*forge.Client, error) {
	if p.forge.repo == "" {
		p.forge.repo = os.Getenv("MUSTER_GITHUB")
	}
	if p.forge.repo == "" {
		return nil, nil
	}
	c, err := p.forge.client(oncePatience)
	if err == nil && c == nil {
		return nil, cli.Fail(cli.Usage, "set GITHUB_TOKEN, or give --github-token-file; without --github only the branch is made here", "--github needs a token")
	}
	return c, err
}

// author is who makes the commit: as git's own variables say, else the person at this machine.
func author(now time.Time) source.Person {
	p := source.Person{Name: os.Getenv("GIT_AUTHOR_NAME"), Email: os.Getenv("GIT_AUTHOR_EMAIL"), At: now}
	if p.Name == "" {
		p.Name = "muster"
		if u, err := user.Current(); err == nil {
			p.Name = u.Username
			if u.Name != "" {
				p.Name = u.Name
			}
		}
	}
	if p.Email == "" {
		p.Email = whoami()
	}
	return p
}

// messageOf is the commit's message, and its first line.
func messageOf(f distributor.Found, res *amend.Result) (title, message string) {
	paths := map[string][]string{}
	for _, p := range res.Places {
		if !slices.Contains(paths[p.Service], p.Path) {
			paths[p.Service] = append(paths[p.Service], p.Path)
		}
	}
	var parts []string
	for _, service := range slices.Sorted(maps.Keys(paths)) {
		parts = append(parts, service+": "+cli.Names(paths[service], 3))
	}
	title = cli.Printable(strings.Join(parts, "; ")) + " (override " + f.ID + ")"
	return title, fmt.Sprintf("%s\n\nWhat override %s says, by %s until %s:\n%s\n\nMuster-Override: %s\n", title, f.ID, cli.Printable(f.Author), f.NotAfter.UTC().Format(time.RFC3339), cli.Printable(f.Reason), f.ID)
}

// bodyOf is the pull request's text.
func bodyOf(f distributor.Found, res *amend.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "What override `%s` says, brought into the config repo. When this is merged and published, the override ends by itself.\n\n", f.ID)
	for _, p := range res.Places {
		fmt.Fprintf(&b, "- `%s:%d` %s (layer `%s`)\n", p.File, p.Line, inCode(p.Service+" "+p.Path), p.Layer)
	}
	fmt.Fprintf(&b, "\nSet by %s, until %s: %s\n", inCode(cli.Printable(f.Author)), f.NotAfter.UTC().Format(time.RFC3339), inCode(cli.Printable(f.Reason)))
	return b.String()
}

// inCode is a text in markdown that can be nothing but text.
func inCode(s string) string { return "`" + strings.ReplaceAll(cli.Printable(s), "`", "'") + "`" }
