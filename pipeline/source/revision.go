package source

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

func decodeHex(s string) ([]byte, error) { return hex.DecodeString(s) }

func short(c *object.Commit) string { return c.Hash.String()[:10] }

var (
	shortID = regexp.MustCompile(`^[0-9a-f]{4,40}$`)
	step    = regexp.MustCompile(`^(?:~([0-9]{0,6})|\^([0-9]{1,3})?(\{(?:commit)?\})?)`)
)

// resolve reads the part of git's revision grammar that names one commit by name and steps: NAME, then any of ~, ~N, ^, ^N, ^{}, ^{commit}.
func (r *Repo) resolve(rev string) (*object.Commit, error) {
	end := strings.IndexAny(rev, "~^")
	if end < 0 {
		end = len(rev)
	}
	name, steps := rev[:end], rev[end:]
	c, err := r.byName(name)
	if err != nil {
		return nil, err
	}
	for steps != "" {
		m := step.FindStringSubmatch(steps)
		if m == nil || (m[2] != "" && m[3] != "") {
			return nil, fmt.Errorf("%w: %q: only ~, ~N, ^, ^N and ^{commit} may follow a name", ErrNoRev, rev)
		}
		steps = steps[len(m[0]):]
		first, count := 1, 1
		switch {
		case m[3] != "":
			continue // peeled already
		case m[0][0] == '~' && m[1] != "":
			count, _ = strconv.Atoi(m[1])
		case m[0][0] == '^' && m[2] != "":
			if first, _ = strconv.Atoi(m[2]); first == 0 {
				continue
			}
		}
		for range count {
			if c, err = r.parent(c, first); err != nil {
				return nil, fmt.Errorf("%q: %w", rev, err)
			}
		}
	}
	return c, nil
}

func (r *Repo) parent(c *object.Commit, n int) (*object.Commit, error) {
	cut, err := r.shallow()
	if err != nil {
		return nil, err
	}
	if cut[c.Hash] {
		return nil, fmt.Errorf("%w: the parents of %s are not in it; run git fetch --unshallow", ErrShallow, short(c))
	}
	switch {
	case len(c.ParentHashes) == 0:
		return nil, fmt.Errorf("%w: %s is the first commit and has no parent", ErrNoRev, short(c))
	case n > len(c.ParentHashes):
		return nil, fmt.Errorf("%w: %s has only %d parents", ErrNoRev, short(c), len(c.ParentHashes))
	}
	return r.commit(c.ParentHashes[n-1])
}

// byName follows git's order: a full id, then refs, then an abbreviated id.
func (r *Repo) byName(name string) (*object.Commit, error) {
	if name == "@" {
		name = "HEAD"
	}
	if fullID.MatchString(name) {
		return r.peel(plumbing.NewHash(name))
	}
	if !validRef(name) {
		return nil, fmt.Errorf("%w: %q is not a name of a branch, a tag or a commit", ErrNoRev, name)
	}
	for _, pattern := range []string{"%s", "refs/%s", "refs/tags/%s", "refs/heads/%s", "refs/remotes/%s", "refs/remotes/%s/HEAD"} {
		full := fmt.Sprintf(pattern, name)
		if !strings.HasPrefix(full, "refs/") && !pseudoRef.MatchString(full) {
			continue // a plain file of the .git directory, such as config
		}
		h, err := r.ref(full)
		if errors.Is(err, errNoRef) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return r.peel(h)
	}
	if name == "HEAD" {
		return nil, fmt.Errorf("%w: HEAD is on a branch without commits; commit first", ErrNoRev)
	}
	if digits := strings.ToLower(name); shortID.MatchString(digits) {
		return r.byPrefix(digits)
	}
	return nil, fmt.Errorf("%w: no branch, tag or commit %q here; run git fetch if it is new", ErrNoRev, name)
}

var pseudoRef = regexp.MustCompile(`^[A-Z][A-Z_]*$`)

func (r *Repo) byPrefix(digits string) (*object.Commit, error) {
	hashes, err := r.objects.withPrefix(digits)
	if err != nil {
		return nil, err
	}
	var found *object.Commit
	for _, h := range hashes {
		c, err := r.peel(h)
		if err != nil {
			continue // a blob or a tree of that prefix
		}
		if found != nil && found.Hash != c.Hash {
			return nil, fmt.Errorf("%w: %s is ambiguous; write more digits", ErrNoRev, digits)
		}
		found = c
	}
	if found == nil {
		return nil, r.missing(digits, nil)
	}
	return found, nil
}

// missing tells apart a commit that does not exist and one that a shallow clone does not have.
func (r *Repo) missing(id string, cause error) error {
	detail := ""
	if cause != nil && strings.Contains(cause.Error(), "alternates") {
		detail = ": " + cause.Error()
	}
	if cut, err := r.shallow(); err == nil && len(cut) > 0 {
		return fmt.Errorf("%w: commit %.12s is not in it; run git fetch --unshallow", ErrShallow, id)
	}
	return fmt.Errorf("%w: no commit %.12s here; run git fetch if it is new%s", ErrNoRev, id, detail)
}

// peel follows annotated tags to the commit.
func (r *Repo) peel(h plumbing.Hash) (*object.Commit, error) {
	for range 10 {
		kind, data, err := r.objects.get(plumbing.AnyObject, h)
		if errors.Is(err, plumbing.ErrObjectNotFound) {
			return nil, r.missing(h.String(), err)
		}
		if err != nil {
			return nil, err
		}
		switch kind {
		case plumbing.CommitObject:
			return decodeCommit(data)
		case plumbing.TagObject:
			m := tagTarget.FindSubmatch(data)
			if m == nil {
				return nil, fmt.Errorf("tag object %s is malformed", h)
			}
			h = plumbing.NewHash(string(m[1]))
		default:
			return nil, fmt.Errorf("%w: %s is a %s", ErrNoRev, h, kind)
		}
	}
	return nil, fmt.Errorf("%w: tags of tags of tags", ErrNoRev)
}

var tagTarget = regexp.MustCompile(`^object ([0-9a-f]{40})\n`)

func (r *Repo) commit(h plumbing.Hash) (*object.Commit, error) {
	_, data, err := r.objects.get(plumbing.CommitObject, h)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return nil, r.missing(h.String(), err)
	}
	if err != nil {
		return nil, err
	}
	return decodeCommit(data)
}

func decodeCommit(data []byte) (*object.Commit, error) {
	var mem plumbing.MemoryObject
	mem.SetType(plumbing.CommitObject)
	if _, err := mem.Write(data); err != nil {
		return nil, err
	}
	c := new(object.Commit)
	if err := c.Decode(&mem); err != nil {
		return nil, fmt.Errorf("commit %s: %w", mem.Hash(), err)
	}
	return c, nil
}

// shallow is the set of commits whose parents a shallow clone left out; empty in a full clone.
func (r *Repo) shallow() (map[plumbing.Hash]bool, error) {
	data, err := readSmallIfAny(filepath.Join(r.common, "shallow"))
	if err != nil {
		return nil, err
	}
	cut := map[plumbing.Hash]bool{}
	for line := range strings.FieldsSeq(string(data)) {
		cut[plumbing.NewHash(line)] = true
	}
	return cut, nil
}

// contains walks all ancestors, each once.
func (r *Repo) contains(descendant, ancestor string) (bool, error) {
	from, err := r.resolve(descendant)
	if err != nil {
		return false, err
	}
	want, err := r.resolve(ancestor)
	if err != nil {
		return false, err
	}
	cut, err := r.shallow()
	if err != nil {
		return false, err
	}
	seen := map[plumbing.Hash]bool{from.Hash: true}
	queue := []*object.Commit{from}
	ended := false
	for len(queue) > 0 {
		c := queue[0]
		queue = queue[1:]
		if c.Hash == want.Hash {
			return true, nil
		}
		if cut[c.Hash] {
			ended = true
			continue
		}
		for _, p := range c.ParentHashes {
			if seen[p] {
				continue
			}
			seen[p] = true
			next, err := r.commit(p)
			if err != nil {
				return false, fmt.Errorf("history of %s: %w", short(from), err)
			}
			queue = append(queue, next)
		}
	}
	if ended {
		return false, fmt.Errorf("%w: cannot tell whether %s contains %s; run git fetch --unshallow", ErrShallow, short(from), short(want))
	}
	return false, nil
}
