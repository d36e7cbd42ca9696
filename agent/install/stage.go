package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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
	dir, entries, err := r.find(ctx, want)
	reused := dir != ""
	if err == nil && !reused {
		dir, entries, err = r.build(ctx, want, open)
	}
	if err != nil {
		return nil, err
	}
	rec, _, err := readRecord(dir)
	if err != nil {
		return nil, fmt.Errorf("stage release %d: %w", want.Epoch(), err)
	}
	s := &agent.Staged{Installed: rec.installed(dir), Files: map[string]agent.Change{}, Reused: reused}
	if err := r.compare(ctx, s, entries); err != nil {
		return nil, fmt.Errorf("compare release %d with what is current: %w", want.Epoch(), err)
	}
	return s, nil
}

// find looks for a directory that already holds the release, complete and unchanged. A bad one is left for Sweep, or removed if nothing uses it.
func (r *Root) find(ctx context.Context, want manifest.Resolution) (string, []bundle.Entry, error) {
	list, err := os.ReadDir(r.join(dirReleases))
	if err != nil {
		return "", nil, fmt.Errorf("read releases: %w", err)
	}
	current, err := r.target()
	if err != nil {
		return "", nil, err
	}
	base := baseName(want.Epoch(), want.Content)
	for _, d := range list {
		if !isNameOf(d.Name(), base) {
			continue
		}
		dir := r.join(dirReleases, d.Name())
		in, _, drift, err := check(ctx, dir)
		if err == nil && len(drift) == 0 && in.Content == want.Content && in.Override == want.Override && in.Repo == want.Statement.Repo &&
			in.Cohort == want.Statement.Cohort && in.Commit == want.Statement.Commit {
			_, entries, err := readRecord(dir)
			if err == nil {
				return dir, entries, nil
			}
		}
		if ctx.Err() != nil {
			return "", nil, ctx.Err()
		}
		if d.Name() != current {
			if err := r.discard(d.Name()); err != nil {
				return "", nil, fmt.Errorf("remove a broken release: %w", err)
			}
		}
	}
	return "", nil, nil
}

// build fetches, verifies and unpacks a release, and moves it to its place. On an error nothing of it stays.
func (r *Root) build(ctx context.Context, want manifest.Resolution, open func(ctx context.Context) (io.ReadCloser, error)) (_ string, _ []bundle.Entry, err error) {
	if err := r.sweepTmp(); err != nil {
		return "", nil, fmt.Errorf("clean up: %w", err)
	}
	work := r.join(dirTmp, durable.TempName())
	if err := r.disk.Mkdir(work, 0o700); err != nil {
		return "", nil, fmt.Errorf("stage release %d: %w", want.Epoch(), err)
	}
	defer func() {
		if rerr := r.disk.RemoveAll(work); err == nil && rerr != nil {
			err = fmt.Errorf("clean up: %w", rerr)
		}
	}()
	archive, err := r.fetch(ctx, filepath.Join(work, "bundle"), want, open)
	if err != nil {
		return "", nil, fmt.Errorf("fetch release %d: %w", want.Epoch(), err)
	}
	defer archive.Close()
	plan, err := verify(archive, want)
	if err != nil {
		return "", nil, fmt.Errorf("verify release %d: %w", want.Epoch(), err)
	}
	tree := filepath.Join(work, "tree")
	if err := r.unpack(ctx, archive, plan, tree, want); err != nil {
		return "", nil, fmt.Errorf("unpack release %d: %w", want.Epoch(), err)
	}
	name, err := r.freeName(baseName(want.Epoch(), want.Content))
	if err != nil {
		return "", nil, err
	}
	dir := r.join(dirReleases, name)
	if err := r.disk.Rename(tree, dir); err != nil {
		return "", nil, fmt.Errorf("move release %d into place: %w", want.Epoch(), err)
	}
	return dir, plan.Entries, nil
}

// fetch copies the stored bytes to a file, at most as many as the statement says. They are not fsynced: what counts is unpacked from them in this run.
func (r *Root) fetch(ctx context.Context, to string, want manifest.Resolution, open func(ctx context.Context) (io.ReadCloser, error)) (*os.File, error) {
	body, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	f, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(body, min(want.Bundle.Size, bundle.MaxCompressed)+1))
	switch got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); {
	case err != nil:
	case n != want.Bundle.Size:
		err = mismatch("the bundle %s has %s bytes, not the %d that were signed", want.Bundle.Object, atLeast(n, want.Bundle.Size), want.Bundle.Size)
	case got != want.Bundle.Object:
		err = mismatch("the bundle %s has other bytes than were signed (%s)", want.Bundle.Object, got)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
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
func verify(archive *os.File, want manifest.Resolution) (*bundle.Plan, error) {
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	plan, err := bundle.Scan(archive)
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
	return plan, nil
}

// unpack writes the tree, every file and directory fsynced, under a directory that nobody else can reach until it is finished.
func (r *Root) unpack(ctx context.Context, archive *os.File, plan *bundle.Plan, tree string, want manifest.Resolution) error {
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return err
	}
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
	err := bundle.Extract(archive, plan, func(e bundle.Entry, data io.Reader) error {
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
		return r.disk.CreateFile(filepath.Join(tree, e.Path), fs.FileMode(e.Mode).Perm(), data)
	})
	if err != nil {
		return err
	}
	rec, err := wire.Encode(record{
		Repo: want.Statement.Repo, Cohort: want.Statement.Cohort, Epoch: want.Epoch(), Commit: want.Statement.Commit, Content: plan.Content,
		Override: want.Override, Services: plan.Index.Services,
	})
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{nameRecord: rec, nameFiles: fileList(plan.Entries)} {
		if err := r.disk.CreateFile(filepath.Join(tree, name), 0o644, strings.NewReader(string(data))); err != nil {
			return err
		}
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
		if now, err = inventory(ctx, r.join(dirReleases, name)); err != nil {
			return err
		}
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
