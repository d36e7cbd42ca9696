package source

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// Line says which commit last changed a line. An empty Commit: history did not tell, in the time that ctx gave or because the clone is shallow.
type Line struct {
	Commit  string
	Author  Person
	Subject string
	// Local is a line that is in no commit yet; only BlameText says so.
	Local bool
}

// Blame gives who last changed the given lines (from 1) of path as of rev, as `git blame --no-follow` does: a line that came through a merge
// is its first author's, and the commit that renamed a file is the author of all its lines. A link is followed to its file.
// Lines that the file does not have are left out.
//
// When ctx ends, what is not known by then is unknown, and that is no error. An error is a revision or a path that is not there
// (fs.ErrNotExist), or a repository that cannot be read.
func (r *Repo) Blame(ctx context.Context, rev, path string, lines []int) (map[int]Line, error) {
	return r.blameFile(ctx, rev, path, lines, nil)
}

// BlameText is Blame for a file that was changed since rev, whose content is text: lines that rev does not have are Local.
// So are all lines of a file that rev does not have.
func (r *Repo) BlameText(ctx context.Context, rev, path string, text []byte, lines []int) (map[int]Line, error) {
	if text == nil {
		text = []byte{}
	}
	return r.blameFile(ctx, rev, path, lines, text)
}

func (r *Repo) blameFile(ctx context.Context, rev, name string, lines []int, text []byte) (map[int]Line, error) {
	if !fs.ValidPath(name) || name == "." {
		return nil, fmt.Errorf("blame %q: %w", name, fs.ErrInvalid)
	}
	c, err := r.resolve(rev)
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", r.name, err)
	}
	fail := func(err error) error {
		return fmt.Errorf("repository %s: commit %s: blame %s: %w", r.name, short(c), shown(name), err)
	}
	real, blob, err := r.realFile(c.TreeHash, name)
	w := &blamer{r: r, path: real, out: map[int]Line{}, texts: map[plumbing.Hash][][]byte{}}
	if errors.Is(err, fs.ErrNotExist) && text != nil {
		for _, n := range lines {
			if 1 <= n && n <= len(splitLines(text)) {
				w.out[n] = Line{Local: true}
			}
		}
		return w.out, nil
	}
	if err != nil {
		return nil, fail(err)
	}
	content, err := w.text(blob)
	if err != nil {
		return nil, fail(err)
	}
	if w.cut, err = r.shallow(); err != nil {
		return nil, fail(err)
	}
	start, err := w.start(ctx, content, text, lines)
	if err != nil {
		return nil, fail(err)
	}
	if err := w.walk(ctx, c.Hash, blob, start); err != nil {
		return nil, fail(err)
	}
	return w.out, nil
}

// realFile follows links inside the repository, as reading does.
func (r *Repo) realFile(tree plumbing.Hash, name string) (string, plumbing.Hash, error) {
	for range 10 {
		e, err := r.at(tree, name)
		switch {
		case err != nil:
			return "", plumbing.ZeroHash, err
		case e.isFile():
			return name, e.id, nil
		case e.mode != filemode.Symlink:
			return "", plumbing.ZeroHash, fs.ErrNotExist
		}
		_, _, target, err := r.objects.peek(e.id, maxTarget)
		if err != nil {
			return "", plumbing.ZeroHash, err
		}
		name = path.Join(path.Dir(name), string(target))
		if path.IsAbs(string(target)) || strings.HasPrefix(name, "..") {
			break
		}
	}
	return "", plumbing.ZeroHash, fs.ErrNotExist
}

// blamer hands the lines of one file from commit to parent, until a commit has no parent that has them.
type blamer struct {
	r     *Repo
	path  string
	cut   map[plumbing.Hash]bool
	out   map[int]Line
	texts map[plumbing.Hash][][]byte // of blobs seen lately
	kept  int
	queue suspects
}

// suspect is a commit with the lines that it, or an ancestor, brought in.
type suspect struct {
	id    plumbing.Hash
	node  *graphNode
	blob  plumbing.Hash
	lines []tracked
}

// tracked is a line that was asked for, and its place (from 0) in a suspect's file.
type tracked struct{ asked, at int }

// start places the lines in rev's file. All that are there are unknown until the walk finds out.
func (w *blamer) start(ctx context.Context, content [][]byte, text []byte, lines []int) ([]tracked, error) {
	here := content
	var same []int
	if text != nil {
		here = splitLines(text)
		var err error
		if same, err = sameLines(ctx, content, here); err != nil {
			same = nil // no time left: unknown, below
		}
	}
	var start []tracked
	for _, n := range lines {
		if n < 1 || n > len(here) {
			continue
		}
		if _, again := w.out[n]; again {
			continue
		}
		w.out[n] = Line{}
		switch {
		case text == nil:
			start = append(start, tracked{n, n - 1})
		case same == nil:
		case same[n-1] < 0:
			w.out[n] = Line{Local: true}
		default:
			start = append(start, tracked{n, same[n-1]})
		}
	}
	return start, nil
}

func (w *blamer) walk(ctx context.Context, commit, blob plumbing.Hash, start []tracked) error {
	err := w.add(commit, blob, start)
	for err == nil && w.queue.Len() > 0 && ctx.Err() == nil {
		s := heap.Pop(&w.queue).(*suspect)
		delete(w.queue.by, s.id)
		err = w.step(ctx, s)
	}
	if ctx.Err() != nil {
		return nil // what is known by now stays
	}
	return err
}

// add enters lines for a commit; a commit that is waiting already gets them too, so that each is looked at once where dates are in order.
func (w *blamer) add(id, blob plumbing.Hash, lines []tracked) error {
	if len(lines) == 0 {
		return nil
	}
	if s, ok := w.queue.by[id]; ok {
		s.lines = append(s.lines, lines...)
		return nil
	}
	node, err := w.r.graph(id)
	if err != nil {
		return err
	}
	s := &suspect{id: id, node: node, blob: blob, lines: lines}
	if w.queue.by == nil {
		w.queue.by = map[plumbing.Hash]*suspect{}
	}
	w.queue.by[id] = s
	heap.Push(&w.queue, s)
	return nil
}

// step passes a suspect's lines on: all to the first parent with the same file, else to each parent in turn those that it has.
func (w *blamer) step(ctx context.Context, s *suspect) error {
	if w.cut[s.id] {
		return nil // who knows
	}
	var parents []suspect
	for _, p := range s.node.parents {
		node, err := w.r.graph(p)
		if missing(err) {
			return nil
		} else if err != nil {
			return err
		}
		e, err := w.r.before(node.tree, s.node.tree, w.path, s.blob)
		if missing(err) {
			return nil
		} else if err != nil {
			return err
		}
		if !e.isFile() {
			continue
		}
		if e.id == s.blob {
			return w.add(p, e.id, s.lines)
		}
		parents = append(parents, suspect{id: p, blob: e.id})
	}
	rest := s.lines
	for _, p := range parents {
		if len(rest) == 0 {
			return nil
		}
		here, err := w.text(s.blob)
		if err != nil {
			return unlessMissing(err)
		}
		there, err := w.text(p.blob)
		if err != nil {
			return unlessMissing(err)
		}
		same, err := sameLines(ctx, there, here)
		if err != nil {
			return nil // the time is over
		}
		var theirs, ours []tracked
		for _, l := range rest {
			if at := same[l.at]; at >= 0 {
				theirs = append(theirs, tracked{l.asked, at})
			} else {
				ours = append(ours, l)
			}
		}
		if err := w.add(p.id, p.blob, theirs); err != nil {
			return err
		}
		rest = ours
	}
	if len(rest) == 0 {
		return nil
	}
	c, err := w.r.commit(s.id)
	if err != nil {
		return err
	}
	id := identity(c)
	for _, l := range rest {
		w.out[l.asked] = Line{Commit: id.Commit, Author: id.Author, Subject: id.Subject}
	}
	return nil
}

// missing is history that this clone does not have: a partial or a shallow one. The lines stay unknown.
func missing(err error) bool {
	return errors.Is(err, plumbing.ErrObjectNotFound) || errors.Is(err, ErrShallow) || errors.Is(err, ErrNoRev) || errors.Is(err, errTooLarge)
}

func unlessMissing(err error) error {
	if missing(err) {
		return nil
	}
	return err
}

var errTooLarge = fmt.Errorf("over the limit of %d bytes a file", int64(MaxFile))

// text gives a blob's lines. Those seen last are kept: a file's parent is the next one's child.
func (w *blamer) text(h plumbing.Hash) ([][]byte, error) {
	if lines, ok := w.texts[h]; ok {
		return lines, nil
	}
	_, size, data, err := w.r.objects.peek(h, MaxFile)
	if err != nil {
		return nil, err
	}
	if size > MaxFile {
		return nil, errTooLarge
	}
	const keep = 8 << 20
	if w.kept += len(data); w.kept > keep {
		clear(w.texts)
		w.kept = len(data)
	}
	lines := splitLines(data)
	w.texts[h] = lines
	return lines, nil
}

// suspects is a heap, the youngest commit first: so a commit mostly comes after all its children.
type suspects struct {
	list []*suspect
	by   map[plumbing.Hash]*suspect
}

func (q *suspects) Len() int { return len(q.list) }
func (q *suspects) Less(i, j int) bool {
	return q.list[i].node.when > q.list[j].node.when
}
func (q *suspects) Swap(i, j int) { q.list[i], q.list[j] = q.list[j], q.list[i] }
func (q *suspects) Push(x any)    { q.list = append(q.list, x.(*suspect)) }
func (q *suspects) Pop() any {
	n := len(q.list) - 1
	s := q.list[n]
	q.list[n] = nil
	q.list = q.list[:n]
	return s
}
