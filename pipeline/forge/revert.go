package forge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-github/v60/github"
)

// Revert asks for a pull request that takes back what came between two commits of a branch.
type Revert struct {
	Branch string // base: "main"
	Name   string // of the branch to make: "muster/revert-17". By it the request is found again, whatever became of it
	Good   string // commit whose content is to come back
	Bad    string // commit that is to be taken back, with all since Good
	Title  string
	Body   string // markdown
}

// Revert makes the pull request, once: there is never a second one from the same branch, also when people closed it. made reports whether it is new: one request when it
// is not, up to twelve when it is. What was changed again since is a conflict: ErrConflict, with the paths; then people must revert.
func (c *Client) Revert(ctx context.Context, r Revert) (p *Pull, made bool, err error) {
	err = lost(func() error {
		p, made, err = c.revert(ctx, r)
		return err
	})
	return p, made, err
}

func (c *Client) revert(ctx context.Context, r Revert) (*Pull, bool, error) {
	op := "make the pull request that reverts " + r.Bad[:min(12, len(r.Bad))]
	if found, err := c.pullFrom(ctx, r.Name); err != nil || found != nil {
		return found, false, err
	}
	tip, _, err := c.api.Git.GetRef(ctx, c.owner, c.name, "heads/"+r.Branch)
	if err != nil {
		return nil, false, fail("read branch "+r.Branch, err)
	}
	tree, err := c.reverted(ctx, r, tip.GetObject().GetSHA())
	if err != nil {
		return nil, false, err
	}
	commit, _, err := c.api.Git.CreateCommit(again(ctx), c.owner, c.name, &github.Commit{
		Message: github.String(oneLine(r.Title) + "\n"), Tree: &github.Tree{SHA: &tree}, Parents: []*github.Commit{{SHA: tip.GetObject().SHA}},
	}, nil) // a second one that nothing names does no harm
	if err != nil {
		return nil, false, fail(op, err)
	}
	ref := &github.Reference{Ref: github.String("refs/heads/" + r.Name), Object: &github.GitObject{SHA: commit.SHA}}
	_, _, err = c.api.Git.CreateRef(ctx, c.owner, c.name, ref)
	if err = fail(op, err); err != nil && !says(err, "already exists") {
		return nil, false, err
	}
	if err != nil {
		if err := c.ours(ctx, r, tree, tip.GetObject().GetSHA()); err != nil {
			return nil, false, err
		}
	}
	pr, _, err := c.api.PullRequests.Create(ctx, c.owner, c.name, &github.NewPullRequest{
		Title: github.String(cutBytes(oneLine(r.Title), maxTitle)), Head: &r.Name, Base: &r.Branch, Body: github.String(Fit(r.Body, MaxComment)), MaintainerCanModify: github.Bool(true),
	})
	if err = fail(op, err); says(err, "already exists") {
		found, ferr := c.pullFrom(ctx, r.Name)
		if found != nil || ferr != nil {
			return found, false, ferr
		}
	}
	if err != nil {
		return nil, false, err
	}
	p := pull(pr)
	return &p, true, nil
}

// ours reads a branch of the name that is there already. Only one that holds what the revert would is adopted: it is from an earlier try whose answer was lost, or of another
// publisher; anything else is somebody's, and a pull request from it would not be what it says.
func (c *Client) ours(ctx context.Context, r Revert, tree, parent string) error {
	commit, err := c.branch(ctx, r.Name)
	if err != nil {
		return err
	}
	if len(commit.Parents) == 1 {
		from := commit.Parents[0].GetSHA()
		if from == parent && commit.GetTree().GetSHA() == tree {
			return nil
		}
		if from != parent { // made before the branch went on?
			before, err := c.before(ctx, from, parent)
			if err != nil {
				return err
			}
			if before {
				was, err := c.reverted(ctx, r, from)
				if err == nil && was == commit.GetTree().GetSHA() {
					return nil
				}
				if err != nil && !errors.Is(err, ErrConflict) {
					return err
				}
			}
		}
	}
	return &Error{Op: fmt.Sprintf("revert commit %.12s", r.Bad), Message: "branch " + oneLine(r.Name) + " is there already and holds something else", Next: "delete that branch, or revert by hand: git revert", kind: ErrConflict}
}

// branch is the commit at the tip of a branch.
func (c *Client) branch(ctx context.Context, name string) (*github.Commit, error) {
	ref, _, err := c.api.Git.GetRef(ctx, c.owner, c.name, "heads/"+name)
	if err != nil {
		return nil, fail("read branch "+name, err)
	}
	commit, _, err := c.api.Git.GetCommit(ctx, c.owner, c.name, ref.GetObject().GetSHA())
	if err != nil {
		return nil, fail("read branch "+name, err)
	}
	return commit, nil
}

// before reports whether a commit is in the history of another.
func (c *Client) before(ctx context.Context, commit, of string) (bool, error) {
	cmp, _, err := c.api.Repositories.CompareCommits(ctx, c.owner, c.name, of, commit, &github.ListOptions{PerPage: 1})
	if err != nil {
		return false, fail(fmt.Sprintf("compare commit %.12s with %.12s", commit, of), err)
	}
	return cmp.GetStatus() == "behind", nil
}

// pullFrom finds the pull request from a branch of this repository, in whatever state it is.
func (c *Client) pullFrom(ctx context.Context, branch string) (*Pull, error) {
	list, _, err := c.api.PullRequests.List(ctx, c.owner, c.name, &github.PullRequestListOptions{State: "all", Head: c.owner + ":" + branch, ListOptions: github.ListOptions{PerPage: 100}})
	if err != nil {
		return nil, fail("look for the pull request from "+branch, err)
	}
	for _, p := range list {
		if p.GetHead().GetRef() == branch {
			found := pull(p)
			return &found, nil
		}
	}
	return nil, nil
}

// reverted is the tree of tip without what came between good and bad.
func (c *Client) reverted(ctx context.Context, r Revert, tip string) (string, error) {
	good, goodTree, err := c.files(ctx, r.Good)
	if err != nil {
		return "", err
	}
	bad, badTree, err := c.files(ctx, r.Bad)
	if err != nil {
		return "", err
	}
	now, nowTree, err := c.files(ctx, tip)
	if err != nil {
		return "", err
	}
	if nowTree == badTree {
		return goodTree, nil // nothing else happened
	}
	var entries []*github.TreeEntry
	var conflicts []string
	paths := slices.Concat(slices.Collect(maps.Keys(good)), slices.Collect(maps.Keys(bad)))
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		switch was, is := good[path], bad[path]; {
		case was == is || now[path] == was: // not changed, or back already
		case now[path] != is:
			conflicts = append(conflicts, path)
		case was == file{}:
			entries = append(entries, &github.TreeEntry{Path: &path, Mode: &is.mode, Type: github.String("blob")}) // without content: deleted
		default:
			entries = append(entries, &github.TreeEntry{Path: &path, Mode: &was.mode, Type: github.String("blob"), SHA: &was.blob})
		}
	}
	switch {
	case len(conflicts) > 0:
		shown := strings.Join(conflicts[:min(len(conflicts), 5)], ", ")
		if more := len(conflicts) - 5; more > 0 {
			shown += fmt.Sprintf(" and %d more", more)
		}
		return "", &Error{Op: fmt.Sprintf("revert commit %.12s", r.Bad), Message: oneLine(shown) + ": changed again since", Next: "revert it by hand: git revert", kind: ErrConflict}
	case len(entries) == 0:
		return "", &Error{Op: fmt.Sprintf("revert commit %.12s", r.Bad), Message: "branch " + oneLine(r.Branch) + " holds none of it any more", kind: ErrConflict}
	}
	tree, _, err := c.api.Git.CreateTree(again(ctx), c.owner, c.name, nowTree, entries) // content-addressed: the same again
	if err != nil {
		return "", fail(fmt.Sprintf("revert commit %.12s", r.Bad), err)
	}
	return tree.GetSHA(), nil
}

type file struct{ mode, blob string }

// files are those of a commit, and the id of its tree. A tree that GitHub cuts off is refused: https://docs.github.com/en/rest/git/trees#get-a-tree
func (c *Client) files(ctx context.Context, commit string) (map[string]file, string, error) {
	op := fmt.Sprintf("read the files of commit %.12s", commit)
	head, _, err := c.api.Git.GetCommit(ctx, c.owner, c.name, commit)
	if err != nil {
		return nil, "", fail(op, err)
	}
	tree, _, err := c.api.Git.GetTree(ctx, c.owner, c.name, head.GetTree().GetSHA(), true)
	if err != nil {
		return nil, "", fail(op, err)
	}
	if tree.GetTruncated() {
		return nil, "", &Error{Op: op, Message: "there are more than GitHub lists", Next: "revert it by hand: git revert", kind: ErrConflict}
	}
	out := map[string]file{}
	for _, e := range tree.Entries {
		if e.GetType() != "tree" {
			out[e.GetPath()] = file{e.GetMode(), e.GetSHA()}
		}
	}
	return out, tree.GetSHA(), nil
}
