package eval

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// unread is req as of a tree that knows what its files come to, and reads them when that is needed.
func unread(req *Request) *Request {
	out := *req
	out.Files = slices.Clone(req.Files)
	for i, f := range req.Files {
		out.Files[i] = TreeFile{Path: f.Path, Sum: sha256.Sum256(f.Data), Unread: func() ([]byte, error) { return f.Data, nil }}
	}
	return &out
}

// A validation again reads nothing of a service that did not change, and answers the same; of one that did it reads that one.
func TestVerdictsNeedNoFiles(t *testing.T) {
	c := openCache(t)
	req := dirRequest(t, "testdata/convention")
	req.FilesToo = false
	want := cached(t, c, req)
	again := func(req *Request, lim Limits) (*Result, []string) {
		t.Helper()
		var mu sync.Mutex
		var read []string
		for i := range req.Files {
			f := &req.Files[i]
			get := f.Unread
			f.Unread = func() ([]byte, error) {
				mu.Lock()
				defer mu.Unlock()
				if _, ok := serviceOf(f.Path); ok {
					read = append(read, f.Path)
				}
				return get()
			}
		}
		res, err := c.Run(t.Context(), req, lim)
		if err != nil {
			t.Fatal(err)
		}
		return res, read
	}
	got, _ := again(unread(req), Limits{}) // what the CUE files come to is not kept yet
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got, read := again(unread(req), noChild)
	if d := cmp.Diff(want, got); d != "" || len(read) > 0 {
		t.Errorf("read %v, %s", read, d)
	}
	service := want.Units[0].Service
	changed := replaced(req, "services/"+service+"/note.md", "x")
	got, read = again(unread(changed), Limits{})
	if d := cmp.Diff(Evaluate(changed), got); d != "" {
		t.Error(d)
	}
	if len(read) == 0 || slices.ContainsFunc(read, func(p string) bool { return !strings.HasPrefix(p, "services/"+service+"/") }) {
		t.Errorf("of %s was read: %v", service, read)
	}
	// A file that changed meanwhile is no answer.
	broken := replaced(req, "services/"+service+"/other.md", "x")
	broken = unread(broken)
	for i := range broken.Files {
		if strings.HasSuffix(broken.Files[i].Path, "/other.md") {
			broken.Files[i].Unread = func() ([]byte, error) { return nil, errors.New("changed while it was read") }
		}
	}
	if _, err := c.Run(t.Context(), broken, Limits{}); err == nil || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("got %v", err)
	}
	// Without a cache all is read first.
	res, err := Run(t.Context(), unread(req), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, res); d != "" {
		t.Error(d)
	}
}

// Whatever is done to the file of verdicts, they are right or not there.
func TestVerdictsDamaged(t *testing.T) {
	c := openCache(t)
	now := time.Now()
	v := c.store.verdicts(c.seed, now)
	const n = 20
	key := func(i int) cacheKey { return sha256.Sum256(fmt.Append(nil, i)) }
	content := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, i*7) }
	for i := range n {
		v.put(key(i), content(i))
	}
	v.tidy()
	good, err := os.ReadFile(v.name)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, atLeast int) {
		t.Helper()
		v := c.store.verdicts(c.seed, now)
		there := 0
		for i := range n {
			if got, ok := v.get(key(i)); ok {
				there++
				if !bytes.Equal(got, content(i)) {
					t.Errorf("%s: entry %d is wrong", what, i)
				}
			}
		}
		if there < atLeast {
			t.Errorf("%s: %d entries of %d", what, there, n)
		}
	}
	check("whole", n)
	for cut := 0; cut < len(good); cut += 13 {
		if err := os.WriteFile(v.name, good[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("cut at %d", cut), 0)
	}
	for at := 0; at < len(good); at += 11 {
		bad := slices.Clone(good)
		bad[at] ^= 0x41
		if err := os.WriteFile(v.name, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("changed at %d", at), 0)
	}
	if err := os.Remove(v.name); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(v.name, 0o700); err != nil {
		t.Fatal(err)
	}
	check("a directory", 0)
}

// What was not used for long goes first, and the file stays bounded.
func TestVerdictsBounded(t *testing.T) {
	c := openCache(t)
	now := time.Now()
	big := make([]byte, verdictsSpare/4)
	for i := range 10 {
		v := c.store.verdicts(c.seed, now.Add(time.Duration(i)*time.Hour))
		v.put(sha256.Sum256(fmt.Append(nil, i)), big)
		if _, ok := v.get(sha256.Sum256(fmt.Append(nil, 0))); !ok {
			t.Fatalf("round %d: what each run uses is gone", i)
		}
		v.tidy()
		if fi, err := os.Stat(v.name); err != nil || fi.Size() > 2*verdictsSpare {
			t.Fatalf("%v, %v", fi.Size(), err)
		}
	}
	v := c.store.verdicts(c.seed, now)
	for i, want := range []bool{true, false, false, false, false, false, true, true, true, true} {
		if _, ok := v.get(sha256.Sum256(fmt.Append(nil, i))); ok != want {
			t.Errorf("entry %d is there: %v, want %v", i, ok, want)
		}
	}
}
