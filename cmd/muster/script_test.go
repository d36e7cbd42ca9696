package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/muster-config/muster/agent/client"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/distributor/store/storetest/s3server"
)

func TestMain(m *testing.M) {
	eval.Child() // commands that run in this process evaluate in it, started again
	// Processes that scripts start beside the three real binaries.
	testscript.Main(cleaning{m}, map[string]func(){"hostsvc": hostsvc})
}

// cleaning removes the binaries after the tests.
type cleaning struct{ *testing.M }

func (c cleaning) Run() int {
	defer func() {
		if built != "" {
			os.RemoveAll(built)
		}
	}()
	return c.M.Run()
}

var built string // directory of the binaries

// binaries builds the three real binaries once and returns their directory.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "muster-bin-")
	if err != nil {
		return "", err
	}
	built = dir
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	if raceEnabled {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "./cmd/muster", "./cmd/muster-agent", "./cmd/muster-collector")...)
	build.Dir = moduleRoot()
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return dir, nil
})

func moduleRoot() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// gitEnv keeps the machine's own git configuration out.
var gitEnv = []string{
	"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_SYSTEM=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
	"GIT_AUTHOR_NAME=Ana", "GIT_AUTHOR_EMAIL=ana@example.org", "GIT_COMMITTER_NAME=Ana", "GIT_COMMITTER_EMAIL=ana@example.org",
}

func TestScripts(t *testing.T) { runScripts(t, "", nil) }

// TestScriptsS3 runs the scripts that need an S3 server against a real one.
func TestScriptsS3(t *testing.T) {
	server := s3server.Start(t)
	server.Setenv(t) // for `releases`, which looks from this process
	runScripts(t, "s3", func(e *testscript.Env) {
		e.Vars = append(e.Vars, server.Env...)
		e.Setenv("MUSTER_STORE", server.Prefix(filepath.Base(e.WorkDir)))
	})
}

func runScripts(t *testing.T, dir string, setup func(*testscript.Env)) {
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join(moduleRoot(), "testdata", "scripts", dir),
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("MUSTER_UPDATE") != "", // golden outputs; look at the diff
		Setup: func(e *testscript.Env) error {
			e.Vars = append(e.Vars, gitEnv...)
			e.Setenv("PATH", bin+string(filepath.ListSeparator)+e.Getenv("PATH"))
			e.Setenv("REPO", filepath.Join(e.WorkDir, "repo"))
			e.Setenv("KEYS", filepath.Join(e.WorkDir, "keys"))
			e.Setenv("MUSTER_CACHE", filepath.Join(e.WorkDir, ".cache"))
			if setup != nil {
				setup(e)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "until": until, "freeport": freeport, "releases": releases, "spoil": spoil, "subst": subst, "freeze": freeze,
		},
	})
}

// exits CODE command args…: runs the command and checks its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command args…")
	}
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	code := 0
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("%s exits with %d, want %s", args[1], code, args[0])
	}
}

// until command args…: runs the command until it exits with 0. It is how a script waits for what runs in the background.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: until command args…")
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("still not so after a minute: %v", err)
		}
	}
}

// freeport NAME…: sets each variable to the number of a port of the loopback interface that is free now.
func freeport(ts *testscript.TestScript, neg bool, args []string) {
	for _, name := range args {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		defer ln.Close()
		_, port, err := net.SplitHostPort(ln.Addr().String())
		ts.Check(err)
		ts.Setenv(name, port)
	}
}

// releases N URL: checks that the store has exactly N releases, whatever the machine's own tools say.
func releases(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: releases N URL")
	}
	st, err := open.OpenRead(context.Background(), args[1])
	ts.Check(err)
	infos, err := st.List(context.Background(), manifest.PrefixReleases, "", 1000)
	ts.Check(err)
	if strconv.Itoa(len(infos)) != args[0] {
		ts.Fatalf("%d releases, want %s: %v", len(infos), args[0], infos)
	}
}

// spoil cut|flip GLOB: shortens each file by its last byte, or changes a byte in its middle.
func spoil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: spoil cut|flip GLOB")
	}
	found, err := filepath.Glob(ts.MkAbs(args[1]))
	ts.Check(err)
	if len(found) == 0 {
		ts.Fatalf("%s names no file", args[1])
	}
	for _, path := range found {
		data, err := os.ReadFile(path)
		ts.Check(err)
		switch args[0] {
		case "cut":
			data = data[:len(data)-1]
		case "flip":
			data[len(data)/2] ^= 1
		default:
			ts.Fatalf("spoil %s?", args[0])
		}
		ts.Check(os.WriteFile(path, data, 0o644))
	}
}

// subst FILE…: replaces ${NAME} in files by the script's variables.
func subst(ts *testscript.TestScript, neg bool, args []string) {
	for _, name := range args {
		path := ts.MkAbs(name)
		data, err := os.ReadFile(path)
		ts.Check(err)
		ts.Check(os.WriteFile(path, []byte(os.Expand(string(data), ts.Getenv)), 0o644))
	}
}

// hostsvc serve ROOT SERVICE ADDR is a service's process on a host; hostsvc reload URL tells it to load its files.
func hostsvc() {
	if err := hostsvcMain(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hostsvc:", err)
		os.Exit(1)
	}
}

func hostsvcMain(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "reload":
		resp, err := http.Post(args[1], "", nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	case len(args) == 4 && args[0] == "serve":
		var mu sync.Mutex
		var epoch uint64
		mux := http.NewServeMux()
		mux.HandleFunc("POST /reload", func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			c, err := client.Open(args[1], args[2])
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			defer c.Close()
			epoch = c.Epoch()
		})
		mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			_ = json.NewEncoder(w).Encode(map[string]uint64{"config_epoch": epoch})
		})
		return http.ListenAndServe(args[3], mux)
	}
	return fmt.Errorf("usage: %s", strings.Join(slices.Concat([]string{"hostsvc"}, args), " "))
}
