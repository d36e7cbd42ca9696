package source

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/go-git/go-git/v5/plumbing"
)

var errNoRef = errors.New("no such ref")

var fullID = regexp.MustCompile(`^[0-9a-f]{40}$`)

// ref gives the object that a full ref name ("HEAD", "refs/heads/main") points at, symbolic refs followed.
func (r *Repo) ref(name string) (plumbing.Hash, error) {
	for range 5 { // git's own limit on symbolic refs
		value, err := r.refValue(name)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		if target, ok := strings.CutPrefix(value, "ref:"); ok {
			name = strings.TrimSpace(target)
			if !validRef(name) {
				return plumbing.ZeroHash, fmt.Errorf("%w: odd target %q", errNoRef, name)
			}
			continue
		}
		if !fullID.MatchString(value) {
			return plumbing.ZeroHash, fmt.Errorf("ref %s: broken: does not hold an object id", name)
		}
		return plumbing.NewHash(value), nil
	}
	return plumbing.ZeroHash, fmt.Errorf("ref %s: too many symbolic refs", name)
}

// refValue looks for a loose ref and then in packed-refs: `git pack-refs` writes the packed file before it removes the loose one, so in this
// order a ref is always seen, and never an older value. A ref that was packed before, deleted and made again between our two looks is
// loose again: hence the second round.
func (r *Repo) refValue(name string) (string, error) {
	dir := r.common
	if !strings.HasPrefix(name, "refs/") || strings.HasPrefix(name, "refs/bisect/") || strings.HasPrefix(name, "refs/worktree/") || strings.HasPrefix(name, "refs/rewritten/") {
		dir = r.gitDir // each work tree has its own
	}
	for range 3 {
		data, err := readSmall(filepath.Join(dir, filepath.FromSlash(name)))
		if err == nil {
			return strings.TrimSpace(string(data)), nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return "", fmt.Errorf("ref %s: %w", name, err)
		}
		id, err := r.packedRef(name)
		if err != nil || id != "" {
			return id, err
		}
	}
	return "", errNoRef
}

func (r *Repo) packedRef(name string) (string, error) {
	f, err := os.Open(filepath.Join(r.common, "packed-refs"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("packed refs: %w", err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		id, n, ok := strings.Cut(s.Text(), " ")
		if ok && n == name && fullID.MatchString(id) {
			return id, nil
		}
	}
	if err := s.Err(); err != nil {
		return "", fmt.Errorf("packed refs: %w", err)
	}
	return "", nil
}

// validRef keeps ref names from naming files outside the refs (git check-ref-format, the part that matters for reading).
func validRef(name string) bool {
	// Longer ones cannot be files, and are in no packed list that git wrote.
	const maxRef, maxRefPart = 1024, 250
	if name == "" || strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") || strings.HasSuffix(name, ".") || strings.Contains(name, "@{") {
		return false
	}
	if len(name) > maxRef {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || len(part) > maxRefPart || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return !strings.Contains(name, "..") && !strings.ContainsFunc(name, func(c rune) bool { return c < 0x21 || c == 0x7f || strings.ContainsRune(`~^:?*[\`, c) })
}

func (r *Repo) tip(branch string) (string, error) {
	name := "refs/heads/" + strings.TrimPrefix(branch, "refs/heads/")
	if !validRef(name) {
		return "", fmt.Errorf("%w: not a branch name", ErrNoRev)
	}
	h, err := r.ref(name)
	if errors.Is(err, errNoRef) {
		return "", ErrBranchGone
	}
	if err != nil {
		return "", err
	}
	c, err := r.peel(h)
	if err != nil {
		return "", err
	}
	return c.Hash.String(), nil
}
