package install

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/durable"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/wire"
)

const (
	// nameRecord is what programs read: epoch and service epochs (agent/client).
	nameRecord = ".muster.json"
	// nameFiles is the file list that the content digest is the SHA-256 of, line by line. So it proves itself by the record's content.
	nameFiles = ".muster.files"

	maxRecord = 8 << 20
	maxList   = bundle.MaxFiles * (bundle.MaxPath + 80)
)

// record is .muster.json.
type record struct {
	Repo     string                    `json:"repo"`
	Cohort   string                    `json:"cohort"`
	Epoch    uint64                    `json:"epoch"`
	Commit   string                    `json:"commit"`
	Content  string                    `json:"content"`
	Override string                    `json:"override,omitempty"`
	Services map[string]bundle.Service `json:"services"`
}

func (rec record) installed(dir string) agent.Installed {
	return agent.Installed{
		Dir: dir, Repo: rec.Repo, Cohort: rec.Cohort, Epoch: rec.Epoch, Commit: rec.Commit, Content: rec.Content, Override: rec.Override,
		Services: rec.Services,
	}
}

// baseName is the name of a release's directory: <epoch>-<content12>.
func baseName(epoch uint64, content string) string {
	return fmt.Sprintf("%d-%.12s", epoch, strings.TrimPrefix(content, "sha256:"))
}

// isNameOf says whether a directory name is base, or base with a repair's number.
func isNameOf(name, base string) bool {
	rest, ok := strings.CutPrefix(name, base)
	if !ok || rest == "" {
		return ok
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(rest, "."), 10, 32)
	return err == nil && n > 1 && rest[0] == '.'
}

// readRecord reads a release's record and file list, and checks that they and the directory's name agree.
func readRecord(dir string) (record, []bundle.Entry, error) {
	var rec record
	data, err := readRegular(filepath.Join(dir, nameRecord), maxRecord)
	if err != nil {
		return rec, nil, &recordError{nameRecord, err}
	}
	if err := wire.Decode(data, &rec); err != nil {
		return rec, nil, &recordError{nameRecord, err}
	}
	if !isNameOf(filepath.Base(dir), baseName(rec.Epoch, rec.Content)) {
		return rec, nil, &recordError{nameRecord, errors.New("it speaks of another release than the directory's name")}
	}
	list, err := readRegular(filepath.Join(dir, nameFiles), maxList)
	if err != nil {
		return rec, nil, &recordError{nameFiles, err}
	}
	if sum := sha256.Sum256(list); "sha256:"+hex.EncodeToString(sum[:]) != rec.Content {
		return rec, nil, &recordError{nameFiles, errors.New("it does not have the content digest of the release")}
	}
	entries, err := parseList(list)
	if err != nil {
		return rec, nil, &recordError{nameFiles, err}
	}
	return rec, entries, nil
}

// recordError is a release whose own description is missing or wrong.
type recordError struct {
	name string
	err  error
}

func (e *recordError) Error() string { return e.name + ": " + e.err.Error() }
func (e *recordError) Unwrap() error { return e.err }

func readRegular(path string, limit int64) ([]byte, error) {
	f, err := durable.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("not a regular file")
	}
	data, err := f.ReadAll(st.Size, limit)
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("larger than %d bytes", limit)
	}
	return data, err
}

// fileList is the text whose SHA-256 is the content digest.
func fileList(entries []bundle.Entry) []byte {
	var b bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&b, "%04o %s %s\n", e.Mode, e.SHA256, e.Path)
	}
	return b.Bytes()
}

func parseList(list []byte) ([]bundle.Entry, error) {
	var entries []bundle.Entry
	for line := range strings.Lines(string(list)) {
		mode, rest, ok1 := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		sum, path, ok2 := strings.Cut(rest, " ")
		m, err := strconv.ParseUint(mode, 8, 9)
		if !ok1 || !ok2 || err != nil || len(sum) != 2*sha256.Size || path == "" {
			return nil, fmt.Errorf("line %d is not a file", len(entries)+1)
		}
		entries = append(entries, bundle.Entry{Path: path, Mode: uint32(m), SHA256: sum})
	}
	return entries, nil
}

// strange is the SHA256 of an Entry that is not a regular file with plain permission bits.
const strange = "-"

// file is what lies on disk: an entry, and whose it is.
type file struct {
	bundle.Entry
	owner durable.Owner
}

func entriesOf(found []file) []bundle.Entry {
	list := make([]bundle.Entry, len(found))
	for i, f := range found {
		list[i] = f.Entry
	}
	return list
}

// inventory reads what really lies in a release's directory: every file with mode and hash, sorted by path, without the agent's own two. Directories
// count as far as their files do, and one that holds nothing is listed with a slash behind it.
func inventory(ctx context.Context, dir string) ([]file, error) {
	var entries []file
	var walk func(rel string) (int, error)
	walk = func(rel string) (int, error) {
		list, err := os.ReadDir(filepath.Join(dir, rel))
		if err != nil {
			return 0, err
		}
		found := 0
		for _, d := range list {
			path := d.Name()
			if rel != "" {
				path = rel + "/" + path
			}
			if rel == "" && (path == nameRecord || path == nameFiles) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			found++
			if d.IsDir() {
				n, err := walk(path)
				if err != nil {
					return 0, err
				}
				if n == 0 {
					entries = append(entries, file{Entry: bundle.Entry{Path: path + "/", SHA256: strange}})
				}
				continue
			}
			e, err := entryOf(dir, path, d)
			if err != nil {
				return 0, err
			}
			entries = append(entries, e)
		}
		return found, nil
	}
	if _, err := walk(""); err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b file) int { return cmp.Compare(a.Path, b.Path) })
	return entries, nil
}

func entryOf(dir, path string, d fs.DirEntry) (file, error) {
	odd := file{Entry: bundle.Entry{Path: path, SHA256: strange}}
	if !d.Type().IsRegular() {
		return odd, nil
	}
	f, err := durable.Open(filepath.Join(dir, path), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ELOOP):
		return odd, nil // it changes while we look: somebody else is at work here
	case err != nil:
		return odd, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return odd, err
	}
	const special = unix.S_ISUID | unix.S_ISGID | unix.S_ISVTX
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&special != 0 {
		return odd, nil
	}
	n, sum, err := f.Sum(st.Size)
	if err != nil {
		return odd, err
	}
	owner := durable.Owner{UID: int(st.Uid), GID: int(st.Gid)}
	return file{bundle.Entry{Path: path, Mode: uint32(st.Mode & 0o777), Size: n, SHA256: hex.EncodeToString(sum[:])}, owner}, nil //nolint:unconvert // smaller on other systems
}

// diff compares two sorted lists: paths that only b has, that differ, and that only a has.
func diff(a, b []bundle.Entry) (added, changed, removed []string) {
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i == len(a) || j < len(b) && b[j].Path < a[i].Path:
			added = append(added, b[j].Path)
			j++
		case j == len(b) || a[i].Path < b[j].Path:
			removed = append(removed, a[i].Path)
			i++
		default:
			if a[i].Mode != b[j].Mode || a[i].SHA256 != b[j].SHA256 || a[i].SHA256 == strange {
				changed = append(changed, b[j].Path)
			}
			i++
			j++
		}
	}
	return added, changed, removed
}

// check reads a release as a whole: its record, its list, and what lies there. drift names the paths that are not as they should be, and in is the
// release as far as its record could be read.
func check(ctx context.Context, dir string, owners map[string]Ownership) (in agent.Installed, content string, drift []string, err error) {
	in.Dir = dir
	found, err := inventory(ctx, dir)
	if err != nil {
		return in, "", nil, fmt.Errorf("verify %s: %w", dir, err)
	}
	content = bundle.ContentOf(entriesOf(found))
	rec, want, err := readRecord(dir)
	if re := new(recordError); errors.As(err, &re) {
		return in, content, []string{re.name}, nil
	} else if err != nil {
		return in, content, nil, fmt.Errorf("verify %s: %w", dir, err)
	}
	added, changed, removed := diff(want, entriesOf(found))
	drift = slices.Concat(added, changed, removed, strangers(owners, found))
	slices.Sort(drift)
	drift = slices.Compact(drift)
	// A directory that is empty because its files are gone is told by them.
	drift = slices.DeleteFunc(drift, func(p string) bool {
		return strings.HasSuffix(p, "/") && slices.ContainsFunc(removed, func(q string) bool { return strings.HasPrefix(q, p) })
	})
	return rec.installed(dir), content, drift, nil
}

// Verify is for a person at the host: it checks what is current under root without taking the directory into use, so also beside a running agent. The
// release is nil if there is none.
func Verify(ctx context.Context, root string) (*agent.Installed, string, []string, error) {
	return VerifyOwned(ctx, root, nil)
}

// VerifyOwned is Verify that also looks at whose the files are.
func VerifyOwned(ctx context.Context, root string, owners map[string]Ownership) (*agent.Installed, string, []string, error) {
	name, err := currentTarget(root)
	if err != nil || name == "" {
		return nil, "", nil, err
	}
	in, content, drift, err := check(ctx, filepath.Join(root, dirReleases, name), owners)
	if err != nil {
		return nil, "", nil, err
	}
	return &in, content, drift, nil
}
