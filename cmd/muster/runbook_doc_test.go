package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var consoleBlock = regexp.MustCompile("(?s)```console\n(.*?)```")

// TestRunbook gives the commands of docs/runbook.md, in their order, to a real host with a collector and a store: each block is one shell, and each command in it must do what it says.
func TestRunbook(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(moduleRoot(), "docs", "runbook.md"))
	if err != nil {
		t.Fatal(err)
	}
	d := newDown(t, nil)
	for _, v := range d.env {
		if url, ok := strings.CutPrefix(v, "COLLECTOR="); ok {
			d.env = append(d.env, "MUSTER_COLLECTOR="+url)
		}
	}
	ran := map[string]bool{}
	for _, m := range consoleBlock.FindAllStringSubmatch(string(data), -1) {
		script := "set -e\n"
		for line := range strings.Lines(m[1]) {
			command, ok := strings.CutPrefix(line, "$ ")
			if !ok {
				t.Fatalf("%q is no command", line)
			}
			ran[strings.Join(strings.Fields(command)[:min(3, len(strings.Fields(command)))], " ")] = true
			// On a host the configuration is where the agent looks for it.
			command = regexp.MustCompile(`^muster-agent ([a-z]+)`).ReplaceAllString(command, "muster-agent $1 --config host-1.yaml")
			script += command
		}
		out, code := d.call("sh", "-c", script)
		// The bucket of this test is there, so that the controller may give a newer order between the head that was taken and the file made from it. The page says what to do then: take the head anew.
		for tries := 0; code == 4 && strings.Contains(out, "order went back") && tries < 10; tries++ {
			out, code = d.call("sh", "-c", "rm -f fix.muster\n"+script) // it overwrites no file
		}
		if code != 0 {
			t.Fatalf("exit %d:\n%s\n%s", code, script, out)
		}
	}
	if len(ran) < 20 {
		t.Errorf("only %d commands were found: %v", len(ran), ran)
	}
	if got := d.ok("muster", "override", "list"); !strings.Contains(got, "no override acts now") {
		t.Errorf("left behind: %s", got)
	}
	if got := d.ok("muster-agent", "status", "--config", "host-1.yaml"); strings.Contains(got, "held by") {
		t.Errorf("left behind: %s", got)
	}
}
