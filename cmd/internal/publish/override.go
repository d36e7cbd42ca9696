package publish

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// overrides adds to each cohort that is built what it is under the overrides that live on it. A commit under which one no longer fits is for everybody else: there the
// cohort is blocked.
func (p *Prepared) overrides(ctx context.Context, in distributor.BuildInput, builds map[string]distributor.CohortBuild) error {
	if in.Overrides == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(builds)) {
		b := builds[name]
		if b.Blocked != "" {
			continue
		}
		living, err := in.Overrides(ctx, name)
		if err != nil {
			return err
		}
		var below []manifest.VerifiedOverride
		for _, o := range living {
			below = append(below, o.VerifiedOverride)
			var c *distributor.CohortBuild
			if b.Same {
				// What stands stays, also under the override; and yet the commit must not be one that it does not fit: the next change would find that out too late.
				err = Fits(ctx, p.rendered, name, below)
			} else {
				c, err = Overridden(ctx, p.rendered, name, below, in.Epoch, &o.Stands, o.Index)
			}
			var misfit *Misfit
			if errors.As(err, &misfit) {
				b = distributor.CohortBuild{Blocked: misfit.Error()}
				break
			}
			if err != nil {
				return err
			}
			if c != nil {
				b.Overridden = append(b.Overridden, distributor.OverriddenBuild{ID: o.ID, CohortBuild: *c})
			}
		}
		builds[name] = b
	}
	return nil
}

// Misfit says that a cohort does not validate under an override.
type Misfit struct {
	ID, Cohort string
	Reason     string // in one line, without any value
	Problems   []eval.Problem
}

func (m *Misfit) Error() string {
	return fmt.Sprintf("override %s no longer fits: %s; end it, or change the commit", m.ID, m.Reason)
}

// Layers are overrides as evaluation takes them. The last one is over everything that its statement is for: which hosts it acts on, its envelopes say. The older ones are where they
// act now.
func Layers(cohort string, overrides []manifest.VerifiedOverride) []eval.Override {
	var list []eval.Override
	for i, o := range overrides {
		for _, patch := range o.Patches {
			layer := eval.Override{ID: o.ID, Cohort: cohort, Service: patch.Service, Values: patch.Values}
			if i < len(overrides)-1 {
				layer.Hosts = o.Hosts
			}
			list = append(list, layer)
		}
	}
	return list
}

// Fits evaluates a cohort under overrides, the oldest first. A *Misfit tells that it does not validate.
func Fits(ctx context.Context, r *pipeline.Rendered, cohort string, overrides []manifest.VerifiedOverride) error {
	_, err := fits(ctx, r, cohort, overrides)
	return err
}

func fits(ctx context.Context, r *pipeline.Rendered, cohort string, overrides []manifest.VerifiedOverride) (*pipeline.Rendered, error) {
	under, err := r.Override(ctx, cohort, Layers(cohort, overrides))
	if err != nil {
		return nil, err
	}
	if reason := under.Blocked()[cohort]; reason != "" {
		return nil, &Misfit{overrides[len(overrides)-1].ID, cohort, reason, under.Problems}
	}
	return under, nil
}

// Overridden builds a cohort under overrides, the oldest first, as an epoch: services that are as stands says keep the epoch that they have there. A *Misfit tells that it
// does not validate.
func Overridden(ctx context.Context, r *pipeline.Rendered, cohort string, overrides []manifest.VerifiedOverride, epoch uint64, stands *manifest.Statement, index func(context.Context, string) (*bundle.Index, error)) (*distributor.CohortBuild, error) {
	under, err := fits(ctx, r, cohort, overrides)
	if err != nil {
		return nil, err
	}
	id := overrides[len(overrides)-1].ID
	cohorts, err := under.At(ctx, epoch, func(context.Context, string) (*pipeline.Stood, error) {
		s := stood(stands, index)
		s.Content0 = "" // also what is the same gets a statement of this epoch
		return s, nil
	})
	var refused *pipeline.RefusedError
	if errors.As(err, &refused) {
		return nil, &Misfit{id, cohort, refused.Error(), refused.Problems}
	}
	if err != nil {
		return nil, err
	}
	c := cohorts[cohort]
	if c.Blocked != "" {
		return nil, &Misfit{id, cohort, c.Blocked, under.Found()}
	}
	b := cohortBuild(c)
	return &b, nil
}

// Stored is the tree of a release, as the store keeps it: all that evaluation was given.
func Stored(rel *manifest.Release, files []bundle.File) source.Tree {
	t := &stored{id: source.Identity{
		Commit: rel.Commit, Tree: rel.Tree, Parents: rel.Parents, Subject: rel.Subject,
		Author:    source.Person{Name: rel.Author.Name, Email: rel.Author.Email, At: rel.Author.At},
		Committer: source.Person{Name: rel.Committer.Name, Email: rel.Committer.Email, At: rel.Committer.At},
	}, files: storedFiles{}}
	for _, f := range files {
		t.files[f.Path] = f.Data
	}
	return t
}

type stored struct {
	id    source.Identity
	files storedFiles
}

func (t *stored) Identity() source.Identity { return t.id }
func (t *stored) FS() fs.FS                 { return t.files }
func (t *stored) Files() []string           { return slices.Sorted(maps.Keys(t.files)) }

// storedFiles are read whole, and not opened: evaluation does not.
type storedFiles map[string][]byte

func (f storedFiles) ReadFile(name string) ([]byte, error) {
	if data, ok := f[name]; ok {
		return data, nil
	}
	return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
}

func (f storedFiles) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.ErrUnsupported}
}
