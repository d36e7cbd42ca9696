// Package pipeline turns one commit into the files of every cohort: it has the tree evaluated, and says which services really changed.
package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
	"github.com/muster-config/muster/pipeline/source"
)

// ErrUnknownCohort is asked for a cohort that the fleet does not declare.
var ErrUnknownCohort = errors.New("no such cohort")

// Options are how a commit is built. The zero value is right for publishing.
type Options struct {
	// Services and Cohorts narrow the work, for validate and render; a narrowed build cannot be published.
	Services []string
	Cohorts  []string
	// CheckOnly validates, and keeps no bytes of files.
	CheckOnly bool
	// Verdict says whether the commit can be published, and keeps no bytes either; what did not change need not even be read: Source may lack bytes too.
	Verdict bool
	// Leaves asks for every value with its origin, Schemas for JSON Schemas.
	Leaves  bool
	Schemas bool
	Limits  eval.Limits
	// Cache answers what did not change; nil evaluates everything, as publishing does. It plays no part when Evaluate is set.
	Cache *eval.Cache
	// Evaluate is eval.Run, or the cache's, unless set: tests evaluate in their own process, or not at all.
	Evaluate func(context.Context, *eval.Request, eval.Limits) (*eval.Result, error)
}

func (o Options) narrowed() bool { return len(o.Services) > 0 || len(o.Cohorts) > 0 || o.CheckOnly }

// Settings is the digest of everything beside the commit that decides what is rendered: the publisher's own settings. The same commit under other
// settings is another release.
func (o Options) Settings() string {
	// Limits are left out: they decide whether an answer comes, not which.
	return digestOf(struct {
		Evaluator string `json:"evaluator"`
		Selection string `json:"selection"`
		Bundle    int    `json:"bundle"`
	}{eval.EvaluatorVersion, selection, 1})
}

// Rendered is a commit evaluated at epoch 0: what would change is decided on it, and At makes bundles of it.
type Rendered struct {
	Identity source.Identity
	Policy   manifest.Policy
	Problems []eval.Problem
	// Source is the evaluated tree: all that evaluation was given. With Verdict a file may be without its bytes.
	Source []bundle.File

	opts    Options
	request eval.Request
	result  *eval.Result
	cohorts map[string]*cohort
	late    []eval.Problem // found by the last At, at service epochs
}

// Build evaluates tree at epoch 0. An error is about the machinery; what is wrong with the commit is in Problems, and Failed says so.
func Build(ctx context.Context, tree source.Tree, opts Options) (*Rendered, error) {
	if opts.Evaluate == nil {
		opts.Evaluate = opts.Cache.Run
	}
	files, err := evaluated(tree, opts.Verdict)
	if err != nil {
		return nil, err
	}
	r := &Rendered{Identity: tree.Identity(), opts: opts, cohorts: map[string]*cohort{}}
	r.Source = make([]bundle.File, 0, len(files))
	for _, f := range files {
		r.Source = append(r.Source, bundle.File{Path: f.Path, Mode: 0o644, Data: f.Data})
	}
	r.request = eval.Request{Files: files, Services: opts.Services, Cohorts: opts.Cohorts, FilesToo: !opts.CheckOnly && !opts.Verdict, LeavesToo: opts.Leaves, SchemasToo: opts.Schemas}
	result, err := opts.Evaluate(ctx, &r.request, opts.Limits)
	if err != nil {
		return nil, fmt.Errorf("evaluate %s: %w", r.name(), err)
	}
	r.Policy, r.Problems, r.result = result.Policy, result.Problems, result
	if r.broken() || opts.CheckOnly {
		return r, nil
	}
	r.collect(result.Units)
	return r, nil
}

// name is the commit or tree in messages.
func (r *Rendered) name() string {
	if r.Identity.WorkTree || r.Identity.Commit == "" {
		return "work tree"
	}
	return "commit " + short(r.Identity.Commit)
}

func short(id string) string { return id[:min(len(id), 12)] }

// Failed reports whether anything is wrong with the commit, be it with one service in one cohort.
func (r *Rendered) Failed() bool {
	return slices.ContainsFunc(r.Problems, isError)
}

func isError(p eval.Problem) bool { return p.Severity == eval.SeverityError }

// collect orders the units by cohort and host and guards against results that would wipe a host (B084): a service that renders no file and a cohort that
// carries no service are errors. A service that is gone from a cohort is not: its directory or the fleet's `services` changed in this very commit, which a
// person wrote and the plan shows.
func (r *Rendered) collect(units []eval.Unit) {
	for name := range r.Policy.Cohorts {
		if len(r.opts.Cohorts) == 0 || slices.Contains(r.opts.Cohorts, name) {
			r.cohorts[name] = &cohort{services: make(map[string]service, len(r.Policy.Cohorts[name].Services)), hosts: map[string]map[string]service{}}
		}
	}
	empty := map[string][]string{} // service → where
	for _, u := range units {
		c := r.cohorts[u.Cohort]
		switch {
		case c == nil:
		case len(u.Files) == 0:
			empty[u.Service] = append(empty[u.Service], u.Cohort)
		case u.Host != "":
			if c.hosts[u.Host] == nil {
				c.hosts[u.Host] = map[string]service{}
			}
			c.hosts[u.Host][u.Service] = newService(u, r.opts.Verdict)
		default:
			c.services[u.Service] = newService(u, r.opts.Verdict)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(empty)) {
		r.refuse(name, empty[name], "renders no file: nothing would be left of it on its hosts; give it a file, or take it out of the cohort's services")
	}
	if r.opts.narrowed() {
		return
	}
	blocked := r.Blocked()
	for _, name := range slices.Sorted(maps.Keys(r.cohorts)) {
		if len(r.Policy.Cohorts[name].Services) == 0 {
			r.refuse("", []string{name}, "carries no service: nothing would be left on its hosts; give it a service, or take the cohort out of the fleet")
		}
		if blocked[name] != "" {
			continue
		}
		for _, s := range r.Policy.Cohorts[name].Services {
			if _, ok := r.cohorts[name].services[s]; !ok {
				r.refuse(s, []string{name}, "was not rendered although the cohort carries it: report this, it is a bug")
			}
		}
	}
}

func (r *Rendered) refuse(service string, cohorts []string, message string) {
	slices.Sort(cohorts)
	r.Problems = append(r.Problems, eval.Problem{
		Severity: eval.SeverityError, Service: service, Cohorts: slices.Compact(cohorts), Message: message, SetAt: []eval.Pos{}, SchemaAt: []eval.Pos{},
	})
}

func bundleFiles(u eval.Unit) []bundle.File {
	files := make([]bundle.File, 0, len(u.Files))
	for _, f := range u.Files {
		files = append(files, bundle.File{Path: path.Join(u.Service, f.Name), Mode: f.Mode, Data: f.Data})
	}
	slices.SortFunc(files, func(a, b bundle.File) int { return strings.Compare(a.Path, b.Path) })
	return files
}

// Units are what evaluation gave: those that validate, by service, cohort, host.
func (r *Rendered) Units() []eval.Unit { return r.result.Units }

// Schemas are the services' JSON Schemas, if asked for.
func (r *Rendered) Schemas() map[string][]byte { return r.result.Schemas }

// Cohorts are the cohorts that were rendered, sorted.
func (r *Rendered) Cohorts() []string { return slices.Sorted(maps.Keys(r.cohorts)) }

// Files are the files of a cohort as epoch 0 renders them, sorted by path. A blocked cohort has none: a part of them is never what a host gets.
func (r *Rendered) Files(name string) ([]bundle.File, error) { return r.FilesOf(name, "") }

// FilesOf are the files of one host of a cohort: its own where it has such, else the cohort's.
func (r *Rendered) FilesOf(name, host string) ([]bundle.File, error) {
	c, ok := r.cohorts[name]
	if !ok {
		return nil, fmt.Errorf("cohort %q: %w; the fleet has %s", name, ErrUnknownCohort, strings.Join(slices.Sorted(maps.Keys(r.Policy.Cohorts)), ", "))
	}
	if reason := r.Blocked()[name]; reason != "" {
		return nil, fmt.Errorf("cohort %s is blocked: %s", name, reason)
	}
	return c.of(host).files0(), nil
}

// Variants are the hosts of a cohort that have files of their own, sorted.
func (r *Rendered) Variants(name string) []string {
	if c := r.cohorts[name]; c != nil {
		return slices.Sorted(maps.Keys(c.hosts))
	}
	return nil
}

// selection is the rule of evaluated, by name: it is part of the settings digest, so change it with the rule.
const selection = "cue.mod fleet lib services *.cue"

// evaluated reads what evaluation may look at: the directories of the convention, and CUE files anywhere, which may be imported by path. The rest of the
// repository (a site, a tool, a large blob) is neither read nor stored.
//
// With lazy, files whose digest is known are left to be read when they are needed.
func evaluated(tree source.Tree, lazy bool) ([]eval.TreeFile, error) {
	names := tree.Files()
	files := make([]eval.TreeFile, 0, len(names))
	root := tree.FS()
	summed, _ := tree.(source.Summed)
	for _, name := range names {
		top, _, nested := strings.Cut(name, "/")
		if !(nested && slices.Contains([]string{"cue.mod", "fleet", "lib", "services"}, top)) && path.Ext(name) != ".cue" {
			continue
		}
		if summed != nil && lazy {
			if sum, known := summed.Sum(name); known {
				files = append(files, eval.TreeFile{Path: name, Sum: sum, Unread: func() ([]byte, error) { return fs.ReadFile(root, name) }})
				continue
			}
		}
		data, err := fs.ReadFile(root, name)
		if err != nil {
			return nil, fmt.Errorf("read %s of tree %s: %w", name, short(tree.Identity().Tree), err)
		}
		files = append(files, eval.TreeFile{Path: name, Data: data})
	}
	return files, nil
}

// digestOf is the digest of a value's canonical JSON.
func digestOf(v any) string {
	data, err := wire.Encode(v)
	if err != nil {
		panic("pipeline: " + err.Error()) // plain strings and numbers always encode
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
