// Package s3server runs a real S3 server, versitygw, for tests.
//
// The binary is the one that MUSTER_VERSITYGW names, else it is built once from testdata/tools into the user's cache directory.
package s3server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/store/s3"
)

const (
	accessKey = "muster-test"
	secretKey = "muster-test-secret"
	bucket    = "muster-test"
)

// Server is a running server with one empty bucket.
type Server struct {
	Addr string   // host:port
	URL  string   // the bucket as a store URL; Prefix gives a part of it
	Env  []string // what a process needs to use URL: credentials

	cmd  *exec.Cmd
	log  *lockedBuffer
	done chan struct{} // closed when the process has ended
}

// Start runs a server for the length of a test. If none can be had the test is skipped, loudly, and fails under MUSTER_TEST_ALL=1.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := StartAt(t.TempDir())
	var none *Unavailable
	switch {
	case errors.As(err, &none) && os.Getenv("MUSTER_TEST_ALL") != "1":
		t.Skipf("SKIPPED, NOT TESTED AGAINST A REAL S3 SERVER: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Setenv gives the test's own process what it needs to open URL.
func (s *Server) Setenv(t testing.TB) {
	for _, kv := range s.Env {
		k, v, _ := strings.Cut(kv, "=")
		t.Setenv(k, v)
	}
}

// Prefix is the store URL of a part of the bucket, so that several tests can share a server.
func (s *Server) Prefix(name string) string {
	return strings.Replace(s.URL, "s3://"+bucket, "s3://"+bucket+"/"+name, 1)
}

// Options are the credentials for opening URL without environment.
func (s *Server) Options() s3.Options {
	return s3.Options{Credentials: s3.Static(accessKey, secretKey)}
}

// Unavailable says that there is no server binary and none can be built here.
type Unavailable struct{ Err error }

func (e *Unavailable) Error() string { return "no versitygw: " + e.Err.Error() }
func (e *Unavailable) Unwrap() error { return e.Err }

// StartAt runs a server on the data directory dir, which must exist, on a free loopback port. The caller stops it.
func StartAt(dir string) (*Server, error) {
	bin, err := binary()
	if err != nil {
		return nil, &Unavailable{err}
	}
	var last error
	for range 5 { // another process may take the free port before the server does
		s, err := start(bin, dir)
		if err == nil {
			return s, nil
		}
		last = err
	}
	return nil, last
}

func start(bin, dir string) (*Server, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &Server{
		Addr: addr,
		URL:  "s3://" + bucket + "?endpoint=http://" + addr + "&path_style=true&region=us-east-1",
		Env:  []string{"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey},
		log:  &lockedBuffer{}, done: make(chan struct{}),
	}
	// Without --keep-alive each request is a connection: five times slower.
	s.cmd = exec.Command(bin, "--port", addr, "--quiet", "--keep-alive", "posix", dir) //nolint:noctx // ended by Stop
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+accessKey, "ROOT_SECRET_KEY="+secretKey)
	s.cmd.Dir = dir
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", bin, err)
	}
	go func() {
		_ = s.cmd.Wait() // how it ended shows in its log
		close(s.done)
	}()
	if err := s.ready(); err != nil {
		s.Stop()
		return nil, fmt.Errorf("versitygw at %s: %w; it says: %s", addr, err, s.log)
	}
	return s, nil
}

// ready waits until the server answers, and makes the bucket.
func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr)
		if err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-s.done:
			return errors.New("ended at once")
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
	st, err := s3.Open(s.URL, s.Options())
	if err != nil {
		return err
	}
	return st.MakeBucket(ctx)
}

// Stop ends the server: first by request, after five seconds by force.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-s.done:
	case <-time.After(5 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

var built struct {
	sync.Once
	path string
	err  error
}

func binary() (string, error) {
	if path := os.Getenv("MUSTER_VERSITYGW"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("MUSTER_VERSITYGW: %w", err)
		}
		return path, nil
	}
	built.Do(func() { built.path, built.err = build() })
	return built.path, built.err
}

// build makes the binary unless there is one that is newer than the list of tools. Test processes that want it at the same time wait for each other.
func build() (string, error) {
	tools, err := toolsDir()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "muster-tools")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	bin := filepath.Join(dir, "versitygw")
	if newer(bin, filepath.Join(tools, "go.mod")) {
		return bin, nil
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin+".new", "github.com/versity/versitygw/cmd/versitygw") //nolint:noctx // minutes, once
	cmd.Dir = tools
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build it in %s: %w: %.500s", tools, err, bytes.TrimSpace(out))
	}
	return bin, os.Rename(bin+".new", bin)
}

func newer(a, b string) bool {
	ai, aerr := os.Stat(a)
	bi, berr := os.Stat(b)
	return aerr == nil && berr == nil && ai.ModTime().After(bi.ModTime())
}

// toolsDir is testdata/tools of the module in which the test runs.
func toolsDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if mod, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && bytes.HasPrefix(mod, []byte("module github.com/muster-config/muster\n")) {
			return filepath.Join(dir, "testdata", "tools"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("the test does not run inside the module, so that testdata/tools cannot be found")
		}
		dir = parent
	}
}

// lockedBuffer takes the server's output while it may be read.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len() > 64<<10 {
		return len(p), nil // the beginning tells enough
	}
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
