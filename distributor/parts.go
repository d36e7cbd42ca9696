package distributor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// cohorts stores the bundles and makes every cohort's part of the release.
func (s *session) cohorts(ctx context.Context, newest *verified, epoch uint64, b *Build) (map[string]manifest.ReleaseCohort, error) {
	parts, todo, err := s.parts(newest, b)
	if err != nil {
		return nil, err
	}
	// A bundle after the other, of cohorts and of hosts alike: a few at a time bounds the memory.
	var all []whole
	for _, name := range todo {
		c := b.Cohorts[name]
		all = append(all, whole{cohort: name, commit: b.Commit.ID, build: c})
		for _, o := range c.Overridden {
			all = append(all, whole{cohort: name, override: o.ID, commit: b.Commit.ID, build: o.CohortBuild})
		}
	}
	envs, err := s.states(ctx, epoch, all)
	if err != nil {
		return nil, err
	}
	for i, w := range all {
		part := parts[w.cohort]
		if w.override == "" {
			part = manifest.ReleaseCohort{State: manifest.StateBuilt, Epoch: epoch, Statement: envs[i]}
		} else {
			part.Overridden = append(part.Overridden, *envs[i])
		}
		parts[w.cohort] = part
	}
	// What a cohort keeps it keeps with its overrides.
	for name, part := range parts {
		if part.State != manifest.StateBuilt {
			if part.Overridden, err = s.carried(ctx, newest, name); err != nil {
				return nil, err
			}
			parts[name] = part
		}
	}
	return parts, nil
}

// whole is all of a cohort, plain or under an override.
type whole struct {
	cohort, override, commit string
	build                    CohortBuild
}

// states stores bundles, a few at a time, and signs a statement for each of all.
func (s *session) states(ctx context.Context, epoch uint64, all []whole) ([]*manifest.Envelope, error) {
	var pieces []piece
	var of []int
	for i, w := range all {
		c := w.build
		pieces, of = append(pieces, piece{w.cohort, "", w.commit, c.Index, c.Files, c.Evidence, c.Content0}), append(of, i)
		for _, v := range c.Variants {
			pieces, of = append(pieces, piece{w.cohort, v.Host, w.commit, v.Index, v.Files, v.Evidence, v.Content0}), append(of, i)
		}
	}
	stored := make([]manifest.Variant, len(pieces))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(uploads)
	for i, p := range pieces {
		group.Go(func() (err error) {
			stored[i], err = s.store(gctx, epoch, p)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	envs := make([]*manifest.Envelope, len(all))
	for i, w := range all {
		var made []manifest.Variant
		for j := range pieces {
			if of[j] == i {
				made = append(made, stored[j])
			}
		}
		var err error
		if envs[i], err = s.state(ctx, epoch, w, made[0], made[1:]); err != nil {
			return nil, err
		}
	}
	return envs, nil
}

// parts are those of the cohorts that hold or are blocked; todo, sorted, are to be built. A commit of which nothing can be built or held is refused.
func (s *session) parts(newest *verified, b *Build) (parts map[string]manifest.ReleaseCohort, todo []string, err error) {
	for name := range b.Cohorts {
		if _, ok := b.Policy.Cohorts[name]; !ok {
			return nil, nil, fmt.Errorf("build of commit %.12s has cohort %q, which its policy does not declare: this is a bug", b.Commit.ID, name)
		}
	}
	parts = map[string]manifest.ReleaseCohort{}
	usable := len(b.Policy.Cohorts) == 0
	for _, name := range slices.Sorted(maps.Keys(b.Policy.Cohorts)) {
		built, ok := b.Cohorts[name]
		if !ok {
			return nil, nil, fmt.Errorf("build of commit %.12s lacks cohort %s: this is a bug", b.Commit.ID, name)
		}
		var stood uint64
		if newest != nil {
			stood = newest.Cohorts[name].Epoch
		}
		usable = usable || built.Blocked == ""
		switch {
		case built.Blocked != "":
			parts[name] = manifest.ReleaseCohort{State: manifest.StateBlocked, Epoch: stood, Reason: line(built.Blocked)}
		case built.Same && stood == 0:
			return nil, nil, fmt.Errorf("build of commit %.12s says that cohort %s did not change, and nothing stands: this is a bug", b.Commit.ID, name)
		case built.Same:
			parts[name] = manifest.ReleaseCohort{State: manifest.StateHolds, Epoch: stood}
		default:
			todo = append(todo, name)
		}
	}
	if !usable {
		return nil, nil, fmt.Errorf("commit %.12s: %w: every cohort is blocked: %s", b.Commit.ID, ErrRefused, reasons(parts))
	}
	return parts, todo, nil
}

// reasons are why cohorts are blocked, equal ones once: "checkout: … (eu, us); search: … (asia)".
func reasons(parts map[string]manifest.ReleaseCohort) string {
	who := map[string][]string{}
	for name, part := range parts {
		who[part.Reason] = append(who[part.Reason], name)
	}
	var list []string
	for _, reason := range slices.Sorted(maps.Keys(who)) {
		list = append(list, fmt.Sprintf("%s (%s)", reason, strings.Join(slices.Sorted(slices.Values(who[reason])), ", ")))
	}
	return strings.Join(list, "; ")
}

// piece is one bundle to store: a cohort's, or a host's.
type piece struct {
	cohort, host, commit string
	index                bundle.Index
	files                []bundle.File
	evidence             map[string]manifest.Grade
	content0             string
}

// store packs and stores one bundle, and says what a statement says of it.
func (s *session) store(ctx context.Context, epoch uint64, p piece) (manifest.Variant, error) {
	index := p.index
	index.V, index.Repo, index.Cohort, index.Host, index.Epoch, index.Commit = manifest.Version, s.cfg.Repo, p.cohort, p.host, epoch, p.commit
	packed, err := bundle.Pack(index, p.files)
	if err != nil {
		return manifest.Variant{}, fmt.Errorf("pack %s of commit %.12s: %w: %w", place(p.cohort, p.host), p.commit, ErrRefused, err)
	}
	object, err := s.put(ctx, manifest.KeyBundle(packed.Object), packed)
	if err != nil {
		return manifest.Variant{}, err
	}
	return manifest.Variant{Host: p.host, Bundle: object, Content: packed.Content, Files: packed.Files, Evidence: p.evidence, Content0: p.content0}, nil
}

// state signs the statement of a cohort. Many variants move to an object of their own: statements travel in every head.
func (s *session) state(ctx context.Context, epoch uint64, w whole, own manifest.Variant, hosts []manifest.Variant) (*manifest.Envelope, error) {
	cohort := w.cohort
	slices.SortFunc(hosts, func(a, b manifest.Variant) int { return strings.Compare(a.Host, b.Host) })
	st := manifest.Statement{
		V: manifest.Version, Store: s.storeID, Repo: s.cfg.Repo, Cohort: cohort, Epoch: epoch, Commit: w.commit, Override: w.override,
		Bundle: own.Bundle, Content: own.Content, Files: own.Files, Evidence: own.Evidence, Content0: own.Content0, Inputs: w.build.Inputs, Variants: hosts,
	}
	if len(hosts) > manifest.MaxVariants {
		object, err := s.putVariants(ctx, cohort, hosts)
		if err != nil {
			return nil, err
		}
		st.Variants, st.VariantsObject = nil, object
	}
	env, err := manifest.Seal(manifest.KindStatement, st, s.cfg.Release)
	if err != nil {
		return nil, fmt.Errorf("sign the statement of cohort %s: %w", cohort, err)
	}
	return env, nil
}

// putVariants stores the list of a cohort's variants. It is not compressed, so tar and stored bytes are the same.
func (s *session) putVariants(ctx context.Context, cohort string, hosts []manifest.Variant) (*manifest.Object, error) {
	data, err := wire.Encode(manifest.Variants{V: manifest.Version, Variants: hosts})
	if err != nil {
		return nil, fmt.Errorf("encode the variants of cohort %s: %w", cohort, err)
	}
	if len(data) > manifest.MaxVariantsBytes {
		return nil, fmt.Errorf("cohort %s: %w: the list of its %d host variants is %d bytes, at most %d allowed", cohort, ErrRefused, len(hosts), len(data), manifest.MaxVariantsBytes)
	}
	if _, err := manifest.DecodeVariants(data); err != nil {
		return nil, fmt.Errorf("cohort %s: %w: %w", cohort, ErrRefused, err)
	}
	sum := digestOf(data)
	object, err := s.put(ctx, manifest.KeyBundle(sum), &bundle.Packed{Data: data, Object: sum, Tar: sum, TarSize: int64(len(data))})
	if err != nil {
		return nil, err
	}
	return &object, nil
}

// digestOf is how objects are named.
func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
