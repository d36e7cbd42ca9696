package forge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/go-github/v60/github"
)

// Bounds of a check run.
const (
	MaxBatch       = 50  // annotations in one request: https://docs.github.com/en/rest/checks/runs#create-a-check-run
	MaxAnnotations = 300 // in all: six requests. More help nobody, and the summary says how many there are
)

// Level of an annotation.
type Level string

// Levels.
const (
	LevelError   Level = "failure"
	LevelWarning Level = "warning"
	LevelNotice  Level = "notice"
)

// Annotation is a finding at a line of a file.
type Annotation struct {
	Path      string
	Line, Col int // 0: not known
	Level     Level
	Title     string
	Message   string
}

// Check is a check run.
type Check struct {
	Name       string // "muster / validate"
	Commit     string
	ExternalID string // names this run: by it the check is found again when an answer was lost
	Details    string // URL
	Conclusion string // success, failure, neutral
	Title      string
	Summary    string // markdown
	Text       string // markdown
	// Annotations, the most important first. Those above MaxAnnotations are left out, and so is one without a path: the summary is to say it.
	Annotations []Annotation
}

// Check writes a check run: one request, and one more for each further 50 annotations. That it is completed with its conclusion is always said, also when a batch in the
// middle is refused; that refusal is the error then.
func (c *Client) Check(ctx context.Context, k Check) (url string, err error) {
	op := fmt.Sprintf("write the check run %q", k.Name)
	notes := annotations(k.Annotations)
	first := notes[:min(len(notes), MaxBatch)]
	rest := notes[len(first):]
	output := func(batch []*github.CheckRunAnnotation) *github.CheckRunOutput {
		return &github.CheckRunOutput{Title: github.String(cutBytes(oneLine(k.Title), maxTitle)), Summary: github.String(Fit(k.Summary, MaxOutput)), Text: optional(Fit(k.Text, MaxOutput)), Annotations: batch}
	}
	var run *github.CheckRun
	create := func(batch []*github.CheckRunAnnotation, complete bool) error {
		opts := github.CreateCheckRunOptions{Name: k.Name, HeadSHA: k.Commit, ExternalID: optional(k.ExternalID), DetailsURL: optional(k.Details), Status: github.String("in_progress"), Output: output(batch)}
		if complete {
			opts.Status, opts.Conclusion, opts.CompletedAt = github.String("completed"), github.String(k.Conclusion), c.stamp()
		}
		looked := false
		return lost(func() error {
			if looked { // the first try's answer was lost: it may be there
				if found, err := c.findCheck(ctx, k); err != nil || found != nil {
					run = found
					return err
				}
			}
			looked = true
			var err error
			run, _, err = c.api.Checks.CreateCheckRun(ctx, c.owner, c.name, opts)
			if err == nil && run.GetID() == 0 {
				return &Error{Op: op, Message: "the answer names none", kind: ErrUnreachable}
			}
			return fail(op, err)
		})
	}
	err = create(first, len(rest) == 0)
	if errors.Is(err, ErrInvalid) && len(first) > 0 {
		// A batch that the server does not take must not leave the commit without a verdict.
		if plain := create(nil, true); plain == nil {
			return run.GetHTMLURL(), err
		}
	}
	if err != nil || len(rest) == 0 {
		return run.GetHTMLURL(), err
	}
	var left error
	for len(rest) > 0 {
		batch := rest[:min(len(rest), MaxBatch)]
		rest = rest[len(batch):]
		if len(rest) == 0 && left == nil {
			if err = c.updateCheck(ctx, op, run, k, output(batch), true); err == nil {
				return run.GetHTMLURL(), nil
			}
			left = err
			break
		}
		if err := c.updateCheck(ctx, op, run, k, output(batch), false); err != nil {
			left = errors.Join(left, err)
			if !errors.Is(err, ErrInvalid) {
				break // not this batch's fault: the others would fare no better
			}
		}
	}
	// What is left is the verdict.
	if err := c.updateCheck(ctx, op, run, k, output(nil), true); err != nil {
		return run.GetHTMLURL(), err
	}
	return run.GetHTMLURL(), left
}

func (c *Client) updateCheck(ctx context.Context, op string, run *github.CheckRun, k Check, out *github.CheckRunOutput, complete bool) error {
	opts := github.UpdateCheckRunOptions{Name: k.Name, Output: out}
	if complete {
		opts.Status, opts.Conclusion, opts.CompletedAt = github.String("completed"), github.String(k.Conclusion), c.stamp()
		if len(out.Annotations) == 0 {
			ctx = again(ctx) // annotations would be there twice
		}
	}
	_, _, err := c.api.Checks.UpdateCheckRun(ctx, c.owner, c.name, run.GetID(), opts)
	return fail(op, err)
}

// findCheck finds the check run of this run.
func (c *Client) findCheck(ctx context.Context, k Check) (*github.CheckRun, error) {
	opts := &github.ListCheckRunsOptions{CheckName: github.String(k.Name), Filter: github.String("all"), ListOptions: github.ListOptions{PerPage: 100}}
	for {
		list, resp, err := c.api.Checks.ListCheckRunsForRef(ctx, c.owner, c.name, k.Commit, opts)
		if err != nil {
			return nil, fail("look for the check run", err)
		}
		for _, run := range list.CheckRuns {
			if k.ExternalID != "" && run.GetExternalID() == k.ExternalID {
				return run, nil
			}
		}
		if more, err := turn("look for the check run", &opts.ListOptions, resp); err != nil || !more {
			return nil, err
		}
	}
}

func (c *Client) stamp() *github.Timestamp {
	return &github.Timestamp{Time: c.wire.line.now().UTC().Truncate(time.Second)}
}

// annotations are the first MaxAnnotations in GitHub's shape.
func annotations(list []Annotation) []*github.CheckRunAnnotation {
	var out []*github.CheckRunAnnotation
	for _, a := range list {
		if a.Path == "" {
			continue
		}
		if len(out) == MaxAnnotations {
			break
		}
		line := max(a.Line, 1)
		n := &github.CheckRunAnnotation{
			Path: github.String(a.Path), StartLine: github.Int(line), EndLine: github.Int(line), AnnotationLevel: github.String(string(a.Level)),
			Message: github.String(cutBytes(visible(cutBytes(a.Message, maxMessage)), maxMessage)), Title: optional(cutBytes(oneLine(cutBytes(a.Title, 4*maxTitle)), maxTitle)),
		}
		if a.Line > 0 && a.Col > 0 { // only where both lines are the same, which they are
			n.StartColumn, n.EndColumn = github.Int(a.Col), github.Int(a.Col)
		}
		out = append(out, n)
	}
	return out
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
