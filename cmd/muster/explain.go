package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/cue/eval/layer"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// historyTime bounds how long explain looks through history.
const historyTime = 5 * time.Second

func (a *app) explainCmd() *cobra.Command {
	var e evaluation
	var cohort, host string
	cmd := &cobra.Command{
		Use:   "explain --cohort COHORT [--host HOST] SERVICE [PATH]",
		Short: "say which layer, line, commit and author set a value, and what it shadows",
		Long: `Shows a value of a service as the hosts of a cohort get it, the layer and the line
that set it, who last changed that line, and what the layers below say. A value
that no layer sets is computed by the package, or the schema's default. Without
PATH, or with the path of a struct, all values below it are listed.

It looks through history for a few seconds at most.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := ""
			if len(args) == 2 {
				path = args[1]
			}
			repo, err := a.repo()
			if err != nil {
				return err
			}
			defer repo.Close()
			t, err := tree(repo, e.rev)
			if err != nil {
				return err
			}
			service := args[0]
			if cohort == "" {
				return a.whichCohort(cmd, t, e, service)
			}
			res, err := a.evaluate(cmd.Context(), t, e, pipeline.Options{Services: []string{service}, Cohorts: []string{cohort}, CheckOnly: true, Leaves: true})
			if err != nil {
				return err
			}
			unit, err := a.unitOf(res, service, cohort, host)
			if err != nil {
				return err
			}
			found, err := under(unit, path)
			if err != nil {
				return err
			}
			x := explanation{Service: service, Cohort: cohort, Host: host, Values: []explained{}}
			for _, l := range found {
				x.Values = append(x.Values, explainLeaf(l))
			}
			history{repo: repo, tree: t}.fill(cmd.Context(), &x)
			if a.json {
				return cli.PrintJSON(a.out, x)
			}
			x.print(a.out)
			return nil
		},
	}
	cmd.Flags().StringVar(&cohort, "cohort", "", "the cohort whose hosts get the value")
	cmd.Flags().StringVar(&host, "host", "", "one host of it, with its own overlays")
	e.flags(cmd)
	return cmd
}

// whichCohort is the error where no cohort is named: it lists those that carry the service.
func (a *app) whichCohort(cmd *cobra.Command, t source.Tree, e evaluation, service string) error {
	hint := "usage: " + cmd.UseLine()
	res, err := a.evaluate(cmd.Context(), t, e, pipeline.Options{Services: []string{service}, CheckOnly: true})
	if err != nil {
		return cli.Fail(cli.Usage, hint, "--cohort is missing")
	}
	var carry []string
	for name, c := range res.Policy.Cohorts {
		if slices.Contains(c.Services, service) {
			carry = append(carry, name)
		}
	}
	slices.Sort(carry)
	if len(carry) > 0 {
		hint = fmt.Sprintf("give one that carries %s: %s", service, cli.Names(carry, 10))
	} else if len(res.Policy.Cohorts) > 0 {
		if err := wanted("service", []string{service}, servicesIn(res)); err != nil {
			return err
		}
		hint = "no cohort carries " + service
	}
	return cli.Fail(cli.Usage, hint, "--cohort is missing")
}

// unitOf finds what a host of a cohort gets of a service.
func (a *app) unitOf(res *pipeline.Rendered, service, cohort, host string) (*eval.Unit, error) {
	if len(res.Policy.Cohorts) == 0 && res.Failed() { // no fleet
		printProblems(a.errOut, onlyErrors(res.Problems))
		return nil, cli.Fail(cli.No, "", "not valid: %s", countProblems(res.Problems))
	}
	if err := wantedCohorts([]string{cohort}, res); err != nil {
		return nil, err
	}
	if err := wanted("service", []string{service}, servicesIn(res)); err != nil {
		return nil, err
	}
	if err := knownHost(cohort, host, res); err != nil {
		return nil, err
	}
	var unit *eval.Unit
	units := res.Units()
	for i, u := range units {
		if u.Service == service && u.Cohort == cohort && (u.Host == host || u.Host == "" && unit == nil) {
			unit = &units[i]
		}
	}
	switch {
	case unit != nil:
		return unit, nil
	case res.Failed():
		printProblems(a.errOut, onlyErrors(res.Problems))
		return nil, cli.Fail(cli.No, "there are values once it validates", "not valid: %s", countProblems(res.Problems))
	}
	carried := res.Policy.Cohorts[cohort].Services
	return nil, cli.Fail(cli.Usage, "it carries "+cli.Names(carried, 10), "cohort %s does not carry service %s", cohort, service)
}

// under finds the values at a path and below it; "" is all.
func under(unit *eval.Unit, path string) ([]eval.Leaf, error) {
	var found []eval.Leaf
	var known []string
	for _, l := range unit.Leaves {
		for i := range l.Path {
			known = append(known, layer.PathText(l.Path[:i+1]))
		}
		at, raw := layer.PathText(l.Path), strings.Join(l.Path, ".")
		if path == "" || at == path || raw == path || strings.HasPrefix(at, path+".") {
			found = append(found, l)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	slices.Sort(known)
	known = slices.Compact(known)
	hint := ""
	// upstreams.0, upstreams[0]: a list is one value.
	for _, l := range unit.Leaves {
		if at := layer.PathText(l.Path); strings.HasPrefix(path, at+".") || strings.HasPrefix(path, at+"[") {
			hint = fmt.Sprintf("%s is one value: it has nothing below it", at)
		}
	}
	if hint == "" {
		hint = cli.Suggest(path, known)
	}
	if hint == "" {
		// A key that is somewhere else: workers for limits.workers.
		var same []string
		for _, k := range known {
			if strings.HasSuffix(k, "."+path) {
				same = append(same, k)
			}
		}
		if len(same) > 0 {
			hint = "there is " + cli.Names(same, 5)
		}
	}
	if hint == "" {
		tops := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return strings.Contains(k, ".") })
		hint = "there is " + cli.Names(tops, 10)
		if len(tops) == 0 {
			hint = "it has no values"
		}
	}
	return nil, cli.Fail(cli.Usage, hint, "service %s has no value at %q in cohort %s", unit.Service, path, unit.Cohort)
}

// explanation is `explain --json`.
type explanation struct {
	Service string      `json:"service"`
	Cohort  string      `json:"cohort"`
	Host    string      `json:"host"`
	Values  []explained `json:"values"`
}

// explained is one value. Value is null for a secret, and where a layer removed it.
type explained struct {
	Path   string      `json:"path"`
	Origin eval.Origin `json:"origin"`
	setting
	Shadows []setting `json:"shadows"`
}

// setting is what one layer says, and who wrote it there.
type setting struct {
	Layer  string          `json:"layer"` // "" for a value that is computed, or a default
	Value  json.RawMessage `json:"value"`
	Secret bool            `json:"secret"`
	At     eval.Pos        `json:"at"`
	Change *change         `json:"change"` // null when history does not tell
}

// change is who last changed a line. A line that is not committed has no commit.
type change struct {
	Committed bool   `json:"committed"`
	Commit    string `json:"commit"`
	Author    string `json:"author"`
	Email     string `json:"email"`
	Date      string `json:"date"`
	Subject   string `json:"subject"`
}

func explainLeaf(l eval.Leaf) explained {
	x := explained{Path: layer.PathText(l.Path), Origin: l.Origin, setting: settingOf(l.Setting), Shadows: []setting{}}
	if l.Origin == eval.OriginRemoved {
		x.Value = json.RawMessage("null")
	}
	for _, s := range l.Shadows {
		x.Shadows = append(x.Shadows, settingOf(s))
	}
	return x
}

func settingOf(s eval.Setting) setting {
	out := setting{Layer: s.Layer, Value: json.RawMessage(s.Value), Secret: s.Secret, At: s.At}
	if s.Secret || s.Value == "" {
		out.Value = json.RawMessage("null")
	}
	return out
}
