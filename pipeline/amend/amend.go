// Package amend brings what an override says into the config repo: it finds the least specific layers in which the same values give exactly the overridden cohorts and hosts the same
// files, and nobody else another one. It writes nothing; each answer was evaluated, and compared file by file.
package amend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/cue/eval/edit"
	"github.com/muster-config/muster/cue/eval/layer"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// ErrNoPlace says that no set of layers gives the overridden hosts the values, and nobody else.
var ErrNoPlace = errors.New("no layer of the config repo has the same effect")

// Part is what an override says of one service in one cohort.
type Part struct {
	Cohort  string
	Hosts   []string // sorted; empty: the whole cohort
	Service string
	Values  string // JSON text of an object; null removes
}

// Place is a value that was put into a file.
type Place struct {
	Service string `json:"service"`
	Path    string `json:"path"`
	File    string `json:"file"`
	Line    int    `json:"line"` // 0 when it was removed
	Layer   string `json:"layer"`
}

// Result is the change: new contents of files, and where the values stand in them.
type Result struct {
	Files  map[string][]byte
	Places []Place
	Same   []string // services of which the commit says the same already
}

// limits of the search: each try is an evaluation of one service.
const (
	maxTries = 60
	maxTaken = 4 // layers in a set that is searched for; more only cohort by cohort, or host by host
)

// Find finds where to put it. tree is the commit to change, built how it is evaluated.
func Find(ctx context.Context, id string, tree source.Tree, opts pipeline.Options, parts []Part) (*Result, error) {
	opts.Services, opts.Cohorts, opts.CheckOnly, opts.Leaves, opts.Schemas = nil, nil, false, false, false
	built, err := pipeline.Build(ctx, tree, opts)
	if err != nil {
		return nil, err
	}
	out := &Result{Files: map[string][]byte{}}
	byService := map[string][]Part{}
	for _, p := range parts {
		if reason := built.Blocked()[p.Cohort]; reason != "" {
			return nil, fmt.Errorf("cohort %s does not validate in this commit: %s", p.Cohort, reason)
		}
		policy, ok := built.Policy.Cohorts[p.Cohort]
		if !ok || !slices.Contains(policy.Services, p.Service) {
			return nil, fmt.Errorf("%w: cohort %s does not carry service %s in this commit", ErrNoPlace, p.Cohort, p.Service)
		}
		byService[p.Service] = append(byService[p.Service], p)
	}
	for _, name := range slices.Sorted(maps.Keys(byService)) {
		s := &search{id: id, tree: tree, opts: opts, built: built, service: name, parts: byService[name]}
		if err := s.run(ctx, out); err != nil {
			return nil, fmt.Errorf("service %s: %w", name, err)
		}
	}
	return out, nil
}

// search is one for the place of one service's values.
type search struct {
	id      string
	tree    source.Tree
	opts    pipeline.Options
	built   *pipeline.Rendered
	service string
	parts   []Part
	want    map[string]string // target → digest of its files
	why     string            // what was wrong with the last try
	tries   int
}

func (s *search) run(ctx context.Context, out *Result) error {
	was := effects(s.built.Units(), s.service)
	s.want = maps.Clone(was)
	for _, p := range s.parts {
		under, err := s.built.Override(ctx, p.Cohort, []eval.Override{{ID: s.id, Cohort: p.Cohort, Hosts: p.Hosts, Service: s.service, Values: p.Values}})
		if err != nil {
			return err
		}
		if reason := under.Blocked()[p.Cohort]; reason != "" {
			return fmt.Errorf("the override does not validate over this commit: %s", reason)
		}
		maps.DeleteFunc(s.want, func(target, _ string) bool { return cohortOf(target) == p.Cohort })
		maps.Copy(s.want, effects(under.Units(), s.service))
	}
	if equal(was, s.want) {
		out.Same = append(out.Same, s.service)
		return nil
	}
	for set := range s.sets() {
		if len(set) == 0 {
			continue
		}
		if s.tries >= maxTries {
			break
		}
		files, places, ok, err := s.try(ctx, set)
		if err != nil {
			return err
		}
		if ok {
			maps.Copy(out.Files, files)
			out.Places = append(out.Places, places...)
			return nil
		}
	}
	why := s.why
	if why == "" {
		why = "no label of the fleet's precedence tells them from the others"
	}
	return fmt.Errorf("%w: %s", ErrNoPlace, why)
}

// effects are the digests of what a service renders, by target: a cohort, or cohort/host.
func effects(units []eval.Unit, service string) map[string]string {
	out := map[string]string{}
	for _, u := range units {
		if u.Service != service {
			continue
		}
		var files []bundle.File
		for _, f := range u.Files {
			files = append(files, bundle.File{Path: f.Name, Mode: f.Mode, Data: f.Data})
		}
		slices.SortFunc(files, func(a, b bundle.File) int { return strings.Compare(a.Path, b.Path) })
		target := u.Cohort
		if u.Host != "" {
			target += "/" + u.Host
		}
		out[target] = bundle.ContentDigest(files)
	}
	return out
}

func cohortOf(target string) string {
	cohort, _, _ := strings.Cut(target, "/")
	return cohort
}

// equal compares what every cohort and host gets: a host without files of its own gets the cohort's.
func equal(a, b map[string]string) bool {
	of := func(m map[string]string, target string) string {
		if d, ok := m[target]; ok {
			return d
		}
		return m[cohortOf(target)]
	}
	for _, m := range []map[string]string{a, b} {
		for target := range m {
			if of(a, target) != of(b, target) {
				return false
			}
		}
	}
	return true
}

// try evaluates the values in a set of layers.
func (s *search) try(ctx context.Context, set []spot) (map[string][]byte, []Place, bool, error) {
	files, places := map[string][]byte{}, []Place{}
	for _, at := range set {
		file, data, put, err := s.edited(at, files)
		if errors.Is(err, edit.ErrCannot) {
			s.why = err.Error()
			return nil, nil, false, nil
		}
		if err != nil {
			return nil, nil, false, err
		}
		files[file] = data
		places = append(places, put...)
	}
	s.tries++
	opts := s.opts
	opts.Services = []string{s.service}
	r, err := pipeline.Build(ctx, &changed{Tree: s.tree, files: files}, opts)
	if err != nil {
		return nil, nil, false, err
	}
	if i := slices.IndexFunc(r.Problems, func(p eval.Problem) bool { return p.Severity == eval.SeverityError }); i >= 0 {
		s.why = fmt.Sprintf("with it in %s: %s", set[len(set)-1].name(), r.Problems[i].Fault())
		return nil, nil, false, nil
	}
	if !equal(effects(r.Units(), s.service), s.want) {
		if s.why == "" {
			s.why = "another layer above shows through, or other cohorts would change too"
		}
		return nil, nil, false, nil
	}
	for i := range places {
		places[i].Line = lineOf(places[i], files[places[i].File])
	}
	return files, places, true, nil
}

// edited puts the values of a spot into the file that spells its layer out, or that would.
func (s *search) edited(at spot, files map[string][]byte) (file string, data []byte, places []Place, err error) {
	dir := path.Join("services", s.service)
	read := func(name string) ([]byte, bool) {
		if data, ok := files[name]; ok {
			return data, true
		}
		data, err := fs.ReadFile(s.tree.FS(), name)
		return data, err == nil
	}
	tell := func() error {
		paths, err := eval.PatchPaths(at.values)
		for _, p := range paths {
			places = append(places, Place{Service: s.service, Path: p, File: file, Layer: at.name()})
		}
		return err
	}
	stem, inCUE := path.Join(dir, "base"), []string{"base"}
	if at.label != "" {
		stem, inCUE = path.Join(dir, "overlays", at.label, at.value), []string{"overlay", at.label, at.value}
	}
	for _, ext := range layer.Extensions {
		if old, ok := read(stem + ext); ok {
			file = stem + ext
			if data, err = edit.Layer(file, old, at.label == "", at.values); err != nil {
				return "", nil, nil, err
			}
			err = tell()
			return file, data, places, err
		}
	}
	for _, name := range s.tree.Files() {
		if path.Dir(name) != dir || path.Ext(name) != ".cue" {
			continue
		}
		if old, ok := read(name); ok && edit.HasCUE(name, old, inCUE) {
			file = name
			if data, err = edit.CUE(file, old, inCUE, at.values); err != nil {
				return "", nil, nil, err
			}
			err = tell()
			return file, data, places, err
		}
	}
	file = stem + ".yaml"
	if data, err = edit.Layer(file, nil, at.label == "", at.values); err != nil {
		return "", nil, nil, err
	}
	err = tell()
	return file, data, places, err
}

// changed is a tree with other files in place of, or beside, its own.
type changed struct {
	source.Tree
	files map[string][]byte
}

func (c *changed) Files() []string {
	names := append(slices.Clone(c.Tree.Files()), slices.Collect(maps.Keys(c.files))...)
	slices.Sort(names)
	return slices.Compact(names)
}

func (c *changed) FS() fs.FS { return overlaid{c.Tree.FS(), c.files} }

func (c *changed) Identity() source.Identity {
	id := c.Tree.Identity()
	id.WorkTree = true // it is no commit
	return id
}

type overlaid struct {
	fs.FS
	files map[string][]byte
}

func (o overlaid) ReadFile(name string) ([]byte, error) {
	if data, ok := o.files[name]; ok {
		return data, nil
	}
	return fs.ReadFile(o.FS, name)
}

// lineOf is where a place's value stands in its file.
func lineOf(p Place, data []byte) int {
	keys, err := eval.SplitPath(p.Path)
	if err != nil {
		return 0
	}
	if path.Ext(p.File) == ".cue" {
		at := []string{"base"}
		if label, value, ok := strings.Cut(p.Layer, "="); ok {
			at = []string{"overlay", label, value}
		}
		return edit.LineOf(p.File, data, append(at, keys...))
	}
	root, errs := layer.Read(p.File, data, p.Layer == "base")
	if len(errs) > 0 {
		return 0
	}
	if n := root.At(keys); n != nil && n.Pos.IsValid() {
		return n.Pos.Line()
	}
	return 0
}
