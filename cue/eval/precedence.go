package eval

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"
)

// orderHint tells the message of an overlay for a label that the fleet does not order: the place of `precedence` is added where the fleet's files are.
const orderHint = "which is not in the fleet's precedence"

// unordered says what to do about an overlay for a label, or joint label, that is not in the fleet's order.
func unordered(label, value string, precedence []string) string {
	msg := fmt.Sprintf("an overlay for the label %q, %s", label, orderHint)
	parts := strings.Split(label, "+")
	for _, known := range precedence {
		names := strings.Split(known, "+")
		if len(parts) < 2 || !slices.Equal(slices.Sorted(slices.Values(parts)), slices.Sorted(slices.Values(names))) {
			continue
		}
		// The values of a joint label stand in its order.
		msg += fmt.Sprintf(" (did you mean %q?)", known)
		if values := strings.Split(value, "+"); len(values) == len(parts) {
			of := map[string]string{}
			for i, p := range parts {
				of[p] = values[i]
			}
			for i, n := range names {
				values[i] = of[n]
			}
			msg += fmt.Sprintf(": move it to %s/%s", known, strings.Join(values, "+"))
		}
		return msg
	}
	if near := nearest(label, precedence); near != "" {
		return msg + fmt.Sprintf(" (did you mean %q?): rename it, or add %q to the order in %s", near, label, fleetFile)
	}
	return msg + fmt.Sprintf(": add %q to it in %s", label, fleetFile)
}

const fleetFile = fleetDir + "/fleet.cue"

// placeOrder adds to the messages of unordered where the fleet gives its order. That is no part of a service's answer, which must not change when the
// fleet's text does.
func placeOrder(problems []Problem, files []TreeFile) {
	var at []Pos
	looked := false
	for i, p := range problems {
		if !strings.Contains(p.Message, orderHint) {
			continue
		}
		if !looked {
			at, looked = orderAt(files), true
		}
		if len(at) > 0 {
			problems[i].SetAt = slices.Concat(p.SetAt, at)
			problems[i].Message = strings.Replace(p.Message, fleetFile, at[0].File, 1)
		}
	}
}

// orderAt is where the fleet's `precedence` is.
func orderAt(files []TreeFile) []Pos {
	for _, f := range files {
		if path.Dir(f.Path) != fleetDir || path.Ext(f.Path) != ".cue" {
			continue
		}
		parsed, err := parser.ParseFile(f.Path, f.Data)
		if err != nil {
			continue
		}
		for _, d := range parsed.Decls {
			if field, ok := d.(*ast.Field); ok {
				if name, _, err := ast.LabelName(field.Label); err == nil && name == "precedence" {
					return positions(field.Pos())
				}
			}
		}
	}
	return nil
}
