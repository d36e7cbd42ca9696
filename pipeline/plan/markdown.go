package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
)

// MaxMarkdown is the most that Markdown writes, in bytes: a comment on GitHub may have 65,536 characters, however it counts them.
const MaxMarkdown = 65_000

// Shares of MaxMarkdown. The verdict, the errors, the cohorts and the notes come first, each within its share; then the fleet and one folded section a service, in
// order, each within its own; a section that no longer fits is left out whole. Whatever is left out is said, and how to see all.
const (
	maxErrors  = 14_000
	maxCohorts = 12_000
	maxNotes   = 8_000
	maxSection = 12_000
	maxTail    = 1_000
)

// Markdown is the plan as a comment. Nothing in it that is other people's text is taken for markdown, HTML, a mention or a link. all is a command that shows
// everything.
func (p Plan) Markdown(all string) string {
	var head, body strings.Builder
	title := "changes"
	switch {
	case !p.Head.Valid:
		title = "not valid"
	case !p.Changes:
		title = "no changes"
	}
	fmt.Fprintf(&head, "### muster plan: %s\n\n**%s**\n\n%s against %s", title, prose(p.Summary), code(p.Head.Name), code(p.Base.Name))
	if p.Digest != "" {
		fmt.Fprintf(&head, " · digest <code>%s</code>", p.Digest)
	}
	head.WriteByte('\n')
	part := func(heading string, max int, blocks []string) {
		if len(blocks) > 0 {
			fmt.Fprintf(&head, "\n%s\n", heading)
			head.WriteString(fit(blocks, max, "line", all))
		}
	}
	var acts []string
	for _, lines := range p.activeLines() {
		block := "- " + prose(lines[0]) + "\n"
		for _, line := range lines[1:] {
			block += "  - **" + prose(line) + "**\n"
		}
		acts = append(acts, block)
	}
	part("#### Acts now, by hand\n", maxNotes, acts)
	part("#### Errors\n", maxErrors, p.mdProblems(eval.SeverityError))
	if !p.Refused() { // else each would say the same
		part("| | cohort | |\n|---|---|---|", maxCohorts, p.mdCohorts())
	}
	part("#### Notes\n", maxNotes, append(p.mdProblems(eval.SeverityWarning, eval.SeverityNotice), p.mdRemarks()...))

	var left []string
	for _, s := range p.mdSections() {
		text := "\n<details><summary>" + s.summary + "</summary>\n\n" + fit(s.blocks, maxSection, s.noun, all) + "\n</details>\n"
		if head.Len()+body.Len()+len(text)+maxTail > MaxMarkdown {
			left = append(left, s.name)
			continue
		}
		body.WriteString(text)
	}
	if len(left) > 0 {
		shown := left[:min(len(left), 8)] // a name has at most 63 characters
		text := "\nLeft out, to stay within the size of a comment: " + code(strings.Join(shown, ", "))
		if more := len(left) - len(shown); more > 0 {
			text += fmt.Sprintf(" and %s more", number(more))
		}
		body.WriteString(text + ". " + seeAll(all) + "\n")
	}
	return head.String() + body.String()
}

func seeAll(command string) string {
	if command == "" {
		return "`muster plan` shows all."
	}
	return code(cut(command, 120)) + " shows all."
}

// fit joins blocks while they fit, and says how many do not.
func fit(blocks []string, max int, noun, all string) string {
	var b strings.Builder
	for i, block := range blocks {
		if b.Len()+len(block) > max {
			left := len(blocks) - i
			fmt.Fprintf(&b, "\n%s left out. %s\n", count(left, noun), seeAll(all))
			break
		}
		b.WriteString(block)
	}
	return b.String()
}

func (p Plan) mdProblems(severities ...eval.Severity) []string {
	var out []string
	for _, f := range p.Problems {
		if !slices.Contains(severities, f.Severity) {
			continue
		}
		if f.Severity != eval.SeverityError && !f.New {
			continue // everybody knows it already
		}
		line := "- "
		if f.Severity != eval.SeverityError {
			line += string(f.Severity) + ": "
		}
		if f.Service != "" {
			line += code(f.Service) + " "
		}
		if f.Path != "" {
			line += code(f.Path) + ": "
		}
		line += prose(cut(f.Message, 400))
		if len(f.Cohorts) > 0 {
			line += " (" + prose(names(f.Cohorts, 6)) + ")"
		}
		for _, at := range f.SetAt[:min(len(f.SetAt), 3)] {
			line += " · set at " + code(at.String())
		}
		for _, at := range f.SchemaAt[:min(len(f.SchemaAt), 2)] {
			line += " · schema at " + code(at.String())
		}
		out = append(out, line+"\n")
	}
	return out
}

func (p Plan) mdCohorts() []string {
	var out []string
	for _, c := range p.Cohorts {
		mark := map[State]string{StateAdded: "+", StateRemoved: "−", StateChanged: "~", StateBlocked: "⛔", StateUnknown: "?", StateUnchanged: ""}[c.State]
		out = append(out, fmt.Sprintf("| %s | %s | %s |\n", mark, code(c.Name), prose(cut(c.text(), 500))))
	}
	return out
}

func (p Plan) mdRemarks() []string {
	var out []string
	for _, r := range p.remarks() {
		out = append(out, "- "+prose(cut(r, 500))+"\n")
	}
	return out
}

type mdSection struct {
	name, summary, noun string
	blocks              []string
}

func (p Plan) mdSections() []mdSection {
	var out []mdSection
	if len(p.Policy) > 0 {
		s := mdSection{name: "fleet", summary: "fleet: " + count(len(p.Policy), "setting"), noun: "setting"}
		for _, set := range p.Policy {
			s.blocks = append(s.blocks, "- "+mdSign(set.Kind)+" "+code(cut(set.text(func(p string) string { return p }), 2*valueWidth))+"\n")
		}
		if p.steers() {
			s.blocks = append(s.blocks, "\nA rollout runs under the policy of the release it starts from: this counts from the next one on.\n")
		}
		out = append(out, s)
	}
	for _, name := range p.servicesOf() {
		out = append(out, p.mdService(name))
	}
	return out
}

func mdSign(k Kind) string {
	return map[Kind]string{Added: "➕", Removed: "➖", Changed: "✏️"}[k]
}

func (p Plan) mdService(name string) mdSection {
	s := mdSection{name: name, noun: "change"}
	add := func(format string, args ...any) { s.blocks = append(s.blocks, fmt.Sprintf(format, args...)) }
	var parts []string
	for _, x := range p.Services {
		if x.Service == name {
			parts = append(parts, string(x.Kind))
			add("- %s service %s: %s, %s — %s\n", mdSign(x.Kind), x.Kind, count(x.Values, "value"), count(x.Files, "file"), prose(x.In.String()))
		}
	}
	values, files := map[string]bool{}, map[string]bool{}
	for _, v := range p.Values {
		if v.Service != name {
			continue
		}
		values[v.Path] = true
		what := ""
		switch {
		case v.Secret:
			what = "(secret) " + string(v.Kind)
		case v.Kind == Added:
			what = code(shorten(v.After, ""))
		case v.Kind == Removed:
			what = code(shorten(v.Before, ""))
		default:
			what = code(shorten(v.Before, v.After)) + " → " + code(shorten(v.After, v.Before))
		}
		add("- %s %s %s — %s%s\n", mdSign(v.Kind), code(cut(v.Path, 200)), what, prose(v.In.String()), mdPlaces(v))
	}
	for _, e := range p.Evidence {
		if e.Service == name {
			add("- %s confirm: %s → %s — %s\n", mdSign(Changed), code(string(e.Before)), code(string(e.After)), prose(e.In.String()))
		}
	}
	for _, v := range p.Variants {
		if v.Service == name {
			add("- %s %s\n", mdSign(v.Kind), prose(v.text()))
		}
	}
	for _, f := range p.Files {
		if f.Service != name {
			continue
		}
		files[f.Name] = true
		mode := ""
		if f.Mode != "" {
			mode = " mode " + code(f.Mode)
		}
		text := fmt.Sprintf("- %s file %s%s — %s\n", mdSign(f.Kind), code(cut(f.Service+"/"+f.Name, 300)), mode, prose(f.In.String()))
		if f.Diff != "" {
			text += "\n" + fenced(f.Diff) + "\n"
		}
		s.blocks = append(s.blocks, text)
	}
	if len(values) > 0 {
		parts = append(parts, count(len(values), "value"))
	}
	if len(files) > 0 {
		parts = append(parts, count(len(files), "file"))
	}
	s.summary = code(name)
	if len(parts) > 0 {
		s.summary += ": " + strings.Join(parts, ", ")
	}
	return s
}

func mdPlaces(v Value) string {
	lines := v.setLines()
	if len(lines) == 0 {
		return ""
	}
	var b strings.Builder
	for _, l := range lines[:min(len(lines), 4)] {
		b.WriteString(" · " + code(l))
	}
	if more := len(lines) - 4; more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}

// fenced is a code block that its content cannot end: the fence is longer than any run of backticks in it.
func fenced(text string) string {
	longest, run := 2, 0
	for _, r := range text {
		if run++; r != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	fence := strings.Repeat("`", longest+1)
	var b strings.Builder
	b.WriteString(fence + "diff\n")
	for line := range strings.Lines(text) {
		b.WriteString(printable(strings.TrimSuffix(line, "\n")) + "\n")
	}
	b.WriteString(fence + "\n")
	return b.String()
}

// code is other people's text as code: GitHub looks for no mention, issue or link in it.
func code(s string) string { return "<code>" + escape(s, true) + "</code>" }

// prose is text in which nothing means anything.
func prose(s string) string { return escape(s, false) }

// escape writes every character that could mean something as a reference, which markdown never takes for its own. GitHub looks for mentions and issues after that,
// in what is not code: there the character that begins one is code by itself.
func escape(s string, inCode bool) string {
	var b strings.Builder
	runes := []rune(printable(s))
	for i, r := range runes {
		plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(` /,;%?="'{}`, r) || r >= 0x80
		// A dot or a dash inside a word is nothing; at the beginning it could make a list, and www. makes a link.
		if (r == '.' || r == '-' || r == '(' || r == ')') && i > 0 {
			plain = !(r == '.' && ends(runes[:i], "www") || r == '-' && ends(runes[:i], "gh"))
		}
		switch {
		case plain:
			b.WriteRune(r)
		case !inCode && (r == '@' || r == '#' || r == '-'):
			fmt.Fprintf(&b, "<code>&#%d;</code>", r)
		default:
			fmt.Fprintf(&b, "&#%d;", r)
		}
	}
	return b.String()
}

func ends(text []rune, word string) bool {
	return len(text) >= len(word) && strings.EqualFold(string(text[len(text)-len(word):]), word)
}
