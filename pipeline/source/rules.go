package source

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// refusal is a file that is there and may not be: told by its path.
type refusal struct {
	path, why, next string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%s: %s: %v: %s", shown(r.path), r.why, ErrUnsupported, r.next)
}

func (r *refusal) Unwrap() error { return ErrUnsupported }

func shown(p string) string {
	if q := strconv.Quote(p); len(q) != len(p)+2 {
		return q
	}
	return p
}

func refuse(p, why, next string) error { return &refusal{p, why, next} }

func submodule(p string) error {
	return refuse(p, "a submodule: its files are not in this repository", "commit the files themselves in its place")
}

func tooLarge(p string, size int64) error {
	return refuse(p, fmt.Sprintf("%d bytes, over the limit of %d bytes a file", size, int64(MaxFile)), "keep it out of the config repository")
}

// builder collects a tree entry by entry, in either source's order, and enforces the rules that both share.
type builder struct {
	index   map[string]*node
	links   map[string]string // path to target text
	folded  map[string]string // case-folded, normalised path to the path that took it
	order   []string          // all paths, as they were entered: nearly sorted
	entries int
	total   int64
}

// newBuilder begins a tree of about n files and directories.
func newBuilder(n int) *builder {
	b := &builder{index: make(map[string]*node, n), links: map[string]string{}, folded: make(map[string]string, n), order: make([]string, 0, n)}
	b.index["."] = &node{name: ".", mode: fs.ModeDir | 0o755}
	return b
}

// enter checks one more name. The directory of p was entered before.
func (b *builder) enter(p string) error {
	name := path.Base(p)
	switch {
	case !utf8.ValidString(name):
		return refuse(p, "the name is not UTF-8", "rename it with git mv")
	case strings.ContainsFunc(name, unicode.IsControl):
		return refuse(p, "control character in the name", "rename it with git mv")
	case name == "." || name == ".." || strings.EqualFold(name, ".git") || !fs.ValidPath(p):
		return refuse(p, "a name that git does not allow", "run git fsck; the commit was not made by git")
	case strings.Count(p, "/") >= maxDepth:
		return refuse(p, fmt.Sprintf("more than %d directories deep", maxDepth), "move it up")
	}
	if b.entries++; b.entries > MaxEntries {
		return refuse(p, fmt.Sprintf("more than %d files and directories", MaxEntries), "split the repository")
	}
	key := fold(p)
	if twin, ok := b.folded[key]; ok && twin == p {
		return refuse(p, "two entries of one name", "run git fsck; the commit was not made by git")
	} else if ok {
		return refuse(p, fmt.Sprintf("differs from %s only by case or Unicode form", shown(twin)), "rename one of them: many file systems hold only one")
	}
	b.folded[key] = p
	b.order = append(b.order, p)
	return nil
}

func fold(p string) string {
	if isLowerASCII(p) {
		return p
	}
	return norm.NFD.String(cases.Fold().String(norm.NFD.String(p)))
}

func isLowerASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 || 'A' <= r && r <= 'Z' })
}

func (b *builder) addDir(p string) error {
	if err := b.enter(p); err != nil {
		return err
	}
	b.index[p] = &node{name: path.Base(p), mode: fs.ModeDir | 0o755}
	return nil
}

// reserve enters a file of size bytes, of which nothing was read yet.
func (b *builder) reserve(p string, size int64) error {
	if err := b.enter(p); err != nil {
		return err
	}
	return b.count(p, size)
}

func (b *builder) count(p string, size int64) error {
	if size > MaxFile {
		return tooLarge(p, size)
	}
	if b.total += size; b.total > MaxTree {
		return refuse(p, fmt.Sprintf("with this file the tree is over the limit of %d bytes", int64(MaxTree)), "keep large files out of the config repository")
	}
	return nil
}

// put stores a file that was reserved. Content that could be an LFS pointer is given as data.
func (b *builder) put(p string, exec bool, n *node) error {
	if n.read == nil && isLFSPointer(n.data) {
		return refuse(p, "an LFS pointer, content not in the repository", "commit the file itself: git lfs migrate export")
	}
	n.name, n.mode = path.Base(p), 0o644
	if exec {
		n.mode = 0o755
	}
	b.index[p] = n
	return nil
}

// addLink notes a symlink; it is followed when all names are known. Editors lock a file x by a link .#x to "user@host.pid": left out.
func (b *builder) addLink(p, target string) error {
	if strings.HasPrefix(path.Base(p), ".#") {
		return nil
	}
	if err := b.enter(p); err != nil {
		return err
	}
	b.links[p] = target
	return nil
}

// finish follows the links and gives the tree.
func (b *builder) finish(id Identity) (*tree, error) {
	found := map[string]*node{}
	names := make([]string, 0, len(b.links))
	for p := range b.links {
		names = append(names, p)
	}
	slices.Sort(names)
	for _, p := range names {
		n, err := b.follow(p)
		if err != nil {
			return nil, err
		}
		if err := b.count(p, n.size); err != nil {
			return nil, err
		}
		c := *n
		c.name = path.Base(p)
		found[p] = &c
	}
	for p, n := range found {
		b.index[p] = n
	}
	t := &tree{id: id, index: b.index}
	t.list(b.order)
	return t, nil
}

// follow walks a link's target element by element, as a file system would, but only through what the tree holds.
func (b *builder) follow(p string) (*node, error) {
	const next = "commit a copy of the file, or a relative link to a file of this repository"
	at := p
	for range 10 {
		target, ok := b.links[at]
		if !ok {
			return b.index[at], nil
		}
		if strings.HasPrefix(target, "/") {
			return nil, refuse(p, "a symlink that leaves the repository", next)
		}
		dir := path.Dir(at)
		parts := strings.Split(target, "/")
		for i, part := range parts {
			if n := b.index[dir]; n == nil || !n.IsDir() {
				return nil, refuse(p, "a symlink to something that is not there", next)
			}
			switch part {
			case "", ".":
				if i == len(parts)-1 {
					return nil, refuse(p, "a symlink to a directory", next)
				}
			case "..":
				if dir == "." {
					return nil, refuse(p, "a symlink that leaves the repository", next)
				}
				dir = path.Dir(dir)
			default:
				dir = path.Join(dir, part)
			}
		}
		at = dir
		n, _ := b.index[at]
		_, again := b.links[at]
		switch {
		case n != nil && n.IsDir():
			return nil, refuse(p, "a symlink to a directory", next)
		case n == nil && !again:
			return nil, refuse(p, "a symlink to something that is not there", next)
		}
	}
	return nil, refuse(p, "a symlink that leads in a circle, or over ten others", next)
}

// maxPointer is the size under which a file may be an LFS pointer (git-lfs docs/spec.md: "must be less than 1024 bytes").
const maxPointer = 1024

// lfsPointer is the pointer file's exact form (git-lfs docs/spec.md): version first, then keys in order. A file that only mentions it is none.
var lfsPointer = regexp.MustCompile(`\Aversion https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\n` +
	`(?:ext-[0-9]+-[^ \n]+ sha256:[0-9a-f]{64}\n)*oid sha256:[0-9a-f]{64}\nsize [0-9]+\n?\z`)

func isLFSPointer(data []byte) bool { return len(data) < maxPointer && lfsPointer.Match(data) }

// leave takes back a directory that turned out to be empty.
func (b *builder) leave(p string) {
	delete(b.index, p)
	delete(b.folded, fold(p))
	b.entries--
}
