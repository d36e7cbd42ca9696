package main

import (
	"context"

	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// build evaluates the config repo at rev, or the files on disk that git does not ignore when rev is "". What is wrong with them is in the
// result's problems.
func (a *app) build(ctx context.Context, rev string, opts pipeline.Options) (*pipeline.Rendered, error) {
	repo, err := source.Open(a.dir)
	if err != nil {
		return nil, err
	}
	var t source.Tree
	if rev == "" {
		t, err = repo.WorkTree()
	} else {
		t, err = repo.Commit(rev)
	}
	if err != nil {
		return nil, err
	}
	return pipeline.Build(ctx, t, opts)
}
