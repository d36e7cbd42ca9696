package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-config/muster/agent"
)

// Links of services lie outside the root, <path> -> <root>/current/<service>/<file>, and lead through current: a swap moves them all at once, and they are
// made once. Each step leaves either what was there or the link.

// asideSuffix is behind the name of what was there before a link took its place.
const asideSuffix = ".before-muster"

// maxAside bounds the names that are tried.
const maxAside = 100

// standing is what is where a link is to be.
type standing int

const (
	right   standing = iota // the link as it should be
	nothing                 // nothing
	ours                    // a link of the agent's that leads elsewhere below the root
	foreign                 // somebody else's file or link
	blocked                 // somebody else's directory, device, …: nothing that a name could take the place of
)

func (r *Root) linkTarget(l agent.Link) string { return r.join(linkCurrent, l.Service, l.File) }

func (r *Root) standing(path, target string) (standing, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nothing, nil
	case err != nil:
		return blocked, err
	case info.Mode().IsRegular():
		return foreign, nil
	case info.Mode()&fs.ModeSymlink == 0:
		return blocked, nil
	}
	to, err := os.Readlink(path)
	switch {
	case err != nil:
		return blocked, err
	case to == target:
		return right, nil
	case r.leadsHere(to):
		return ours, nil
	}
	return foreign, nil
}

// leadsHere knows the agent's own links by where they lead. It makes none with a ".." or a doubled slash in it: one that has them may lead anywhere.
func (r *Root) leadsHere(to string) bool {
	return filepath.Clean(to) == to && (strings.HasPrefix(to, r.join(linkCurrent)+"/") || strings.HasPrefix(to, r.join(dirReleases)+"/"))
}

// CheckLink implements agent.Linker.
func (r *Root) CheckLink(l agent.Link, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, l.Service, l.File)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the release has no %s/%s, to which %s is to lead; correct links: in the configuration", l.Service, l.File, l.Path)
	} else if err != nil {
		return err
	}
	return r.free(l)
}

func (r *Root) free(l agent.Link) error {
	parent, err := os.Stat(filepath.Dir(l.Path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no directory %s; make it", filepath.Dir(l.Path))
	case err != nil:
		return err
	case !parent.IsDir():
		return fmt.Errorf("%s is no directory", filepath.Dir(l.Path))
	}
	if err := r.reserved(l.Path, way(l.Path), way(r.join(linkCurrent))); err != nil {
		return err
	}
	at, err := r.standing(l.Path, r.linkTarget(l))
	switch {
	case err != nil:
		return err
	case at == blocked:
		return fmt.Errorf("at %s is neither a file nor a link, which the agent never replaces; move it away", l.Path)
	case at == foreign && !l.TakeOver:
		return fmt.Errorf("%s is somebody else's file; move it away, or set take_over: true to have it kept as %s", l.Path, filepath.Base(l.Path)+asideSuffix)
	}
	return nil
}

// Link implements agent.Linker.
func (r *Root) Link(l agent.Link) (made bool, err error) {
	target := r.linkTarget(l)
	at, err := r.standing(l.Path, target)
	if err == nil && at == right {
		return false, nil
	}
	if err := r.free(l); err != nil {
		return false, err
	}
	if err := r.sweepLinks(filepath.Dir(l.Path)); err != nil {
		return false, fmt.Errorf("clean up: %w", err)
	}
	if at == foreign {
		if err := r.aside(l.Path); err != nil {
			return false, fmt.Errorf("keep what is at %s: %w", l.Path, err)
		}
	}
	if err := r.disk.Symlink(target, l.Path); err != nil {
		return false, fmt.Errorf("make %s: %w", l.Path, err)
	}
	return true, nil
}

// aside keeps a file under a second name. It stays where it is until the link takes its place, and that name is durable before that.
func (r *Root) aside(path string) error {
	for n := 1; n <= maxAside; n++ {
		second := path + asideSuffix
		if n > 1 {
			second = fmt.Sprintf("%s.%d", second, n)
		}
		if err := r.disk.Aside(path, second); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return fmt.Errorf("%s%s and %d more are taken; remove those that nobody needs", path, asideSuffix, maxAside-1)
}

// sweepLinks removes links that a crash left unfinished in somebody else's directory: those with a name of the agent's own that lead to its root.
func (r *Root) sweepLinks(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !strings.HasPrefix(e.Name(), ".tmp-") || e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		if to, err := os.Readlink(path); err != nil || !r.leadsHere(to) {
			continue
		}
		if err := r.disk.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// Unlink implements agent.Linker.
func (r *Root) Unlink(path string, wanted []agent.Link) (removed bool, err error) {
	at, err := r.standing(path, "")
	if err != nil || at != ours {
		return false, err // gone, or not the agent's any more
	}
	here := place(way(path))
	for _, l := range wanted {
		if place(way(l.Path)) == here {
			return false, nil // the same place by another spelling
		}
	}
	return true, r.disk.Remove(path)
}

// LinkTrouble says which links under a root are not as they should be, for a person at the host: it takes nothing into use.
func LinkTrouble(root string, links []agent.Link) []string {
	r := &Root{path: filepath.Clean(root)}
	var list []string
	clashes := r.Clashes(links)
	for _, l := range links {
		if err := clashes[l.Path]; err != nil {
			list = append(list, err.Error())
		} else if err := r.Stands(l); err != nil {
			list = append(list, err.Error())
		}
	}
	return list
}

// Stands implements agent.Linker.
func (r *Root) Stands(l agent.Link) error {
	at, err := r.standing(l.Path, r.linkTarget(l))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", l.Path, err)
	case at == nothing:
		return fmt.Errorf("%s: the link is missing", l.Path)
	case at == ours:
		return fmt.Errorf("%s: the link leads elsewhere than to %s", l.Path, r.linkTarget(l))
	case at != right:
		return fmt.Errorf("%s: somebody else's file, not the agent's link", l.Path)
	}
	if _, err := os.Stat(l.Path); err != nil {
		return fmt.Errorf("%s: %s/%s is not in the release", l.Path, l.Service, l.File)
	}
	return nil
}
