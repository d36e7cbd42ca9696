package eval

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval/layer"
)

// service is one directory under services/ as its files say, before CUE.
type service struct {
	name     string
	dir      string
	base     *layerFile
	overlays map[string]map[string]*layerFile // label → value
	cue      []string
}

// layerFile is one layer that is a file.
type layerFile struct {
	path  string
	label string // "" for base
	value string
	node  *layer.Node // nil when it could not be read

	broken  bool     // it has errors: who takes it gets no unit
	cohorts []string // that take it; nil is all, or none
}

// discover finds and reads the layers of a service.
func (e *evaluation) discover(name string) (*service, []Problem) {
	t := e.tree
	s := &service{name: name, dir: "services/" + name, overlays: map[string]map[string]*layerFile{}}
	s.cue = t.cueFiles(s.dir)
	var problems []Problem
	fail := func(severity Severity, file, format string, args ...any) {
		problems = append(problems, Problem{Severity: severity, Service: name, Message: fmt.Sprintf(format, args...), SetAt: []Pos{{File: file}}})
	}
	read := func(f *layerFile) *layerFile {
		n, errs := layer.Read(f.path, t.files[f.path], f.label == "")
		f.cohorts = e.takers(name, f.label, f.value)
		for _, p := range fromLayer(name, errs) {
			p.Cohorts = f.cohorts
			problems = append(problems, p)
		}
		f.node, f.broken = n, len(errs) > 0
		return f
	}
	overlays := s.dir + "/overlays"
	for _, file := range t.under(s.dir) {
		base := path.Base(file)
		ext := path.Ext(base)
		stem := strings.TrimSuffix(base, ext)
		switch {
		case path.Dir(file) == s.dir && stem == "base" && layer.IsLayer(base):
			switch {
			case s.base != nil:
				fail(SeverityError, file, "a second base: %s is there already", s.base.path)
			default:
				s.base = read(&layerFile{path: file})
			}
		case path.Dir(file) == s.dir && stem == "base" && ext != ".cue":
			fail(SeverityError, file, "not read: base is base.yaml, base.json, base.toml or base.env")
		case !strings.HasPrefix(file, overlays+"/"):
		case ext == ".md", ext != ".cue" && strings.Contains(strings.TrimPrefix(file, s.dir), "/."): // .gitignore, .gitkeep
		case ext == ".cue":
			fail(SeverityError, file, "not read: an overlay in CUE is `overlay: <label>: <value>: {…}` in the package of %s", s.dir)
		case !layer.IsLayer(base):
			fail(SeverityError, file, "not read: an overlay is a .yaml, .json, .toml or .env file")
		case path.Dir(path.Dir(file)) != overlays:
			fail(SeverityError, file, "not read: an overlay is overlays/<label>/<value>.yaml (or .json, .toml, .env)")
		default:
			label := path.Base(path.Dir(file))
			problem, severity := e.misplaced(name, label, stem)
			if problem != "" {
				fail(severity, file, "%s", problem)
				if severity == SeverityError {
					continue
				}
			}
			if s.overlays[label] == nil {
				s.overlays[label] = map[string]*layerFile{}
			}
			if other := s.overlays[label][stem]; other != nil {
				fail(SeverityError, file, "a second overlay for %s=%s: %s is there already", label, stem, other.path)
				problems[len(problems)-1].Cohorts, other.broken = other.cohorts, true
				continue
			}
			s.overlays[label][stem] = read(&layerFile{path: file, label: label, value: stem})
		}
	}
	if s.base == nil && len(s.cue) == 0 {
		fail(SeverityError, s.dir, "nothing to render: a service has a base (base.yaml, .json, .toml or .env) or a CUE package")
	}
	return s, problems
}

// takers are the cohorts that take an overlay; nil if those are all that carry the service, or none.
func (e *evaluation) takers(service, label, value string) []string {
	if label == "" {
		return nil // base
	}
	var out []string
	all := true
	for _, name := range sorted(e.policy.Cohorts) {
		c := e.policy.Cohorts[name]
		if !carries(c.Services, service) {
			continue
		}
		takes := false
		if label == "host" {
			takes = slices.Contains(e.holders(service, value), name)
		} else if v, ok := labelValue(label, name, c.Labels); ok {
			takes = v == value
		}
		if all = all && takes; takes {
			out = append(out, name)
		}
	}
	if all {
		return nil
	}
	return out
}

// misplaced says what is wrong with where an overlay is: a label outside the precedence is an error, a value that no cohort has a warning.
func (e *evaluation) misplaced(service, label, value string) (string, Severity) {
	policy := e.policy
	if !slices.Contains(policy.Precedence, label) {
		return unordered(label, value, policy.Precedence), SeverityError
	}
	if label == "host" {
		return e.misplacedHost(service, value)
	}
	var have []string
	for name, c := range policy.Cohorts {
		if v, ok := labelValue(label, name, c.Labels); ok {
			have = append(have, v)
		}
	}
	if slices.Contains(have, value) {
		return "", ""
	}
	msg := fmt.Sprintf("no cohort has %s %q, so this overlay has no effect", label, value)
	slices.Sort(have)
	if near := nearest(value, have); near != "" {
		msg += fmt.Sprintf(" (did you mean %q?)", near)
	}
	return msg, SeverityWarning
}

// broken reports whether a layer that applies to a target could not be read.
func (s *service) broken(t target) bool {
	for label, byValue := range s.overlays {
		if value, ok := t.value(label); ok && byValue[value] != nil && byValue[value].broken {
			return true
		}
	}
	return s.base != nil && s.base.broken
}

// files are the layers of the service that are files, base first.
func (s *service) files() []*layerFile {
	var out []*layerFile
	if s.base != nil {
		out = append(out, s.base)
	}
	for _, label := range sorted(s.overlays) {
		for _, value := range sorted(s.overlays[label]) {
			out = append(out, s.overlays[label][value])
		}
	}
	return out
}
