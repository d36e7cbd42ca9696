// Command mutants breaks the code on purpose, one fault at a time, and demands that the tests notice. The tree stays as it is: the compiler is given the broken files in place of the real
// ones (go test -overlay), so that only what depends on them is built anew.
//
//	go run ./testdata/mutants [-only NAME,…] [-clean=false]
//
// Each testdata/mutants/NAME.patch begins with two lines: "# " and the fault in a sentence, and "# caught by: PACKAGE TEST [FLAGS]". A mutant that survives, a patch that does not apply any
// more, or one that does not compile, ends it with 1. Before that the named tests have to pass on the tree as it is.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const dir = "testdata/mutants"

// mutant is one fault.
type mutant struct {
	name  string
	patch string // path
	fault string
	pkg   string
	test  string
	flags []string
}

func (m mutant) command() string {
	return strings.Join(append([]string{m.pkg, m.test}, m.flags...), " ")
}

func main() {
	only := flag.String("only", "", "names of mutants, separated by commas; empty: all")
	clean := flag.Bool("clean", true, "run the tests on the tree as it is first")
	flag.Parse()
	if err := run(*only, *clean); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(only string, clean bool) error {
	list, err := read(only)
	if err != nil {
		return err
	}
	if clean {
		done := map[string]bool{}
		for _, m := range list {
			if done[m.command()] {
				continue
			}
			done[m.command()] = true
			if out, err := test(m, ""); err != nil {
				return fmt.Errorf("%s fails on the tree as it is, so that it can catch nothing: %s\n%s", m.command(), why(out), tail(out))
			}
		}
	}
	bad := 0
	for _, m := range list {
		begin := time.Now()
		verdict, ok := try(m)
		if !ok {
			bad++
		}
		fmt.Printf("%-30s %5s  %s\n", m.name, time.Since(begin).Round(time.Second), verdict)
	}
	fmt.Printf("mutants: %d of %d caught\n", len(list)-bad, len(list))
	if bad > 0 {
		return fmt.Errorf("%d were not; a test is missing, or a patch has to be made anew", bad)
	}
	return nil
}

var header = regexp.MustCompile(`^# (.+)\n# caught by: (\S+) (\S+)(.*)\n`)

func read(only string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no patches in %s: run it at the top of the repository", dir)
	}
	var list []mutant
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		h := header.FindSubmatch(data)
		if h == nil {
			return nil, fmt.Errorf("%s does not begin with its fault and `# caught by: PACKAGE TEST`", file)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".patch")
		if only != "" && !slices.Contains(strings.Split(only, ","), name) {
			continue
		}
		path, err := filepath.Abs(file)
		if err != nil {
			return nil, err
		}
		list = append(list, mutant{name: name, patch: path, fault: string(h[1]), pkg: string(h[2]), test: string(h[3]), flags: strings.Fields(string(h[4]))})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no mutant is called %s", only)
	}
	return list, nil
}

var touched = regexp.MustCompile(`(?m)^--- a/(.+)$`)

// try breaks a copy of the files that the patch names, and runs the test with those.
func try(m mutant) (verdict string, ok bool) {
	broken, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return err.Error(), false
	}
	defer os.RemoveAll(broken)
	overlay, err := brokenBy(m, broken)
	if err != nil {
		return err.Error(), false
	}
	out, err := test(m, overlay)
	switch {
	case err == nil:
		return "SURVIVES: " + m.fault, false
	case !strings.Contains(out, "--- FAIL: "+m.test):
		return "DOES NOT RUN: " + tail(out), false
	}
	return "caught: " + why(out), true
}

// brokenBy applies a patch to copies in a directory, and writes the list of what stands for what.
func brokenBy(m mutant, to string) (overlay string, err error) {
	patch, err := os.ReadFile(m.patch)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, f := range touched.FindAllSubmatch(patch, -1) {
		name := string(f[1])
		data, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("DOES NOT APPLY any more: %w", err)
		}
		copied := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(copied, data, 0o644); err != nil {
			return "", err
		}
		real, err := filepath.Abs(name)
		if err != nil {
			return "", err
		}
		replace[real] = copied
	}
	cmd := exec.Command("git", "apply", "--whitespace=nowarn", m.patch)
	cmd.Dir = to
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(to)) // the copies are in no repository
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("DOES NOT APPLY any more: %s", strings.TrimSpace(string(out)))
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(to, "overlay.json")
	return overlay, os.WriteFile(overlay, data, 0o644)
}

func test(m mutant, overlay string) (string, error) {
	args := []string{"test", "-count=1", "-vet=off", "-tags=simulation", "-timeout=15m", "-run", "^" + m.test + "$"}
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	out, err := exec.Command("go", append(append(args, m.pkg), m.flags...)...).CombinedOutput()
	return string(out), err
}

var seed = regexp.MustCompile(`(?m)^seed \d+: .*$`)

// why is what the test said, in a line.
func why(out string) string {
	line := seed.FindString(out)
	if line == "" {
		line = "it failed"
	}
	if len(line) > 160 {
		line = line[:160] + "…"
	}
	return line
}

func tail(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}
