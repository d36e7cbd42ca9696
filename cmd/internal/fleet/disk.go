package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
)

// release is an unpacked bundle. All hosts that have the same bytes share it.
type release struct {
	plan  *bundle.Plan
	files []bundle.File
}

// shelf keeps the releases of a process's hosts. Each host fetches its own bytes, and their digest is checked; they are unpacked once.
type shelf struct {
	mu   sync.Mutex
	kept map[string]*release // by digest of the stored bytes
	old  []string            // in the order in which they came
}

// maxShelf bounds what is kept; a host that still has an older one installed holds it itself.
const maxShelf = 64

func (s *shelf) unpack(object string, data []byte) (*release, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.kept[object]; r != nil {
		return r, nil
	}
	r := &release{}
	var err error
	if r.plan, err = bundle.Scan(bytes.NewReader(data)); err != nil {
		return nil, err
	}
	err = bundle.Extract(bytes.NewReader(data), r.plan, func(e bundle.Entry, from io.Reader) error {
		text, err := io.ReadAll(from)
		r.files = append(r.files, bundle.File{Path: e.Path, Mode: e.Mode, Data: text})
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.kept == nil {
		s.kept = map[string]*release{}
	}
	s.kept[object] = r
	s.old = append(s.old, object)
	if len(s.old) > maxShelf {
		delete(s.kept, s.old[0])
		s.old = s.old[1:]
	}
	return r, nil
}

// Move is one change of what lies under a host's current.
type Move struct {
	At    time.Time `json:"at"`
	From  uint64    `json:"from"`
	Epoch uint64    `json:"epoch"`
	Back  bool      `json:"back,omitempty"` // the agent went back by itself
}

// maxMoves bounds what is remembered of a host's moves; all are counted.
const maxMoves = 1000

// disk is a simulated target directory, with the agent's documents: it survives a restart of the agent, as long as the process lives.
type disk struct {
	shelf *shelf
	moved func() // before each move: what runs until now counts for what was

	mu       sync.Mutex
	docs     map[string][]byte
	releases map[string]*installed // by directory
	current  *installed
	moves    []Move
	swaps    int
}

type installed struct {
	agent.Installed
	*release
}

func newDisk(s *shelf) *disk {
	return &disk{shelf: s, moved: func() {}, docs: map[string][]byte{}, releases: map[string]*installed{}}
}

var (
	_ agent.Installer = (*disk)(nil)
	_ agent.Memory    = (*disk)(nil)
)

// Load implements agent.Memory.
func (d *disk) Load(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, ok := d.docs[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return bytes.Clone(data), nil
}

// Save implements agent.Memory.
func (d *disk) Save(name string, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.docs[name] = bytes.Clone(data)
	return nil
}

// Current implements agent.Installer.
func (d *disk) Current(context.Context) (*agent.Installed, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current == nil {
		return nil, nil
	}
	in := d.current.Installed
	return &in, nil
}

// Stage implements agent.Installer.
func (d *disk) Stage(ctx context.Context, r manifest.Resolution, open func(context.Context) (io.ReadCloser, error)) (*agent.Staged, error) {
	if r.Files == 0 {
		return nil, &agent.Fault{Code: agent.CodeEmpty, Err: fmt.Errorf("release %d has no files at all; the files of this host stay", r.Epoch())}
	}
	dir := fmt.Sprintf("releases/%d-%.12s", r.Epoch(), strings.TrimPrefix(r.Content, "sha256:"))
	if r.Override != "" {
		dir += "-" + r.Override
	}
	d.mu.Lock()
	in := d.releases[dir]
	d.mu.Unlock()
	reused := in != nil
	if !reused {
		rel, err := d.fetch(ctx, r, open)
		if err != nil {
			return nil, fmt.Errorf("release %d: %w", r.Epoch(), err)
		}
		st := r.Statement
		in = &installed{release: rel, Installed: agent.Installed{
			Dir: dir, Repo: st.Repo, Cohort: st.Cohort, Epoch: st.Epoch, Commit: st.Commit, Content: r.Content, Override: r.Override, Services: rel.plan.Index.Services,
		}}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.releases[dir] = in
	s := &agent.Staged{Installed: in.Installed, Reused: reused}
	s.Changed, s.Files = changes(d.current, in)
	return s, nil
}

// fetch reads the bytes that were signed, and nothing else.
func (d *disk) fetch(ctx context.Context, r manifest.Resolution, open func(context.Context) (io.ReadCloser, error)) (*release, error) {
	body, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, min(r.Bundle.Size, bundle.MaxCompressed)+1))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); "sha256:"+hex.EncodeToString(sum[:]) != r.Bundle.Object {
		return nil, &agent.Fault{Code: agent.CodeDigest, Err: fmt.Errorf("the bundle %s has other bytes than were signed", r.Bundle.Object)}
	}
	rel, err := d.shelf.unpack(r.Bundle.Object, data)
	if err != nil {
		return nil, err
	}
	if rel.plan.Content != r.Content || rel.plan.Tar != r.Bundle.Tar || len(rel.files) != r.Files {
		return nil, &agent.Fault{Code: agent.CodeDigest, Err: fmt.Errorf("the bundle %s has other files than were signed", r.Bundle.Object)}
	}
	return rel, nil
}

// changes says which services differ, and which of their files.
func changes(from, to *installed) ([]string, map[string]agent.Change) {
	before, after := map[string]bundle.Entry{}, map[string]bundle.Entry{}
	if from != nil {
		for _, e := range from.plan.Entries {
			before[e.Path] = e
		}
	}
	files := map[string]agent.Change{}
	add := func(path string, put func(c *agent.Change, file string)) {
		service, file, _ := strings.Cut(path, "/")
		c := files[service]
		put(&c, file)
		files[service] = c
	}
	for _, e := range to.plan.Entries {
		after[e.Path] = e
		switch old, ok := before[e.Path]; {
		case !ok:
			add(e.Path, func(c *agent.Change, file string) { c.Added = append(c.Added, file) })
		case old != e:
			add(e.Path, func(c *agent.Change, file string) { c.Changed = append(c.Changed, file) })
		}
	}
	if from != nil {
		for _, e := range from.plan.Entries {
			if _, ok := after[e.Path]; !ok {
				add(e.Path, func(c *agent.Change, file string) { c.Removed = append(c.Removed, file) })
			}
		}
	}
	var names []string
	for service := range files {
		names = append(names, service)
	}
	slices.Sort(names)
	return names, files
}

// VerifyStaged implements agent.Installer: nobody edits a simulated disk.
func (d *disk) VerifyStaged(_ context.Context, s *agent.Staged) (string, []string, error) {
	return s.Content, nil, nil
}

// Verify implements agent.Installer.
func (d *disk) Verify(context.Context) (string, []string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current == nil {
		return "", nil, nil
	}
	return d.current.Content, nil, nil
}

// Swap implements agent.Installer.
func (d *disk) Swap(_ context.Context, s *agent.Staged) error { return d.move(s.Dir, false) }

// SwapBack implements agent.Installer.
func (d *disk) SwapBack(_ context.Context, to *agent.Installed) error { return d.move(to.Dir, true) }

func (d *disk) move(dir string, back bool) error {
	d.moved()
	d.mu.Lock()
	defer d.mu.Unlock()
	to := d.releases[dir]
	if to == nil {
		return errors.New(dir + " is not there")
	}
	m := Move{At: time.Now().UTC(), Epoch: to.Epoch, Back: back}
	if d.current != nil {
		m.From = d.current.Epoch
	}
	d.current = to
	d.swaps++
	if len(d.moves) == maxMoves {
		d.moves = d.moves[1:]
	}
	d.moves = append(d.moves, m)
	return nil
}

// Sweep implements agent.Installer.
func (d *disk) Sweep(_ context.Context, keep ...string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for dir, in := range d.releases {
		if in != d.current && !slices.Contains(keep, dir) {
			delete(d.releases, dir)
		}
	}
	return nil
}

// runs is what lies under current, nil if nothing does.
func (d *disk) runs() *installed {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

func (d *disk) history() ([]Move, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.moves), d.swaps
}
