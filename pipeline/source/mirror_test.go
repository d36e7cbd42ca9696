package source_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-config/muster/pipeline/source"
)

// gitServer serves the repositories below root by the git program's own http-backend. With a token it lets nobody else in.
func gitServer(t testing.TB, root, token string) (url string) {
	t.Helper()
	backend := &cgi.Handler{
		Path: filepath.Join(git(t, ".", "--exec-path"), "git-http-backend"), Dir: root,
		Env: append([]string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"}, gitEnv...),
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if _, got, _ := req.BasicAuth(); token != "" && got != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

type warnings struct {
	mu   sync.Mutex
	list []string
}

func (w *warnings) add(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, s)
}

func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.list
	w.list = nil
	return list
}

func openMirror(t testing.TB, dir, url, branch string, opts source.MirrorOptions) *source.Mirror {
	t.Helper()
	m, err := source.OpenMirror(context.Background(), dir, url, branch, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() }) // twice does no harm
	return m
}

func fetch(t testing.TB, m *source.Mirror) string {
	t.Helper()
	tip, err := m.Fetch(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return tip
}

func TestMirror(t *testing.T) {
	root := t.TempDir()
	origin := filepath.Join(root, "config.git")
	git(t, ".", "init", "-q", "-b", "main", origin)
	write(t, origin, "a/b.yaml", "a: 1\n")
	first := commit(t, origin, "one")
	served := gitServer(t, root, "")
	for name, url := range map[string]string{"http": served + "/config.git/.git", "file": "file://" + origin, "path": origin} {
		t.Run(name, func(t *testing.T) {
			git(t, origin, "reset", "-q", "--hard", first)
			var w warnings
			opts := source.MirrorOptions{Warn: w.add}
			dir := filepath.Join(t.TempDir(), "deep", "cache")
			m := openMirror(t, dir, url, "main", opts)
			if m.Repo() != nil {
				t.Error("a repository before anything was fetched")
			}
			if tip := fetch(t, m); tip != first {
				t.Fatalf("tip %s, want %s", tip, first)
			}
			r := m.Repo()
			tree, err := r.Commit("main")
			if err != nil || readFile(t, tree, "a/b.yaml") != "a: 1\n" {
				t.Fatal(err)
			}
			write(t, origin, "a/b.yaml", "a: 2\n")
			second := commit(t, origin, "two")
			if tip, err := r.Tip("main"); err != nil || tip != first {
				t.Errorf("before the fetch: %s, %v", tip, err)
			}
			if tip := fetch(t, m); tip != second {
				t.Fatalf("tip %s, want %s", tip, second)
			}
			if tip := fetch(t, m); tip != second {
				t.Fatalf("nothing new: tip %s", tip)
			}
			if ok, err := r.Contains("HEAD", first); err != nil || !ok {
				t.Errorf("history: %v, %v", ok, err)
			}
			// A forced push moves the branch, to a sibling and back to what was there before.
			git(t, origin, "reset", "-q", "--hard", first)
			write(t, origin, "c", "c")
			sibling := commit(t, origin, "sibling")
			if tip := fetch(t, m); tip != sibling {
				t.Fatalf("tip %s, want %s", tip, sibling)
			}
			if ok, err := r.Contains(sibling, second); err != nil || ok {
				t.Errorf("the old tip is known, and is not in it: %v, %v", ok, err)
			}
			git(t, origin, "reset", "-q", "--hard", first)
			if tip := fetch(t, m); tip != first {
				t.Fatalf("tip %s, want %s", tip, first)
			}
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			// The next process goes on, without the remote as far as that goes.
			m = openMirror(t, dir, url, "refs/heads/main", opts)
			if got, err := m.Repo().Tip("main"); err != nil || got != first {
				t.Errorf("after a restart: %s, %v", got, err)
			}
			if tip := fetch(t, m); tip != first {
				t.Fatalf("tip %s, want %s", tip, first)
			}
			git(t, filepath.Join(dir, "repo.git"), "fsck", "--strict")
			if list := w.take(); len(list) > 0 {
				t.Errorf("warnings %q", list)
			}
			_, err = source.OpenMirror(context.Background(), dir, url, "main", opts)
			refused(t, err, source.ErrMirrorBusy, dir, "another")
		})
	}
}

func TestB015Remote(t *testing.T) {
	origin := initRepo(t)
	c1 := commit(t, origin, "one")
	git(t, origin, "branch", "foo")
	dir := t.TempDir()
	m := openMirror(t, dir, origin, "foo", source.MirrorOptions{})
	fetch(t, m)
	git(t, origin, "branch", "-D", "foo")
	git(t, origin, "branch", "foo/bar")
	for range 2 {
		_, err := m.Fetch(context.Background())
		refused(t, err, source.ErrBranchGone, `"foo"`, origin)
		_, err = m.Repo().Tip("foo")
		refused(t, err, source.ErrBranchGone)
	}
	m.Close()
	var w warnings
	m = openMirror(t, dir, origin, "foo/bar", source.MirrorOptions{Warn: w.add})
	if tip := fetch(t, m); tip != c1 {
		t.Errorf("tip %s", tip)
	}
	git(t, origin, "branch", "-D", "foo/bar")
	git(t, origin, "branch", "foo")
	_, err := m.Fetch(context.Background())
	refused(t, err, source.ErrBranchGone)
	m.Close()
	m = openMirror(t, dir, origin, "foo", source.MirrorOptions{Warn: w.add})
	if tip := fetch(t, m); tip != c1 {
		t.Errorf("tip %s", tip)
	}
	if list := w.take(); len(list) > 0 {
		t.Errorf("warnings %q", list)
	}
	_, err = openMirror(t, t.TempDir(), initRepo(t), "main", source.MirrorOptions{}).Fetch(context.Background())
	refused(t, err, source.ErrBranchGone, "no commits")
}

func TestB017(t *testing.T) {
	origin := initRepo(t)
	for i := range 30 {
		write(t, origin, fmt.Sprintf("f%d", i), strings.Repeat(fmt.Sprint(i), 500))
	}
	tip := commit(t, origin, "one")
	pack := func(t *testing.T, dir, ext string) string {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(dir, "repo.git/objects/pack/*"+ext))
		if err != nil || len(list) != 1 {
			t.Fatalf("packs %q, %v", list, err)
		}
		if err := os.Chmod(list[0], 0o644); err != nil {
			t.Fatal(err)
		}
		return list[0]
	}
	truncate := func(t *testing.T, name string, by int64) {
		t.Helper()
		fi, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, fi.Size()-by); err != nil {
			t.Fatal(err)
		}
	}
	overwrite := func(t *testing.T, name string) {
		t.Helper()
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(t *testing.T, name string) {
		t.Helper()
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name   string
		damage func(t *testing.T, dir string)
		warned int
	}{
		{"empty repository", func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "repo.git"))
			if err := os.Mkdir(filepath.Join(dir, "repo.git"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, 1},
		{"truncated pack", func(t *testing.T, dir string) { truncate(t, pack(t, dir, ".pack"), 30) }, 1},
		{"truncated index", func(t *testing.T, dir string) { truncate(t, pack(t, dir, ".idx"), 1) }, 1},
		{"empty pack", func(t *testing.T, dir string) { overwrite(t, pack(t, dir, ".pack")) }, 1},
		{"zeros in the pack", func(t *testing.T, dir string) {
			f, err := os.OpenFile(pack(t, dir, ".pack"), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(make([]byte, 64), 100); err != nil {
				t.Fatal(err)
			}
		}, 1},
		{"no index", func(t *testing.T, dir string) { remove(t, pack(t, dir, ".idx")) }, 1},
		{"no packs", func(t *testing.T, dir string) { remove(t, pack(t, dir, ".idx")); remove(t, pack(t, dir, ".pack")) }, 1},
		{"tmp_pack", func(t *testing.T, dir string) { write(t, dir, "repo.git/objects/pack/tmp_pack_123", "PACK") }, 0},
		{"half of a clone", func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "repo.git"))
			write(t, dir, "new-123/HEAD", "ref: refs/heads/main\n")
			write(t, dir, "old-123/repo.git/HEAD", "")
		}, 0},
		{"plain file for the clone", func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "repo.git"))
			write(t, dir, "repo.git", "file")
		}, 1},
		{"plain file for the directory", func(t *testing.T, dir string) {
			remove(t, dir)
			write(t, filepath.Dir(dir), "cache", "somebody's file")
		}, 1},
		{"empty ref", func(t *testing.T, dir string) { write(t, dir, "repo.git/refs/muster/last", "") }, 1},
		{"empty branch", func(t *testing.T, dir string) { write(t, dir, "repo.git/refs/heads/main", "") }, 0},
		{"broken config", func(t *testing.T, dir string) { write(t, dir, "repo.git/config", "[core\n") }, 1},
		{"empty mark", func(t *testing.T, dir string) { write(t, dir, "muster-cache", "") }, 1},
		{"only directories", func(t *testing.T, dir string) {
			remove(t, dir)
			if err := os.MkdirAll(filepath.Join(dir, ".git"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cache")
			m := openMirror(t, dir, origin, "main", source.MirrorOptions{})
			fetch(t, m)
			m.Close()
			tt.damage(t, dir)
			var w warnings
			m = openMirror(t, dir, origin, "main", source.MirrorOptions{Warn: w.add})
			if got := fetch(t, m); got != tip {
				t.Errorf("tip %s", got)
			}
			if tree, err := m.Repo().Commit("main"); err != nil || len(contents(t, tree)) != 30 {
				t.Error(err)
			}
			list := w.take()
			if len(list) != tt.warned || tt.warned == 1 && !strings.Contains(list[0], dir) {
				t.Errorf("warnings %q, want %d", list, tt.warned)
			}
			m.Close()
			m = openMirror(t, dir, origin, "main", source.MirrorOptions{Warn: w.add})
			fetch(t, m)
			if list := w.take(); len(list) > 0 {
				t.Errorf("warned again: %q", list)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 4 {
				t.Errorf("left in the cache: %v, %v", entries, err)
			}
			if kept, err := os.ReadFile(dir + ".old0"); strings.Contains(tt.name, "for the directory") && (err != nil || string(kept) != "somebody's file") {
				t.Errorf("the file is gone: %v", err)
			}
		})
	}
	t.Run("while it is open", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "cache")
		var w warnings
		m := openMirror(t, dir, origin, "main", source.MirrorOptions{Warn: w.add})
		fetch(t, m)
		r := m.Repo()
		overwrite(t, pack(t, dir, ".pack"))
		if got := fetch(t, m); got != tip {
			t.Errorf("tip %s", got)
		}
		if list := w.take(); len(list) != 1 || m.Repo() != r {
			t.Errorf("warnings %q", list)
		}
		if tree, err := r.Commit("main"); err != nil || len(contents(t, tree)) != 30 {
			t.Error(err)
		}
	})
	t.Run("not ours", func(t *testing.T) {
		for _, file := range []string{"a.yaml", ".git/HEAD", "sub/x"} {
			dir := t.TempDir()
			write(t, dir, file, "mine")
			before := snapshot(t, dir)
			_, err := source.OpenMirror(context.Background(), dir, origin, "main", source.MirrorOptions{})
			if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "new or empty") {
				t.Errorf("got %v", err)
			}
			if after := snapshot(t, dir); fmt.Sprint(before) != fmt.Sprint(after) {
				t.Errorf("it was changed: %v", after)
			}
		}
	})
	t.Run("another remote", func(t *testing.T) {
		other := initRepo(t)
		second := commit(t, other, "other")
		dir := t.TempDir()
		m := openMirror(t, dir, origin, "main", source.MirrorOptions{})
		fetch(t, m)
		m.Close()
		var w warnings
		m = openMirror(t, dir, other, "main", source.MirrorOptions{Warn: w.add})
		if m.Repo() != nil {
			t.Error("the other one's objects are still there")
		}
		if got := fetch(t, m); got != second || len(w.take()) != 1 {
			t.Errorf("tip %s", got)
		}
	})
}

func TestMirrorCredentials(t *testing.T) {
	const token = "s3cr3t-t0ken"
	root := t.TempDir()
	origin := filepath.Join(root, "config.git")
	git(t, ".", "init", "-q", "-b", "main", origin)
	tip := commit(t, origin, "one")
	url := gitServer(t, root, token) + "/config.git/.git"
	dir := t.TempDir()
	given := token
	m := openMirror(t, dir, url, "main", source.MirrorOptions{Token: func() (string, error) { return given + "\n", nil }})
	if got := fetch(t, m); got != tip {
		t.Errorf("tip %s", got)
	}
	err := filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if err != nil || fi.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if strings.Contains(string(data), token) {
			t.Errorf("the token is in %s", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"wr0ng-t0ken", "", "two\nlines", "\x00"} {
		given = bad
		_, err := m.Fetch(context.Background())
		if err == nil || bad != "" && strings.Contains(err.Error(), bad) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	given = "wr0ng-t0ken"
	_, err = m.Fetch(context.Background())
	refused(t, err, source.ErrDenied, url, "401", "token")
	_, err = openMirror(t, t.TempDir(), url, "main", source.MirrorOptions{}).Fetch(context.Background())
	refused(t, err, source.ErrDenied, "wants a token")
	boom := errors.New("no such file")
	_, err = openMirror(t, t.TempDir(), url, "main", source.MirrorOptions{Token: func() (string, error) { return "", boom }}).Fetch(context.Background())
	refused(t, err, boom, "git token")

	for _, tt := range []struct{ url, want string }{
		{"https://user:hunter2@example.com/x", "credentials"}, {"https://hunter2@example.com/x", "credentials"}, {"ssh://git:hunter2@example.com/x", "credentials"},
		{"https://example.com/x?token=hunter2", "query"}, {"https://exa mple.com/hunter2%zz", "malformed"}, {"http://example.com/x", "in clear"}, {"git://example.com/x", "use https"},
		{"ext::sh -c hunter2", ""}, {"", "empty"}, {"--upload-pack=hunter2", "malformed"}, {"ssh://-oProxyCommand=hunter2/x", "names no host"}, {"ssh://-l@host/hunter2", "names no host"}, {"file://elsewhere/x", "names no host"},
		{"-oProxyCommand=hunter2:x", "malformed"}, {"https:///x", "names no host"}, {"a\nb", "malformed"},
	} {
		_, err := source.OpenMirror(context.Background(), t.TempDir(), tt.url, "main", source.MirrorOptions{Token: func() (string, error) { return token, nil }})
		if tt.want == "" {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", tt.url, err)
		}
	}
}

// TestMirrorRedirect goes along within a server, and takes no credentials to another.
func TestMirrorRedirect(t *testing.T) {
	root := t.TempDir()
	origin := filepath.Join(root, "new.git")
	git(t, ".", "init", "-q", "-b", "main", origin)
	tip := commit(t, origin, "one")
	visited := 0
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { visited++ }))
	t.Cleanup(thief.Close)
	inner, err := url.Parse(gitServer(t, root, ""))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(inner)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case strings.HasPrefix(req.URL.Path, "/old.git/"):
			http.Redirect(w, req, strings.Replace(req.URL.String(), "/old.git/", "/new.git/", 1), http.StatusMovedPermanently)
		case strings.HasPrefix(req.URL.Path, "/away.git/"):
			http.Redirect(w, req, thief.URL+req.URL.String(), http.StatusFound)
		default:
			proxy.ServeHTTP(w, req)
		}
	}))
	t.Cleanup(front.Close)
	opts := source.MirrorOptions{Token: func() (string, error) { return "s3cr3t", nil }}
	if got := fetch(t, openMirror(t, t.TempDir(), front.URL+"/old.git/.git", "main", opts)); got != tip {
		t.Errorf("tip %s", got)
	}
	_, err = openMirror(t, t.TempDir(), front.URL+"/away.git/.git", "main", opts).Fetch(context.Background())
	refused(t, err, source.ErrUnreachable, "redirects to "+thief.URL)
	if visited > 0 {
		t.Error("it went there")
	}
}

func TestMirrorBadServers(t *testing.T) {
	const advert = "application/x-git-upload-pack-advertisement"
	sha256 := filepath.Join(t.TempDir(), "r")
	git(t, ".", "init", "-q", "--object-format=sha256", "-b", "main", sha256)
	commit(t, sha256, "one")
	origin := initRepo(t)
	commit(t, origin, "one")
	commit(t, origin, "two")
	shallow := filepath.Join(t.TempDir(), "shallow")
	git(t, ".", "clone", "-q", "--depth", "1", "file://"+origin, shallow)
	_, err := openMirror(t, t.TempDir(), sha256, "main", source.MirrorOptions{}).Fetch(context.Background())
	refused(t, err, source.ErrUnsupported, "objectformat=sha256", "--object-format=sha1")
	_, err = openMirror(t, t.TempDir(), shallow, "main", source.MirrorOptions{}).Fetch(context.Background())
	refused(t, err, source.ErrShallow, "cloned from")
	_, err = openMirror(t, t.TempDir(), filepath.Join(t.TempDir(), "none"), "main", source.MirrorOptions{}).Fetch(context.Background())
	refused(t, err, source.ErrUnreachable, "none")

	for name, tt := range map[string]struct {
		kind, body string
		status     int
		want       error
	}{
		"page":             {"text/html", "<html>sign in</html>", 200, source.ErrDenied},
		"nothing":          {advert, "", 200, source.ErrUnreachable},
		"garbage":          {advert, "zzzz", 200, source.ErrUnreachable},
		"cut":              {advert, "001e# service=git-upload-pack\n0000015", 200, source.ErrUnreachable},
		"error":            {advert, "001e# service=git-upload-pack\n0000001bERR you may not do this", 200, source.ErrDenied},
		"not found":        {"text/plain", "no", 404, source.ErrDenied},
		"busy":             {"text/plain", "no", 503, source.ErrUnreachable},
		"too many":         {"text/plain", "no", 429, source.ErrUnreachable},
		"no such redirect": {"text/plain", "no", 302, source.ErrUnreachable},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", tt.kind)
			w.WriteHeader(tt.status)
			fmt.Fprint(w, tt.body)
		}))
		_, err := openMirror(t, t.TempDir(), srv.URL, "main", source.MirrorOptions{}).Fetch(context.Background())
		srv.Close()
		t.Log(err)
		refused(t, err, tt.want, srv.URL)
		_ = name
	}
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	_, err = openMirror(t, t.TempDir(), srv.URL, "main", source.MirrorOptions{}).Fetch(context.Background())
	refused(t, err, source.ErrUnreachable, srv.URL)
}

// TestMirrorSSH runs the git program's side by a command in place of ssh.
func TestMirrorSSH(t *testing.T) {
	origin := initRepo(t)
	tip := commit(t, origin, "one")
	bin := t.TempDir()
	write(t, bin, "ssh", "#!/bin/sh\necho \"$@\" >"+bin+"/asked\nfor last; do :; done\nexec sh -c \"$last\"\n")
	if err := os.Chmod(filepath.Join(bin, "ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_SSH_COMMAND", filepath.Join(bin, "ssh")+" -i key")
	for url, want := range map[string]string{
		"git@example.com:" + origin:            "-l git -- example.com git-upload-pack '" + origin + "'",
		"ssh://git@example.com:2222" + origin:  "-p 2222 -l git -- example.com git-upload-pack '" + origin + "'",
		"ssh://example.com" + origin + "/.git": "-- example.com git-upload-pack '" + origin + "/.git'",
	} {
		if got := fetch(t, openMirror(t, t.TempDir(), url, "main", source.MirrorOptions{})); got != tip {
			t.Errorf("%s: tip %s", url, got)
		}
		asked, err := os.ReadFile(filepath.Join(bin, "asked"))
		if err != nil || !strings.HasPrefix(string(asked), "-i key -o BatchMode=yes ") || !strings.HasSuffix(strings.TrimSpace(string(asked)), want) {
			t.Errorf("%s: asked %q, %v", url, asked, err)
		}
	}
	write(t, bin, "ssh", "#!/bin/sh\necho 'Host key verification failed.' >&2\nexit 255\n")
	_, err := openMirror(t, t.TempDir(), "git@example.com:x", "main", source.MirrorOptions{}).Fetch(context.Background())
	refused(t, err, source.ErrUnreachable, "Host key verification failed.", "git@example.com:x")
}

// TestMirrorCancel ends a fetch from a server that does not answer, at either request; the next process is not troubled by what is left.
func TestMirrorCancel(t *testing.T) {
	root := t.TempDir()
	origin := filepath.Join(root, "r")
	git(t, ".", "init", "-q", "-b", "main", origin)
	tip := commit(t, origin, "one")
	inner, err := url.Parse(gitServer(t, root, ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{"/info/refs", "/git-upload-pack"} {
		ctx, cancel := context.WithCancel(context.Background())
		stop := make(chan struct{})
		proxy := httputil.NewSingleHostReverseProxy(inner)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, where) {
				cancel()
				<-stop
				return
			}
			proxy.ServeHTTP(w, req)
		}))
		dir := t.TempDir()
		m := openMirror(t, dir, srv.URL+"/r/.git", "main", source.MirrorOptions{})
		_, err := m.Fetch(ctx)
		refused(t, err, context.Canceled)
		refused(t, err, source.ErrUnreachable)
		close(stop)
		srv.Close()
		m.Close()
		if got := fetch(t, openMirror(t, dir, origin, "main", source.MirrorOptions{})); got != tip {
			t.Errorf("tip %s", got)
		}
	}
	m := openMirror(t, t.TempDir(), origin, "main", source.MirrorOptions{Timeout: time.Nanosecond})
	_, err = m.Fetch(context.Background())
	refused(t, err, source.ErrUnreachable, "no end after 1ns")
}

// TestMirrorCutPack has the connection break in the middle of a pack: nothing of it is taken.
func TestMirrorCutPack(t *testing.T) {
	root := t.TempDir()
	origin := filepath.Join(root, "r")
	git(t, ".", "init", "-q", "-b", "main", origin)
	commit(t, origin, "one")
	inner, err := url.Parse(gitServer(t, root, ""))
	if err != nil {
		t.Fatal(err)
	}
	limit := 0 // bytes of a pack that come through; 0 is all
	proxy := httputil.NewSingleHostReverseProxy(inner)
	proxy.ModifyResponse = func(res *http.Response) error {
		if limit > 0 && strings.HasSuffix(res.Request.URL.Path, "/git-upload-pack") {
			body, err := io.ReadAll(res.Body)
			if err != nil {
				return err
			}
			res.Body = io.NopCloser(bytes.NewReader(body[:min(limit, len(body)-1)]))
			res.ContentLength = -1
		}
		return nil
	}
	srv := httptest.NewServer(proxy)
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	m := openMirror(t, dir, srv.URL+"/r/.git", "main", source.MirrorOptions{Warn: func(s string) { t.Errorf("warned: %s", s) }})
	for _, limit = range []int{1, 9, 20, 60, 150, 1 << 20} {
		_, err := m.Fetch(context.Background())
		refused(t, err, source.ErrUnreachable, srv.URL)
	}
	limit = 0
	first := fetch(t, m)
	write(t, origin, "f", strings.Repeat("random enough", 100))
	second := commit(t, origin, "two")
	for _, limit = range []int{1, 9, 20, 60, 150, 1 << 20} {
		_, err := m.Fetch(context.Background())
		refused(t, err, source.ErrUnreachable, srv.URL)
		if got, err := m.Repo().Tip("main"); err != nil || got != first {
			t.Errorf("tip %s, %v", got, err)
		}
	}
	limit = 0
	if got := fetch(t, m); got != second {
		t.Errorf("tip %s", got)
	}
	git(t, filepath.Join(dir, "repo.git"), "fsck", "--strict")
}

// TestMirrorManyFetches has the packs of many fetches joined, with every object kept.
func TestMirrorManyFetches(t *testing.T) {
	origin := initRepo(t)
	files := map[string]*string{}
	for i := range 40 {
		text := strings.Repeat(fmt.Sprint(i), 50)
		files[fmt.Sprintf("services/s%d", i)] = &text
	}
	var s script
	last := s.commit(files)
	for i := range 60 {
		text := fmt.Sprintln(i)
		last = s.commit(map[string]*string{"services/s7": &text}, last)
	}
	if err := s.load(origin); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m := openMirror(t, dir, origin, "main", source.MirrorOptions{})
	first, tip, most := "", "", 0
	for n := 1; n <= last; n++ {
		git(t, origin, "update-ref", "refs/heads/main", "refs/heads/"+s.ref(n))
		tip = fetch(t, m)
		if first == "" {
			first = tip
		}
		packs, err := filepath.Glob(filepath.Join(dir, "repo.git/objects/pack/*.pack"))
		if err != nil || len(packs) > 50 {
			t.Fatalf("%d packs, %v", len(packs), err)
		}
		most = max(most, len(packs))
	}
	if most < 20 || tip != git(t, origin, "rev-parse", "main") {
		t.Errorf("%d packs at most, tip %s", most, tip)
	}
	if ok, err := m.Repo().Contains(tip, first); err != nil || !ok {
		t.Errorf("%v, %v", ok, err)
	}
	git(t, filepath.Join(dir, "repo.git"), "fsck", "--strict", "--full")
	if n := git(t, filepath.Join(dir, "repo.git"), "rev-list", "--count", "main"); n != "61" {
		t.Errorf("%s commits", n)
	}
}
