package forge

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-github/v60/github"
)

// actionsBot writes what a workflow's own token writes: https://docs.github.com/en/actions/security-guides/automatic-token-authentication
const actionsBot = "github-actions[bot]"

// Sticky is the one comment of its kind in a pull request.
type Sticky struct {
	Pull int
	Kind string // "plan": names the hidden marker
	Body string // markdown
}

// Comment writes the one comment: two requests when it is there and has changed, one when it is as it should be, three at first. It is known by a hidden marker and by who
// wrote it, on whatever page it is; more of them, which two runs at once may leave, are deleted, the oldest stays.
func (c *Client) Comment(ctx context.Context, s Sticky) (url string, err error) {
	marker := "<!-- muster:" + s.Kind + " -->"
	body := marker + "\n" + Fit(s.Body, MaxComment-len(marker)-1)
	op := fmt.Sprintf("write the comment on pull request %d", s.Pull)
	err = lost(func() error {
		mine, err := c.mine(ctx, s.Pull, marker)
		if err != nil {
			return err
		}
		if len(mine) == 0 {
			made, _, err := c.api.Issues.CreateComment(ctx, c.owner, c.name, s.Pull, &github.IssueComment{Body: &body})
			if err != nil {
				return fail(op, err)
			}
			url = made.GetHTMLURL()
			// The answer is the first that says for certain who we are: a token of some app looks like that of a workflow. As that one there may be older ones.
			c.known(made.GetUser().GetLogin())
			// Another run may have done the same meanwhile.
			if mine, err = c.mine(ctx, s.Pull, marker); err != nil || len(mine) <= 1 {
				return err
			}
		}
		first := mine[0]
		url = first.GetHTMLURL()
		for _, more := range mine[1:] {
			if _, err := c.api.Issues.DeleteComment(ctx, c.owner, c.name, more.GetID()); err != nil && !errors.Is(fail("", err), ErrNotFound) {
				return fail("delete a second comment of ours", err)
			}
		}
		if first.GetBody() == body {
			return nil
		}
		_, _, err = c.api.Issues.EditComment(again(ctx), c.owner, c.name, first.GetID(), &github.IssueComment{Body: &body})
		if err = fail(op, err); errors.Is(err, ErrNotFound) {
			var e *Error
			if errors.As(err, &e) {
				e.kind = errLost // deleted since it was listed: once more, from the beginning
			}
		}
		return err
	})
	return url, err
}

// mine are our comments of a kind in a pull request, the oldest first. Somebody else's that carries the marker is left alone.
func (c *Client) mine(ctx context.Context, pull int, marker string) ([]*github.IssueComment, error) {
	author, err := c.self(ctx)
	if err != nil {
		return nil, err
	}
	var out []*github.IssueComment
	opts := &github.IssueListCommentsOptions{ListOptions: github.ListOptions{PerPage: 100}}
	for {
		page, resp, err := c.api.Issues.ListComments(ctx, c.owner, c.name, pull, opts)
		if err != nil {
			return nil, fail(fmt.Sprintf("read the comments of pull request %d", pull), err)
		}
		for _, k := range page {
			if strings.HasPrefix(k.GetBody(), marker) && strings.EqualFold(k.GetUser().GetLogin(), author) {
				out = append(out, k)
			}
		}
		if more, err := turn(fmt.Sprintf("read the comments of pull request %d", pull), &opts.ListOptions, resp); err != nil || !more {
			return out, err
		}
	}
}

// self is the login that we write as. It is asked once, or as often as it is needed at once the first time: that does no harm.
func (c *Client) self(ctx context.Context) (string, error) {
	mu := &c.wire.line.mu
	mu.Lock()
	author := c.author
	mu.Unlock()
	if author != "" {
		return author, nil
	}
	author, err := c.askSelf(ctx)
	if err != nil {
		return "", err
	}
	mu.Lock()
	c.author = author
	mu.Unlock()
	return author, nil
}

// known takes the login that GitHub says we write as.
func (c *Client) known(login string) {
	if login == "" {
		return
	}
	c.wire.line.mu.Lock()
	defer c.wire.line.mu.Unlock()
	c.author = login
}

func (c *Client) askSelf(ctx context.Context) (string, error) {
	if i := c.wire.tokens; i != nil {
		app, _, err := i.api.Apps.Get(ctx, "")
		if err != nil {
			return "", fail("ask who the app is", err)
		}
		return app.GetSlug() + "[bot]", nil
	}
	// An installation's token begins so and cannot ask: it is a workflow's own, or Author names the app.
	// https://docs.github.com/en/authentication/keeping-your-account-and-data-secure/about-authentication-to-github#githubs-token-formats
	if token, err := c.wire.token(); err == nil && strings.HasPrefix(token, "ghs_") {
		return actionsBot, nil
	}
	user, _, err := c.api.Users.Get(ctx, "")
	if err = fail("ask who the token belongs to", err); err != nil {
		if errors.Is(err, ErrDenied) {
			return actionsBot, nil
		}
		return "", err
	}
	return user.GetLogin(), nil
}
