package forge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-github/v60/github"
)

// Pull is a pull request.
type Pull struct {
	Number     int
	URL        string
	Title      string
	Author     string // login
	State      string // open, closed
	Merged     bool
	Head       string // commit
	HeadBranch string
	HeadRepo   string // owner/name; "" when it was deleted
	Base       string // commit that it was compared with last
	BaseBranch string
	Merge      string // open: the would-be merge, "" while it is not known; merged: what came of it
	Mergeable  *bool
}

func pull(p *github.PullRequest) Pull {
	return Pull{
		Number: p.GetNumber(), URL: p.GetHTMLURL(), Title: p.GetTitle(), Author: p.GetUser().GetLogin(), State: p.GetState(), Merged: p.GetMerged() || p.MergedAt != nil,
		Head: p.GetHead().GetSHA(), HeadBranch: p.GetHead().GetRef(), HeadRepo: p.GetHead().GetRepo().GetFullName(), Base: p.GetBase().GetSHA(), BaseBranch: p.GetBase().GetRef(),
		Merge: p.GetMergeCommitSHA(), Mergeable: p.Mergeable,
	}
}

// Pull reads a pull request as it is now: one request.
func (c *Client) Pull(ctx context.Context, number int) (*Pull, error) {
	p, _, err := c.api.PullRequests.Get(ctx, c.owner, c.name, number)
	if err != nil {
		return nil, fail(fmt.Sprintf("read pull request %d", number), err)
	}
	out := pull(p)
	return &out, nil
}

// Attribution is how a commit came to its branch.
type Attribution struct {
	Number    int      // of the pull request; 0: it came without one
	Author    string   // login of who proposed it
	Head      string   // the commit that was merged
	Approvers []string // whose last word on the merged head is an approval, who may write to the repository, and who is not the author; sorted
	Made      bool     // by GitHub itself, which names itself as the committer: its button, its queue or its editor
	ByHand    string   // why what came to the branch may not be what was approved, and no approval counts; "" if GitHub made the merge
	Signer    string   // who signed the commit, and who verified that: "ana (verified by github.com)"; "" if nobody verified it
}

// Attribution finds the merged pull request by which a commit came to a branch, who approved what was merged, and who signed the commit: three requests, one for each approver,
// and one more for a commit that GitHub did not sign as its own merge. Without a pull request two.
func (c *Client) Attribution(ctx context.Context, commit, branch string) (*Attribution, error) {
	var from *github.PullRequest
	opts := &github.ListOptions{PerPage: 100}
	for from == nil {
		page, resp, err := c.api.PullRequests.ListPullRequestsWithCommit(ctx, c.owner, c.name, commit, opts)
		if err != nil {
			return nil, fail(fmt.Sprintf("find the pull request of commit %.12s", commit), err)
		}
		for _, p := range page {
			if p == nil || p.MergedAt == nil || branch != "" && p.GetBase().GetRef() != branch || !strings.EqualFold(p.GetBase().GetRepo().GetFullName(), c.Repo()) {
				continue
			}
			// One that was merged as this commit goes before one that merely contains it.
			if from == nil || p.GetMergeCommitSHA() == commit {
				from = p
			}
		}
		more, err := turn("find the pull request of commit "+commit[:min(12, len(commit))], opts, resp)
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
	}
	op := fmt.Sprintf("ask who made commit %.12s", commit)
	got, _, err := c.api.Repositories.GetCommit(ctx, c.owner, c.name, commit, &github.ListOptions{PerPage: 1})
	if err != nil {
		return nil, fail(op, err)
	}
	if got.GetSHA() != commit { // a name that is a commit's id, say
		return nil, &Error{Op: op, Message: "the answer is about another commit", kind: ErrUnreachable}
	}
	a := &Attribution{Approvers: []string{}, Signer: c.signer(got), Made: got.GetCommitter().GetLogin() == webFlow}
	if from == nil {
		return a, nil
	}
	a.Number, a.Author, a.Head = from.GetNumber(), from.GetUser().GetLogin(), from.GetHead().GetSHA()
	if a.ByHand, err = c.byHand(ctx, from, got); err != nil {
		return nil, err
	}
	if a.ByHand != "" {
		return a, nil
	}
	a.Approvers, err = c.approvers(ctx, a)
	return a, err
}

// byHand says why a commit may hold something else than the head that was approved, "" if it cannot. GitHub takes a pull request for merged as soon as its head is in the
// branch, whoever pushed it there and with whatever beside it. What GitHub itself made of the head counts, and so does each commit of the head's own history:
// https://docs.github.com/en/rest/pulls/pulls#get-a-pull-request
func (c *Client) byHand(ctx context.Context, p *github.PullRequest, got *github.RepositoryCommit) (string, error) {
	head, commit := p.GetHead().GetSHA(), got.GetSHA()
	if commit == head {
		return "", nil
	}
	// Anybody may write any committer; GitHub's signature is what makes it GitHub's.
	parents := got.Parents
	ofHead := len(parents) == 1 || len(parents) == 2 && parents[1].GetSHA() == head
	if got.GetCommitter().GetLogin() == webFlow && got.GetCommit().GetVerification().GetVerified() && p.GetMergeCommitSHA() == commit && ofHead {
		return "", nil
	}
	cmp, _, err := c.api.Repositories.CompareCommits(ctx, c.owner, c.name, head, commit, &github.ListOptions{PerPage: 1})
	if err != nil {
		return "", fail(fmt.Sprintf("ask who made commit %.12s", commit), err)
	}
	switch status := cmp.GetStatus(); {
	case status == "behind": // the head holds it
		return "", nil
	case status == "diverged" && len(parents) == 1: // the head never came to the branch: GitHub rebased it, and signs nothing then
		return "", nil
	}
	return fmt.Sprintf("was made by hand of the head %.12s, not by GitHub, and may hold something else than was approved", head), nil
}

// signer is who signed a commit, by GitHub's word: it holds the keys of the accounts, and vouches that the signature is the committer's. Without its "valid", and without an
// account, nobody is named: a signature that nobody verified says nothing. Its own (web-flow) says that the commit was made on GitHub.
// https://docs.github.com/en/authentication/managing-commit-signature-verification/about-commit-signature-verification
func (c *Client) signer(got *github.RepositoryCommit) string {
	v, login := got.GetCommit().GetVerification(), got.GetCommitter().GetLogin()
	if !v.GetVerified() || v.GetReason() != "valid" || v.GetSignature() == "" || !accountName.MatchString(login) {
		return ""
	}
	host := c.wire.base.Hostname()
	if host == "api.github.com" {
		host = "github.com"
	}
	return login + " (verified by " + host + ")"
}

// accountName is a login; an app's ends with "[bot]". An enterprise's own may carry a suffix after an underscore.
var accountName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,98}(\[bot\])?$`)

// approvers reads the reviews in their order. Of each reviewer the last word counts, and a comment is none:
// https://docs.github.com/en/rest/pulls/reviews#list-reviews-for-a-pull-request
func (c *Client) approvers(ctx context.Context, a *Attribution) ([]string, error) {
	last := map[string]*github.PullRequestReview{}
	opts := &github.ListOptions{PerPage: 100}
	for {
		page, resp, err := c.api.PullRequests.ListReviews(ctx, c.owner, c.name, a.Number, opts)
		if err != nil {
			return nil, fail(fmt.Sprintf("read the reviews of pull request %d", a.Number), err)
		}
		for _, r := range page {
			if state := r.GetState(); state == "APPROVED" || state == "CHANGES_REQUESTED" || state == "DISMISSED" {
				last[r.GetUser().GetLogin()] = r
			}
		}
		more, err := turn(fmt.Sprintf("read the reviews of pull request %d", a.Number), opts, resp)
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
	}
	out := []string{}
	for login, r := range last {
		if login == "" || r.GetState() != "APPROVED" || r.GetCommitID() != a.Head || strings.EqualFold(login, a.Author) {
			continue
		}
		// Everybody who can see a repository can approve in it.
		level, _, err := c.api.Repositories.GetPermissionLevel(ctx, c.owner, c.name, login)
		if err = fail("ask what "+oneLine(login)+" may do in the repository", err); err != nil {
			if errors.Is(err, ErrNotFound) {
				continue
			}
			return nil, err
		}
		if p := level.GetPermission(); p == "admin" || p == "write" {
			out = append(out, login)
		}
	}
	slices.Sort(out)
	return out, nil
}

// memberKeep is how long an answer about a team holds: for one attribution after another, not for one who left.
const memberKeep = 2 * time.Minute

type membership struct {
	in bool
	at time.Time // when it was asked for
}

// webFlow is the login of GitHub itself as a committer: https://docs.github.com/en/authentication/managing-commit-signature-verification/about-commit-signature-verification
const webFlow = "web-flow"

// Member reports whether a login is an active member of org/team: one request, two for one who is not, and none within two minutes of the last. A team that the token may not see
// is an error: nobody would be in it.
func (c *Client) Member(ctx context.Context, team, login string) (bool, error) {
	key := team + "\x00" + login
	now := c.wire.line.now()
	c.wire.line.mu.Lock()
	known, ok := c.teams[key]
	c.wire.line.mu.Unlock()
	if age := now.Sub(known.at); ok && age >= 0 && age < memberKeep {
		return known.in, nil
	}
	org, slug, ok := strings.Cut(team, "/")
	if !ok || !repoName.MatchString(team) {
		return false, &Error{Op: "ask who is in a team", Message: fmt.Sprintf("%.80q is not org/team", team), kind: ErrInvalid}
	}
	m, _, err := c.api.Teams.GetTeamMembershipBySlug(ctx, org, slug, login)
	err = fail("ask whether "+oneLine(login)+" is in team "+team, err)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return false, err
	}
	if err != nil {
		// GitHub says the same of a team that is hidden: https://docs.github.com/en/rest/teams/members#get-team-membership-for-a-user
		if _, _, terr := c.api.Teams.GetTeamBySlug(ctx, org, slug); terr != nil {
			terr = fail("look at team "+team, terr)
			var e *Error
			if errors.As(terr, &e) && errors.Is(terr, ErrNotFound) {
				e.Next = "check its name, and give the app the right to read the organisation's members; a workflow's own token never has it"
			}
			return false, terr
		}
	}
	in := err == nil && m.GetState() == "active"
	c.wire.line.mu.Lock()
	maps.DeleteFunc(c.teams, func(_ string, m membership) bool { return now.Sub(m.at) >= memberKeep })
	c.teams[key] = membership{in, now}
	c.wire.line.mu.Unlock()
	return in, nil
}
