package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/pipeline/forge"
)

// What GitHub is told about a commit. Markdown of the plan is the plan's; here other people's text stands only in code blocks that it cannot end.

// check is the check run, but for who ran it.
func (j *judged) check() forge.Check {
	k := forge.Check{Name: checkName, Commit: j.event.Head, Conclusion: "success", Title: "valid: " + j.plan.Summary, Annotations: j.annotations()}
	errors := len(onlyErrors(j.problems))
	if !j.valid() {
		k.Conclusion, k.Title = "failure", "not valid: "+countProblems(j.counted())
		if errors == 0 {
			k.Title = "valid by itself, not after the merge: " + countProblems(j.merged)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**\n", markdownLine(k.Title))
	if n := len(k.Annotations) - forge.MaxAnnotations; n > 0 {
		fmt.Fprintf(&b, "\n%s shown beside the lines; %s more are only in this text.\n", cli.Count(forge.MaxAnnotations, "finding"), cli.Number(n))
	}
	if shown := j.counted(); len(shown) > 0 {
		b.WriteString("\n" + codeBlock(eval.Format(shown)))
	}
	if len(j.merged) > 0 {
		fmt.Fprintf(&b, "\nOnly after merging it into its base branch, as that is now:\n\n%s", codeBlock(eval.Format(j.merged)))
	}
	k.Summary = b.String()
	k.Text = j.plan.Markdown(j.show)
	return k
}

// counted are the head's problems as they are shown: no notices, errors first.
func (j *judged) counted() []eval.Problem {
	var out []eval.Problem
	for _, severity := range []eval.Severity{eval.SeverityError, eval.SeverityWarning} {
		for _, p := range j.problems {
			if p.Severity == severity {
				out = append(out, p)
			}
		}
	}
	return out
}

// comment is the one comment.
func (j *judged) comment() string {
	text := j.plan.Markdown(j.show)
	if len(j.merged) == 0 {
		return text
	}
	// It goes first: the plan says that all is well.
	return fmt.Sprintf("### muster: not valid after the merge\n\n**%s** only after merging it into its base branch, as that is now:\n\n%s\n", countProblems(j.merged), forge.Fit(codeBlock(eval.Format(j.merged)), 14_000)) + text
}

// summary is the job's.
func (j *judged) summary() string { return j.comment() }

// annotations are the problems at their places, errors first; folded over cohorts, as they are.
func (j *judged) annotations() []forge.Annotation {
	var out []forge.Annotation
	for _, p := range j.merged {
		a := annotation(p)
		a.Title = "only after the merge: " + a.Title
		out = append(out, a)
	}
	for _, p := range j.counted() {
		out = append(out, annotation(p))
	}
	return out
}

// printAnnotations writes all problems as workflow commands, which GitHub shows beside the lines of a pull request's diff: ten of a kind, and all in the log.
func printAnnotations(w io.Writer, problems []eval.Problem) error {
	for _, p := range problems {
		if err := forge.WriteAnnotation(w, annotation(p)); err != nil {
			return err
		}
	}
	return nil
}

func annotation(p eval.Problem) forge.Annotation {
	a := forge.Annotation{Level: map[eval.Severity]forge.Level{eval.SeverityError: forge.LevelError, eval.SeverityWarning: forge.LevelWarning, eval.SeverityNotice: forge.LevelNotice}[p.Severity]}
	var at eval.Pos
	switch {
	case len(p.SetAt) > 0:
		at = p.SetAt[0]
	case len(p.SchemaAt) > 0:
		at = p.SchemaAt[0]
	}
	a.Path, a.Line, a.Col = at.File, at.Line, at.Col
	if a.Title = strings.Trim(p.Service+": "+p.Path, ": "); a.Title == "" {
		a.Title = "config"
	}
	p.Severity = eval.SeverityError // the level says it
	a.Message = eval.Headline(p)
	if len(p.Cohorts) > 0 {
		a.Message += " (" + cli.Names(p.Cohorts, 5) + ")"
	}
	for _, more := range p.SetAt[min(1, len(p.SetAt)):] {
		a.Message += "\nset at " + cli.Printable(more.String())
	}
	// Also where the annotation stands there itself: it says that nothing is set, and that this line is the schema's.
	for _, more := range p.SchemaAt {
		a.Message += "\nschema at " + cli.Printable(more.String())
	}
	return a
}

// codeBlock is text that nothing in it can leave: the fence is longer than any run of backticks.
func codeBlock(text string) string {
	longest, run := 2, 0
	for _, r := range text {
		if run++; r != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	fence := strings.Repeat("`", longest+1)
	return fence + "text\n" + strings.TrimRight(text, "\n") + "\n" + fence + "\n"
}

// markdownLine is a line of ours in which a name of others cannot be markdown: only what a count or a name is made of stays as it is.
func markdownLine(s string) string {
	var b strings.Builder
	for _, r := range cli.Printable(s) {
		switch {
		case r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(" ,.;:()/'\"%-", r) || r >= 0x80:
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, "&#%d;", r)
		}
	}
	return b.String()
}

// quiet lets nothing that a command prints be a command of the workflow's runner, which listens to all that its steps print. `ci github` looks after itself, and what goes to a
// file or is JSON is data.
func (a *app) quiet(cmd *cobra.Command) {
	if os.Getenv("GITHUB_ACTIONS") != "true" || cmd.HasParent() && cmd.Parent().Name() == "ci" {
		return
	}
	a.errOut = forge.Mute(a.errOut)
	if f, ok := a.out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return
		}
	}
	format := cmd.Flags().Lookup("format")
	if !a.json && (format == nil || format.Value.String() != "json") {
		a.out = forge.Mute(a.out)
	}
}

// harmless is an error that a workflow's runner takes for no command, whatever names of files it holds.
func harmless(err error) error {
	if err == nil || !strings.Contains(err.Error(), "##[") && !strings.Contains(err.Error(), "::") {
		return err
	}
	return &quietError{err}
}

type quietError struct{ error }

func (e *quietError) Error() string {
	return strings.NewReplacer("##[", "# #[", "::", ": :").Replace(e.error.Error())
}

func (e *quietError) Unwrap() error { return e.error }
