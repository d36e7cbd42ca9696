package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
)

// Standing says what stands for a cohort in the store, nil if nothing does.
type Standing func(ctx context.Context, cohort string) (*Stood, error)

// Stood is what stands for a cohort.
type Stood struct {
	Content
	// Variants are the hosts that run a bundle of their own; all others run the cohort's.
	Variants map[string]Content
	// Index reads the index of the bundle that stands: the variant of a host, or the cohort's for "". It is asked only for what is built anew, and where a
	// service refers to release.epoch.
	Index func(ctx context.Context, host string) (*bundle.Index, error)
}

// Content is what a statement says of one bundle.
type Content struct {
	Content, Content0 string
	Evidence          map[string]manifest.Grade
}

// Cohort is what one cohort gets in a release.
type Cohort struct {
	Blocked string // why it gets nothing: then all else is empty
	Same    bool   // nothing changed: Services, Files and Variants are empty
	Variant        // of all hosts that have no variant
	Inputs  string
	// Variants are the hosts whose bundle differs, sorted by host.
	Variants []Variant
}

// Variant is the bundle of a cohort, or of one host.
type Variant struct {
	Host     string // "" for the cohort
	Services map[string]bundle.Service
	Files    []bundle.File
	Evidence map[string]manifest.Grade
	Content0 string
}

// At gives every cohort's files as of epoch; what is blocked says so and gets none. A service whose epoch-0 digest is the standing one of its cohort, or of
// the host, keeps its service epoch, every other one gets epoch; only services that refer to release.epoch are evaluated again. It may be called again with
// another epoch. A *RefusedError refuses the commit as a whole: no cohort gets anything. Not safe for concurrent use.
func (r *Rendered) At(ctx context.Context, epoch uint64, standing Standing) (map[string]Cohort, error) {
	r.late = nil
	if r.opts.narrowed() || r.opts.Verdict {
		return nil, errors.New("a build narrowed to some services or cohorts, or without bytes, cannot be published")
	}
	if err := unevaluated(r.Problems); err != nil {
		return nil, err
	}
	if r.Refused() {
		return nil, &RefusedError{Problems: r.Problems}
	}
	a := assembly{Rendered: r, epoch: epoch, rendered: map[part][]bundle.File{}}
	blocked := r.Blocked()
	out := map[string]Cohort{}
	for _, name := range r.Cohorts() {
		if reason := blocked[name]; reason != "" {
			out[name] = Cohort{Blocked: reason}
			continue
		}
		stood, err := standing(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("cohort %s: %w", name, err)
		}
		same, err := a.add(ctx, name, stood)
		if err != nil {
			return nil, fmt.Errorf("cohort %s: %w", name, err)
		}
		if same {
			c := r.cohorts[name].services
			out[name] = Cohort{Same: true, Variant: Variant{Evidence: services(c).evidence(), Content0: bundle.ContentDigest(services(c).files0())}, Inputs: r.inputs()}
		}
	}
	if err := a.render(ctx); err != nil {
		return nil, err
	}
	for name, reason := range r.blockedBy(r.late) {
		out[name] = Cohort{Blocked: reason}
	}
	usable := len(out) == 0
	for _, name := range r.Cohorts() {
		if _, ok := out[name]; !ok {
			out[name] = a.cohort(name)
		}
		usable = usable || out[name].Blocked == ""
	}
	if !usable {
		return nil, &RefusedError{Problems: r.Found()}
	}
	return out, nil
}

// inputs is the digest of all that decided what was rendered.
func (r *Rendered) inputs() string {
	return digestOf(struct {
		Tree      string   `json:"tree"`
		Evaluator string   `json:"evaluator"`
		Settings  string   `json:"settings"`
		Overrides []string `json:"overrides"`
	}{r.Identity.Tree, eval.EvaluatorVersion, r.opts.Settings(), r.overridden()})
}

// assembly puts the bundles of one epoch together.
type assembly struct {
	*Rendered
	epoch    uint64
	targets  []*target
	rendered map[part][]bundle.File // of services that refer to release.epoch
}

// target is one bundle under way: of a cohort, or of a host of it.
type target struct {
	cohort, host string
	now          services
	stood        *bundle.Index             // nil if nothing stands
	services     map[string]bundle.Service // with the epochs decided
}

// part is one service rendered at an epoch, by the unit of host ("" for the cohort's).
type part struct {
	cohort, host, service string
	epoch                 uint64
}

// add decides what a cohort gets: nothing new, or a target for it and for each host that has, or had, files of its own.
func (a *assembly) add(ctx context.Context, name string, stood *Stood) (same bool, err error) {
	c := a.cohorts[name]
	hosts := slices.Collect(maps.Keys(c.hosts))
	if stood != nil {
		hosts = append(hosts, slices.Collect(maps.Keys(stood.Variants))...)
	}
	slices.Sort(hosts)
	hosts = append([]string{""}, slices.Compact(hosts)...)
	if stood != nil {
		if same, err = c.stands(ctx, hosts, stood); err != nil || same {
			return same, err
		}
	}
	for _, host := range hosts {
		t := &target{cohort: name, host: host, now: c.of(host)}
		if stood != nil {
			if t.stood, err = stood.index(ctx, host); err != nil {
				return false, err
			}
		}
		t.decide(a.epoch)
		a.targets = append(a.targets, t)
	}
	return false, nil
}

// stands reports whether all that hosts get stands already.
func (c *cohort) stands(ctx context.Context, hosts []string, stood *Stood) (bool, error) {
	for _, host := range hosts {
		if differs(c.of(host), stood.of(host)) {
			return false, nil
		}
	}
	for _, host := range hosts {
		now := c.of(host)
		if !now.embeds() {
			continue
		}
		index, err := stood.index(ctx, host)
		if err != nil {
			return false, err
		}
		for name, s := range now {
			if old := index.Services[name]; s.usesEpoch != (old.Digest != old.Digest0) {
				return false, nil
			}
		}
	}
	return true, nil
}

// index is that of the bundle that a host runs.
func (s *Stood) index(ctx context.Context, host string) (*bundle.Index, error) {
	if _, ok := s.Variants[host]; !ok {
		host = ""
	}
	return s.Index(ctx, host)
}

// of is what a host runs.
func (s *Stood) of(host string) Content {
	if v, ok := s.Variants[host]; ok {
		return v
	}
	return s.Content
}

// differs compares the render of epoch 0 with what stands, as far as the statement tells. Other evidence with the same files is a change too: only a new
// statement can say it. And so is a literal 0 in place of release.epoch, or the other way round: the files differ by the number, although those of epoch 0
// are equal. In which service that is, only the index tells.
func differs(now services, stood Content) bool {
	return stood.Content0 != bundle.ContentDigest(now.files0()) || !maps.Equal(stood.Evidence, now.evidence()) || now.embeds() != (stood.Content != stood.Content0)
}

// decide says which services changed here. Of those that refer to release.epoch, Files and Digest are filled in once they are rendered.
func (t *target) decide(epoch uint64) {
	t.services = map[string]bundle.Service{}
	for name, s := range t.now {
		e := epoch
		if t.stood != nil {
			if old, ok := t.stood.Services[name]; ok && old.Digest0 == s.digest0 && (s.usesEpoch || old.Digest == s.digest0) {
				e = old.Epoch
			}
		}
		t.services[name] = bundle.Service{Epoch: e, Digest0: s.digest0, Digest: s.digest0, Files: len(s.files)}
	}
}

// files are those of one service of a target; ok is false while they are not rendered yet.
func (a *assembly) files(t *target, name string) (files []bundle.File, p part, ok bool) {
	s := t.now[name]
	if !s.usesEpoch {
		return s.files, p, true
	}
	p = part{t.cohort, a.cohorts[t.cohort].owner(t.host, name), name, t.services[name].Epoch}
	files, ok = a.rendered[p]
	return files, p, ok
}

// cohort makes a cohort's part of the release from its targets. A variant that is the cohort's own bundle, file by file and epoch by epoch, is none. One whose
// files are the cohort's again stays a variant until the service epochs meet: on that host the service changed later than on the others.
func (a *assembly) cohort(name string) Cohort {
	out := Cohort{Inputs: a.inputs()}
	for _, t := range a.targets {
		if t.cohort != name {
			continue
		}
		v := Variant{Host: t.host, Services: t.services, Evidence: t.now.evidence(), Content0: bundle.ContentDigest(t.now.files0())}
		switch {
		case t.host == "": // always the first
			out.Variant = v
			out.Files = a.allFiles(t)
		case !maps.Equal(v.Services, out.Services) || !maps.Equal(v.Evidence, out.Evidence):
			v.Files = a.allFiles(t)
			out.Variants = append(out.Variants, v)
		}
	}
	return out
}

func (a *assembly) allFiles(t *target) []bundle.File {
	var all []bundle.File
	for name := range t.now {
		files, _, _ := a.files(t, name)
		all = append(all, files...)
	}
	sortFiles(all)
	return all
}
