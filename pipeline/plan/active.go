package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Active is what was decided by hand, or by a halt, and acts on a cohort now: in a store, and not in the config repo.
type Active struct {
	Kind   string     `json:"kind"` // halt, pause, freeze, hold, override
	ID     string     `json:"id"`   // of an override
	Cohort string     `json:"cohort"`
	Hosts  []string   `json:"hosts"` // empty: the whole cohort
	By     string     `json:"by"`
	Why    string     `json:"why"`
	Since  time.Time  `json:"since"`
	Until  *time.Time `json:"until,omitempty"`
	Text   string     `json:"text"` // all that in one line
	// Over are the values that the plan changes and this override sets: its hosts see the change when it ends.
	Over []Over `json:"over"`
	// Blocked is why head cannot be published for the cohort while the override lives: it no longer fits.
	Blocked string `json:"blocked,omitempty"`
}

// Acting is Active with the paths that an override sets, by service. What it sets them to is nobody's here.
type Acting struct {
	Active
	Paths map[string][]string
}

// Over is a value under an override.
type Over struct {
	Service string `json:"service"`
	Path    string `json:"path"`
}

// Under notes what acts on the fleet while the plan is made, and what of the plan lies under it. A cohort that an override blocks is blocked.
func (p *Plan) Under(active []Acting) {
	for _, a := range active {
		a.Hosts, a.Over = append([]string{}, a.Hosts...), []Over{}
		for _, v := range p.Values {
			if a.over(v) {
				a.Over = append(a.Over, Over{v.Service, v.Path})
			}
		}
		p.Active = append(p.Active, a.Active)
	}
}

func (a *Acting) over(v Value) bool {
	in := slices.Contains(v.In.Cohorts, a.Cohort) || slices.ContainsFunc(v.In.Hosts, func(h string) bool {
		cohort, host, _ := strings.Cut(h, "/")
		return cohort == a.Cohort && (len(a.Hosts) == 0 || slices.Contains(a.Hosts, host))
	})
	return in && slices.ContainsFunc(a.Paths[v.Service], func(path string) bool { return within(v.Path, path) || within(path, v.Path) })
}

// within reports whether a path is another one, or is below it.
func within(path, above string) bool {
	rest, ok := strings.CutPrefix(path, above)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// activeLines are what acts, each followed by what that means for this plan.
func (p Plan) activeLines() (out [][]string) {
	for _, a := range p.Active {
		lines := []string{a.Text}
		if len(a.Over) > 0 {
			var paths []string
			for _, o := range a.Over {
				paths = append(paths, o.Service+" "+o.Path)
			}
			text := fmt.Sprintf("%s: shadowed by override %s of %s", names(paths, 6), a.ID, a.By)
			if a.Until != nil {
				text += " until " + a.Until.UTC().Format(time.RFC3339)
			}
			lines = append(lines, text)
		}
		if a.Blocked != "" {
			lines = append(lines, fmt.Sprintf("publishing this would block cohort %s: %s", a.Cohort, a.Blocked))
		}
		out = append(out, lines)
	}
	return out
}
