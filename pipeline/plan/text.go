package plan

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/muster-config/muster/cue/eval"
)

// JSON writes the plan as a document.
func (p Plan) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(p)
}

// TextOptions of Text.
type TextOptions struct {
	Colour bool // for a terminal
}

// Text writes the plan as people read it. Problems that are errors are not in it: who called prints them as validate does.
func (p Plan) Text(out io.Writer, opts TextOptions) error {
	w := &textWriter{Writer: bufio.NewWriter(out), TextOptions: opts}
	w.linef("plan: %s against %s", p.Head.Name, p.Base.Name)
	if p.Refused() { // there is nothing to compare
		w.linef("\n%s", w.bold(p.Summary))
		return w.Flush()
	}
	for _, lines := range p.activeLines() {
		w.linef("%s", w.paint("33", printable(lines[0])))
		for _, line := range lines[1:] {
			w.linef("    %s", printable(line))
		}
	}
	for _, service := range p.servicesOf() {
		w.service(p, service)
	}
	w.fleet(p)
	w.cohorts(p)
	w.notes(p)
	w.linef("")
	w.linef("%s", w.bold(p.Summary))
	w.linef("digest %s", p.Digest)
	return w.Flush()
}

// servicesOf are the services of which something is to be said, sorted.
func (p Plan) servicesOf() []string {
	found := map[string]bool{}
	for _, s := range p.Services {
		found[s.Service] = true
	}
	for _, v := range p.Values {
		found[v.Service] = true
	}
	for _, f := range p.Files {
		found[f.Service] = true
	}
	for _, e := range p.Evidence {
		found[e.Service] = true
	}
	for _, v := range p.Variants {
		found[v.Service] = true
	}
	var out []string
	for s := range found {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

type textWriter struct {
	*bufio.Writer
	TextOptions
}

func (w *textWriter) linef(format string, args ...any) {
	fmt.Fprintf(w, format+"\n", args...) // bufio keeps the first error for Flush
}

func (w *textWriter) paint(code, s string) string {
	if !w.Colour || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (w *textWriter) bold(s string) string { return w.paint("1", s) }
func (w *textWriter) dim(s string) string  { return w.paint("2", s) }

// sign is how a kind of change is marked.
func (w *textWriter) sign(k Kind) string {
	switch k {
	case Added:
		return w.paint("32", "+")
	case Removed:
		return w.paint("31", "-")
	}
	return w.paint("33", "~")
}

func (w *textWriter) service(p Plan, name string) {
	w.linef("\n%s", w.bold(name))
	for _, s := range p.Services {
		if s.Service == name {
			w.linef("  %s service %s: %s, %s   %s", w.sign(s.Kind), s.Kind, count(s.Values, "value"), count(s.Files, "file"), w.dim(s.In.String()))
		}
	}
	width := 0
	for _, v := range p.Values {
		if v.Service == name {
			width = max(width, min(40, utf8.RuneCountInString(v.Path)))
		}
	}
	for _, v := range p.Values {
		if v.Service != name {
			continue
		}
		w.linef("  %s %-*s  %s   %s", w.sign(v.Kind), width, printable(v.Path), w.change(v), w.dim(v.In.String()))
		for _, line := range v.setLines() {
			w.linef("      %s", w.dim(line))
		}
	}
	for _, e := range p.Evidence {
		if e.Service == name {
			w.linef("  %s confirm  %s → %s   %s", w.sign(Changed), e.Before, e.After, w.dim(e.In.String()))
		}
	}
	for _, v := range p.Variants {
		if v.Service == name {
			w.linef("  %s %s", w.sign(v.Kind), v.text())
		}
	}
	for _, f := range p.Files {
		if f.Service != name {
			continue
		}
		mode := ""
		if f.Mode != "" {
			mode = "mode " + f.Mode + "   "
		}
		w.linef("  %s file %s   %s%s", w.sign(f.Kind), printable(f.Service+"/"+f.Name), mode, w.dim(f.In.String()))
		for line := range strings.Lines(f.Diff) {
			w.linef("      %s", w.diffLine(printable(strings.TrimSuffix(line, "\n"))))
		}
	}
}

func (w *textWriter) diffLine(s string) string {
	switch {
	case strings.HasPrefix(s, "@@"):
		return w.paint("36", s)
	case strings.HasPrefix(s, "+"):
		return w.paint("32", s)
	case strings.HasPrefix(s, "-"):
		return w.paint("31", s)
	}
	return s
}

// change is a value's change in one line.
func (w *textWriter) change(v Value) string {
	before, after := printable(shorten(v.Before, v.After)), printable(shorten(v.After, v.Before))
	switch {
	case v.Secret:
		return "(secret) " + string(v.Kind)
	case v.Kind == Added:
		return w.paint("32", after)
	case v.Kind == Removed:
		return w.paint("31", before)
	}
	return w.paint("31", before) + " → " + w.paint("32", after)
}

func (w *textWriter) fleet(p Plan) {
	if len(p.Policy) == 0 {
		return
	}
	w.linef("\n%s", w.bold("fleet"))
	for _, s := range p.Policy {
		w.linef("  %s %s", w.sign(s.Kind), printable(cut(s.text(func(p string) string { return p }), 2*valueWidth)))
	}
	if p.steers() {
		w.linef("      %s", w.dim("a rollout runs under the policy of the release it starts from: this counts from the next one on"))
	}
}

func (w *textWriter) cohorts(p Plan) {
	if len(p.Cohorts) == 0 {
		return
	}
	w.linef("\n%s", w.bold("cohorts"))
	width := 0
	for _, c := range p.Cohorts {
		width = max(width, len(c.Name))
	}
	for _, c := range p.Cohorts {
		w.linef("  %s %-*s  %s", w.state(c.State), width, c.Name, printable(c.text()))
	}
}

func (w *textWriter) state(s State) string {
	switch s {
	case StateAdded:
		return w.sign(Added)
	case StateRemoved:
		return w.sign(Removed)
	case StateChanged:
		return w.sign(Changed)
	case StateBlocked:
		return w.paint("31", "!")
	case StateUnknown:
		return w.paint("33", "?")
	}
	return " "
}

func (w *textWriter) notes(p Plan) {
	if remarks := p.remarks(); len(remarks) > 0 {
		w.linef("\n%s", w.bold("notes"))
		for _, r := range remarks {
			w.linef("  %s", printable(r))
		}
	}
	old := 0
	var fresh []Problem
	for _, f := range p.Problems {
		switch {
		case f.Severity == eval.SeverityError:
		case f.New:
			fresh = append(fresh, f)
		default:
			old++
		}
	}
	if len(fresh)+old == 0 {
		return
	}
	w.linef("\n%s", w.bold("warnings"))
	for _, f := range fresh {
		w.linef("  %s", printable(f.text()))
		for _, at := range f.SetAt {
			w.linef("      %s", w.dim("set at "+printable(at.String())))
		}
	}
	if old > 0 {
		w.linef("  %s", w.dim(fmt.Sprintf("%s that %s has too; `muster validate` prints them", count(old, "finding"), p.Base.Name)))
	}
}
