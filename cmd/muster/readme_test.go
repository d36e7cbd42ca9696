package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// block is a fenced block of the README that is marked as a part of the walk.
var block = regexp.MustCompile("(?s)<!-- walk( fails)? -->\n```sh\n(.*?)```")

// started is a line that starts a process in the background.
var started = regexp.MustCompile(`(?m)^.* &$`)

// placeholder is what a text still has to be put in for.
var placeholder = regexp.MustCompile(`@[A-Z]+@`)

// TestReadme runs the README's walk as it stands: one shell, one directory, the three real binaries.
func TestReadme(t *testing.T) {
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(moduleRoot(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if left := placeholder.FindString(string(readme)); left != "" {
		t.Errorf("the README still has the placeholder %s", left)
	}
	found := block.FindAllStringSubmatch(string(readme), -1)
	if len(found) < 5 {
		t.Fatalf("only %d blocks of the README are marked", len(found))
	}
	var script strings.Builder
	for _, m := range found {
		if m[1] == "" {
			script.WriteString(m[2])
			continue
		}
		// The last command must fail, with an answer of no.
		lines := strings.Split(strings.TrimSpace(m[2]), "\n")
		last := len(lines) - 1
		script.WriteString(strings.Join(lines[:last], "\n") + "\nrc=0; " + lines[last] + " || rc=$?\n[ $rc = 1 ]\n")
	}
	script.WriteString("echo walked\n")

	// Whatever has the README's port on this machine.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(script.String(), ":7070") {
		t.Error("the walk uses the demo's port: who has the demo running cannot walk")
	}
	text := strings.ReplaceAll(script.String(), "127.0.0.1:7171", ln.Addr().String())
	ln.Close()

	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// The shell ends what it started in the background, and waits for it.
	sh := exec.CommandContext(ctx, "sh", "-eu", "-c", "trap 'kill $pids; wait' EXIT\npids=\n"+started.ReplaceAllString(text, "$0\npids=\"$$pids $$!\""))
	sh.Dir = dir
	sh.Env = append(os.Environ(), gitEnv...)
	sh.Env = append(sh.Env, "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"), "HOME="+dir)
	sh.Cancel = func() error { return sh.Process.Signal(os.Interrupt) }
	sh.WaitDelay = 10 * time.Second
	out, err := sh.CombinedOutput()
	text = string(out)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, want := range []string{"valid: 1 service, 1 cohort", "workers: 8", "epoch 2 is confirmed by 1 host", "no fault", "unknown field", "walked"} {
		if !strings.Contains(text, want) {
			t.Errorf("the walk does not print %q:\n%s", want, text)
		}
	}
}
