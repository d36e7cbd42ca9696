// Package publish joins the pipeline, which knows no store, to the publisher, which knows no git and no CUE.
package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// Refused is a commit with problems. It is distributor.ErrRefused, and Problems are for those who print them all.
type Refused struct {
	*pipeline.RefusedError
}

func (r *Refused) Unwrap() []error { return []error{distributor.ErrRefused, r.RefusedError} }

// Job reads rev of a repository as a commit ready to be published.
func Job(repo *source.Repo, rev string, opts pipeline.Options) (*distributor.Job, error) {
	tree, err := repo.Commit(rev)
	if err != nil {
		return nil, err
	}
	id := tree.Identity()
	return &distributor.Job{
		Commit:   Commit(id),
		Contains: func(_ context.Context, ancestor string) (bool, error) { return repo.Contains(id.Commit, ancestor) },
		Settings: opts.Settings(),
		Build:    Func(tree, opts),
	}, nil
}

// Commit is a commit's identity as releases carry it.
func Commit(id source.Identity) distributor.Commit {
	person := func(p source.Person) manifest.Person {
		return manifest.Person{Name: p.Name, Email: p.Email, At: p.At.UTC()}
	}
	return distributor.Commit{
		ID: id.Commit, Tree: id.Tree, Parents: append([]string{}, id.Parents...),
		Author: person(id.Author), Committer: person(id.Committer), Subject: id.Subject,
	}
}

// Func builds a commit's tree. It is evaluated when the publisher first asks, and not again when a race was lost: only service epochs change then.
// The function is not safe for concurrent use, and the publisher does not use it so.
func Func(tree source.Tree, opts pipeline.Options) distributor.BuildFunc {
	var rendered *pipeline.Rendered
	return func(ctx context.Context, in distributor.BuildInput) (*distributor.Build, error) {
		if tree.Identity().WorkTree {
			return nil, errors.New("a work tree cannot be published, only commits: commit it first")
		}
		if rendered == nil {
			r, err := pipeline.Build(ctx, tree, opts)
			if err != nil {
				return nil, err
			}
			rendered = r
		}
		cohorts, err := rendered.At(ctx, in.Epoch, standing(in))
		var refused *pipeline.RefusedError
		if errors.As(err, &refused) {
			return nil, &Refused{refused}
		}
		if err != nil {
			return nil, err
		}
		return &distributor.Build{
			Commit: Commit(rendered.Identity), Evaluator: eval.EvaluatorVersion, Settings: opts.Settings(),
			Policy: rendered.Policy, Source: rendered.Source, Cohorts: cohortBuilds(cohorts),
		}, nil
	}
}

// standing asks the publisher what stands. Other evidence with the same files is a change too: only a new statement can say it.
func standing(in distributor.BuildInput) pipeline.Standing {
	return func(ctx context.Context, cohort, content0 string, evidence map[string]manifest.Grade, embeds bool) (*bundle.Index, bool, error) {
		if in.Stands != nil {
			if st := in.Stands(cohort); st != nil && (!maps.Equal(st.Evidence, evidence) || embeds != (st.Content != st.Content0)) {
				content0 = ""
			}
		}
		index, same, err := in.Standing(ctx, cohort, content0)
		if err != nil {
			return nil, false, fmt.Errorf("what stands: %w", err)
		}
		return index, same, nil
	}
}

func cohortBuilds(cohorts map[string]pipeline.Cohort) map[string]distributor.CohortBuild {
	builds := map[string]distributor.CohortBuild{}
	for name, c := range cohorts {
		builds[name] = distributor.CohortBuild{
			Same: c.Same, Index: bundle.Index{Services: c.Services}, Files: c.Files, Evidence: c.Evidence, Content0: c.Content0, Inputs: c.Inputs,
		}
	}
	return builds
}
