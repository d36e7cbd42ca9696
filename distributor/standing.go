package distributor

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// stands looks up statements for a build. It reads at most the releases in which they were made, and their variants.
func (r *reader) stands(newest *verified) func(context.Context, string) (*manifest.Statement, error) {
	known := map[string]*manifest.Statement{}
	return func(ctx context.Context, cohort string) (*manifest.Statement, error) {
		if newest == nil {
			return nil, nil
		}
		if st, ok := known[cohort]; ok {
			return st, nil
		}
		_, st, err := r.statement(ctx, newest, cohort)
		if err != nil || st == nil {
			return nil, err
		}
		out := st.Statement
		if out.Variants, err = variants(ctx, r.st, &out); err != nil {
			return nil, fmt.Errorf("variants of cohort %s, epoch %d: %w", cohort, st.Epoch, err)
		}
		known[cohort] = &out
		return &out, nil
	}
}

// index0 reads standing indexes for a build. A bundle comes from the store, so it is believed only as far as the signed statement vouches for it.
func (r *reader) index0(newest *verified) func(context.Context, string, string) (*bundle.Index, error) {
	stands := r.stands(newest)
	return func(ctx context.Context, cohort, host string) (*bundle.Index, error) {
		st, err := stands(ctx, cohort)
		if err != nil || st == nil {
			return nil, err
		}
		return r.indexOf(ctx, st, host)
	}
}

// indexOf reads the index of the bundle that a statement gives a host, or its cohort for "".
func (r *reader) indexOf(ctx context.Context, st *manifest.Statement, host string) (*bundle.Index, error) {
	want, ok := bundleOf(st, host)
	if !ok {
		return nil, fmt.Errorf("host %s of cohort %s has no bundle of its own in epoch %d: this is a bug", host, st.Cohort, st.Epoch)
	}
	known := indexOf{want.Bundle.Object, st.Cohort, host, st.Epoch}
	if index := r.indexes.get(known); index != nil {
		return index, nil
	}
	plan, err := scan(ctx, r.st, manifest.KeyBundle(want.Bundle.Object))
	if err == nil {
		err = agrees(plan, st, want)
	}
	if err != nil {
		return nil, fmt.Errorf("standing bundle of %s, epoch %d: %w", place(st.Cohort, host), st.Epoch, err)
	}
	r.indexes.put(known, &plan.Index)
	return &plan.Index, nil
}

// indexes remembers the indexes of bundles, so that one who follows a branch reads each bundle once. What is named by its digest does not change. Safe for
// concurrent use.
type indexes struct {
	mu    sync.Mutex
	known map[indexOf]*bundle.Index
}

type indexOf struct {
	object, cohort, host string
	epoch                uint64
}

// maxIndexes bounds how many are remembered; to forget them costs reading them again.
const maxIndexes = 256

func (c *indexes) get(of indexOf) *bundle.Index {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[of]
}

func (c *indexes) put(of indexOf, index *bundle.Index) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxIndexes {
		c.known = map[indexOf]*bundle.Index{}
	}
	c.known[of] = index
}

// place names a cohort, or a host of it.
func place(cohort, host string) string {
	if host == "" {
		return "cohort " + cohort
	}
	return "host " + host + " of cohort " + cohort
}

// bundleOf is what a statement says of a host's own bundle, or of the cohort's for "". Its variants are in it.
func bundleOf(st *manifest.Statement, host string) (manifest.Variant, bool) {
	if host == "" {
		return manifest.Variant{Bundle: st.Bundle, Content: st.Content, Files: st.Files, Evidence: st.Evidence, Content0: st.Content0}, true
	}
	for _, v := range st.Variants {
		if v.Host == host {
			return v, true
		}
	}
	return manifest.Variant{}, false
}

// variants are those of a statement, from the object that holds them if there are many.
func variants(ctx context.Context, st store.Reader, statement *manifest.Statement) ([]manifest.Variant, error) {
	o := statement.VariantsObject
	if o == nil {
		return statement.Variants, nil
	}
	key := manifest.KeyBundle(o.Object)
	data, err := readWhole(ctx, st, key, manifest.MaxVariantsBytes)
	if err != nil {
		return nil, err
	}
	if digestOf(data) != o.Object {
		return nil, fmt.Errorf("%s: %w: its bytes are not what was signed; restore it from a backup", key, ErrDamaged)
	}
	doc, err := manifest.DecodeVariants(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return doc.Variants, nil
}

func readWhole(ctx context.Context, st store.Reader, key string, limit int64) ([]byte, error) {
	r, _, err := st.Open(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; hosts that do not have it cannot fetch it: restore it from a backup", key, err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", key, err)
	case int64(len(data)) > limit:
		return nil, fmt.Errorf("%s: %w: more than %d bytes", key, ErrDamaged, limit)
	}
	return data, nil
}

// scan reads and checks a bundle of the store.
func scan(ctx context.Context, st store.Reader, key string) (*bundle.Plan, error) {
	r, size, err := st.Open(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; hosts that do not have it cannot fetch it: restore it from a backup", key, err)
	}
	defer r.Close()
	if size > bundle.MaxCompressed {
		return nil, fmt.Errorf("%s: %w: %d bytes", key, ErrDamaged, size)
	}
	plan, err := bundle.Scan(io.LimitReader(r, bundle.MaxCompressed+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w; restore it from a backup", key, ErrDamaged, err)
	}
	return plan, nil
}

// agrees compares a scanned bundle with what the signed statement says of it.
func agrees(p *bundle.Plan, st *manifest.Statement, want manifest.Variant) error {
	key := manifest.KeyBundle(want.Bundle.Object)
	differs := func(what string, has, want any) error {
		return fmt.Errorf("%s: %w: %s is %v, and the signed statement says %v; restore it from a backup", key, ErrDamaged, what, has, want)
	}
	switch {
	case p.Object != want.Bundle.Object:
		return differs("digest", p.Object, want.Bundle.Object)
	case p.Size != want.Bundle.Size:
		return differs("size", p.Size, want.Bundle.Size)
	case p.Tar != want.Bundle.Tar || p.TarSize != want.Bundle.TarSize:
		return differs("tar digest", p.Tar, want.Bundle.Tar)
	case p.Content != want.Content:
		return differs("content digest", p.Content, want.Content)
	case len(p.Entries) != want.Files:
		return differs("number of files", len(p.Entries), want.Files)
	case p.Index.Repo != st.Repo || p.Index.Cohort != st.Cohort || p.Index.Host != want.Host || p.Index.Epoch != st.Epoch || p.Index.Commit != st.Commit:
		return differs("origin", fmt.Sprintf("%s, %s epoch %d", p.Index.Repo, place(p.Index.Cohort, p.Index.Host), p.Index.Epoch),
			fmt.Sprintf("%s, %s epoch %d", st.Repo, place(st.Cohort, want.Host), st.Epoch))
	}
	return nil
}

// is reports whether a release is that of a commit under the same settings. An override's release is that of the commit before it too: it has nothing else to say of one.
func (v *verified) is(commit Commit, settings string) bool {
	return v.Commit == commit.ID && v.Settings == settings
}

// blocks reports whether a cohort is blocked in it.
func (v *verified) blocks() bool {
	for _, part := range v.Cohorts {
		if part.State == manifest.StateBlocked {
			return true
		}
	}
	return false
}

// news reports whether a build of a released commit has something for a cohort that the release did not: evaluation may fail for a reason of the machine.
func (b *Build) news(rel *verified) bool {
	for name, c := range b.Cohorts {
		if c.Blocked == "" && (!c.Same || rel.Cohorts[name].State == manifest.StateBlocked) {
			return true
		}
	}
	return false
}
