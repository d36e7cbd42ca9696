package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
)

// Standing says what a cohort stands on: the index of its bundle, nil if there is none; same means that content0 and evidence are exactly what stands,
// and then no index is needed.
//
// embeds says whether a service of the cohort refers to release.epoch. If one did when what stands was made and none does now, or the other way round, it is not
// the same, although the epoch-0 renders are equal: the files differ by the number.
type Standing func(ctx context.Context, cohort, content0 string, evidence map[string]manifest.Grade, embeds bool) (index *bundle.Index, same bool, err error)

// Cohort is what one cohort gets in a release.
type Cohort struct {
	Same     bool // nothing changed: Services and Files are empty
	Services map[string]bundle.Service
	Files    []bundle.File
	Evidence map[string]manifest.Grade
	Content0 string
	Inputs   string
}

// RefusedError says that the commit has problems: it cannot be published.
type RefusedError struct {
	Problems []eval.Problem
}

func (e *RefusedError) Error() string {
	var errs []eval.Problem
	for _, p := range e.Problems {
		if p.Severity == eval.SeverityError {
			errs = append(errs, p)
		}
	}
	if len(errs) == 0 {
		return "does not evaluate"
	}
	p := errs[0]
	var b strings.Builder
	if p.Service != "" {
		fmt.Fprintf(&b, "%s: ", p.Service)
	}
	if p.Path != "" {
		fmt.Fprintf(&b, "%s: ", p.Path)
	}
	b.WriteString(p.Message)
	if len(p.SetAt) > 0 {
		fmt.Fprintf(&b, " (%s:%d:%d)", p.SetAt[0].File, p.SetAt[0].Line, p.SetAt[0].Col)
	} else if len(p.Cohorts) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(p.Cohorts, ", "))
	}
	if more := len(errs) - 1; more > 0 {
		fmt.Fprintf(&b, ", and %d more", more)
	}
	return b.String()
}

// At gives every cohort's files as of epoch. A service whose epoch-0 digest is the standing one keeps its service epoch, every other one gets epoch; only
// services that refer to release.epoch are evaluated again. It may be called again with another epoch. A *RefusedError refuses the commit.
func (r *Rendered) At(ctx context.Context, epoch uint64, standing Standing) (map[string]Cohort, error) {
	if r.opts.narrowed() {
		return nil, errors.New("a build narrowed to some services or cohorts cannot be published")
	}
	if r.Failed() {
		return nil, &RefusedError{Problems: r.Problems}
	}
	inputs := digestOf(struct {
		Tree      string   `json:"tree"`
		Evaluator string   `json:"evaluator"`
		Settings  string   `json:"settings"`
		Overrides []string `json:"overrides"`
	}{r.Identity.Tree, eval.EvaluatorVersion, r.opts.Settings(), []string{}})
	out := map[string]Cohort{}
	stood := map[string]*bundle.Index{}
	for _, name := range r.Cohorts() {
		c := r.cohorts[name]
		index, same, err := standing(ctx, name, c.content0, maps.Clone(c.evidence), c.embeds())
		if err != nil {
			return nil, fmt.Errorf("cohort %s: %w", name, err)
		}
		built := Cohort{Same: same, Evidence: maps.Clone(c.evidence), Content0: c.content0, Inputs: inputs}
		if !same {
			stood[name] = index
			built.Services = serviceEpochs(c, index, epoch)
		}
		out[name] = built
	}
	if err := r.renderFiles(ctx, epoch, out, stood); err != nil {
		return nil, err
	}
	return out, nil
}

// serviceEpochs decides which services changed. Files and Digest are filled in by renderFiles.
func serviceEpochs(c *cohort, index *bundle.Index, epoch uint64) map[string]bundle.Service {
	services := map[string]bundle.Service{}
	for name, s := range c.services {
		e := epoch
		if index != nil {
			if old, ok := index.Services[name]; ok && old.Digest0 == s.digest0 && (s.usesEpoch || old.Digest == s.digest0) {
				e = old.Epoch
			}
		}
		services[name] = bundle.Service{Epoch: e, Digest0: s.digest0, Digest: s.digest0, Files: len(s.files)}
	}
	return services
}

// embeds reports whether a service of the cohort refers to release.epoch.
func (c *cohort) embeds() bool {
	for _, s := range c.services {
		if s.usesEpoch {
			return true
		}
	}
	return false
}

// renderFiles fills in the files of every cohort that changed. A service that kept its epoch and nevertheless renders other bytes than those that stand
// under it (it branched on release.epoch, or stopped doing so) has changed after all: it gets the new epoch and is rendered once more, since one
// service epoch never names two contents.
func (r *Rendered) renderFiles(ctx context.Context, epoch uint64, out map[string]Cohort, stood map[string]*bundle.Index) error {
	rendered := map[string]map[string][]bundle.File{} // cohort → service, of those that use the epoch
	for pending := r.usingEpoch(out); len(pending) > 0; {
		units, err := r.again(ctx, pending)
		if err != nil {
			return err
		}
		again := map[string]map[string]uint64{}
		for cohort, services := range pending {
			for name, e := range services {
				files, ok := units[[2]string{cohort, name}]
				if !ok {
					return fmt.Errorf("evaluate %s again at epoch %d: no result for service %s of cohort %s", r.name(), e, name, cohort)
				}
				s := out[cohort].Services[name]
				s.Digest, s.Files = bundle.ContentDigest(files), len(files)
				if e != epoch && s.Digest != stood[cohort].Services[name].Digest {
					s.Epoch = epoch
					set(again, cohort, name, epoch)
				}
				out[cohort].Services[name] = s
				if rendered[cohort] == nil {
					rendered[cohort] = map[string][]bundle.File{}
				}
				rendered[cohort][name] = files
			}
		}
		pending = again
	}
	for name, built := range out {
		if built.Same {
			continue
		}
		for service, s := range r.cohorts[name].services {
			files, ok := rendered[name][service]
			if !ok {
				files = s.files
			}
			built.Files = append(built.Files, files...)
		}
		slices.SortFunc(built.Files, func(a, b bundle.File) int { return strings.Compare(a.Path, b.Path) })
		out[name] = built
	}
	return nil
}

func set(m map[string]map[string]uint64, cohort, service string, epoch uint64) {
	if m[cohort] == nil {
		m[cohort] = map[string]uint64{}
	}
	m[cohort][service] = epoch
}

// usingEpoch gives the service epochs, by cohort, of the services that must be evaluated again.
func (r *Rendered) usingEpoch(out map[string]Cohort) map[string]map[string]uint64 {
	uses := map[string]map[string]uint64{}
	for name, built := range out {
		for service, s := range built.Services {
			if r.cohorts[name].services[service].usesEpoch {
				set(uses, name, service, s.Epoch)
			}
		}
	}
	return uses
}

// again evaluates the services of epochs at their epochs.
func (r *Rendered) again(ctx context.Context, epochs map[string]map[string]uint64) (map[[2]string][]bundle.File, error) {
	req := r.request
	req.FilesToo, req.Epochs, req.Services = true, epochs, nil
	req.Cohorts = slices.Sorted(maps.Keys(epochs))
	for _, services := range epochs {
		req.Services = append(req.Services, slices.Collect(maps.Keys(services))...)
	}
	slices.Sort(req.Services)
	req.Services = slices.Compact(req.Services)
	result, err := r.opts.Evaluate(ctx, &req, r.opts.Limits)
	if err != nil {
		return nil, fmt.Errorf("evaluate %s again at its epochs: %w", r.name(), err)
	}
	if result.Failed() {
		return nil, &RefusedError{Problems: result.Problems}
	}
	units := map[[2]string][]bundle.File{}
	for _, u := range result.Units {
		if u.Host == "" && len(u.Files) > 0 {
			units[[2]string{u.Cohort, u.Service}] = bundleFiles(u)
		}
	}
	return units, nil
}
