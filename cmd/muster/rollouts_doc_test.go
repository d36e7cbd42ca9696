package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor/collector"
)

// named is a command that the page names.
var named = regexp.MustCompile("muster ((?:rollout [a-z]+)|freeze|unfreeze)")

// yamlBlock is a block of collector.yaml.
var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// TestRolloutsDoc runs the commands of docs/rollouts.md on the files that stand there, and checks that what it names is there. MUSTER_UPDATE=1 writes the output anew; look at the diff.
func TestRolloutsDoc(t *testing.T) {
	page := filepath.Join(moduleRoot(), "docs", "rollouts.md")
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	dir := t.TempDir()
	t.Setenv("MUSTER_CACHE", filepath.Join(t.TempDir(), "cache"))
	if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", "-b", "main", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p := docPage{t, dir}
	var updated strings.Builder
	at, ran := 0, 0
	for _, m := range example.FindAllStringSubmatchIndex(text, -1) {
		body := text[m[10]:m[11]]
		updated.WriteString(text[at:m[10]])
		at = m[11]
		if m[4] >= 0 {
			p.write(text[m[4]:m[5]], body)
			updated.WriteString(body)
			continue
		}
		ran++
		got := p.console(body)
		updated.WriteString(got)
		if got != body && os.Getenv("MUSTER_UPDATE") == "" {
			t.Errorf("the page says:\n%s\nand it is:\n%s", body, got)
		}
	}
	updated.WriteString(text[at:])
	if ran < 2 {
		t.Errorf("only %d blocks ran", ran)
	}
	if os.Getenv("MUSTER_UPDATE") != "" && updated.String() != text {
		if err := os.WriteFile(page, []byte(updated.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var commands []string
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		commands = append(commands, m[1])
	}
	slices.Sort(commands)
	if commands = slices.Compact(commands); len(commands) < 10 {
		t.Errorf("only %v are named", commands)
	}
	for _, c := range commands {
		var b strings.Builder
		if err := run(t.Context(), append(strings.Fields(c), "--help"), &b, &b); err != nil || !strings.Contains(b.String(), "muster "+c) {
			t.Errorf("muster %s is not there: %v", c, err)
		}
	}
	for _, m := range yamlBlock.FindAllStringSubmatch(text, -1) {
		path := filepath.Join(t.TempDir(), "collector.yaml")
		if err := os.WriteFile(path, []byte("store: file:///srv/muster\ndatabase: sqlite:///var/lib/muster-collector/state.db\n"+m[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := collector.LoadConfig(path); err != nil {
			t.Errorf("%v\n%s", err, m[1])
		}
	}
}
