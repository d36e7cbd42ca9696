package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/durable"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// Stage implements agent.Installer.
func (r *Root) Stage(ctx context.Context, want manifest.Resolution, open func(ctx context.Context) (io.ReadCloser, error)) (*agent.Staged, error) {
	if want.Files == 0 {
		// Never a silent wipe. A cohort that is to have nothing is removed, not emptied.
		return nil, &agent.Fault{Code: agent.CodeEmpty, Err: fmt.Errorf("release %d has no files at all; the files of this host stay", want.Epoch())}
	}
	in, entries, err := r.find(ctx, want)
	reused := in.Dir != ""
	if err == nil && !reused {
		in, entries, err = r.build(ctx, want, open)
	}
	if err != nil {
		return nil, err
	}
	s := &agent.Staged{Installed: in, Files: map[string]agent.Change{}, Reused: reused}
	if err := r.compare(ctx, s, entries); err != nil {
		return nil, fmt.Errorf("compare release %d with what is current: %w", want.Epoch(), err)
	}
	return s, nil
}

// find looks for a directory that already holds the release, complete and unchanged. A bad one is left for Sweep, or removed if nothing uses it.
func (r *Root) find(ctx context.Context, want manifest.Resolution) (none agent.Installed, _ []bundle.Entry, _ error) {
	list, err := os.ReadDir(r.join(dirReleases))
	if err != nil {
		return none, nil, fmt.Errorf("read releases: %w", err)
	}
	base := baseName(want.Epoch(), want.Content)
	list = slices.DeleteFunc(list, func(d fs.DirEntry) bool { return !isNameOf(d.Name(), base) })
	if len(list) == 0 {
		return none, nil, nil
	}
	current, err := r.target()
	if err != nil {
		return none, nil, err
	}
	for _, d := range list {
		dir := r.join(dirReleases, d.Name())
		in, _, drift, err := check(ctx, dir, r.owners)
		if err == nil && len(drift) == 0 && in.Content == want.Content && in.Override == want.Override && in.Repo == want.Statement.Repo &&
			in.Cohort == want.Statement.Cohort && in.Commit == want.Statement.Commit {
			_, entries, err := readRecord(dir)
			if err == nil {
				return in, entries, nil
			}
		}
		if ctx.Err() != nil {
			return none, nil, ctx.Err()
		}
		if d.Name() != current {
			if err := r.discard(d.Name()); err != nil {
				return none, nil, fmt.Errorf("remove a broken release: %w", err)
			}
		}
	}
	return none, nil, nil
}

// build fetches, verifies and unpacks a release, and moves it to its place. On an error nothing of it stays.
func (r *Root) build(ctx context.Context, want manifest.Resolution, open func(ctx context.Context) (io.ReadCloser, error)) (none agent.Installed, _ []bundle.Entry, err error) {
	if r.untidy {
		if err := r.sweepTmp(); err != nil {
			return none, nil, fmt.Errorf("clean up: %w", err)
		}
	}
	archive, err := r.fetch(ctx, want, open)
	if err != nil {
		return none, nil, fmt.Errorf("fetch release %d: %w", want.Epoch(), err)
	}
	defer archive.Close()
	plan, err := verify(archive, want)
	if err != nil {
		return none, nil, fmt.Errorf("verify release %d: %w", want.Epoch(), err)
	}
	tree := r.join(dirTmp, durable.TempName())
	tidy := !r.untidy // fetch may have left something
	r.untidy = true
	defer func() {
		if err == nil {
			r.untidy = !tidy // it has moved to its place
			return
		}
		if rerr := r.disk.RemoveAll(tree); rerr != nil {
			err = fmt.Errorf("%w; clean up: %w", err, rerr)
		}
	}()
	rec := record{
		Repo: want.Statement.Repo, Cohort: want.Statement.Cohort, Epoch: want.Epoch(), Commit: want.Statement.Commit, Content: plan.Content,
		Override: want.Override, Services: plan.Index.Services,
	}
	if err := r.unpack(ctx, plan, tree, rec); err != nil {
		return none, nil, fmt.Errorf("unpack release %d: %w", want.Epoch(), err)
	}
	name, err := r.freeName(baseName(want.Epoch(), want.Content))
	if err != nil {
		return none, nil, err
	}
	dir := r.join(dirReleases, name)
	// Not fsynced here: point fsyncs the directory of releases before current leads to one of them, whenever it got its name. If the power goes before that,
	// the release is staged once more.
	if err := r.disk.Move(tree, dir); err != nil {
		return none, nil, fmt.Errorf("move release %d into place: %w", want.Epoch(), err)
	}
	r.remember(dir, rec)
	return rec.installed(dir), plan.Entries, nil
}

// maxInMemory is the largest bundle that is not written to a file before it is unpacked: the agent is to stay small.
const maxInMemory = 512 << 10

// fetched are the stored bytes of a bundle, in memory or in a file that has no name any more.
type fetched interface {
	io.ReadSeeker
	io.Closer
}

type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }

// fetch copies the stored bytes, at most as many as the statement says. They are not fsynced: what counts is unpacked from them in this run.
func (r *Root) fetch(ctx context.Context, want manifest.Resolution, open func(ctx context.Context) (io.ReadCloser, error)) (fetched, error) {
	body, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	src := io.LimitReader(body, min(want.Bundle.Size, bundle.MaxCompressed)+1)
	sum := sha256.New()
	if want.Bundle.Size <= maxInMemory {
		var buf bytes.Buffer
		buf.Grow(int(max(want.Bundle.Size, 0)) + bytes.MinRead)
		n, err := io.Copy(io.MultiWriter(&buf, sum), src)
		if err := asSigned(want, n, sum, err); err != nil {
			return nil, err
		}
		return inMemory{bytes.NewReader(buf.Bytes())}, nil
	}
	path := r.join(dirTmp, durable.TempName())
	r.untidy = true
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	// Its name is needed no longer: whatever happens, nothing of it stays.
	if err = r.disk.RemoveAll(path); err == nil {
		r.untidy = false
		var n int64
		n, err = io.Copy(io.MultiWriter(f, sum), src)
		err = asSigned(want, n, sum, err)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func asSigned(want manifest.Resolution, n int64, sum hash.Hash, err error) error {
	switch got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); {
	case err != nil:
		return err
	case n != want.Bundle.Size:
		return mismatch("the bundle %s has %s bytes, not the %d that were signed", want.Bundle.Object, atLeast(n, want.Bundle.Size), want.Bundle.Size)
	case got != want.Bundle.Object:
		return mismatch("the bundle %s has other bytes than were signed (%s)", want.Bundle.Object, got)
	}
	return nil
}

func atLeast(n, signed int64) string {
	if n > signed {
		return "more"
	}
	return strconv.FormatInt(n, 10)
}

func mismatch(format string, args ...any) error {
	return &agent.Fault{Code: agent.CodeDigest, Err: fmt.Errorf(format, args...)}
}

// verify checks the whole archive against what was signed before one file is written.
func verify(archive io.ReadSeeker, want manifest.Resolution) (*verified, error) {
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	most := int64(0)
	if want.Bundle.TarSize <= maxInMemory {
		most = maxInMemory
	}
	plan, data, err := bundle.ScanKeeping(archive, most)
	if err != nil {
		return nil, err
	}
	st := want.Statement
	for _, c := range []struct{ what, got, want string }{
		{"stored bytes", plan.Object, want.Bundle.Object},
		{"tar", plan.Tar, want.Bundle.Tar},
		{"content", plan.Content, want.Content},
		{"size of the tar", strconv.FormatInt(plan.TarSize, 10), strconv.FormatInt(want.Bundle.TarSize, 10)},
		{"number of files", strconv.Itoa(len(plan.Entries)), strconv.Itoa(want.Files)},
		{"repo", plan.Index.Repo, st.Repo},
		{"cohort", plan.Index.Cohort, st.Cohort},
		{"epoch", strconv.FormatUint(plan.Index.Epoch, 10), strconv.FormatUint(st.Epoch, 10)},
		{"commit", plan.Index.Commit, st.Commit},
	} {
		if c.got != c.want {
			return nil, mismatch("the bundle %s has another %s (%s) than was signed (%s)", want.Bundle.Object, c.what, c.got, c.want)
		}
	}
	return &verified{plan, data, archive}, nil
}

// verified is a bundle that is what was signed.
type verified struct {
	*bundle.Plan
	data    [][]byte // of its files, if they are few and small
	archive io.ReadSeeker
}

// each calls put for each file in order.
func (v *verified) each(put func(e bundle.Entry, data io.Reader) error) error {
	if len(v.data) == len(v.Entries) {
		for i, e := range v.Entries {
			if err := put(e, bytes.NewReader(v.data[i])); err != nil {
				return fmt.Errorf("unpack %q: %w", e.Path, err)
			}
		}
		return nil
	}
	if _, err := v.archive.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return bundle.Extract(v.archive, v.Plan, put)
}

// unpack writes the tree, every file and directory fsynced, under a directory that nobody else can reach until it is finished.
func (r *Root) unpack(ctx context.Context, plan *verified, tree string, rec record) error {
	if err := r.disk.Mkdir(tree, 0o755); err != nil {
		return err
	}
	dirs := []string{tree}
	made := map[string]bool{".": true}
	var mkdir func(rel string) error
	mkdir = func(rel string) error {
		if made[rel] {
			return nil
		}
		if err := mkdir(path.Dir(rel)); err != nil {
			return err
		}
		made[rel] = true
		dirs = append(dirs, filepath.Join(tree, rel))
		return r.disk.Mkdir(filepath.Join(tree, rel), 0o755)
	}
	owners, err := r.ownersOf(plan.Entries)
	if err != nil {
		return err
	}
	files := r.disk.Batch()
	defer files.Close()
	err = plan.each(func(e bundle.Entry, data io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		// Scan has refused such a name already; what writes to a disk looks again.
		if !filepath.IsLocal(e.Path) || path.Clean(e.Path) != e.Path {
			return &agent.Fault{Code: agent.CodeUnsafe, Err: fmt.Errorf("%q leads out of the release", e.Path)}
		}
		if err := mkdir(path.Dir(e.Path)); err != nil {
			return err
		}
		svc, _, _ := strings.Cut(e.Path, "/")
		own, ok := owners[svc]
		if !ok {
			own = durable.Owner{UID: durable.Keep, GID: durable.Keep}
		}
		return notOurs(files.Create(filepath.Join(tree, e.Path), fs.FileMode(e.Mode).Perm(), own, data), svc)
	})
	if err != nil {
		return err
	}
	text, err := wire.Encode(rec)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{nameRecord: text, nameFiles: fileList(plan.Entries)} {
		if err := files.Create(filepath.Join(tree, name), 0o644, durable.Owner{UID: durable.Keep, GID: durable.Keep}, bytes.NewReader(data)); err != nil {
			return err
		}
	}
	if err := files.Sync(); err != nil {
		return err
	}
	// Children before their parents.
	for _, d := range slices.Backward(dirs) {
		if err := r.disk.SyncDir(d); err != nil {
			return err
		}
	}
	return nil
}

// freeName is base, or base with the first number behind it that is not taken.
func (r *Root) freeName(base string) (string, error) {
	name := base
	for n := 2; ; n++ {
		_, err := os.Lstat(r.join(dirReleases, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return name, nil
		case err != nil:
			return "", err
		}
		name = fmt.Sprintf("%s.%d", base, n)
	}
}

// compare fills in which services and files of s differ from what really lies under current, whatever its record says.
func (r *Root) compare(ctx context.Context, s *agent.Staged, entries []bundle.Entry) error {
	var now []bundle.Entry
	name, err := r.target()
	if err != nil {
		return err
	}
	if name != "" {
		found, err := inventory(ctx, r.join(dirReleases, name))
		if err != nil {
			return err
		}
		now = entriesOf(found)
	}
	added, changed, removed := diff(now, entries)
	for i, paths := range [][]string{added, changed, removed} {
		for _, p := range paths {
			// What somebody else put there may have any name; what is remembered and handed on is text.
			svc, file, _ := strings.Cut(strings.ToValidUTF8(p, "?"), "/")
			c := s.Files[svc]
			list := []*[]string{&c.Added, &c.Changed, &c.Removed}[i]
			*list = append(*list, file)
			s.Files[svc] = c
		}
	}
	for svc := range s.Files {
		s.Changed = append(s.Changed, svc)
	}
	slices.Sort(s.Changed)
	return nil
}
