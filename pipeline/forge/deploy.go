package forge

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-github/v60/github"
)

// task of our deployments, by which they are told from others in the same environment.
const task = "muster"

// State of a deployment.
type State string

// States: https://docs.github.com/en/rest/deployments/statuses#create-a-deployment-status
const (
	Queued     State = "queued"
	InProgress State = "in_progress"
	Success    State = "success"
	Failure    State = "failure"
	Inactive   State = "inactive"
)

// Deployment is a commit on its way to an environment.
type Deployment struct {
	ID          int64
	Commit      string
	Environment string
	Description string
	Production  bool
	Mark        string // what Description begins with, by which it is told from others of the same commit; "": there are none
	// Last is what was said of it last.
	Last DeploymentStatus
}

// DeploymentStatus is what becomes of a deployment.
type DeploymentStatus struct {
	State       State
	Description string // one line, cut at 140 characters
	URL         string // of where to read more
}

// Deploy finds the deployment of a commit to an environment, or makes it: one or two requests when it is there, two when it is new. With Commit and Environment alone
// known, who was away learns what was said last.
func (c *Client) Deploy(ctx context.Context, d Deployment) (*Deployment, error) {
	op := fmt.Sprintf("make the deployment to %s", oneLine(d.Environment))
	err := lost(func() error {
		opts := &github.DeploymentsListOptions{SHA: d.Commit, Environment: d.Environment, Task: task, ListOptions: github.ListOptions{PerPage: 100}}
		list, _, err := c.api.Repositories.ListDeployments(ctx, c.owner, c.name, opts)
		if err != nil {
			return fail(fmt.Sprintf("look for the deployment to %s", oneLine(d.Environment)), err)
		}
		for _, have := range list { // the newest first
			if have.GetSHA() != d.Commit || have.GetEnvironment() != d.Environment || have.GetTask() != task || have.GetID() == 0 || !strings.HasPrefix(have.GetDescription(), d.Mark) {
				continue
			}
			d.ID = have.GetID()
			said, _, err := c.api.Repositories.ListDeploymentStatuses(ctx, c.owner, c.name, d.ID, &github.ListOptions{PerPage: 1})
			if err != nil {
				return fail("read what was said of the deployment", err)
			}
			if len(said) > 0 {
				d.Last = DeploymentStatus{State(said[0].GetState()), said[0].GetDescription(), said[0].GetLogURL()}
			}
			return nil
		}
		// Nothing is to be merged into the commit, and no other status is waited for: it is published already.
		made, _, err := c.api.Repositories.CreateDeployment(ctx, c.owner, c.name, &github.DeploymentRequest{
			Ref: &d.Commit, Task: github.String(task), AutoMerge: github.Bool(false), RequiredContexts: &[]string{}, Environment: &d.Environment,
			Description: github.String(describe(d.Description)), ProductionEnvironment: &d.Production,
		})
		if d.ID = made.GetID(); err == nil && d.ID == 0 {
			return &Error{Op: op, Message: "the answer names none", kind: ErrUnreachable}
		}
		return fail(op, err)
	})
	if err != nil {
		return nil, err
	}
	return &d, nil
}

// Progress says what becomes of a deployment: one request, none if it is what was said last. A success ends those before it in the same environment.
func (c *Client) Progress(ctx context.Context, d *Deployment, s DeploymentStatus) error {
	s.Description = describe(s.Description)
	if d.Last == s {
		return nil
	}
	_, _, err := c.api.Repositories.CreateDeploymentStatus(again(ctx), c.owner, c.name, d.ID, &github.DeploymentStatusRequest{
		State: github.String(string(s.State)), Description: &s.Description, LogURL: optional(s.URL), Environment: &d.Environment, AutoInactive: github.Bool(s.State == Success),
	})
	if err != nil {
		return fail(fmt.Sprintf("say that the deployment to %s is %s", oneLine(d.Environment), strings.ReplaceAll(string(s.State), "_", " ")), err)
	}
	d.Last = s
	return nil
}

// Verdict of a commit status.
type Verdict string

// Verdicts: https://docs.github.com/en/rest/commits/statuses#create-a-commit-status
const (
	Pending Verdict = "pending"
	Good    Verdict = "success"
	Bad     Verdict = "failure"
)

// Status is a commit status: the last one of a context counts.
type Status struct {
	Context     string // "muster / delivered"
	State       Verdict
	Description string // one line, cut at 140 characters
	URL         string
}

// Status sets a commit status: one request. What GitHub will never take of this very commit is ErrNoCommit.
func (c *Client) Status(ctx context.Context, commit string, s Status) error {
	_, _, err := c.api.Repositories.CreateStatus(again(ctx), c.owner, c.name, commit, &github.RepoStatus{
		Context: &s.Context, State: github.String(string(s.State)), Description: github.String(describe(s.Description)), TargetURL: optional(s.URL),
	})
	err = fail(fmt.Sprintf("set the status %q of commit %.12s", s.Context, commit), err)
	var e *Error
	if errors.As(err, &e) && errors.Is(err, ErrInvalid) && (says(err, "no commit found") || says(err, "maximum number of statuses")) {
		e.kind = ErrNoCommit
	}
	return err
}

// Said reads the last status of a context, the zero Status if there is none: one request for each hundred statuses.
func (c *Client) Said(ctx context.Context, commit, context string) (Status, error) {
	opts := &github.ListOptions{PerPage: 100}
	for {
		page, resp, err := c.api.Repositories.ListStatuses(ctx, c.owner, c.name, commit, opts)
		if err != nil {
			return Status{}, fail(fmt.Sprintf("read the statuses of commit %.12s", commit), err)
		}
		for _, s := range page { // the newest first
			if s.GetContext() == context {
				return Status{context, Verdict(s.GetState()), s.GetDescription(), s.GetTargetURL()}, nil
			}
		}
		if more, err := turn(fmt.Sprintf("read the statuses of commit %.12s", commit), opts, resp); err != nil || !more {
			return Status{}, err
		}
	}
}
