package eval

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/token"

	"github.com/muster-config/muster/cue/eval/layer"
)

// probeEpoch is another epoch than 0, large and odd, so that what branches on the epoch probably differs; its digits are in no file by accident.
const probeEpoch = 1<<52 + 1

// branching renders a unit that refers to release.epoch once more at another epoch. A file may hold the number; if anything else differs, the
// package branches on it, and its files would change although nobody changed the service.
func (r *serviceRun) branching(t target, u *Unit) []Problem {
	r.probing = true
	other, _, problems := r.unit(t, probeEpoch)
	r.probing = false
	used := usedAt(r.inst, "release")
	number := strconv.Itoa(probeEpoch)
	if other == nil {
		problems = slices.DeleteFunc(problems, func(p Problem) bool { return p.Severity != SeverityError })
		for i, p := range problems {
			problems[i].Message = fmt.Sprintf("release.epoch rises up to 2^53, and at %s: %s", number, p.Message)
			problems[i].SetAt = distinct(append(p.SetAt, used...))
		}
		return problems
	}
	fail := func(path []string, format string, args ...any) []Problem {
		return []Problem{{
			Severity: SeverityError, Service: r.name, Path: layer.PathText(path), SetAt: used,
			Message: fmt.Sprintf(format, args...) + ": a file may hold the epoch, and nothing may depend on it, since it rises when the service does not change",
		}}
	}
	if other.Evidence != u.Evidence {
		return fail([]string{"confirm"}, "branches on release.epoch")
	}
	var out []Problem
	at0 := map[string]File{}
	for _, f := range u.Files {
		at0[f.Name] = f
	}
	for _, f := range other.Files {
		name := strings.ReplaceAll(f.Name, number, "0")
		was, ok := at0[name]
		delete(at0, name)
		where := []string{"files", f.Name}
		switch data := bytes.ReplaceAll(f.Data, []byte(number), []byte("0")); {
		case !ok:
			out = append(out, fail(where, "there only at some epochs")...)
		case f.Name != was.Name:
			out = append(out, fail([]string{"files", was.Name}, "its name depends on release.epoch")...)
		case was.Mode != f.Mode:
			out = append(out, fail(where, "its mode branches on release.epoch")...)
		case !bytes.Equal(was.Data, data):
			out = append(out, fail(where, "line %d of it branches on release.epoch", differs(was.Data, data))...)
		}
	}
	for _, name := range sorted(at0) {
		out = append(out, fail([]string{"files", name}, "there only at some epochs")...)
	}
	return out
}

// differs is the first line that differs.
func differs(a, b []byte) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return 1 + bytes.Count(a[:i], []byte("\n"))
}

// usedAt are places where the package uses a top-level field of its own, the first few.
func usedAt(inst *build.Instance, name string) []Pos {
	var at []token.Pos
	uses(inst, name, func(id *ast.Ident) bool {
		at = append(at, id.Pos())
		return len(at) < 3
	})
	return positions(at...)
}
