package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

// What others wrote is no command of the workflow's runner, whichever of our commands prints it: names of files and keys, values, and the subject of a commit.
func TestQuietInWorkflows(t *testing.T) {
	w := newCI(t, small("workers: 4\n"), map[string]string{
		"services/web/base.yaml":                           "workers: 8\nname: \"x ##[error]y\"\n\"::error::key\": 1\n\"##[add-mask]x\": 2\n",
		"services/web/::error file=x::y ##[warning]z.yaml": "x: 1\n",
	}, nil)
	w.git(w.dir, "checkout", "-q", w.head)
	w.git(w.dir, "commit", "-q", "--amend", "-m", "::add-mask::x ##[group]y")
	keys, store := filepath.Join(t.TempDir(), "keys"), "file://"+filepath.ToSlash(t.TempDir())+"/store"
	for k, v := range map[string]string{"MUSTER_KEYS": keys, "MUSTER_STORE": store, "MUSTER_COLLECTOR": ""} {
		t.Setenv(k, v)
	}
	say := func(args ...string) string {
		var out, errOut bytes.Buffer
		err := run(t.Context(), append([]string{"-C", w.dir}, args...), &out, &errOut)
		cli.PrintError(&errOut, "muster", err, rules...)
		return out.String() + errOut.String()
	}
	for _, args := range [][]string{
		{"keys", "init", keys, "--repo", forgetest.Repo}, {"validate"}, {"validate", "--service", "##[group]x"}, {"plan", "--base", w.base}, {"plan", "--base", "##[error]x"}, {"explain", "--cohort", "prod", "web"},
		{"publish", "--github", forgetest.Repo}, {"publish", "--rev", w.base}, {"log"}, {"show", "1"}, {"::error::x"},
	} {
		if got := say(args...); len(commandsIn(got)) > 0 {
			t.Errorf("%v: %q", args, commandsIn(got))
		}
	}
	// Those that are meant are ours, one for each finding.
	cmds := commandsIn(say("validate", "--format", "github"))
	if len(cmds) < 2 {
		t.Errorf("annotations: %q", cmds)
	}
	for _, c := range cmds {
		if !strings.HasPrefix(c, "::error file=services/web/") || strings.Contains(c, "\x1b") {
			t.Errorf("annotation %q", c)
		}
	}
	// JSON is data, and so is what goes to a file.
	if text := say("validate", "--json"); !strings.Contains(text, "##[") || !json.Valid([]byte(text[:strings.LastIndex(text, "}")+1])) {
		t.Errorf("JSON is changed: %s", text)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var errOut bytes.Buffer
	_ = run(t.Context(), []string{"-C", w.dir, "validate"}, file, &errOut)
	if data, err := os.ReadFile(file.Name()); err != nil || !strings.Contains(string(data), "##[") {
		t.Errorf("a file is changed: %q %v", data, err)
	}
}
