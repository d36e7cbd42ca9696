package source

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// history remembers what walks over many commits ask again and again: a commit's place in the graph, and how two trees differ. All of it is
// named by content and never gets stale; it is forgotten whole when it grows too large. The zero value is ready.
type history struct {
	mu      sync.Mutex
	commits map[plumbing.Hash]*graphNode
	diffs   map[treePair][]nameChange
	names   int                      // in diffs
	trees   map[plumbing.Hash][]byte // those read last: one commit's is the next one's parent's
	bytes   int                      // of trees
}

const (
	maxRemembered = 1 << 20 // commits, and names that differ: about 150 bytes each
	maxRaw        = 4 << 20 // bytes of trees
)

type graphNode struct {
	tree    plumbing.Hash
	parents []plumbing.Hash
	when    int64 // the committer's time in seconds: an order to try first, never relied on
}

type treePair struct{ from, to plumbing.Hash }

// nameChange is one name under which two directories hold something else; no mode is nothing.
type nameChange struct {
	name     string
	from, to treeEntry
}

// treeEntry is what a directory holds under a name; no mode is nothing.
type treeEntry struct {
	mode filemode.FileMode
	id   plumbing.Hash
}

func (e treeEntry) isFile() bool {
	return e.mode == filemode.Regular || e.mode == filemode.Executable || e.mode == filemode.Deprecated
}

// graph gives a commit's place in the graph.
func (r *Repo) graph(h plumbing.Hash) (*graphNode, error) {
	r.past.mu.Lock()
	n, ok := r.past.commits[h]
	r.past.mu.Unlock()
	if ok {
		return n, nil
	}
	c, err := r.commit(h)
	if err != nil {
		return nil, err
	}
	n = &graphNode{tree: c.TreeHash, parents: c.ParentHashes, when: c.Committer.When.Unix()}
	r.past.mu.Lock()
	defer r.past.mu.Unlock()
	if r.past.commits == nil || len(r.past.commits) >= maxRemembered {
		r.past.commits = map[plumbing.Hash]*graphNode{}
	}
	r.past.commits[h] = n
	return n, nil
}

// at gives what a tree holds at path.
func (r *Repo) at(tree plumbing.Hash, path string) (treeEntry, error) {
	e := treeEntry{mode: filemode.Dir, id: tree}
	for name := range strings.SplitSeq(path, "/") {
		if e.mode != filemode.Dir {
			return treeEntry{}, nil
		}
		var err error
		if e, err = r.entry(e.id, name); err != nil {
			return treeEntry{}, err
		}
	}
	return e, nil
}

func (r *Repo) entry(tree plumbing.Hash, name string) (treeEntry, error) {
	data, err := r.rawTree(tree)
	if err != nil {
		return treeEntry{}, err
	}
	scan := treeScan{data: data}
	for scan.next() {
		if string(scan.name) == name {
			return scan.treeEntry, nil
		}
	}
	return treeEntry{}, scan.fail(tree)
}

// before gives what the parent's tree holds at path, where the child's tree holds the file now. Directories that are equal are not read,
// and a pair that was compared before is not compared again: the next file's walk over the same commits costs next to nothing.
func (r *Repo) before(parent, child plumbing.Hash, path string, now plumbing.Hash) (treeEntry, error) {
	for {
		name, rest, more := strings.Cut(path, "/")
		if parent == child {
			return treeEntry{mode: filemode.Regular, id: now}, nil
		}
		list, err := r.diffDirs(parent, child)
		if err != nil {
			return treeEntry{}, err
		}
		i, differs := slices.BinarySearchFunc(list, name, func(c nameChange, name string) int { return strings.Compare(c.name, name) })
		if !differs {
			return treeEntry{mode: filemode.Regular, id: now}, nil
		}
		from := list[i].from
		if !more {
			return from, nil
		}
		if from.mode != filemode.Dir {
			return treeEntry{}, nil
		}
		path, parent, child = rest, from.id, list[i].to.id
	}
}

// diffDirs gives the names under which two directories differ, sorted; subdirectories are not entered. The zero id is an empty directory.
func (r *Repo) diffDirs(from, to plumbing.Hash) ([]nameChange, error) {
	pair := treePair{from, to}
	r.past.mu.Lock()
	list, ok := r.past.diffs[pair]
	r.past.mu.Unlock()
	if ok {
		return list, nil
	}
	a, err := r.rawTree(from)
	if err != nil {
		return nil, err
	}
	b, err := r.rawTree(to)
	if err != nil {
		return nil, err
	}
	if list, err = diffScans(treeScan{data: a}, treeScan{data: b}); err != nil {
		return nil, fmt.Errorf("trees %s and %s: %w", from, to, err)
	}
	r.past.mu.Lock()
	defer r.past.mu.Unlock()
	if r.past.diffs == nil || r.past.names+len(list)+1 > maxRemembered {
		r.past.diffs, r.past.names = map[treePair][]nameChange{}, 0
	}
	r.past.diffs[pair] = list
	r.past.names += len(list) + 1
	return list, nil
}

// diffScans compares two directories, both in git's order: by bytes, as if a directory's name ended in a slash. A name that is a file on one
// side and a directory on the other comes at two places, and is joined at the end.
func diffScans(a, b treeScan) ([]nameChange, error) {
	var list []nameChange
	inA, inB := a.next(), b.next()
	for (inA || inB) && a.err == nil && b.err == nil {
		order := 0
		switch {
		case !inA:
			order = 1
		case !inB:
			order = -1
		default:
			order = treeOrder(&a, &b)
		}
		switch {
		case order < 0:
			list = append(list, nameChange{name: string(a.name), from: a.treeEntry})
			inA = a.next()
		case order > 0:
			list = append(list, nameChange{name: string(b.name), to: b.treeEntry})
			inB = b.next()
		default:
			if a.treeEntry != b.treeEntry {
				list = append(list, nameChange{name: string(a.name), from: a.treeEntry, to: b.treeEntry})
			}
			inA, inB = a.next(), b.next()
		}
	}
	if err := errors.Join(a.err, b.err); err != nil {
		return nil, errTree
	}
	slices.SortStableFunc(list, func(x, y nameChange) int { return strings.Compare(x.name, y.name) })
	out := list[:0]
	for _, c := range list {
		if n := len(out); n > 0 && out[n-1].name == c.name {
			last := &out[n-1]
			if c.from.mode != 0 && last.from.mode == 0 {
				last.from = c.from
			} else if c.to.mode != 0 && last.to.mode == 0 {
				last.to = c.to
			}
			continue
		}
		out = append(out, c)
	}
	return slices.Clip(out), nil
}

func treeOrder(a, b *treeScan) int {
	n := min(len(a.name), len(b.name))
	if c := bytes.Compare(a.name[:n], b.name[:n]); c != 0 {
		return c
	}
	end := func(s *treeScan) byte {
		switch {
		case len(s.name) > n:
			return s.name[n]
		case s.mode == filemode.Dir:
			return '/'
		}
		return 0
	}
	return cmp.Compare(end(a), end(b))
}

// rawTree gives a directory's object. The caller may not change it.
func (r *Repo) rawTree(h plumbing.Hash) ([]byte, error) {
	if h.IsZero() {
		return nil, nil
	}
	r.past.mu.Lock()
	data, ok := r.past.trees[h]
	r.past.mu.Unlock()
	if ok {
		return data, nil
	}
	_, data, err := r.objects.get(plumbing.TreeObject, h)
	if err != nil {
		return nil, err
	}
	r.past.mu.Lock()
	defer r.past.mu.Unlock()
	if r.past.trees == nil || r.past.bytes+len(data) > maxRaw {
		r.past.trees, r.past.bytes = map[plumbing.Hash][]byte{}, 0
	}
	r.past.trees[h] = data
	r.past.bytes += len(data)
	return data, nil
}

// treeScan reads the raw form of a tree entry by entry, without memory of its own: mode, space, name, zero byte, 20 bytes of id.
type treeScan struct {
	data []byte
	name []byte // of the present entry
	treeEntry
	err error
}

var errTree = errors.New("malformed; run git fsck")

func (s *treeScan) next() bool {
	if len(s.data) == 0 || s.err != nil {
		return false
	}
	const idLen = len(plumbing.ZeroHash)
	space := bytes.IndexByte(s.data, ' ')
	zero := bytes.IndexByte(s.data, 0)
	if space < 1 || space > 6 || zero <= space+1 || len(s.data) < zero+1+idLen {
		s.err = errTree
		return false
	}
	var mode filemode.FileMode
	for _, c := range s.data[:space] {
		if c < '0' || c > '7' {
			s.err = errTree
			return false
		}
		mode = mode<<3 | filemode.FileMode(c-'0')
	}
	if mode == 0 {
		s.err = errTree
		return false
	}
	s.mode = mode
	s.name = s.data[space+1 : zero]
	copy(s.id[:], s.data[zero+1:])
	s.data = s.data[zero+1+idLen:]
	return true
}

func (s *treeScan) fail(id plumbing.Hash) error {
	if s.err != nil {
		return fmt.Errorf("tree %s: %w", id, s.err)
	}
	return nil
}
