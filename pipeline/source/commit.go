package source

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// keepSmall bounds the memory for files that are read at once.
const (
	keepSmall = 64 << 20
	maxTarget = 4096 // bytes of a symlink's target
)

func (r *Repo) readCommit(c *object.Commit) (*tree, error) {
	w := &commitReader{objects: r.objects, b: newBuilder(), seen: map[plumbing.Hash]blob{}}
	if err := w.dir(".", c.TreeHash); err != nil {
		return nil, err
	}
	return w.b.finish(identity(c))
}

func identity(c *object.Commit) Identity {
	id := Identity{
		Commit:    c.Hash.String(),
		Tree:      c.TreeHash.String(),
		Author:    person(c.Author),
		Committer: person(c.Committer),
	}
	for _, p := range c.ParentHashes {
		id.Parents = append(id.Parents, p.String())
	}
	subject, _, _ := strings.Cut(strings.TrimLeft(c.Message, "\n"), "\n")
	id.Subject = clean(subject)
	return id
}

func person(s object.Signature) Person {
	return Person{Name: clean(s.Name), Email: clean(s.Email), At: s.When.UTC()}
}

// clean makes one printable line of what git stores as free bytes.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s))
}

type commitReader struct {
	objects *objects
	b       *builder
	seen    map[plumbing.Hash]blob
	kept    int64
}

// blob is what is known of an object: equal files, and equal directories, are looked up once.
type blob struct {
	size int64
	data []byte // content of a small one, nil if not kept
}

// look gives an object's size, and its content if it may be an LFS pointer: as config files are small, that is most of them.
func (w *commitReader) look(h plumbing.Hash, kind plumbing.ObjectType) (blob, error) {
	if b, ok := w.seen[h]; ok {
		return b, nil
	}
	size, err := w.objects.size(h)
	if err != nil {
		return blob{}, err
	}
	b := blob{size: size}
	if kind == plumbing.BlobObject && size < maxPointer {
		_, data, err := w.objects.get(kind, h)
		if err != nil {
			return blob{}, err
		}
		if isLFSPointer(data) || w.kept+size <= keepSmall {
			w.kept += size
			b.data = data
		}
	}
	w.seen[h] = b
	return b, nil
}

func (w *commitReader) dir(dir string, h plumbing.Hash) error {
	if b, err := w.look(h, plumbing.TreeObject); err != nil {
		return fmt.Errorf("%s: %w", shown(dir), err)
	} else if b.size > MaxFile {
		return tooLarge(dir, b.size)
	}
	_, data, err := w.objects.get(plumbing.TreeObject, h)
	if err != nil {
		return fmt.Errorf("%s: %w", shown(dir), err)
	}
	var mem plumbing.MemoryObject
	mem.SetType(plumbing.TreeObject)
	if _, err := mem.Write(data); err != nil {
		return err
	}
	var t object.Tree
	if err := t.Decode(&mem); err != nil {
		return fmt.Errorf("%s: %w", shown(dir), err)
	}
	for _, e := range t.Entries {
		if strings.Contains(e.Name, "/") {
			return refuse(path.Join(dir, e.Name), "a name that git does not allow", "run git fsck; the commit was not made by git")
		}
		p := e.Name
		if dir != "." {
			p = dir + "/" + e.Name
		}
		if err := w.entry(p, e); err != nil {
			return err
		}
	}
	return nil
}

func (w *commitReader) entry(p string, e object.TreeEntry) error {
	switch e.Mode {
	case filemode.Dir:
		if err := w.b.addDir(p); err != nil {
			return err
		}
		return w.dir(p, e.Hash)
	case filemode.Submodule:
		return submodule(p)
	case filemode.Regular, filemode.Deprecated, filemode.Executable, filemode.Symlink:
	default:
		return refuse(p, fmt.Sprintf("file mode %o", uint32(e.Mode)), "run git fsck")
	}
	found, err := w.look(e.Hash, plumbing.BlobObject)
	if err != nil {
		return fmt.Errorf("%s: %w", shown(p), err)
	}
	read := func() ([]byte, error) {
		_, data, err := w.objects.get(plumbing.BlobObject, e.Hash)
		return data, err
	}
	if e.Mode == filemode.Symlink {
		if found.size > maxTarget {
			return refuse(p, "a symlink with an overlong target", "run git fsck")
		}
		target, err := read()
		if err != nil {
			return fmt.Errorf("%s: %w", shown(p), err)
		}
		if bytes.IndexByte(target, 0) >= 0 || len(target) == 0 {
			return refuse(p, "a symlink with a malformed target", "run git fsck")
		}
		return w.b.addLink(p, string(target))
	}
	if err := w.b.reserve(p, found.size); err != nil {
		return err
	}
	n := &node{size: found.size, data: found.data}
	if found.data == nil {
		n.read = read
	}
	return w.b.put(p, e.Mode == filemode.Executable, n)
}
