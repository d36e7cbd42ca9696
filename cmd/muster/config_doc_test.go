package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/muster-config/muster/cmd/internal/cli"
)

// example is a fenced block of docs/config.md with what it is, in the comment above it: a file of the repo that the page builds up, a file that is refused (and what
// is said), or commands with their output.
var example = regexp.MustCompile("(?s)(<!-- (?:file ([^ \n]+)|refused ([^ \n]+): ([^\n]+)|console) -->\n```[a-z]*\n)(.*?)```")

// fence is the beginning of any block.
var fence = regexp.MustCompile("(?m)^```[a-z]+$")

// TestConfigDoc runs docs/config.md: every block of it is a file that is taken as it stands, one that is refused as the page says, or a command that prints what
// stands there. MUSTER_UPDATE=1 writes the output anew; look at the diff.
func TestConfigDoc(t *testing.T) {
	page := filepath.Join(moduleRoot(), "docs", "config.md")
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	found := example.FindAllStringSubmatchIndex(text, -1)
	if all := len(fence.FindAllString(text, -1)); len(found) != all || all < 20 {
		t.Errorf("%d blocks, and %d of them are marked", all, len(found))
	}
	dir := t.TempDir()
	t.Setenv("MUSTER_CACHE", filepath.Join(t.TempDir(), "cache"))
	if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", "-b", "main", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p := docPage{t, dir}
	var updated strings.Builder
	at := 0
	for _, m := range found {
		part := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return text[m[2*i]:m[2*i+1]]
		}
		body := part(5)
		updated.WriteString(text[at:m[10]])
		at = m[11]
		caption := ""
		switch {
		case part(2) != "":
			caption = "`" + part(2) + "`:\n\n"
		case part(3) != "":
			caption = "`" + part(3) + "` with this is refused, `" + part(4) + "`:\n\n"
		}
		if !strings.HasSuffix(text[:m[0]], caption) {
			t.Errorf("the reader does not see what this is: no %q above it:\n%s", caption, body)
		}
		switch {
		case part(2) != "":
			p.write(part(2), body)
			updated.WriteString(body)
		case part(3) != "":
			p.refuses(part(3), body, part(4))
			updated.WriteString(body)
		default:
			got := p.console(body)
			updated.WriteString(got)
			if got != body && os.Getenv("MUSTER_UPDATE") == "" {
				t.Errorf("the page says:\n%s\nand it is:\n%s", body, got)
			}
		}
	}
	updated.WriteString(text[at:])
	if os.Getenv("MUSTER_UPDATE") != "" && updated.String() != text {
		if err := os.WriteFile(page, []byte(updated.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type docPage struct {
	t   *testing.T
	dir string
}

func (p docPage) write(path, text string) {
	p.t.Helper()
	path = filepath.Join(p.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// refuses puts a file in the place of what is there, and takes it back.
func (p docPage) refuses(path, text, says string) {
	p.t.Helper()
	full := filepath.Join(p.dir, path)
	before, err := os.ReadFile(full)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	p.write(path, text)
	if got := p.console("$ muster validate\n"); !strings.Contains(got, says) || !strings.Contains(got, "muster: error: not valid: 1 error") {
		p.t.Errorf("%s is not refused with %q:\n%s\n%s", path, says, text, got)
	}
	if err != nil {
		if err := os.Remove(full); err != nil {
			p.t.Fatal(err)
		}
		return
	}
	p.write(path, string(before))
}

// console runs the commands of a block, and gives the block with what they print.
func (p docPage) console(block string) string {
	p.t.Helper()
	var b bytes.Buffer
	for line := range strings.Lines(block) {
		call, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		b.WriteString(line)
		args := strings.Fields(call)
		switch args[0] {
		case "cat":
			data, err := os.ReadFile(filepath.Join(p.dir, args[1]))
			if err != nil {
				p.t.Error(err)
			}
			b.Write(data)
		case "muster":
			p.t.Chdir(p.dir)
			if err := run(p.t.Context(), args[1:], &b, &b); err != nil {
				cli.PrintError(&b, "muster", err, rules...)
			}
		default:
			p.t.Errorf("cannot run %q", call)
		}
	}
	return b.String()
}
