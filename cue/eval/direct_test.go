package eval

import (
	"strings"
	"testing"
)

func TestDirectSaysTheSame(t *testing.T) {
	head := "package s\n#Config: {a: int, l: [...int], n: *null | string, d: *{e: 1} | {e: 2}, o?: int, b: *'x' | bytes, s: *\"\\(a)\" | string, m: [string]: int}\nvalues: #Config\n"
	config := "-- services/s/base.yaml --\na: 1\nl: [1, 2]\nm: {x: 1, \"y-z\": 2}\n-- services/s/overlays/env/prod.yaml --\na: 2\n"
	plain := strings.Replace(head, "b: *'x' | bytes, ", "", 1)
	for name, c := range map[string]struct {
		cue    string
		direct bool
	}{
		"values":                {plain + `files: "f.yaml": {format: "yaml", data: values}`, true},
		"two at once":           {plain + `files: {"f.yaml": {format: "yaml", mode: "0600", data: values}, g: {format: "env", data: {A: values.a, B: "x", C: true}}}`, true},
		"two statements":        {plain + "files: f: {format: \"json\", data: values.d}\nfiles: g: {format: \"json\", data: [values.l, values.m.\"y-z\", values.n]}", true},
		"confirm":               {plain + "confirm: \"disk\"\nfiles: f: {format: \"json\", data: values}", true},
		"no such grade":         {plain + "confirm: \"no\"\nfiles: f: {format: \"json\", data: values}", true},
		"cohort":                {plain + "cohort: {name: string, labels: [string]: string}\nfiles: f: {format: \"json\", data: [cohort.name, cohort.labels.env]}", true},
		"an epoch":              {plain + "release: epoch: int\nfiles: f: {format: \"json\", data: {e: release.epoch, v: values}}", true},
		"host without a value":  {plain + "host: {name: string, labels: [string]: string}\nfiles: f: {format: \"json\", data: host.name}", true},
		"nothing there":         {plain + `files: f: {format: "json", data: values.o}`, true},
		"no such field":         {plain + `files: f: {format: "json", data: values.zz}`, true},
		"through a scalar":      {plain + `files: f: {format: "json", data: values.a.b}`, true},
		"bytes beside it":       {head + `files: f: {format: "json", data: values.a}`, true},
		"bytes":                 {head + `files: f: {format: "json", data: values}`, true},
		"no place in a format":  {plain + `files: f: {format: "env", data: values}`, true},
		"empty":                 {plain + `files: f: {format: "json", data: {a: [], b: {}}}`, true},
		"clash":                 {plain + `files: {f: {format: "json", data: 1 & 1}, F: {format: "json", data: values}}`, false},
		"clash by case":         {plain + `files: {f: {format: "json", data: values}, F: {format: "json", data: values}}`, true},
		"below a file":          {plain + `files: {f: {format: "json", data: values}, "f/g": {format: "json", data: values}}`, true},
		"no files":              {plain + "files: {}", true},
		"a bad name":            {plain + `files: "/f": {format: "json", data: values}`, false},
		"no data":               {plain + `files: f: format: "json"`, false},
		"no format":             {plain + `files: f: data: values`, false},
		"an odd mode":           {plain + `files: f: {format: "json", mode: "4755", data: values}`, false},
		"an unknown field":      {plain + `files: f: {format: "json", data: values, owner: "root"}`, false},
		"in two parts":          {plain + "files: f: format: \"json\"\nfiles: f: data: values", false},
		"a pattern":             {plain + "files: [string]: mode: \"0600\"\nfiles: f: {format: \"json\", data: values}", false},
		"a shadowed root":       {plain + `files: f: {format: "json", data: {values: 1, x: values}}`, false},
		"a shadowed root above": {plain + `files: {values: {format: "json", data: {x: values.format}}}`, false},
		"an embedded struct":    {plain + "#F: files: [string]: mode: \"0600\"\n#F\nfiles: f: {format: \"json\", data: values}", false},
		"a constraint":          {plain + `files: f: {format: "json", data: values & {a: <2}}`, false},
		"another field":         {plain + "x: 3\n" + `files: f: {format: "json", data: x}`, false},
		"a hidden field":        {plain + `files: f: {format: "json", data: {_x: 1, y: _x}}`, false},
		"a let":                 {plain + `files: f: {format: "json", data: {let v = values.a, y: v}}`, false},
		"optional":              {plain + `files: f: {format: "json", data: {a?: 1, b: values.a}}`, false},
		"interpolated":          {plain + `files: f: {format: "json", data: "\(values.a)"}`, false},
		"conditional":           {plain + `files: f: {format: "json", data: {if values.a > 1 {big: true}, a: values.a}}`, false},
		"an import":             {strings.Replace(plain, "package s\n", "package s\nimport values2 \"strings\"\n", 1) + `files: f: {format: "text", data: values2.ToUpper("x")}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			req := repo(oneCohort + "-- services/s/s.cue --\n" + c.cue + "\n" + config)
			tree := newTree(req.Files)
			inst := tree.load("services/s")["services/s"]
			if got := separable(inst) && rendersDirectly(inst) != nil; got != c.direct {
				t.Errorf("rendered directly: %v", got)
			}
			sameAsLong(t, req)
		})
	}
}
