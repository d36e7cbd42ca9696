package install

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/durable"
)

// Current implements agent.Installer. A release whose record is broken has only a Dir.
func (r *Root) Current(context.Context) (*agent.Installed, error) {
	name, err := r.target()
	if err != nil || name == "" {
		return nil, err
	}
	dir := r.join(dirReleases, name)
	rec, ok := r.recalled(dir)
	if !ok {
		if rec, _, err = readRecord(dir); err != nil {
			return &agent.Installed{Dir: dir}, nil
		}
		r.remember(dir, rec)
	}
	in := rec.installed(dir)
	in.Services = maps.Clone(in.Services)
	return &in, nil
}

// remembered is a record, and what its two files were when it was read or written. It spares Current the reading while they are the same. Whether the files
// hold what they should is never answered by it: Verify reads all.
type remembered struct {
	dir   string
	rec   record
	files [2]stamp
}

// stamp changes when a file is written or replaced by another.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64
}

func stamps(dir string) (s [2]stamp, ok bool) {
	for i, name := range []string{nameRecord, nameFiles} {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, name), &st) != nil {
			return s, false
		}
		s[i] = stamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()} //nolint:unconvert // signed on other systems
	}
	return s, true
}

func (r *Root) remember(dir string, rec record) {
	if s, ok := stamps(dir); ok {
		r.known = remembered{dir, rec, s}
	}
}

func (r *Root) recalled(dir string) (record, bool) {
	if r.known.dir != dir {
		return record{}, false
	}
	s, ok := stamps(dir)
	return r.known.rec, ok && s == r.known.files
}

// Verify implements agent.Installer.
func (r *Root) Verify(ctx context.Context) (string, []string, error) {
	name, err := r.target()
	if err != nil || name == "" {
		return "", nil, err
	}
	_, content, drift, err := check(ctx, r.join(dirReleases, name), r.owners)
	return content, drift, err
}

// VerifyStaged implements agent.Installer.
func (r *Root) VerifyStaged(ctx context.Context, s *agent.Staged) (string, []string, error) {
	_, content, drift, err := check(ctx, s.Dir, r.owners)
	return content, drift, err
}

// Swap implements agent.Installer.
func (r *Root) Swap(_ context.Context, s *agent.Staged) error { return r.point(s.Dir) }

// SwapBack implements agent.Installer.
func (r *Root) SwapBack(_ context.Context, to *agent.Installed) error { return r.point(to.Dir) }

func (r *Root) point(dir string) error {
	name := filepath.Base(dir)
	if dir != r.join(dirReleases, name) {
		return fmt.Errorf("swap to %s: not a release of %s", dir, r.path)
	}
	if _, err := os.Stat(filepath.Join(dir, nameRecord)); err != nil {
		return fmt.Errorf("swap: %w", err)
	}
	// What is there now must be the agent's own link, or nothing: what somebody put there is never replaced.
	if _, err := r.target(); err != nil {
		return err
	}
	// The release's own files and directories were fsynced before it got its name; now the name is. So current never leads to what a power cut may take away.
	if err := r.disk.SyncDir(r.join(dirReleases)); err != nil {
		return fmt.Errorf("swap: %w", err)
	}
	if err := r.disk.Symlink(dirReleases+"/"+name, r.join(linkCurrent)); err != nil {
		return fmt.Errorf("swap: %w", err)
	}
	return nil
}

// Sweep implements agent.Installer.
func (r *Root) Sweep(_ context.Context, keep ...string) error {
	current, err := r.target()
	if err != nil {
		return err
	}
	if err := r.sweepTmp(); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	list, err := os.ReadDir(r.join(dirReleases))
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	for _, d := range list {
		if d.Name() == current || slices.Contains(keep, r.join(dirReleases, d.Name())) {
			continue
		}
		if err := r.discard(d.Name()); err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
	}
	return nil
}

// discard removes a release. It leaves its name first, so that whoever looks finds what bears a release's name complete. Nothing is synced: after a power cut
// it may be there again, in part even, and is taken for a release only if all of it is there (find), or swept once more.
func (r *Root) discard(name string) error {
	gone := r.join(dirTmp, durable.TempName())
	tidy := !r.untidy
	r.untidy = true
	if err := r.disk.Move(r.join(dirReleases, name), gone); err != nil {
		return err
	}
	if err := r.disk.RemoveAll(gone); err != nil {
		return err
	}
	r.untidy = !tidy
	return nil
}
