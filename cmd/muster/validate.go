package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/pipeline"
)

func (a *app) validateCmd() *cobra.Command {
	var rev, format string
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "evaluate every service for every cohort, and say what is wrong and where",
		Long: `Evaluates every service for every cohort that carries it: the files on disk that
git does not ignore, or the commit --rev. Each error is one group of lines: the
path and what is wrong, where it was set, and where the schema says so.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.json && !cmd.Flags().Changed("format") {
				format = "json"
			}
			if err := oneOf("format", format, "text", "json", "github"); err != nil {
				return err
			}
			// The files are rendered too: what a format cannot hold refuses the commit as well.
			res, err := a.build(cmd.Context(), rev, pipeline.Options{})
			if err != nil {
				return err
			}
			switch format {
			case "json":
				err = cli.PrintJSON(a.out, validationOf(res))
			case "github":
				printAnnotations(a.out, res.Problems)
			default:
				printProblems(a.out, res.Problems)
			}
			if err != nil {
				return err
			}
			if res.Failed() {
				return cli.Fail(cli.No, "", "not valid: %s", countProblems(res.Problems))
			}
			if format == "text" {
				v := validationOf(res)
				fmt.Fprintf(a.out, "valid: %s, %s\n", cli.Count(len(v.Services), "service"), cli.Count(len(v.Cohorts), "cohort"))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&rev, "rev", "", "a commit, instead of the files on disk")
	cmd.Flags().StringVar(&format, "format", "text", "text, json, or github (annotations of a workflow run)")
	return cmd
}

// validation is `validate --json`.
type validation struct {
	Valid    bool           `json:"valid"`
	Errors   int            `json:"errors"`
	Warnings int            `json:"warnings"`
	Services []string       `json:"services"`
	Cohorts  []string       `json:"cohorts"`
	Problems []eval.Problem `json:"problems"`
}

func validationOf(res *pipeline.Rendered) validation {
	v := validation{Valid: !res.Failed(), Services: []string{}, Cohorts: []string{}, Problems: []eval.Problem{}}
	for name, c := range res.Policy.Cohorts {
		v.Cohorts = append(v.Cohorts, name)
		v.Services = append(v.Services, c.Services...)
	}
	slices.Sort(v.Cohorts)
	slices.Sort(v.Services)
	v.Services = slices.Compact(v.Services)
	for _, p := range res.Problems {
		switch p.Severity {
		case eval.SeverityError:
			v.Errors++
		case eval.SeverityWarning:
			v.Warnings++
		}
		// Empty lists print as [].
		p.Cohorts = append([]string{}, p.Cohorts...)
		p.SetAt = append([]eval.Pos{}, p.SetAt...)
		p.SchemaAt = append([]eval.Pos{}, p.SchemaAt...)
		v.Problems = append(v.Problems, p)
	}
	return v
}

func countProblems(problems []eval.Problem) string {
	n := map[eval.Severity]int{}
	for _, p := range problems {
		n[p.Severity]++
	}
	parts := []string{cli.Count(n[eval.SeverityError], "error")}
	if w := n[eval.SeverityWarning]; w > 0 {
		parts = append(parts, cli.Count(w, "warning"))
	}
	return strings.Join(parts, ", ")
}

// headline is a problem in one line.
func headline(p eval.Problem) string {
	what := p.Path
	if what == "" && len(p.SetAt) == 0 {
		what = p.Service
	}
	line := p.Message
	if what != "" {
		line = what + ": " + line
	}
	if p.Severity != eval.SeverityError {
		line = string(p.Severity) + ": " + line
	}
	return cli.Printable(line)
}

// printProblems writes one group of lines a problem.
func printProblems(w io.Writer, problems []eval.Problem) {
	for _, p := range problems {
		line := headline(p)
		switch n := len(p.Cohorts); {
		case n == 1:
			line += fmt.Sprintf("  (cohort %s)", p.Cohorts[0])
		case n > 1:
			line += fmt.Sprintf("  (%d cohorts: %s)", n, cli.Names(p.Cohorts, 5))
		}
		fmt.Fprintln(w, line)
		for _, at := range p.SetAt {
			fmt.Fprintf(w, "    set at    %s\n", place(at))
		}
		for _, at := range p.SchemaAt {
			fmt.Fprintf(w, "    schema at %s\n", place(at))
		}
	}
}

func place(p eval.Pos) string {
	s := cli.Printable(p.File)
	if p.Line > 0 {
		s += fmt.Sprintf(":%d", p.Line)
		if p.Col > 0 {
			s += fmt.Sprintf(":%d", p.Col)
		}
	}
	return s
}

// printAnnotations writes workflow commands, which GitHub shows beside the line of a pull request's diff.
func printAnnotations(w io.Writer, problems []eval.Problem) {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, p := range problems {
		at := eval.Pos{}
		if len(p.SetAt) > 0 {
			at = p.SetAt[0]
		} else if len(p.SchemaAt) > 0 {
			at = p.SchemaAt[0]
		}
		var props []string
		if at.File != "" {
			props = append(props, "file="+property.Replace(at.File))
		}
		if at.Line > 0 {
			props = append(props, fmt.Sprintf("line=%d", at.Line))
		}
		if at.Col > 0 {
			props = append(props, fmt.Sprintf("col=%d", at.Col))
		}
		name := string(p.Severity)
		p.Severity = eval.SeverityError // the command names it
		fmt.Fprintf(w, "::%s %s::%s\n", name, strings.Join(props, ","), data.Replace(headline(p)))
	}
}
