package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
)

func (v Variant) text() string {
	if v.Kind == Removed {
		return fmt.Sprintf("host %s of %s has no files of its own any more", v.Host, v.Cohort)
	}
	return fmt.Sprintf("host %s of %s has files of its own", v.Host, v.Cohort)
}

// refusal says that nothing of head can be published, and why in one line: its errors are told beside it.
func (p Plan) refusal() string {
	errors := 0
	for _, f := range p.Problems {
		if f.Severity == eval.SeverityError {
			errors++
		}
	}
	what := p.Head.Name
	if what == "work tree" {
		what = "the work tree"
	}
	return fmt.Sprintf("%s does not validate, nothing of it can be published: %s", what, count(errors, "error"))
}

// valueWidth is how much of one value is shown beside another.
const valueWidth = 120

// shorten cuts a long value so that where it differs from the other one still shows.
func shorten(s, other string) string {
	r, o := []rune(s), []rune(other)
	if len(r) <= valueWidth {
		return s
	}
	same := 0
	for same < len(r) && same < len(o) && r[same] == o[same] {
		same++
	}
	from := max(0, min(same-valueWidth/3, len(r)-valueWidth))
	cutAt := min(len(r), from+valueWidth)
	text := string(r[from:cutAt])
	if from > 0 {
		text = "…" + text
	}
	if cutAt < len(r) {
		text += "…"
	}
	return text
}

// setLines say where a value comes from, and where it came from if that tells more.
func (v Value) setLines() []string {
	var out []string
	for _, s := range v.Set {
		out = append(out, s.verb()+" "+s.place())
	}
	// A line that is gone, or one of another layer: the next place to look.
	if len(v.Set) == 0 || !slices.EqualFunc(v.Set, v.Was, func(a, b Set) bool { return a.Layer == b.Layer && a.Origin == b.Origin && a.At.File == b.At.File }) {
		for _, s := range v.Was {
			out = append(out, "was "+s.verb()+" "+s.place())
		}
	}
	return out
}

func (s Set) verb() string {
	switch s.Origin {
	case eval.OriginComputed:
		return "computed at"
	case eval.OriginDefault:
		return "default at"
	case eval.OriginRemoved:
		return "removed at"
	}
	return "set at"
}

// place is file:line:col (layer), as far as they are known.
func (s Set) place() string {
	at := printable(s.At.String())
	switch {
	case at == "" && s.Layer == "":
		return "(place unknown)"
	case at == "":
		return printable(s.Layer)
	case s.Layer == "":
		return at
	}
	return at + " (" + printable(s.Layer) + ")"
}

func (s Setting) text(path func(string) string) string {
	switch s.Kind {
	case Added:
		if s.After == "true" && strings.Contains(s.Path, ".hosts.list.") {
			return path(s.Path)
		}
		return path(s.Path) + "  " + s.After
	case Removed:
		if s.Before == "true" && strings.Contains(s.Path, ".hosts.list.") {
			return path(s.Path)
		}
		return path(s.Path) + "  " + s.Before
	}
	return path(s.Path) + "  " + s.Before + " → " + s.After
}

// steers reports whether a rollout policy, or a cohort's choice of one, changes.
func (p Plan) steers() bool {
	return slices.ContainsFunc(p.Policy, func(s Setting) bool {
		return strings.HasPrefix(s.Path, "rollouts.") || strings.HasSuffix(s.Path, ".rollout")
	})
}

// text is what becomes of a cohort, in one line.
func (c Cohort) text() string {
	steps := ""
	if len(c.Waves) > 0 {
		steps = "; " + c.Rollout + ": " + wavesText(c.Waves)
	}
	switch c.State {
	case StateUnchanged:
		return "unchanged, " + c.Hosts.String()
	case StateBlocked:
		return "blocked, its hosts keep what they have: " + c.Why
	case StateUnknown:
		return "not compared: " + c.Why + "; " + c.Hosts.String() + steps
	case StateAdded:
		return "new, " + c.Hosts.String() + ": " + names(c.Services, 6) + steps
	case StateRemoved:
		return "removed, " + c.Hosts.String() + ": publish asks for --remove-cohort=" + c.Name
	}
	hosts := c.Affected.String()
	if c.Affected.String() != c.Hosts.String() {
		hosts = c.Affected.String() + " of " + c.Hosts.String()
	}
	return hosts + ": " + names(c.Services, 6) + steps
}

// wavesText is "120 hosts at once", or "3 waves: 6 hosts (5%, bake 10m), then 30 (25%, bake 30m), then all 120": how many have it after each.
func wavesText(waves []Wave) string {
	parts := make([]string, 0, len(waves))
	for i, w := range waves {
		known, last := len(w.Hosts.Unknown) == 0, i == len(waves)-1
		s := w.What
		switch {
		case known && i == 0:
			s = w.Hosts.String()
		case known && w.Hosts.Min != w.Hosts.Max:
			s = number(w.Hosts.Min) + " to " + number(w.Hosts.Max)
		case known:
			s = number(w.Hosts.Max)
		case w.What == "100%":
			s = "all hosts"
		}
		switch {
		case len(waves) == 1:
			s += " at once"
		case known && last && w.What == "100%":
			s = "all " + s
		}
		var more []string
		if known && !last {
			more = append(more, w.What)
		}
		if w.Bake != "" && w.Bake != "0s" {
			more = append(more, "bake "+w.Bake)
		}
		if len(more) > 0 {
			s += " (" + strings.Join(more, ", ") + ")"
		}
		if w.Approve {
			s = "after approval " + s
		}
		parts = append(parts, s)
	}
	text := strings.Join(parts, ", then ")
	if len(waves) > 1 {
		text = fmt.Sprintf("%d waves: %s", len(waves), text)
	}
	return text
}

// remarks are what a reader should know beside the changes, each in one line of plain text.
func (p Plan) remarks() []string {
	var out []string
	for _, s := range p.Shadowed {
		out = append(out, s.text())
	}
	for _, u := range p.Unrendered {
		what := u.Service
		if what == "" {
			what = "the repo"
		}
		out = append(out, fmt.Sprintf("%s: source changed, nothing rendered changed (%s)", what, names(u.Files, 3)))
	}
	for _, m := range p.NotCompared {
		if m.Service == "" {
			out = append(out, fmt.Sprintf("%s has no fleet that can be read: nothing could be compared in %s", p.Base.Name, names(m.Cohorts, 6)))
			continue
		}
		out = append(out, fmt.Sprintf("%s: not compared in %s: it does not validate in %s", m.Service, names(m.Cohorts, 6), p.Base.Name))
	}
	return append(out, p.Notes...)
}

func (s Shadowed) text() string {
	edit := map[Kind]string{Added: "a new line", Changed: "an edit", Removed: "the line that was removed"}[s.Kind]
	by := s.By.Layer
	if at := s.By.At.String(); at != "" {
		by += " at " + at
	}
	verb := "is shadowed by"
	if s.By.Origin == eval.OriginRemoved {
		verb = "is without effect, the value is removed by"
	}
	return fmt.Sprintf("%s: %s: %s at %s %s %s in %s", s.Service, s.Path, edit, s.Edit.place(), verb, by, s.In.short())
}

// short names cohorts and hosts without counting them.
func (w Where) short() string {
	s := names(slices.Concat(w.Cohorts, w.Hosts), 6)
	if len(w.Except) > 0 {
		s += " except " + names(w.Except, 3)
	}
	return s
}

// text is a finding in one line.
func (p Problem) text() string {
	s := p.Message
	if p.Path != "" {
		s = p.Path + ": " + s
	}
	if p.Service != "" {
		s = p.Service + ": " + s
	}
	if len(p.Cohorts) > 0 {
		s += " (" + names(p.Cohorts, 6) + ")"
	}
	return string(p.Severity) + ": " + s
}
