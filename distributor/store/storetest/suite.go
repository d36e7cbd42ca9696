// Package storetest is the conformance suite that every store passes, and a decorator that makes a store fail on purpose.
package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/store"
)

const all = 1 << 30

// Run checks all that package store promises. open gives an empty store of its own for each call, or one whose objects of earlier calls are gone.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, tc := range []struct {
		name string
		test func(*testing.T, store.Store)
	}{
		{"not found", notFound},
		{"put and get", putGet},
		{"limits", limits},
		{"get if changed", getIfChanged},
		{"open streams", openStreams},
		{"large blob", largeBlob},
		{"create", create},
		{"replace", replace},
		{"create race", createRace},
		{"replace race", replaceRace},
		{"counter", counter},
		{"reads are never torn", tornReads},
		{"list", list},
		{"odd keys", oddKeys},
		{"bad keys", badKeys},
		{"delete", remove},
		{"ended context", endedContext},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, open(t)) })
	}
}

func notFound(t *testing.T, s store.Store) {
	ctx := t.Context()
	if _, err := s.Get(ctx, "a/missing.json", 10); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get: %v, want ErrNotFound", err)
	}
	if _, err := s.GetIfChanged(ctx, "a/missing.json", "old", 10); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("GetIfChanged: %v, want ErrNotFound", err)
	}
	if r, _, err := s.Open(ctx, "a/missing.json"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Open: %v, want ErrNotFound", err)
		if err == nil {
			r.Close()
		}
	}
	if got, err := s.List(ctx, "", "", 10); err != nil || len(got) != 0 {
		t.Errorf("List of an empty store: %v, %v", got, err)
	}
	if s.URL() == "" {
		t.Error("URL is empty")
	}
}

func putGet(t *testing.T, s store.Store) {
	for _, data := range []string{"hello", "", "again", "again"} {
		if err := s.Put(t.Context(), "blobs/x", []byte(data)); err != nil {
			t.Fatal(err)
		}
		if got := get(t, s, "blobs/x"); string(got.Data) != data {
			t.Fatalf("got %q, want %q", got.Data, data)
		}
	}
	// What was read and what was stored belong to the caller.
	data := []byte("mine")
	if err := s.Put(t.Context(), "blobs/y", data); err != nil {
		t.Fatal(err)
	}
	data[0] = 'X'
	get(t, s, "blobs/y").Data[1] = 'X'
	if got := get(t, s, "blobs/y"); string(got.Data) != "mine" {
		t.Errorf("stored bytes changed with the caller's slice: %q", got.Data)
	}
}

func limits(t *testing.T, s store.Store) {
	ctx := t.Context()
	if err := s.Put(ctx, "x", make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, "x", 99); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("Get with limit 99 of 100 bytes: %v, want ErrTooLarge", err)
	}
	if o, err := s.Get(ctx, "x", 100); err != nil || len(o.Data) != 100 {
		t.Errorf("Get with limit 100 of 100 bytes: %d bytes, %v", len(o.Data), err)
	}
	big := make([]byte, store.MaxRegister+1)
	if _, err := s.Create(ctx, "big", big); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("Create of %d bytes: %v, want ErrTooLarge", len(big), err)
	}
	if _, err := s.Replace(ctx, "x", big, get(t, s, "x").Token); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("Replace by %d bytes: %v, want ErrTooLarge", len(big), err)
	}
}

func getIfChanged(t *testing.T, s store.Store) {
	ctx := t.Context()
	token, err := s.Create(ctx, "head", []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	if o := get(t, s, "head"); o.Token != token {
		t.Errorf("token of the write %q, of the read %q", token, o.Token)
	}
	if o, err := s.GetIfChanged(ctx, "head", token, all); !errors.Is(err, store.ErrNotModified) {
		t.Errorf("unchanged: %q, %v, want ErrNotModified", o.Data, err)
	}
	if o, err := s.GetIfChanged(ctx, "head", "", all); err != nil || string(o.Data) != "one" {
		t.Errorf("with an empty token: %q, %v", o.Data, err)
	}
	if _, err := s.Replace(ctx, "head", []byte("two"), token); err != nil {
		t.Fatal(err)
	}
	o, err := s.GetIfChanged(ctx, "head", token, all)
	if err != nil || string(o.Data) != "two" || o.Token == token || o.Token == "" {
		t.Errorf("changed: %q, token %q (old %q), %v", o.Data, o.Token, token, err)
	}
}

func openStreams(t *testing.T, s store.Store) {
	want := pattern(100_000)
	if err := s.Put(t.Context(), "a/b/blob", want); err != nil {
		t.Fatal(err)
	}
	r, size, err := s.Open(t.Context(), "a/b/blob")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil || size != int64(len(want)) || !bytes.Equal(got, want) {
		t.Errorf("size %d, read %d bytes, %v", size, len(got), err)
	}
	// A reader that is not read to its end holds nothing up.
	r, _, err = s.Open(t.Context(), "a/b/blob")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close of an unread stream: %v", err)
	}
}

func largeBlob(t *testing.T, s store.Store) {
	want := pattern(20 << 20)
	if err := s.Put(t.Context(), "bundles/large", want); err != nil {
		t.Fatal(err)
	}
	r, size, err := s.Open(t.Context(), "bundles/large")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	h := sha256.New()
	n, err := io.Copy(h, r)
	if sum := sha256.Sum256(want); err != nil || n != size || size != int64(len(want)) || !bytes.Equal(h.Sum(nil), sum[:]) {
		t.Errorf("size %d, read %d of %d bytes, %v, or other content", size, n, len(want), err)
	}
}

func create(t *testing.T, s store.Store) {
	ctx := t.Context()
	token, err := s.Create(ctx, "releases/1.json", []byte("one"))
	if err != nil || token == "" {
		t.Fatalf("token %q, %v", token, err)
	}
	if again, err := s.Create(ctx, "releases/1.json", []byte("one")); err != nil || again != token {
		t.Errorf("equal bytes are success with the same token: %q, %v", again, err)
	}
	for _, other := range []string{"two", "", "one more"} {
		if _, err := s.Create(ctx, "releases/1.json", []byte(other)); !errors.Is(err, store.ErrExists) {
			t.Errorf("Create of %q over other bytes: %v, want ErrExists", other, err)
		}
	}
	if got := get(t, s, "releases/1.json"); string(got.Data) != "one" {
		t.Errorf("got %q", got.Data)
	}
}

func replace(t *testing.T, s store.Store) {
	ctx := t.Context()
	first, err := s.Create(ctx, "head", []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Replace(ctx, "head", []byte("two"), first)
	if err != nil || second == first {
		t.Fatalf("token %q after %q, %v", second, first, err)
	}
	if _, err := s.Replace(ctx, "head", []byte("three"), first); !errors.Is(err, store.ErrConflict) {
		t.Errorf("with an old token: %v, want ErrConflict", err)
	}
	if again, err := s.Replace(ctx, "head", []byte("two"), first); err != nil || again != second {
		t.Errorf("equal bytes are success with the token in force: %q, %v, want %q", again, err, second)
	}
	if _, err := s.Replace(ctx, "head", []byte("three"), ""); !errors.Is(err, store.ErrConflict) {
		t.Errorf("with an empty token: %v, want ErrConflict", err)
	}
	if got := get(t, s, "head"); string(got.Data) != "two" || got.Token != second {
		t.Errorf("got %q with token %q, want two with %q", got.Data, got.Token, second)
	}
	// Gone is a conflict, and nothing is written.
	if err := s.Delete(ctx, "head"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Replace(ctx, "head", []byte("three"), second); !errors.Is(err, store.ErrConflict) {
		t.Errorf("after Delete: %v, want ErrConflict", err)
	}
	if _, err := s.Get(ctx, "head", all); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Replace of a missing object left something: %v", err)
	}
}

func createRace(t *testing.T, s store.Store) {
	for round := range 5 {
		key := fmt.Sprintf("releases/%d", round)
		won := race(t, 32, func(ctx context.Context, i int) error {
			_, err := s.Create(ctx, key, fmt.Appendf(nil, "writer %d", i))
			return err
		}, store.ErrExists)
		if len(won) != 1 {
			t.Fatalf("round %d: winners %v, want exactly one", round, won)
		}
		if got, want := string(get(t, s, key).Data), fmt.Sprintf("writer %d", won[0]); got != want {
			t.Errorf("round %d: stored %q, won %q", round, got, want)
		}
	}
}

func replaceRace(t *testing.T, s store.Store) {
	token, err := s.Create(t.Context(), "head", []byte("start"))
	if err != nil {
		t.Fatal(err)
	}
	for round := range 5 {
		won := race(t, 32, func(ctx context.Context, i int) error {
			_, err := s.Replace(ctx, "head", fmt.Appendf(nil, "round %d writer %d", round, i), token)
			return err
		}, store.ErrConflict)
		if len(won) != 1 {
			t.Fatalf("round %d: winners %v, want exactly one", round, won)
		}
		got := get(t, s, "head")
		if want := fmt.Sprintf("round %d writer %d", round, won[0]); string(got.Data) != want {
			t.Errorf("round %d: stored %q, won %q", round, got.Data, want)
		}
		token = got.Token
	}
}

// race runs f n times at once and gives the numbers of those that succeeded; all others must fail with loses.
func race(t *testing.T, n int, f func(ctx context.Context, i int) error, loses error) []int {
	t.Helper()
	var mu sync.Mutex
	var won []int
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			err := f(t.Context(), i)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, i)
			case !errors.Is(err, loses):
				t.Errorf("writer %d: %v, want nil or %v", i, err, loses)
			}
		})
	}
	close(start)
	wg.Wait()
	return won
}

func counter(t *testing.T, s store.Store) {
	if _, err := s.Create(t.Context(), "n", []byte("0 ")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			if err := Increment(t.Context(), s, "n", 5, w); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := strings.Fields(string(get(t, s, "n").Data))[0]; got != "40" {
		t.Errorf("counted to %s, want 40: updates were lost", got)
	}
}

// Increment raises the number at the start of the object n times by compare-and-swap, trying again after each conflict. The writer's own mark keeps two
// writers' bytes from being equal.
func Increment(ctx context.Context, s store.Store, key string, n, writer int) error {
	for done := 0; done < n; {
		o, err := s.Get(ctx, key, all)
		if err != nil {
			return err
		}
		var v int
		if _, err := fmt.Sscan(string(o.Data), &v); err != nil {
			return fmt.Errorf("read %q: %w", o.Data, err)
		}
		_, err = s.Replace(ctx, key, fmt.Appendf(nil, "%d by %d/%d", v+1, writer, done), o.Token)
		switch {
		case err == nil:
			done++
		case !errors.Is(err, store.ErrConflict):
			return err
		}
	}
	return nil
}

func tornReads(t *testing.T, s store.Store) {
	const size = 50_000
	if err := s.Put(t.Context(), "x", bytes.Repeat([]byte{'a'}, size)); err != nil {
		t.Fatal(err)
	}
	var writer, readers sync.WaitGroup
	done := make(chan struct{})
	writer.Go(func() {
		for i := range 40 {
			if err := s.Put(t.Context(), "x", bytes.Repeat([]byte{byte('a' + i%26)}, size+i%3)); err != nil {
				t.Error(err)
			}
		}
	})
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				o, err := s.Get(t.Context(), "x", all)
				if err != nil {
					t.Error(err)
					return
				}
				if len(o.Data) < size || bytes.Count(o.Data, o.Data[:1]) != len(o.Data) {
					t.Errorf("read %d bytes of more than one write", len(o.Data))
					return
				}
			}
		})
	}
	writer.Wait()
	close(done)
	readers.Wait()
}

func list(t *testing.T, s store.Store) {
	keys := []string{"a-b/1", "a.json", "a/1", "a/10", "a/2", "a/b/c", "a/b/d", "a0", "b/1", "store.json"}
	for _, key := range slices.Backward(keys) {
		if err := s.Put(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		prefix, after string
		max           int
		want          []string
	}{
		{"", "", 100, keys},
		{"", "", 3, keys[:3]},
		{"", "a/1", 3, keys[3:6]},
		{"a/", "", 100, []string{"a/1", "a/10", "a/2", "a/b/c", "a/b/d"}},
		{"a/", "a/10", 2, []string{"a/2", "a/b/c"}},
		{"a/", "a/b/c", 9, []string{"a/b/d"}},
		{"a/", "a/b", 9, []string{"a/b/c", "a/b/d"}},
		{"a/b/", "", 9, []string{"a/b/c", "a/b/d"}},
		{"a", "a/z", 9, []string{"a0"}},
		{"a/1", "", 9, []string{"a/1", "a/10"}},
		{"b/", "b/1", 9, nil},
		{"none/", "", 9, nil},
		{"", "", 0, nil},
	} {
		infos, err := s.List(t.Context(), tc.prefix, tc.after, tc.max)
		if err != nil {
			t.Errorf("List(%q, %q, %d): %v", tc.prefix, tc.after, tc.max, err)
			continue
		}
		var got []string
		for _, i := range infos {
			got = append(got, i.Key)
			if i.Size != int64(len(i.Key)) || i.Modified.IsZero() {
				t.Errorf("%s: size %d, modified %v", i.Key, i.Size, i.Modified)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("List(%q, %q, %d), want -, got +:\n%s", tc.prefix, tc.after, tc.max, diff)
		}
	}
}

func oddKeys(t *testing.T, s store.Store) {
	keys := []string{
		"a b/c d.json", "p+q&r=s?t#u", "100%/%41", "~tilde/'quote'", "a=b,c;d:e@f$g!h*i(j)", "UPPER/lower", strings.Repeat("long/", 20) + "x", strings.Repeat("k", 200),
	}
	for _, key := range keys {
		if err := s.Put(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys {
		if got := get(t, s, key); string(got.Data) != key {
			t.Errorf("%q holds %q", key, got.Data)
		}
	}
	infos, err := s.List(t.Context(), "", "", 100)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	var got []string
	for _, i := range infos {
		got = append(got, i.Key)
	}
	if diff := cmp.Diff(keys, got); diff != "" {
		t.Errorf("listed, want -, got +:\n%s", diff)
	}
}

func badKeys(t *testing.T, s store.Store) {
	ctx := t.Context()
	for _, key := range []string{"", "/etc/passwd", "../up", "a/../b", "a//b", "a/", "./a", ".hidden", "a/.tmp-1", "a\\b", "a\x00b", "ä", strings.Repeat("k", 1000)} {
		if err := s.Put(ctx, key, []byte("x")); err == nil {
			t.Errorf("Put(%.20q) is allowed", key)
		}
		if _, err := s.Create(ctx, key, []byte("x")); err == nil {
			t.Errorf("Create(%.20q) is allowed", key)
		}
		if _, err := s.Replace(ctx, key, []byte("x"), "t"); err == nil {
			t.Errorf("Replace(%.20q) is allowed", key)
		}
		if _, err := s.Get(ctx, key, all); err == nil {
			t.Errorf("Get(%.20q) is allowed", key)
		}
		if _, _, err := s.Open(ctx, key); err == nil {
			t.Errorf("Open(%.20q) is allowed", key)
		}
		if err := s.Delete(ctx, key); err == nil {
			t.Errorf("Delete(%.20q) is allowed", key)
		}
	}
}

func remove(t *testing.T, s store.Store) {
	ctx := t.Context()
	for _, key := range []string{"a/x", "a/y"} {
		if err := s.Put(ctx, key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // a missing one is no error
		if err := s.Delete(ctx, "a/x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(ctx, "never/was"); err != nil {
		t.Error(err)
	}
	if _, err := s.Get(ctx, "a/x", all); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted: %v, want ErrNotFound", err)
	}
	if got := get(t, s, "a/y"); string(got.Data) != "a/y" {
		t.Errorf("the neighbour holds %q", got.Data)
	}
	if _, err := s.Create(ctx, "a/x", []byte("new")); err != nil {
		t.Errorf("Create after Delete: %v", err)
	}
}

func endedContext(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Put(ctx, "x", []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("Put: %v, want context.Canceled", err)
	}
	if _, err := s.Get(ctx, "x", all); !errors.Is(err, context.Canceled) {
		t.Errorf("Get: %v, want context.Canceled", err)
	}
	if _, err := s.List(ctx, "", "", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("List: %v, want context.Canceled", err)
	}
}

func get(t *testing.T, s store.Store, key string) store.Object {
	t.Helper()
	o, err := s.Get(t.Context(), key, all)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func pattern(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return data
}
