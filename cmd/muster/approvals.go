package main

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/source"
)

const (
	attributing = 10 * time.Second // for what a release merely mentions
	lag         = time.Minute      // that GitHub may take to note by which pull request a commit came
	maxBetween  = 50               // commits between two releases that approvals are asked for
)

// attributor knows how commits came to a branch. *forge.Client is one.
type attributor interface {
	Attribution(ctx context.Context, commit, branch string) (*forge.Attribution, error)
	Member(ctx context.Context, team, login string) (bool, error)
}

// attribution puts into a release how its commit came to the branch, and refuses one that lacks the approvals that a changed cohort asks for.
type attribution struct {
	forge  attributor // nil: there is nobody to ask
	branch string
	repo   *source.Repo
	warn   func(string)
}

// around is build with that.
func (a *attribution) around(build distributor.BuildFunc) distributor.BuildFunc {
	known := map[string]*forge.Attribution{} // the publisher builds again when another one was first
	return func(ctx context.Context, in distributor.BuildInput) (*distributor.Build, error) {
		b, err := build(ctx, in)
		if err != nil {
			return nil, err
		}
		asked := demands(in.Newest, b)
		switch {
		case a.forge == nil && len(asked) == 0:
			return b, nil
		case a.forge == nil:
			return nil, cli.Fail(cli.Usage, "publish with --github OWNER/NAME and a token, so that it can be asked who approved", "cohort %s takes only approved commits (require_approvals, owners), and nothing was published", asked[0].cohort)
		}
		if len(asked) == 0 {
			a.mention(ctx, b, known)
			return b, nil
		}
		if err := a.demand(ctx, in, b, asked, known); err != nil {
			return nil, err
		}
		return b, nil
	}
}

// mention fills in what can be found out quickly. A release never waits for it, least of all for a limit.
func (a *attribution) mention(ctx context.Context, b *distributor.Build, known map[string]*forge.Attribution) {
	short, cancel := context.WithTimeout(ctx, attributing)
	defer cancel()
	at, err := a.of(forge.Hurry(short), b, b.Commit.ID, known, false)
	if err != nil {
		if ctx.Err() == nil {
			a.warn("the release does not say how its commit came to the branch: " + forgeNote(err))
		}
		return
	}
	attribute(b, at)
}

// attribute puts how a commit came to the branch into its release.
func attribute(b *distributor.Build, at *forge.Attribution) {
	b.Commit.PullRequest, b.Commit.Proposer, b.Commit.Approvers, b.Commit.Signer = at.Number, at.Author, at.Approvers, at.Signer
}

// of is how a commit came to the branch. Right after a merge GitHub may not have noted it yet, and names no pull request: that is asked again until the commit is a minute old, so that
// no approved merge is refused for being read early. What is merely mentioned waits for what GitHub made itself, and only while ctx has time.
// https://github.com/Songmu/tagpr/pull/333 met it thirteen seconds after a merge.
func (a *attribution) of(ctx context.Context, b *distributor.Build, commit string, known map[string]*forge.Attribution, demanded bool) (*forge.Attribution, error) {
	if at := known[commit]; at != nil {
		return at, nil
	}
	waited := time.Duration(0)
	for pause := time.Second; ; pause = min(2*pause, 15*time.Second) {
		at, err := a.forge.Attribution(ctx, commit, a.branch)
		if err != nil {
			return nil, err
		}
		end, bound := ctx.Deadline()
		early := at.Number == 0 && (demanded || at.Made) && time.Since(b.Commit.Committer.At) < lag && waited < lag
		if !early || bound && !demanded && time.Until(end) < 2*pause {
			known[commit] = at
			return at, nil
		}
		waited += pause
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}

// demand checks every commit since the last release. What cannot be found out now is no refusal: it is tried again.
func (a *attribution) demand(ctx context.Context, in distributor.BuildInput, b *distributor.Build, asked []demand, known map[string]*forge.Attribution) error {
	since, err := a.between(in.Newest, b.Commit.ID)
	if err != nil {
		return err
	}
	for _, commit := range since {
		at, err := a.of(ctx, b, commit, known, true)
		if err != nil {
			return fmt.Errorf("cohort %s takes only approved commits, and who approved commit %s cannot be found out: %w", asked[0].cohort, cli.Short(commit), err)
		}
		if commit == b.Commit.ID {
			attribute(b, at)
		}
		for _, d := range asked {
			why, err := a.lacks(ctx, d, at)
			if err != nil {
				return fmt.Errorf("cohort %s takes only commits that an owner approved, and who they are cannot be found out: %w", d.cohort, err)
			}
			if why != "" {
				return fmt.Errorf("%w: cohort %s changes, and %s %s; get that approved, or take the change back", distributor.ErrRefused, d.cohort, told(commit, b.Commit.ID, at), why)
			}
		}
	}
	return nil
}

// told names a commit in a refusal.
func told(commit, tip string, at *forge.Attribution) string {
	name := "this commit"
	if commit != tip {
		name = "commit " + cli.Short(commit) + " before it"
	}
	if at.Number > 0 {
		name += fmt.Sprintf(" (pull request %d)", at.Number)
	}
	return name
}

// lacks says what is missing of a commit, "" if nothing is.
func (a *attribution) lacks(ctx context.Context, d demand, at *forge.Attribution) (string, error) {
	if at.Number == 0 {
		return "came without a pull request", nil
	}
	if at.ByHand != "" {
		return at.ByHand, nil
	}
	if n := len(at.Approvers); n < d.approvals {
		return fmt.Sprintf("has %s of what was merged, and needs %d", cli.Count(n, "approval"), d.approvals), nil
	}
	if len(d.owners) == 0 {
		return "", nil
	}
	var unknown error
	for _, who := range at.Approvers {
		for _, owner := range d.owners {
			in := strings.EqualFold(owner, who)
			if strings.Contains(owner, "/") {
				var err error
				if in, err = a.forge.Member(ctx, owner, who); err != nil {
					unknown = err // another owner may have approved it
				}
			}
			if in {
				return "", nil
			}
		}
	}
	if unknown != nil {
		return "", unknown
	}
	return "is not approved by an owner: " + cli.Names(d.owners, 5), nil
}

// between are the commits since a release, each the first parent of the one before: what the branch was, one after the other. The newest first.
func (a *attribution) between(newest *manifest.Release, commit string) ([]string, error) {
	if newest == nil {
		return []string{commit}, nil
	}
	var out []string
	for at := commit; ; {
		done, err := a.repo.Contains(newest.Commit, at)
		if err != nil {
			return nil, err
		}
		if done {
			break
		}
		if len(out) == maxBetween {
			return nil, cli.Fail(cli.No, "publish an earlier one of them first: muster publish --rev COMMIT", "there are more than %d commits since epoch %d, and each needs its approvals", maxBetween, newest.Epoch)
		}
		out = append(out, at)
		if at, err = a.repo.Resolve(at + "^1"); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		out = []string{commit}
	}
	return out, nil
}

// demand is what a cohort asks of a commit that changes it.
type demand struct {
	cohort    string
	approvals int
	owners    []string
}

// demands are those of the cohorts that a build changes: what they run, or how they are steered. What the last release says counts, so that no commit can lower what is asked of itself.
func demands(newest *manifest.Release, b *distributor.Build) []demand {
	var out []demand
	policies := map[string]manifest.CohortPolicy{}
	maps.Copy(policies, b.Policy.Cohorts)
	if newest != nil {
		maps.Copy(policies, newest.Policy.Cohorts)
	}
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		p := policies[name]
		n := p.RequireApprovals
		if len(p.Owners) > 0 {
			n = max(n, 1)
		}
		if n == 0 || !changes(newest, b, name) {
			continue
		}
		out = append(out, demand{name, n, p.Owners})
	}
	return out
}

func changes(newest *manifest.Release, b *distributor.Build, cohort string) bool {
	part, there := b.Cohorts[cohort]
	if newest == nil {
		return there
	}
	was, had := newest.Policy.Cohorts[cohort]
	is, has := b.Policy.Cohorts[cohort]
	if !had || !has || !reflect.DeepEqual(was, is) || !reflect.DeepEqual(newest.Policy.Rollouts[was.Rollout], b.Policy.Rollouts[is.Rollout]) {
		return true
	}
	return there && !part.Same // one that is blocked holds the change too, and a later commit brings it out
}
