package eval

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"

	"github.com/muster-config/muster/cue/eval/encode"
	"github.com/muster-config/muster/cue/eval/layer"
)

// maxShown bounds how much of a value or a constraint a message quotes.
const maxShown = 80

// reason says in one line why the value n is refused by the constraint s. The value of a secret is not shown.
func (c *checker) reason(g group, n *layer.Node, s cue.Value) string {
	if n == nil || !s.Exists() {
		return c.own(g, s)
	}
	shown := c.show(g.path, n, s)
	if words := choices(s); words != nil {
		switch {
		case c.hidden(g.path, s):
			return shown + " is not one that the schema accepts"
		case len(words) == 1:
			return shown + " is not " + words[0] + c.fixed(s, words[0])
		}
		return shown + " is not one of " + strings.Join(words, ", ")
	}
	kind := kindOf(n)
	if want := s.IncompleteKind(); want != cue.BottomKind && want&kind == 0 {
		return fmt.Sprintf("%s is %s, not %s", shown, n.What(), kinds(want))
	}
	var failed, bounds []string
	for _, part := range conjuncts(s, 0) {
		if n.Kind == layer.Struct || n.Kind == layer.List {
			break
		}
		if want := part.IncompleteKind(); want != cue.BottomKind && want&kind == 0 {
			return fmt.Sprintf("%s is %s, not %s", shown, n.What(), kinds(want))
		}
		if part.Unify(c.ctx.BuildExpr(n.AST())).Validate() == nil {
			continue
		}
		op, args := expr(part)
		switch op {
		case cue.RegexMatchOp:
			failed = append(failed, fmt.Sprintf("does not match %v", args[0]))
		case cue.NotRegexMatchOp:
			failed = append(failed, fmt.Sprintf("matches %v, which it must not", args[0]))
		case cue.NotEqualOp:
			failed = append(failed, "is not allowed")
		case cue.LessThanOp, cue.LessThanEqualOp, cue.GreaterThanOp, cue.GreaterThanEqualOp:
			bounds = append(bounds, oneLine(part))
		case cue.CallOp:
			if text, ok := c.nested(g.path, n, part); ok {
				failed = append(failed, text)
				break
			}
			fallthrough
		default:
			failed = append(failed, "does not satisfy "+cmp.Or(oneLine(part), "the schema"))
		}
	}
	if len(bounds) > 0 {
		failed = append(failed, "is out of range: it must be "+strings.Join(bounds, " and "))
	}
	if len(failed) > 0 {
		return shown + " " + strings.Join(failed, " and ")
	}
	if text := oneLine(s); text != "" {
		return shown + " does not fit " + text
	}
	return c.own(g, s)
}

// fixedHint tells the message of a value that the package leaves no choice of.
const fixedHint = ": the package fixes the value"

// fixed says what to do about it.
func (c *checker) fixed(s cue.Value, word string) string {
	kind := map[cue.Kind]string{cue.StringKind: "string", cue.IntKind: "int", cue.FloatKind: "number", cue.BoolKind: "bool"}[s.IncompleteKind()]
	if c.home == nil || kind == "" {
		return ""
	}
	return fmt.Sprintf("%s; make it a default, `*%s | %s`, or move it to base", fixedHint, word, kind)
}

// fixedToo adds the place of p to the errors that say of its path that the package fixes the value, and reports whether there are any: it is one mistake,
// whichever layers try.
func fixedToo(problems []Problem, p Problem) bool {
	found := false
	for i, q := range problems {
		if q.Severity == SeverityError && q.Path == p.Path && strings.Contains(q.Message, fixedHint) && strings.Contains(p.Message, fixedHint) {
			problems[i].SetAt = distinct(slices.Concat(q.SetAt, p.SetAt))
			found = true
		}
	}
	return found
}

// own is CUE's message, in one line, or nothing of it for a secret.
func (c *checker) own(g group, s cue.Value) string {
	if c.hidden(g.path, s) {
		return "does not fit the schema (it is a secret: the value is not shown)"
	}
	if len(g.path) > 0 && c.within != nil && slices.ContainsFunc(g.errs, mayQuote) && c.within(s) {
		return "does not fit the schema (there is a secret in it: the value is not shown)"
	}
	for _, e := range slices.Backward(g.errs) {
		format, args := e.Msg()
		text := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
		if inner := calls(e); inner != "" {
			text += ": " + inner
		}
		if text == "" || strings.HasSuffix(text, emptyDisjunction+":") {
			continue
		}
		if c.within != nil && mayQuote(e) && secretName.MatchString(text) {
			return "does not fit the schema (the message would show a secret)"
		}
		return cut(text, 3*maxShown)
	}
	return "does not fit the schema"
}

// mayQuote reports whether CUE's message may have a value in it.
func mayQuote(e errors.Error) bool {
	format, _ := e.Msg()
	return !slices.ContainsFunc([]string{"required but not present", "incomplete value", "not allowed", "undefined field", "not found", "structural cycle"},
		func(s string) bool { return strings.Contains(format, s) })
}

// show is a value as a message quotes it.
func (c *checker) show(path []string, n *layer.Node, s cue.Value) string {
	switch {
	case c.hidden(path, s):
		return "the value (a secret, not shown)"
	case n.Kind == layer.Struct || n.Kind == layer.List:
		return "the value"
	case c.within != nil && c.within(s):
		return "the value (where a secret belongs, not shown)"
	}
	if text, ok := n.Value.(string); ok && secretName.MatchString(text) && strings.ContainsAny(text, ":=") {
		return "the value (it holds a secret, not shown)" // `password: …` in a text of YAML, `password=…` in the name of a data source
	}
	return showPlain(n.Value)
}

func showPlain(v encode.Value) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(cut(v, maxShown))
	case encode.Number:
		return cut(string(v), maxShown)
	case nil:
		return "null"
	}
	return fmt.Sprint(v)
}

func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}

// wanted is a constraint as a message about a missing field names it.
func wanted(s cue.Value) string {
	if words := choices(s); len(words) > 1 {
		return "one of " + strings.Join(words, ", ")
	}
	if k := s.IncompleteKind(); k == cue.StructKind || k == cue.ListKind {
		return kinds(k)
	}
	if text := cmp.Or(written(s), oneLine(s)); text != "" {
		return text
	}
	return "it"
}

// oneLine is a constraint as CUE writes it, or "" when that takes more than a line.
func oneLine(v cue.Value) string {
	if !v.Exists() {
		return ""
	}
	s := strings.TrimSpace(fmt.Sprint(v))
	if strings.Contains(s, "\n") || len(s) > maxShown || strings.HasPrefix(s, "_|_") {
		return ""
	}
	return s
}

// choices are the values of a constraint that is nothing but a list of them, in the order of the schema.
func choices(v cue.Value) []string {
	if v.IncompleteKind()&(cue.StructKind|cue.ListKind) != 0 {
		return nil
	}
	op, args := expr(v)
	if op == cue.OrOp {
		var out []string
		for _, a := range args {
			words := choices(a)
			if words == nil {
				return nil
			}
			for _, w := range words {
				if !slices.Contains(out, w) {
					out = append(out, w)
				}
			}
		}
		return out
	}
	if !v.IsConcrete() || v.Err() != nil {
		return nil
	}
	p, err := layer.Plain(v)
	if err != nil {
		return nil
	}
	return []string{showPlain(p)}
}

// expr is the constraint as an expression, behind references to definitions.
func expr(v cue.Value) (op cue.Op, args []cue.Value) {
	defer func() {
		if recover() != nil { // the library cannot take a slice of a text, `a[1:]`, apart
			op, args = cue.NoOp, []cue.Value{v}
		}
	}()
	op, args = v.Expr()
	for range 8 {
		if op != cue.SelectorOp {
			break
		}
		d := cue.Dereference(v)
		if d == v {
			break
		}
		v = d
		op, args = v.Expr()
	}
	return op, args
}

// conjuncts are the parts of a constraint that must all hold.
func conjuncts(v cue.Value, depth int) []cue.Value {
	op, args := expr(v)
	switch {
	case depth > 8:
	case op == cue.OrOp:
		// `*"0s" | =~"…"`: a default of the same kind adds nothing to what is accepted.
		var types []cue.Value
		var kinds cue.Kind
		for _, a := range args {
			if a.IsConcrete() {
				kinds |= a.IncompleteKind()
			} else {
				types = append(types, a)
			}
		}
		if len(types) == 1 && kinds&^types[0].IncompleteKind() == 0 {
			return conjuncts(types[0], depth+1)
		}
	case op == cue.AndOp:
		var out []cue.Value
		for _, a := range args {
			out = append(out, conjuncts(a, depth+1)...)
		}
		return out
	case op == cue.NoOp && len(args) == 1:
		if inner, _ := expr(args[0]); inner != cue.NoOp {
			return conjuncts(args[0], depth+1)
		}
	}
	return []cue.Value{v}
}

func kindOf(n *layer.Node) cue.Kind {
	switch n.Kind {
	case layer.Struct:
		return cue.StructKind
	case layer.List:
		return cue.ListKind
	}
	switch v := n.Value.(type) {
	case bool:
		return cue.BoolKind
	case string:
		return cue.StringKind
	case encode.Number:
		if strings.Contains(string(v), ".") {
			return cue.FloatKind
		}
		return cue.IntKind
	}
	return cue.NullKind
}

// kinds names what a constraint accepts.
func kinds(k cue.Kind) string {
	var out []string
	for _, w := range []struct {
		k    cue.Kind
		name string
	}{
		{cue.StringKind, "a string"}, {cue.NumberKind, "a number"}, {cue.IntKind, "an integer"}, {cue.FloatKind, "a float"}, {cue.BoolKind, "a bool"},
		{cue.ListKind, "a list"}, {cue.StructKind, "a struct"}, {cue.NullKind, "null"}, {cue.BytesKind, "bytes"},
	} {
		if k&w.k == w.k {
			out = append(out, w.name)
			k &^= w.k
		}
	}
	return strings.Join(out, " or ")
}

// nearest is the name that was probably meant, or "".
func nearest(name string, names []string) string {
	best, limit := "", 1+len(name)/4
	for _, n := range names {
		if d := distance(strings.ToLower(n), strings.ToLower(name)); d <= limit && n != name {
			best, limit = n, d-1
		}
	}
	return best
}

// distance is the number of letters to insert, delete, replace or swap with the next one.
func distance(a, b string) int {
	before, prev := []int(nil), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur := make([]int, len(b)+1)
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+same)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev = prev, cur
	}
	return prev[len(b)]
}
