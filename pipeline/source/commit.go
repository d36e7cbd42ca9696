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

const (
	keepSmall = 64 << 20 // bytes of all files that are kept, and
	keepFile  = 64 << 10 // of one
	maxTarget = 4096     // bytes of a symlink's target
)

func (r *Repo) readCommit(c *object.Commit) (*tree, error) {
	w := &commitReader{objects: r.objects, b: newBuilder(0), seen: map[plumbing.Hash]blob{}}
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

// look gives a file's size, and the content of one that is small: an LFS pointer in any case, and nearly all config files.
func (w *commitReader) look(h plumbing.Hash) (blob, error) {
	if b, ok := w.seen[h]; ok {
		return b, nil
	}
	limit := int64(keepFile)
	if w.kept+limit > keepSmall {
		limit = maxPointer - 1
	}
	kind, size, data, err := w.objects.peek(h, limit)
	if err != nil {
		return blob{}, err
	}
	if kind != plumbing.BlobObject {
		return blob{}, fmt.Errorf("object %s is a %s, not a %s", h, kind, plumbing.BlobObject)
	}
	b := blob{size: size}
	if data != nil && (w.kept+size <= keepSmall || isLFSPointer(data)) {
		w.kept += size
		b.data = data
	}
	w.seen[h] = b
	return b, nil
}

func (w *commitReader) dir(dir string, h plumbing.Hash) error {
	kind, size, data, err := w.objects.peek(h, MaxFile)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", shown(dir), err)
	case size > MaxFile:
		return tooLarge(dir, size)
	case kind != plumbing.TreeObject:
		return fmt.Errorf("%s: object %s is a %s, not a %s", shown(dir), h, kind, plumbing.TreeObject)
	}
	scan := treeScan{data: data}
	for scan.next() {
		name := string(scan.name)
		if strings.Contains(name, "/") {
			return refuse(path.Join(dir, name), "a name that git does not allow", "run git fsck; the commit was not made by git")
		}
		p := name
		if dir != "." {
			p = dir + "/" + name
		}
		if err := w.entry(p, scan.treeEntry); err != nil {
			return err
		}
	}
	if err := scan.fail(h); err != nil {
		return fmt.Errorf("%s: %w", shown(dir), err)
	}
	return nil
}

func (w *commitReader) entry(p string, e treeEntry) error {
	switch e.mode {
	case filemode.Dir:
		if err := w.b.addDir(p); err != nil {
			return err
		}
		return w.dir(p, e.id)
	case filemode.Submodule:
		return submodule(p)
	case filemode.Regular, filemode.Deprecated, filemode.Executable, filemode.Symlink:
	default:
		return refuse(p, fmt.Sprintf("file mode %o", uint32(e.mode)), "run git fsck")
	}
	found, err := w.look(e.id)
	if err != nil {
		return fmt.Errorf("%s: %w", shown(p), err)
	}
	read := func() ([]byte, error) {
		_, data, err := w.objects.get(plumbing.BlobObject, e.id)
		return data, err
	}
	if e.mode == filemode.Symlink {
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
	n := &node{size: found.size, data: found.data, blob: e.id}
	if found.data == nil && found.size > 0 {
		n.read = read
	}
	return w.b.put(p, e.mode == filemode.Executable, n)
}
