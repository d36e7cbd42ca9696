package forge

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/go-github/v60/github"
)

// Proposal asks for a pull request that changes some files.
type Proposal struct {
	Branch  string            // base: "main"
	Name    string            // of the branch to make
	Parent  string            // commit of the base that the files were made from; GitHub must have it
	Files   map[string][]byte // path → new content
	Message string
	Author  string // name and
	Email   string // address of who made it
	At      time.Time
	Title   string
	Body    string // markdown
}

// Propose makes the branch and the pull request. A branch of the name that holds something else is ErrConflict; a pull request from it that is there already is given.
func (c *Client) Propose(ctx context.Context, r Proposal) (p *Pull, made bool, err error) {
	err = lost(func() error {
		p, made, err = c.propose(ctx, r)
		return err
	})
	return p, made, err
}

func (c *Client) propose(ctx context.Context, r Proposal) (*Pull, bool, error) {
	op := "make the pull request from " + oneLine(r.Name)
	if found, err := c.pullFrom(ctx, r.Name); err != nil || found != nil {
		return found, false, err
	}
	base, _, err := c.api.Git.GetCommit(ctx, c.owner, c.name, r.Parent)
	if err = fail("read commit "+r.Parent[:min(12, len(r.Parent))], err); err != nil {
		if errors.Is(err, ErrNotFound) {
			return nil, false, &Error{Op: op, Message: "GitHub does not have commit " + r.Parent[:min(12, len(r.Parent))], Next: "push it first, or base the change on a commit that is pushed: --base origin/main", kind: ErrConflict}
		}
		return nil, false, err
	}
	var entries []*github.TreeEntry
	for _, path := range slices.Sorted(maps.Keys(r.Files)) {
		content := string(r.Files[path])
		entries = append(entries, &github.TreeEntry{Path: &path, Mode: github.String("100644"), Type: github.String("blob"), Content: &content})
	}
	tree, _, err := c.api.Git.CreateTree(again(ctx), c.owner, c.name, base.GetTree().GetSHA(), entries) // content-addressed: the same again
	if err != nil {
		return nil, false, fail(op, err)
	}
	who := &github.CommitAuthor{Name: &r.Author, Email: &r.Email, Date: &github.Timestamp{Time: r.At}}
	commit, _, err := c.api.Git.CreateCommit(again(ctx), c.owner, c.name, &github.Commit{
		Message: &r.Message, Tree: &github.Tree{SHA: tree.SHA}, Parents: []*github.Commit{{SHA: base.SHA}}, Author: who, Committer: who,
	}, nil) // a second one that nothing names does no harm
	if err != nil {
		return nil, false, fail(op, err)
	}
	_, _, err = c.api.Git.CreateRef(ctx, c.owner, c.name, &github.Reference{Ref: github.String("refs/heads/" + r.Name), Object: &github.GitObject{SHA: commit.SHA}})
	if err = fail(op, err); err != nil && !says(err, "already exists") {
		return nil, false, err
	}
	if err != nil {
		had, err := c.branch(ctx, r.Name)
		if err != nil {
			return nil, false, err
		}
		if len(had.Parents) != 1 || had.Parents[0].GetSHA() != base.GetSHA() || had.GetTree().GetSHA() != tree.GetSHA() {
			return nil, false, &Error{Op: op, Message: "branch " + oneLine(r.Name) + " is there already and holds something else", Next: "give another name with --branch", kind: ErrConflict}
		}
	}
	pr, _, err := c.api.PullRequests.Create(ctx, c.owner, c.name, &github.NewPullRequest{
		Title: github.String(cutBytes(oneLine(r.Title), maxTitle)), Head: &r.Name, Base: &r.Branch, Body: github.String(Fit(r.Body, MaxComment)), MaintainerCanModify: github.Bool(true),
	})
	if err = fail(op, err); err != nil {
		if says(err, "already exists") {
			if found, ferr := c.pullFrom(ctx, r.Name); found != nil || ferr != nil {
				return found, false, ferr
			}
		}
		return nil, false, err
	}
	got := pull(pr)
	return &got, true, nil
}
