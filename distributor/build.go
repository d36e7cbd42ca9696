// Package distributor takes built releases to a store: the Publisher appends them, Fsck checks all that is there.
package distributor

import (
	"context"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
)

// BuildFunc builds one commit as the given epoch on top of what stands. The publisher calls it again with another epoch when it lost a race.
// After an error no epoch is used. One that is ErrRefused lays it to the commit, and is recorded; any other is about the machinery.
type BuildFunc func(ctx context.Context, in BuildInput) (*Build, error)

// BuildInput is what a build stands on. What it gives is verified. Not safe for concurrent use.
type BuildInput struct {
	Epoch uint64
	// Stands gives the statement that stands for a cohort, nil if there is none. Its variants are in it, wherever they are stored.
	Stands func(ctx context.Context, cohort string) (*manifest.Statement, error)
	// Index reads the index of the bundle that stands for a cohort, or for a host of it that has its own: service epochs and epoch-0 digests. nil if nothing
	// stands. It costs a read of the whole bundle, so it is asked only for what changed.
	Index func(ctx context.Context, cohort, host string) (*bundle.Index, error)
	// Overrides are those that live on a cohort, the oldest first. While one lives a cohort that is built gets an overridden statement for each beside its plain one.
	Overrides func(ctx context.Context, cohort string) ([]Living, error)
	// Newest is the release that this one follows, nil before the first. Not to be changed.
	Newest *manifest.Release
}

// Build is a built commit: plain data.
type Build struct {
	Commit    Commit
	Evaluator string
	Settings  string // digest of the publisher's own settings
	Policy    manifest.Policy
	Source    []bundle.File // the evaluated tree: sources/
	Cohorts   map[string]CohortBuild
}

// Job is one commit ready to be published.
type Job struct {
	Commit Commit
	// Contains reports whether the commit contains ancestor: they are equal or there is a path of parents.
	Contains func(ctx context.Context, ancestor string) (bool, error)
	Settings string // as Build.Settings will be
	Build    BuildFunc
}

// Commit is the identity that a release carries.
type Commit struct {
	ID, Tree  string
	Parents   []string
	Author    manifest.Person
	Committer manifest.Person
	Subject   string

	// How it came to the branch, where the publisher knows: the merged pull request and who approved what was merged.
	PullRequest int
	Proposer    string // login of who opened it
	Approvers   []string
	Signer      string // who signed the commit, and who verified that
}

// CohortBuild is one cohort of a build.
type CohortBuild struct {
	Blocked  string // reason; then nothing else is set
	Same     bool   // what stands is what the commit says: the release holds it, and nothing else is looked at
	Index    bundle.Index
	Files    []bundle.File
	Evidence map[string]manifest.Grade
	Content0 string
	Inputs   string
	Variants []VariantBuild // in any order, a host once
	// Overridden are the same cohort under its living overrides, one for each; only of what is built.
	Overridden []OverriddenBuild
}

// OverriddenBuild is a cohort as it is under an override and the older ones that live with it. Neither blocked nor the same: where one does not fit, the cohort is blocked.
type OverriddenBuild struct {
	ID string
	CohortBuild
}

// Living is an override that acts on a cohort, and what stands under it.
type Living struct {
	manifest.VerifiedOverride
	Stands manifest.Statement // its variants are in it, wherever they are stored
	Index  func(ctx context.Context, host string) (*bundle.Index, error)
}

// VariantBuild is one host's own bundle.
type VariantBuild struct {
	Host     string
	Index    bundle.Index
	Files    []bundle.File
	Evidence map[string]manifest.Grade
	Content0 string
}
