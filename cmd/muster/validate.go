package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/pipeline"
)

func (a *app) validateCmd() *cobra.Command {
	var e evaluation
	var format string
	var services, cohorts []string
	var verbose, strict bool
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "evaluate every service for every cohort, and say what is wrong and where",
		Long: `Evaluates every service for every cohort that carries it: the files on disk that
git does not ignore, or the commit --rev. Each error is one group of lines: the
path and what is wrong, in which cohorts, where it was set, and where the schema
says so. Nothing else is printed but a last line that counts.

Exit codes: 0 valid, perhaps with warnings; 1 not valid, with --strict also when
there is a warning.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.json && !cmd.Flags().Changed("format") {
				format = "json"
			}
			if err := oneOf("format", format, "text", "json", "github"); err != nil {
				return err
			}
			// The files are rendered too: what a format cannot hold refuses the commit as well. Their bytes are not asked for, and of what did not change
			// not even the sources, unless -v looks into them.
			res, err := a.build(cmd.Context(), e, pipeline.Options{Services: services, Cohorts: cohorts, Verdict: !verbose})
			if err != nil {
				return err
			}
			if err := wanted("service", services, servicesIn(res)); err != nil {
				return err
			}
			if err := wantedCohorts(cohorts, res); err != nil {
				return err
			}
			v := validationOf(res, services, cohorts)
			switch format {
			case "json":
				err = cli.PrintJSON(a.out, v)
			case "github":
				err = printAnnotations(a.raw, res.Problems)
			default:
				shown := res.Problems
				if !verbose {
					shown = slices.DeleteFunc(slices.Clone(shown), func(p eval.Problem) bool { return p.Severity == eval.SeverityNotice })
				}
				printProblems(a.out, shown)
				if bare := without(res, v.Services); verbose && len(bare) > 0 {
					fmt.Fprintf(a.out, "notice: nothing checks the values of %s: no schema\n", cli.Names(bare, 10))
				}
			}
			if err != nil {
				return err
			}
			if res.Failed() {
				return cli.Fail(cli.No, "", "not valid: %s", countProblems(res.Problems))
			}
			if strict && v.Warnings > 0 {
				return cli.Fail(cli.No, "without --strict warnings do not count", "valid, but with %s", cli.Count(v.Warnings, "warning"))
			}
			if format == "text" {
				fmt.Fprintf(a.out, "valid: %s\n", v.tally(verbose))
			}
			return nil
		},
	}
	e.flags(cmd)
	cmd.Flags().StringVar(&format, "format", "text", "text, json, or github (annotations of a workflow run)")
	cmd.Flags().StringSliceVar(&services, "service", nil, "only this service; may be repeated")
	cmd.Flags().StringSliceVar(&cohorts, "cohort", nil, "only this cohort; may be repeated")
	cmd.Flags().BoolVar(&strict, "strict", false, "a warning fails too")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print notices too, and which services have no schema")
	return cmd
}

// validation is `validate --json`.
type validation struct {
	Valid    bool           `json:"valid"`
	Errors   int            `json:"errors"`
	Warnings int            `json:"warnings"`
	Notices  int            `json:"notices"`
	Services []string       `json:"services"`
	Cohorts  []string       `json:"cohorts"`
	Problems []eval.Problem `json:"problems"`
}

func validationOf(res *pipeline.Rendered, services, cohorts []string) validation {
	v := validation{Valid: !res.Failed(), Services: []string{}, Cohorts: []string{}, Problems: []eval.Problem{}}
	for name, c := range res.Policy.Cohorts {
		if len(cohorts) > 0 && !slices.Contains(cohorts, name) {
			continue
		}
		v.Cohorts = append(v.Cohorts, name)
		for _, s := range c.Services {
			if len(services) == 0 || slices.Contains(services, s) {
				v.Services = append(v.Services, s)
			}
		}
	}
	slices.Sort(v.Cohorts)
	slices.Sort(v.Services)
	v.Services = slices.Compact(v.Services)
	n := bySeverity(res.Problems)
	v.Errors, v.Warnings, v.Notices = n[eval.SeverityError], n[eval.SeverityWarning], n[eval.SeverityNotice]
	for _, p := range res.Problems {
		// Empty lists print as [].
		p.Cohorts = append([]string{}, p.Cohorts...)
		p.SetAt = append([]eval.Pos{}, p.SetAt...)
		p.SchemaAt = append([]eval.Pos{}, p.SchemaAt...)
		v.Problems = append(v.Problems, p)
	}
	return v
}

func (v validation) tally(verbose bool) string {
	s := cli.Count(len(v.Services), "service") + ", " + cli.Count(len(v.Cohorts), "cohort")
	if v.Warnings > 0 {
		s += ", " + cli.Count(v.Warnings, "warning")
	}
	if v.Notices > 0 {
		s += ", " + cli.Count(v.Notices, "notice")
		if !verbose {
			s += " (-v prints them)"
		}
	}
	return s
}

func bySeverity(problems []eval.Problem) map[eval.Severity]int {
	n := map[eval.Severity]int{}
	for _, p := range problems {
		n[p.Severity]++
	}
	return n
}

func countProblems(problems []eval.Problem) string {
	n := bySeverity(problems)
	parts := []string{cli.Count(n[eval.SeverityError], "error")}
	if w := n[eval.SeverityWarning]; w > 0 {
		parts = append(parts, cli.Count(w, "warning"))
	}
	return strings.Join(parts, ", ")
}

// hasSchema finds in CUE text what checks the layers: without `values` nothing does, and a #Config without it is an error.
var hasSchema = regexp.MustCompile(`(?m)(^|[{,])\s*values\s*:`)

// without are those of the services that have no schema.
func without(res *pipeline.Rendered, services []string) []string {
	with := map[string]bool{}
	for _, f := range res.Source {
		if rest, ok := strings.CutPrefix(f.Path, "services/"); ok && strings.HasSuffix(f.Path, ".cue") && hasSchema.Match(f.Data) {
			if name, file, _ := strings.Cut(rest, "/"); !strings.Contains(file, "/") { // a directory below is another package
				with[name] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(services), func(s string) bool { return with[s] })
}

// printProblems writes one group of lines a problem.
func printProblems(w io.Writer, problems []eval.Problem) {
	_, _ = io.WriteString(w, eval.Format(problems)) // as all that is printed: who cannot be written to cannot be told either
}
