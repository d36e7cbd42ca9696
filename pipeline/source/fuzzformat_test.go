package source

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

// FuzzLFSPointer: a pointer is small, starts as the specification says, and a byte more at its end makes it an ordinary file.
func FuzzLFSPointer(f *testing.F) {
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("0a", 32) + "\nsize 12\n"
	f.Add(pointer)
	f.Add(strings.Replace(pointer, "oid", "ext-0-x sha256:"+strings.Repeat("1b", 32)+"\noid", 1))
	f.Add(pointer[:60])
	f.Add(" " + pointer)
	f.Fuzz(func(t *testing.T, s string) {
		if !isLFSPointer([]byte(s)) {
			return
		}
		if len(s) >= maxPointer || !strings.HasPrefix(s, "version https://") || !strings.Contains(s, "\noid sha256:") {
			t.Fatalf("taken for a pointer: %q", s)
		}
		if isLFSPointer([]byte(s+"x\n")) || isLFSPointer([]byte("#"+s)) {
			t.Fatalf("with more it still is: %q", s)
		}
	})
}

// FuzzTree reads damaged directories to the end or to an error, and finds every difference of two.
func FuzzTree(f *testing.F) {
	id := strings.Repeat("\x01", 20)
	a, dir := "100644 a\x00"+id, "40000 a\x00"+id
	f.Add(a, dir)
	f.Add(a+"100755 a.b\x00"+id+dir, a)
	f.Add("", a+"160000 z\x00"+strings.Repeat("\x02", 20))
	f.Add("100644 a", "x")
	f.Fuzz(func(t *testing.T, one, two string) {
		entries := func(s string) (map[string]treeEntry, bool) {
			out := map[string]treeEntry{}
			scan, last := treeScan{data: []byte(s)}, ""
			for scan.next() {
				if scan.mode == 0 || len(scan.name) == 0 {
					t.Fatalf("odd entry in %q", s)
				}
				key := string(scan.name)
				if scan.mode == filemode.Dir {
					key += "/"
				} else {
					key += "\x00"
				}
				if key <= last {
					return nil, false // not in git's order: both sides need not find each other
				}
				last = key
				if _, twice := out[string(scan.name)]; twice {
					return nil, false
				}
				out[string(scan.name)] = scan.treeEntry
			}
			return out, scan.err == nil
		}
		list, err := diffScans(treeScan{data: []byte(one)}, treeScan{data: []byte(two)})
		a, okA := entries(one)
		b, okB := entries(two)
		if !okA || !okB {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]nameChange{}
		for _, c := range list {
			found[c.name] = c
		}
		for name := range a {
			if a[name] != b[name] && (found[name].from != a[name] || found[name].to != b[name]) {
				t.Fatalf("%q: %+v", name, found[name])
			}
		}
		for name := range b {
			if a[name] != b[name] && found[name].to != b[name] {
				t.Fatalf("%q: %+v", name, found[name])
			}
		}
		for name := range found {
			if a[name] == b[name] {
				t.Fatalf("%q is equal", name)
			}
		}
	})
}

// FuzzLines compares the search for equal lines with the plain table for the longest common subsequence.
func FuzzLines(f *testing.F) {
	f.Add("a\nb\nc\n", "b\na\nc")
	f.Add("a\na\nb\na\n", "b\na\na\n")
	f.Add("", "x")
	f.Add("1\n2\n3\n4\n5\n6\n7\n8", "8\n7\n6\n5\n4\n3\n2\n1")
	f.Fuzz(func(t *testing.T, one, two string) {
		a, b := splitLines([]byte(one)), splitLines([]byte(two))
		if len(a) > 200 || len(b) > 200 {
			return
		}
		same, err := sameLines(context.Background(), a, b)
		if err != nil {
			t.Fatal(err)
		}
		last, count := -1, 0
		for i, at := range same {
			if at < 0 {
				continue
			}
			if at <= last || !bytes.Equal(a[at], b[i]) {
				t.Fatalf("%q %q: %v", a, b, same)
			}
			last = at
			count++
		}
		table := make([][]int, len(a)+1)
		for i := range table {
			table[i] = make([]int, len(b)+1)
		}
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				table[i][j] = max(table[i+1][j], table[i][j+1])
				if bytes.Equal(a[i], b[j]) {
					table[i][j] = table[i+1][j+1] + 1
				}
			}
		}
		if count != table[0][0] {
			t.Fatalf("%q %q: %d lines in common, not %d", a, b, count, table[0][0])
		}
	})
}

// FuzzRemoteURL: no URL makes ssh take a part of it for an option, and one with a password is refused without a word of it.
func FuzzRemoteURL(f *testing.F) {
	for _, s := range []string{"https://example.com/a.git", "https://u:p@example.com/a", "git@example.com:a/b", "ssh://git@example.com:22/a", "file:///a", "/a", "-x", "ssh://-o/x", "a:b:c", "ssh://[::1]:22/x", "https://%zz", "x@-y:z"} {
		f.Add(s)
	}
	f.Setenv("GIT_SSH_COMMAND", "")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseRemote(s, MirrorOptions{})
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Fatalf("%q: %v", s, err)
			}
			if _, rest, ok := strings.Cut(s, "://"); ok {
				if user, _, ok := strings.Cut(rest, "@"); ok && len(user) > 12 && !strings.Contains(user, "/") && strings.Contains(err.Error(), user) {
					t.Fatalf("%q: %v", s, err)
				}
			}
			return
		}
		if len(r.argv) > 0 && r.argv[0] == "ssh" {
			i := slices.Index(r.argv, "--")
			if len(r.argv) != i+3 || strings.HasPrefix(r.argv[i+1], "-") || r.argv[i+1] == "" {
				t.Fatalf("%q: %q", s, r.argv)
			}
			if at := slices.Index(r.argv[:i], "-l"); at >= 0 && strings.HasPrefix(r.argv[at+1], "-") {
				t.Fatalf("%q: %q", s, r.argv)
			}
		}
		if r.http != nil && r.http.User != nil {
			t.Fatalf("%q: credentials are kept", s)
		}
	})
}

// FuzzAdvert reads what a remote may send first.
func FuzzAdvert(f *testing.F) {
	id := strings.Repeat("ab", 20)
	line := plainLine
	f.Add(line(id+" HEAD\x00multi_ack ofs-delta agent=x\n") + line(id+" refs/heads/main\n") + "0000")
	f.Add(line("# service=git-upload-pack\n") + "0000" + line(id+" refs/heads/main\x00side-band-64k symref=HEAD:refs/heads/main\n") + line("shallow "+id+"\n") + "0000")
	f.Add(line(strings.Repeat("ab", 32)+" HEAD\x00object-format=sha256\n") + "0000")
	f.Add(line("ERR no\n"))
	f.Add("0000")
	r := &remote{shown: "x"}
	f.Fuzz(func(t *testing.T, s string) {
		adv, err := r.decodeAdvert(context.Background(), strings.NewReader(s))
		switch {
		case err != nil && strings.ContainsAny(err.Error(), "\n\x00"):
			t.Fatalf("%q: %v", s, err)
		case err != nil && !errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrDenied) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, transport.ErrEmptyRemoteRepository):
			t.Fatalf("%q: %v", s, err)
		case err == nil:
			for name := range adv.References {
				if !strings.Contains(s, name) {
					t.Fatalf("%q: made up %s", s, name)
				}
			}
		}
	})
}

func plainLine(s string) string {
	const digits = "0123456789abcdef"
	n := len(s) + 4
	return string([]byte{digits[n>>12&15], digits[n>>8&15], digits[n>>4&15], digits[n&15]}) + s
}
