package dir_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/dir"
	"github.com/muster-config/muster/distributor/store/storetest"
)

func TestMain(m *testing.M) {
	if root := os.Getenv("MUSTER_TEST_DIR_CHILD"); root != "" {
		os.Exit(child(root, os.Getenv("MUSTER_TEST_DIR_WRITER")))
	}
	os.Exit(m.Run())
}

func open(t *testing.T) (*dir.Store, string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "made", "by", "store")
	s, err := dir.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return s, root
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s, _ := open(t)
		return s
	})
}

// child races for twenty registers and raises the counter ten times, in a process of its own.
func child(root, writer string) int {
	s, err := dir.Open(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx := context.Background()
	w, _ := strconv.Atoi(writer)
	for i := range 20 {
		_, err := s.Create(ctx, fmt.Sprintf("releases/%02d", i), []byte("by "+writer))
		switch {
		case err == nil:
			fmt.Println("won", i)
		case !errors.Is(err, store.ErrExists):
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if err := storetest.Increment(ctx, s, "counter", 10, w); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// B050: of many processes exactly one wins each number, and no update is lost.
func TestB050AcrossProcesses(t *testing.T) {
	s, root := open(t)
	if _, err := s.Create(t.Context(), "counter", []byte("0 ")); err != nil {
		t.Fatal(err)
	}
	const processes = 8
	outs := make([]string, processes)
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "MUSTER_TEST_DIR_CHILD="+root, fmt.Sprintf("MUSTER_TEST_DIR_WRITER=%d", i))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("process %d: %v: %s", i, err, out)
			}
			outs[i] = string(out)
		})
	}
	wg.Wait()
	winner := map[string]int{}
	for i, out := range outs {
		for line := range strings.Lines(out) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), "won "); ok {
				if other, twice := winner[n]; twice {
					t.Errorf("register %s was won by %d and by %d", n, other, i)
				}
				winner[n] = i
			}
		}
	}
	if len(winner) != 20 {
		t.Errorf("%d of 20 registers were won", len(winner))
	}
	for n, i := range winner {
		num, _ := strconv.Atoi(n)
		o, err := s.Get(t.Context(), fmt.Sprintf("releases/%02d", num), 100)
		if err != nil || string(o.Data) != fmt.Sprintf("by %d", i) {
			t.Errorf("register %s holds %q, %v; %d won it", n, o.Data, err, i)
		}
	}
	o, err := s.Get(t.Context(), "counter", 100)
	if err != nil || !strings.HasPrefix(string(o.Data), "80 ") {
		t.Errorf("counter %q, %v; want 80: updates were lost", o.Data, err)
	}
}

// Scripts look into a file store: one file per key, the bytes as stored, nothing else that is not a dot file.
func TestLayout(t *testing.T) {
	s, root := open(t)
	if infos, err := s.List(t.Context(), "", "", 10); err != nil || len(infos) != 0 {
		t.Errorf("a store that is not there: %v, %v", infos, err)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reading made %s: %v", root, err)
	}
	if _, err := s.Create(t.Context(), "cohorts/prod-eu.json", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "cohorts", "prod-eu.json"))
	if err != nil || string(data) != "{}" {
		t.Errorf("%q, %v", data, err)
	}
	entries, _ := os.ReadDir(filepath.Join(root, "cohorts"))
	if len(entries) != 1 {
		t.Errorf("left over: %v", entries)
	}
	if want := "file://" + root; s.URL() != want {
		t.Errorf("URL %q, want %q", s.URL(), want)
	}
}

func TestLeftOversOfACrash(t *testing.T) {
	s, root := open(t)
	if err := s.Put(t.Context(), "a/x", []byte("x")); err != nil {
		t.Fatal(err)
	}
	old, fresh := filepath.Join(root, "a", ".tmp-OLD"), filepath.Join(root, "a", ".tmp-FRESH")
	for _, name := range []string{old, fresh} {
		if err := os.WriteFile(name, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	yesterday := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(old, yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
	infos, err := s.List(t.Context(), "", "", 10)
	if err != nil || len(infos) != 1 || infos[0].Key != "a/x" {
		t.Errorf("listed %v, %v", infos, err)
	}
	again, err := dir.Open(root) // the next process
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Put(t.Context(), "a/y", []byte("y")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old left-over is still there: %v", err)
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("another writer's file was taken away: %v", err)
	}
}

func TestPutIsYoung(t *testing.T) {
	s, root := open(t)
	if err := s.Put(t.Context(), "bundles/x", []byte("x")); err != nil {
		t.Fatal(err)
	}
	yesterday := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(filepath.Join(root, "bundles", "x"), yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "bundles/x", []byte("x")); err != nil {
		t.Fatal(err)
	}
	infos, err := s.List(t.Context(), "bundles/", "", 1)
	if err != nil || len(infos) != 1 || time.Since(infos[0].Modified) > time.Hour {
		t.Errorf("%v, %v: gc would take it for old", infos, err)
	}
}

func TestOddThings(t *testing.T) {
	s, root := open(t)
	if err := s.Put(t.Context(), "plain/x", []byte("x")); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink(outside, filepath.Join(root, "linked")))
	must(os.Symlink(filepath.Join(outside, "secret"), filepath.Join(root, "plain", "link")))
	must(syscall.Mkfifo(filepath.Join(root, "plain", "pipe"), 0o600))
	must(os.Mkdir(filepath.Join(root, "plain", "dir"), 0o700))

	for _, tc := range []struct{ key, want string }{
		{"linked/secret", "symbolic link"},
		{"plain/link", "symbolic link"},
		{"plain/pipe", "not a regular file"},
		{"plain/dir", "not found"},
		{"plain/x/below", "not found"},
	} {
		if _, err := s.Get(t.Context(), tc.key, 100); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.key) {
			t.Errorf("Get(%s): %v, want it named and %q", tc.key, err, tc.want)
		}
	}
	for _, key := range []string{"linked/new", "plain/x/below", "plain/dir"} {
		if err := s.Put(t.Context(), key, []byte("x")); err == nil {
			t.Errorf("Put(%s) is allowed", key)
		}
		if _, err := s.Create(t.Context(), key, []byte("x")); err == nil {
			t.Errorf("Create(%s) is allowed", key)
		}
	}
	if err := s.Delete(t.Context(), "plain/link"); err != nil {
		t.Errorf("removing the link itself: %v", err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("written through a link: %v", entries)
	}
	infos, err := s.List(t.Context(), "", "", 10)
	if err != nil || len(infos) != 1 {
		t.Errorf("listed %v, %v", infos, err)
	}
	if _, err := dir.Open(filepath.Join(root, "plain", "x")); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("Open of a file: %v", err)
	}
}

// A store directory that is itself a link is fine: /var/lib may be one.
func TestRootIsALink(t *testing.T) {
	real := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	s, err := dir.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if infos, err := s.List(t.Context(), "", "", 5); err != nil || len(infos) != 1 {
		t.Errorf("%v, %v", infos, err)
	}
}
