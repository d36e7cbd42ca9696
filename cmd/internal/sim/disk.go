package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
)

// disk is what survives a power cut.
type disk struct {
	memory   map[string][]byte
	releases map[string]*installed // by directory
	current  *installed
	boots    int
	edited   edited
}

// epoch is what is current; 0 for nothing.
func (d *disk) epoch() uint64 {
	if d.current == nil {
		return 0
	}
	return d.current.Epoch
}

// installed is an unpacked release.
type installed struct {
	agent.Installed
	entries []bundle.Entry
	texts   map[string]string // service → its one file
}

// at is the release whose directory of a service is given.
func (d *disk) at(dir, service string) *installed {
	return d.releases[strings.TrimSuffix(dir, "/"+service)]
}

// plan is a bundle as it was read and checked, once for all hosts.
type plan struct {
	*bundle.Plan
	texts map[string]string
}

// unpack reads a bundle. Equal bytes are read once.
func (w *World) unpack(data []byte) (*plan, error) {
	sum := sha256.Sum256(data)
	object := "sha256:" + hex.EncodeToString(sum[:])
	w.mu.Lock()
	p := w.plans[object]
	w.mu.Unlock()
	if p != nil {
		return p, nil
	}
	read, err := bundle.Scan(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	p = &plan{Plan: read, texts: map[string]string{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	for service, s := range read.Index.Services {
		p.texts[service] = w.textOf(s.Digest)
	}
	w.plans[object] = p
	return p, nil
}

// installer is the target directory.
type installer struct {
	h *host
	l *life
}

func (i *installer) lock() error {
	i.h.mu.Lock()
	if i.l.dead.Load() {
		i.h.mu.Unlock()
		return errDead
	}
	return nil
}

// Current implements agent.Installer.
func (i *installer) Current(context.Context) (*agent.Installed, error) {
	if err := i.lock(); err != nil {
		return nil, err
	}
	defer i.h.mu.Unlock()
	if i.h.disk.current == nil {
		return nil, nil
	}
	in := i.h.disk.current.Installed
	return &in, nil
}

// Stage implements agent.Installer.
func (i *installer) Stage(ctx context.Context, r manifest.Resolution, open func(context.Context) (io.ReadCloser, error)) (*agent.Staged, error) {
	h, w := i.h, i.h.w
	dir := path.Join("/sim/releases", fmt.Sprintf("%d-%.19s-%s", r.Epoch(), r.Content, r.Override))
	if err := i.lock(); err != nil {
		return nil, err
	}
	in := h.disk.releases[dir]
	if in == h.disk.current && len(h.disk.edited.paths) > 0 {
		in = nil // its files are not as they were
	}
	h.mu.Unlock()
	reused := in != nil
	if !reused {
		body, err := open(ctx)
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(body)
		body.Close()
		if err != nil {
			return nil, err
		}
		p, err := w.unpack(data)
		if err != nil {
			return nil, err
		}
		if p.Content != r.Content || p.Tar != r.Bundle.Tar || len(p.Entries) != r.Files {
			return nil, &agent.Fault{Code: agent.CodeDigest, Err: errors.New("the bundle is not what was signed")}
		}
		in = &installed{
			Installed: agent.Installed{
				Dir: dir, Repo: r.Statement.Repo, Cohort: r.Statement.Cohort, Epoch: r.Epoch(), Commit: r.Statement.Commit, Content: p.Content, Override: r.Override,
				Services: maps.Clone(p.Index.Services),
			},
			entries: p.Entries, texts: p.texts,
		}
	}
	time.Sleep(100*time.Millisecond + time.Duration(w.roll("stage", h.name)%uint64(2*time.Second)))
	w.mu.Lock()
	full := !w.quiet() && w.roll("full", h.name)%1000 < 5
	w.mu.Unlock()
	if full && !reused {
		w.census.fault(faultDisk)
		h.mu.Lock()
		h.stumbled = time.Now()
		h.mu.Unlock()
		return nil, &agent.Fault{Code: agent.CodeNoSpace, Err: errors.New("no space left on device")}
	}
	if err := i.lock(); err != nil {
		return nil, err
	}
	defer h.mu.Unlock()
	if old := h.disk.releases[dir]; old != nil && old == h.disk.current {
		in = old // the same once more
	}
	h.disk.releases[dir] = in
	s := &agent.Staged{Installed: in.Installed, Reused: reused}
	s.Files = differ(h.disk.current, in)
	h.disk.touched(s.Files, in)
	s.Changed = slices.Sorted(maps.Keys(s.Files))
	return s, nil
}

// differ says which files differ between two releases.
func differ(old, next *installed) map[string]agent.Change {
	files := map[string]agent.Change{}
	was, is := map[string]bundle.Entry{}, map[string]bundle.Entry{}
	if old != nil {
		for _, e := range old.entries {
			was[e.Path] = e
		}
	}
	for _, e := range next.entries {
		is[e.Path] = e
	}
	note := func(p string, add func(c *agent.Change, name string)) {
		service, name, _ := strings.Cut(p, "/")
		c := files[service]
		add(&c, name)
		files[service] = c
	}
	for _, e := range next.entries {
		switch o, ok := was[e.Path]; {
		case !ok:
			note(e.Path, func(c *agent.Change, n string) { c.Added = append(c.Added, n) })
		case o != e:
			note(e.Path, func(c *agent.Change, n string) { c.Changed = append(c.Changed, n) })
		}
	}
	if old != nil {
		for _, e := range old.entries {
			if _, ok := is[e.Path]; !ok {
				note(e.Path, func(c *agent.Change, n string) { c.Removed = append(c.Removed, n) })
			}
		}
	}
	return files
}

// VerifyStaged implements agent.Installer.
func (i *installer) VerifyStaged(_ context.Context, s *agent.Staged) (string, []string, error) {
	return s.Content, nil, nil
}

// Swap implements agent.Installer.
func (i *installer) Swap(_ context.Context, s *agent.Staged) error { return i.point(s.Dir, false) }

// SwapBack implements agent.Installer.
func (i *installer) SwapBack(_ context.Context, to *agent.Installed) error {
	return i.point(to.Dir, true)
}

func (i *installer) point(dir string, back bool) error {
	h := i.h
	time.Sleep(time.Millisecond + time.Duration(h.w.roll("swap", h.name)%uint64(2*time.Millisecond)))
	if err := i.lock(); err != nil {
		return err
	}
	next := h.disk.releases[dir]
	if next == nil {
		h.mu.Unlock()
		return fmt.Errorf("%s is gone", dir)
	}
	before := h.disk.current
	h.disk.current, h.landed = next, time.Now()
	why := h.swapped(before, next, back)
	h.disk.repaired(h.w, before == next)
	behind := -min(h.clock.off, h.clock.was, 0)
	h.mu.Unlock()
	if why == "" && !back {
		why = h.swapsUnder(before, next, behind)
	}
	word := "swap"
	if back {
		word = "swap back"
	}
	h.w.note(h.name, word, "epoch %d %.12s", next.Epoch, strings.TrimPrefix(next.Content, "sha256:"))
	if why != "" {
		h.w.breach("a host runs only what the head it saw assigns", "%s: %s", h.name, why)
	}
	return nil
}

// Verify implements agent.Installer.
func (i *installer) Verify(context.Context) (string, []string, error) {
	if err := i.lock(); err != nil {
		return "", nil, err
	}
	defer i.h.mu.Unlock()
	if i.h.disk.current == nil {
		return "", nil, nil
	}
	if paths := i.h.disk.edited.paths; len(paths) > 0 {
		return sumOf("edited"), slices.Clone(paths), nil
	}
	return i.h.disk.current.Content, nil, nil
}

// Sweep implements agent.Installer.
func (i *installer) Sweep(_ context.Context, keep ...string) error {
	if err := i.lock(); err != nil {
		return err
	}
	defer i.h.mu.Unlock()
	for dir, in := range i.h.disk.releases {
		if in != i.h.disk.current && !slices.Contains(keep, dir) {
			delete(i.h.disk.releases, dir)
		}
	}
	return nil
}
