// Package publish joins the pipeline, which knows no store, to the publisher, which knows no git and no CUE.
package publish

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// Refused is a commit of which nothing can be published. It is distributor.ErrRefused, and Problems are for those who print them all.
type Refused struct {
	*pipeline.RefusedError
}

func (r *Refused) Unwrap() []error { return []error{distributor.ErrRefused, r.RefusedError} }

// Prepared is a commit ready to be published.
type Prepared struct {
	distributor.Job
	tree     source.Tree
	opts     pipeline.Options
	rendered *pipeline.Rendered
}

// Prepare reads rev of a repository.
func Prepare(repo *source.Repo, rev string, opts pipeline.Options) (*Prepared, error) {
	tree, err := repo.Commit(rev)
	if err != nil {
		return nil, err
	}
	p := &Prepared{tree: tree, opts: opts}
	id := tree.Identity()
	p.Job = distributor.Job{
		Commit:   Commit(id),
		Contains: func(_ context.Context, ancestor string) (bool, error) { return repo.Contains(id.Commit, ancestor) },
		Settings: opts.Settings(),
		Build:    p.build,
	}
	return p, nil
}

// Problems are what evaluation found, also where only some cohorts are blocked by it. There are none before the publisher asked for a build: a commit that is
// released already is not evaluated again, unless a cohort was blocked.
func (p *Prepared) Problems() []eval.Problem {
	if p.rendered == nil {
		return nil
	}
	return p.rendered.Found()
}

// Job reads rev of a repository as a commit ready to be published.
func Job(repo *source.Repo, rev string, opts pipeline.Options) (*distributor.Job, error) {
	p, err := Prepare(repo, rev, opts)
	if err != nil {
		return nil, err
	}
	return &p.Job, nil
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

// Func builds a commit's tree.
func Func(tree source.Tree, opts pipeline.Options) distributor.BuildFunc {
	return (&Prepared{tree: tree, opts: opts}).build
}

// build evaluates the tree when the publisher first asks, and not again when a race was lost: only service epochs change then. Not safe for concurrent use, and
// the publisher does not use it so.
func (p *Prepared) build(ctx context.Context, in distributor.BuildInput) (*distributor.Build, error) {
	if p.tree.Identity().WorkTree {
		return nil, errors.New("a work tree cannot be published, only commits: commit it first")
	}
	if p.rendered == nil {
		r, err := pipeline.Build(ctx, p.tree, p.opts)
		if err != nil {
			return nil, err
		}
		p.rendered = r
	}
	cohorts, err := p.rendered.At(ctx, in.Epoch, standing(in))
	var refused *pipeline.RefusedError
	if errors.As(err, &refused) {
		return nil, &Refused{refused}
	}
	if err != nil {
		return nil, err
	}
	builds := cohortBuilds(cohorts)
	if err := p.overrides(ctx, in, builds); err != nil {
		return nil, err
	}
	return &distributor.Build{
		Commit: Commit(p.rendered.Identity), Evaluator: eval.EvaluatorVersion, Settings: p.opts.Settings(),
		Policy: p.rendered.Policy, Source: p.rendered.Source, Cohorts: builds,
	}, nil
}

// standing asks the publisher what stands.
func standing(in distributor.BuildInput) pipeline.Standing {
	return func(ctx context.Context, cohort string) (*pipeline.Stood, error) {
		st, err := in.Stands(ctx, cohort)
		if err != nil {
			return nil, fmt.Errorf("what stands: %w", err)
		}
		if st == nil {
			return nil, nil
		}
		return stood(st, func(ctx context.Context, host string) (*bundle.Index, error) { return in.Index(ctx, cohort, host) }), nil
	}
}

// stood is a statement that stands, as the pipeline looks at it. The statement's variants are in it.
func stood(st *manifest.Statement, index func(context.Context, string) (*bundle.Index, error)) *pipeline.Stood {
	out := &pipeline.Stood{
		Content:  pipeline.Content{Content: st.Content, Content0: st.Content0, Evidence: st.Evidence},
		Variants: map[string]pipeline.Content{},
		Index: func(ctx context.Context, host string) (*bundle.Index, error) {
			index, err := index(ctx, host)
			if err != nil {
				return nil, fmt.Errorf("what stands: %w", err)
			}
			return index, nil
		},
	}
	for _, v := range st.Variants {
		out.Variants[v.Host] = pipeline.Content{Content: v.Content, Content0: v.Content0, Evidence: v.Evidence}
	}
	return out
}

func cohortBuilds(cohorts map[string]pipeline.Cohort) map[string]distributor.CohortBuild {
	builds := map[string]distributor.CohortBuild{}
	for name, c := range cohorts {
		builds[name] = cohortBuild(c)
	}
	return builds
}

func cohortBuild(c pipeline.Cohort) distributor.CohortBuild {
	b := distributor.CohortBuild{
		Blocked: c.Blocked, Same: c.Same, Index: bundle.Index{Services: c.Services}, Files: c.Files, Evidence: c.Evidence, Content0: c.Content0, Inputs: c.Inputs,
	}
	for _, v := range c.Variants {
		b.Variants = append(b.Variants, distributor.VariantBuild{Host: v.Host, Index: bundle.Index{Services: v.Services}, Files: v.Files, Evidence: v.Evidence, Content0: v.Content0})
	}
	return b
}
