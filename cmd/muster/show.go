package main

import (
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
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/source"
)

func (a *app) showCmd() *cobra.Command {
	var from reading
	cmd := &cobra.Command{
		Use:   "show EPOCH|REV",
		Short: "one release in full: who, what, and what it is to each cohort",
		Long: `Prints one release: its commit, author, sources, evaluator and signature, and for
each cohort the state, bundle, content digest and service epochs. EPOCH is a
number; anything else is a commit of the config repo (a branch, a tag, an id).

It reads the store alone and verifies all of it; no collector is needed. The
keyring of --keys or --keyring is trusted; without one, the store's own.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			epoch, commit, err := a.epochOrCommit(args[0])
			if err != nil {
				return err
			}
			h, err := from.history(ctx)
			if err != nil {
				return err
			}
			if commit != "" {
				if epoch, err = find(ctx, h, commit); err != nil {
					return err
				}
			}
			d, err := h.Release(ctx, epoch)
			if errors.Is(err, distributor.ErrNoRelease) {
				return cli.Fail(cli.No, "`muster log` shows what there is", "%w", err)
			}
			if err != nil {
				return err
			}
			a.noteSkipped(h)
			s := shownOf(h, d)
			if s.Override, err = overrideOf(ctx, h, d.Release); err != nil {
				return err
			}
			if a.json {
				return cli.PrintJSON(a.out, s)
			}
			s.print(a.out)
			return nil
		},
	}
	from.flags(cmd)
	return cmd
}

// epochOrCommit reads an argument: only digits are an epoch, a whole commit id needs no repository, anything else is looked up in the one here.
func (a *app) epochOrCommit(arg string) (epoch uint64, commit string, err error) {
	n, err := strconv.ParseUint(arg, 10, 64)
	switch {
	case manifest.ValidCommit(arg):
		return 0, arg, nil
	case err == nil || errors.Is(err, strconv.ErrRange):
		if n == 0 || n > manifest.MaxCounter {
			return 0, "", cli.Fail(cli.Usage, "epochs begin with 1; `muster log` shows what there is", "epoch %s is out of range", arg)
		}
		return n, "", nil
	}
	repo, err := source.Open(a.dir)
	if err != nil {
		return 0, "", err
	}
	defer repo.Close()
	commit, err = repo.Resolve(arg)
	return 0, commit, err
}

func find(ctx context.Context, h *distributor.History, commit string) (uint64, error) {
	epoch, err := h.Find(ctx, commit)
	var refused *distributor.RefusedCommit
	switch {
	case errors.As(err, &refused):
		return 0, cli.Fail(cli.No, "correct it and commit", "%w", err)
	case errors.Is(err, distributor.ErrNoRelease):
		return 0, cli.Fail(cli.No, "publish it with `muster publish`", "commit %s is not released", cli.Short(commit))
	}
	return epoch, err
}

// shown is `show --json`.
type shown struct {
	Epoch       uint64                 `json:"epoch"`
	Kind        manifest.ReleaseKind   `json:"kind"`
	Commit      string                 `json:"commit"`
	Tree        string                 `json:"tree"`
	Parents     []string               `json:"parents"`
	Author      manifest.Person        `json:"author"`
	Committer   manifest.Person        `json:"committer"`
	Subject     string                 `json:"subject"`
	Signer      string                 `json:"signer"`
	PullRequest int                    `json:"pull_request"`
	Proposer    string                 `json:"proposer"`
	Approvers   []string               `json:"approvers"`
	Created     time.Time              `json:"created"`
	Evaluator   string                 `json:"evaluator"`
	Settings    string                 `json:"settings"`
	Source      string                 `json:"source"`
	SourceSize  int64                  `json:"source_size"`
	Digest      string                 `json:"digest"`
	Prev        string                 `json:"prev"`
	Keys        []shownKey             `json:"keys"`
	Trusted     string                 `json:"trusted"`
	Cohorts     map[string]shownCohort `json:"cohorts"`
	Override    *shownOverride         `json:"override,omitempty"` // kind override
}

// shownOverride is the emergency override that a release was made for.
type shownOverride struct {
	ID       string              `json:"id"`
	Reason   string              `json:"reason"`
	By       string              `json:"by"`
	NotAfter *time.Time          `json:"not_after"`
	Hosts    map[string][]string `json:"hosts"` // by cohort; an empty list: all of its hosts
}

type shownKey struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

type shownCohort struct {
	State    manifest.CohortState    `json:"state"`
	Epoch    uint64                  `json:"epoch"` // that stands
	Reason   string                  `json:"reason,omitempty"`
	Bundle   string                  `json:"bundle"`
	Content  string                  `json:"content"`
	Size     int64                   `json:"size"`
	Files    int                     `json:"files"`
	Changed  []string                `json:"changed"` // services whose files are new in this release
	Removed  []string                `json:"removed"`
	Services map[string]shownService `json:"services"`
	Variants []shownVariant          `json:"variants"`
	Fault    string                  `json:"fault,omitempty"`
}

type shownService struct {
	Epoch    uint64         `json:"epoch"`
	Digest   string         `json:"digest"`
	Files    int            `json:"files"`
	Evidence manifest.Grade `json:"evidence"`
}

type shownVariant struct {
	Host    string `json:"host"`
	Bundle  string `json:"bundle"`
	Content string `json:"content"`
	Size    int64  `json:"size"`
	Files   int    `json:"files"`
}

func shownOf(h *distributor.History, d *distributor.Detail) shown {
	r := d.Release
	s := shown{
		Epoch: r.Epoch, Kind: r.Kind, Commit: r.Commit, Tree: r.Tree, Parents: append([]string{}, r.Parents...), Author: r.Author, Committer: r.Committer,
		Subject: r.Subject, Signer: r.Signer, PullRequest: r.PullRequest, Proposer: r.Proposer, Approvers: append([]string{}, r.Approvers...), Created: r.Created,
		Evaluator: r.Evaluator, Settings: r.Settings, Source: r.Source.Object, SourceSize: r.Source.Size, Digest: d.Digest, Prev: r.Prev,
		Keys: []shownKey{}, Trusted: h.Keyring, Cohorts: map[string]shownCohort{},
	}
	for _, id := range d.Keys {
		s.Keys = append(s.Keys, shownKey{id, h.KeyName(id)})
	}
	for name, c := range d.Cohorts {
		out := shownCohort{
			State: c.State, Epoch: c.Epoch, Reason: c.Reason, Fault: c.Fault,
			Changed: []string{}, Removed: append([]string{}, c.Removed...), Services: map[string]shownService{}, Variants: []shownVariant{},
		}
		if st := c.Statement; st != nil {
			out.Bundle, out.Content, out.Size, out.Files = st.Bundle.Object, st.Content, st.Bundle.Size, st.Files
			for _, v := range st.Variants {
				out.Variants = append(out.Variants, shownVariant{v.Host, v.Bundle.Object, v.Content, v.Bundle.Size, v.Files})
			}
		}
		if c.Index != nil {
			for service, v := range c.Index.Services {
				out.Services[service] = shownService{v.Epoch, v.Digest, v.Files, c.Statement.Evidence[service]}
				if v.Epoch == r.Epoch {
					out.Changed = append(out.Changed, service)
				}
			}
			slices.Sort(out.Changed)
		}
		s.Cohorts[name] = out
	}
	return s
}

// overrideOf is what a release of an override was made for, as the orders tell it that set the override; nil for another release.
func overrideOf(ctx context.Context, h *distributor.History, r *manifest.Release) (*shownOverride, error) {
	if r.Kind != manifest.ReleaseOverride {
		return nil, nil
	}
	o := &shownOverride{ID: r.OverrideID, NotAfter: r.NotAfter, Hosts: map[string][]string{}}
	for _, name := range overriddenIn(r) {
		o.Hosts[name] = []string{}
		entries, err := h.Log(ctx, name, 0)
		if err != nil {
			return nil, err
		}
		for _, e := range entries { // the newest first: it ends with the one that set it
			if d := e.Decision; d != nil && d.Cohort == name && strings.HasPrefix(d.What, "override "+r.OverrideID+" of ") {
				o.Reason, o.By, o.Hosts[name] = d.Why, d.By, append([]string{}, d.Hosts...)
			}
		}
	}
	return o, nil
}

func (o *shownOverride) print(line func(name, format string, args ...any)) {
	line("override", "%s%s%s", o.ID, byText(o.By), untilText(o.NotAfter))
	line("reason", "%s", orDash(o.Reason))
	for _, name := range slices.Sorted(maps.Keys(o.Hosts)) {
		where := "the whole cohort"
		if hosts := o.Hosts[name]; len(hosts) > 0 {
			where = cli.Names(hosts, 10)
		}
		line("  on", "%s: %s", name, where)
	}
}

func byText(by string) string {
	if by == "" {
		return ""
	}
	return " by " + by
}

func (s shown) print(w io.Writer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, cli.Printable(fmt.Sprintf(format, args...)))
	}
	person := func(p manifest.Person) string {
		return fmt.Sprintf("%s <%s>, %s", p.Name, p.Email, p.At.UTC().Format(time.RFC3339))
	}
	line("epoch", "%d", s.Epoch)
	if s.Override != nil {
		s.Override.print(line)
	}
	line("commit", "%s", s.Commit)
	line("parents", "%s", orDash(strings.Join(s.Parents, " ")))
	line("subject", "%s", s.Subject)
	line("author", "%s", person(s.Author))
	if s.Committer.Name != s.Author.Name || s.Committer.Email != s.Author.Email {
		line("committer", "%s", person(s.Committer))
	}
	if s.Signer != "" {
		line("signer", "%s", s.Signer)
	}
	if s.PullRequest > 0 {
		by := ""
		if s.Proposer != "" {
			by = " of " + s.Proposer
		}
		line("merged", "pull request %d%s, approved by %s", s.PullRequest, by, orDash(cli.Names(s.Approvers, 10)))
	}
	line("published", "%s", s.Created.UTC().Format(time.RFC3339))
	line("evaluator", "%s", s.Evaluator)
	line("sources", "%s, %s B", s.Source, cli.Number(int(s.SourceSize)))
	for _, k := range s.Keys {
		line("signed by", "%s %.12s…", orDash(k.Name), k.ID)
	}
	line("trusted", "%s", trusted(s.Trusted))
	for _, name := range slices.Sorted(maps.Keys(s.Cohorts)) {
		fmt.Fprintf(w, "\n%s\n", cli.Printable(name+": "+s.Cohorts[name].headline(s.Epoch)))
		s.Cohorts[name].print(w, line)
	}
}

// headline says what the release is to a cohort.
func (c shownCohort) headline(epoch uint64) string {
	switch {
	case c.State == manifest.StateBlocked && c.Epoch == 0:
		return "blocked, nothing stands yet: " + c.Reason
	case c.State == manifest.StateBlocked:
		return fmt.Sprintf("blocked, epoch %d still stands: %s", c.Epoch, c.Reason)
	case c.State == manifest.StateHolds:
		return fmt.Sprintf("holds epoch %d: nothing changed", c.Epoch)
	}
	return fmt.Sprintf("built as epoch %d", epoch)
}

func (c shownCohort) print(w io.Writer, line func(name, format string, args ...any)) {
	if c.Bundle != "" {
		line("  bundle", "%s, %s, %s B", c.Bundle, cli.Count(c.Files, "file"), cli.Number(int(c.Size)))
		line("  content", "%s", c.Content)
	}
	if c.State == manifest.StateBuilt && c.Fault == "" {
		line("  changed", "%s", orDash(cli.Names(c.Changed, 20)))
	}
	if len(c.Removed) > 0 {
		line("  removed", "%s", cli.Names(c.Removed, 20))
	}
	if c.Fault != "" {
		line("  fault", "%s", c.Fault)
	}
	rows := [][]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Services)) {
		v := c.Services[name]
		rows = append(rows, []string{"  " + name, fmt.Sprintf("epoch %d", v.Epoch), cli.Count(v.Files, "file"), string(v.Evidence)})
	}
	cli.PrintTable(w, rows)
	for _, v := range c.Variants {
		line("  host", "%s has its own bundle: %s, content %s", v.Host, v.Bundle, v.Content)
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
