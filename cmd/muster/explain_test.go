package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/pipeline/source"
)

// A value may stand on several lines: the one below is marked with @ where it begins, and with ! at the end of each line that it has.
func TestValueLines(t *testing.T) {
	for name, marked := range map[string]string{
		"x.yaml":         "n: @1!\nm: 2\n",
		"list.yaml":      "l:\n  @- one!\n  # two follows\n  - two!\n\n  - a: 3!\n    b: 4!\nn: 1\n",
		"flat.yaml":      "l:\n@- one!\n- two!\nn: 1\n",
		"last.yaml":      "a:\n  l:\n    @- one!\n    - two!\n  m: 1\n",
		"text.yaml":      "a:\n  t: @|!\n    one!\n\n    # two!\n  m: 1\n",
		"folded.yaml":    "t: @one!\n  two!\nm: 1\n",
		"struct.yaml":    "@s:!\n  a: 1!\n  b: {}!\nm: 1\n",
		"flow.yaml":      "l: @[one, # [!\n  \"]\", two!\n]!\nm: 1\n",
		"x.json":         "{\"n\": @1!,\n \"m\": 2}\n",
		"list.json":      "{\"l\": @[!\n  \"]\",!\n  2!\n], \"n\": 1}!\n",
		"inner.json":     "{\"s\": {\n  \"n\": @1}!\n}\n",
		"struct.toml":    "n = @1!\n[s]\na = 1\n",
		"list.toml":      "l = @[!\n  # ]\n  1,!\n]!\nn = 1\n",
		"text.toml":      "t = @\"\"\"!\none!\n!\n\"\"\"!\nn = 1\n",
		"list.cue":       "base: l: @[!\n\t1, // ]!\n\t// no\n\t{a: \"}\"},!\n]!\nbase: n: 1\n",
		"expression.cue": "#Config: n: @int | *(w *!\n\t2)!\nm: 1\n",
		"x.env":          "A=@1!\nB=2\n",
	} {
		var text strings.Builder
		var want []int
		at := eval.Pos{File: name}
		for i, line := range strings.Split(marked, "\n") {
			if strings.Contains(line, "!") {
				want = append(want, i+1)
			}
			line = strings.Replace(line, "!", "", 1)
			if col := strings.Index(line, "@"); col >= 0 {
				at.Line, at.Col = i+1, col+1
				line = strings.Replace(line, "@", "", 1)
			}
			text.WriteString(line + "\n")
		}
		if diff := cmp.Diff(want, valueLines([]byte(text.String()), at)); diff != "" {
			t.Errorf("%s (-want +got):\n%s\n%s", name, diff, text.String())
		}
	}
	if got := valueLines([]byte("a: 1"), eval.Pos{File: "x.yaml", Line: 9, Col: 9}); len(got) != 1 || got[0] != 9 {
		t.Errorf("a place that the file does not have: %v", got)
	}
}

func TestLatest(t *testing.T) {
	at := func(commit string, day int) source.Line {
		return source.Line{Commit: commit, Author: source.Person{At: time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)}}
	}
	lines := map[int]source.Line{1: at("a", 1), 2: at("c", 3), 3: at("b", 2), 4: {Local: true}, 5: {}}
	for name, test := range map[string]struct {
		numbers []int
		want    string
	}{
		"youngest": {[]int{1, 2, 3}, "c"}, "not there": {[]int{1, 9}, "a"}, "local": {[]int{1, 4, 5}, "local"}, "unknown": {[]int{1, 5}, ""}, "none": {nil, ""},
	} {
		l, ok := latest(lines, test.numbers)
		got := l.Commit
		if l.Local {
			got = "local"
		}
		if got != test.want || ok != (test.want != "") {
			t.Errorf("%s: %q, %t", name, got, ok)
		}
	}
}
