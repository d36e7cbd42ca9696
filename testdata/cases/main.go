// Command cases prints which known fault is covered by which test, with its result.
//
//	go run ./testdata/cases DIR
//
// DIR holds markdown files with one "### ID - title" heading for each fault (default ../shared/cases). A test covers an
// id if its name contains it (TestB065KillAtEachStep), or if it is a script whose first line names it ("# B065 …").
// Ends with 1 when a test that covers an id fails; an id without a test is only listed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

var (
	heading = regexp.MustCompile(`^### ([A-Z][0-9]{3}) - (.*)`)
	anyID   = regexp.MustCompile(`[A-Z][0-9]{3}`)
)

func main() {
	dir := "../shared/cases"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := run(dir); err != nil {
		fmt.Fprintln(os.Stderr, "cases:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no list of cases in %s; name its directory: make cases CASES=DIR", dir)
	}
	type id struct{ id, file, title string }
	var ids []id
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(data)) {
			if m := heading.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
				ids = append(ids, id{m[1], filepath.Base(name), m[2]})
			}
		}
	}
	scripts := map[string]string{} // script name → ids on its first line
	list, _ := filepath.Glob("testdata/scripts/*.txtar")
	for _, name := range list {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		s := bufio.NewScanner(f)
		if s.Scan() {
			scripts[strings.TrimSuffix(filepath.Base(name), ".txtar")] = s.Text()
		}
		f.Close()
	}
	results, err := results()
	if err != nil {
		return err
	}
	failed, covered := 0, 0
	for _, c := range ids {
		var tests []string
		for name, result := range results {
			base := name[strings.LastIndex(name, "/")+1:]
			top := strings.Contains(anyOf(base), c.id) || strings.Contains(anyOf(scripts[base]), c.id)
			if top {
				tests = append(tests, name+" "+result)
				if result == "fail" {
					failed++
				}
			}
		}
		sort.Strings(tests)
		if len(tests) == 0 {
			fmt.Printf("%s  %-12s none  %s\n", c.id, c.file, c.title)
			continue
		}
		covered++
		for _, t := range tests {
			fmt.Printf("%s  %-12s %s\n", c.id, c.file, t)
		}
	}
	fmt.Printf("%d of %d cases covered\n", covered, len(ids))
	if failed > 0 {
		return fmt.Errorf("%d covering tests failed", failed)
	}
	return nil
}

func anyOf(s string) string { return strings.Join(anyID.FindAllString(s, -1), " ") }

// results runs the tests that may cover something and gives "package.Test/sub" → pass, fail or skip.
func results() (map[string]string, error) {
	cmd := exec.Command("go", "test", "-json", "-run", `[A-Z][0-9][0-9][0-9]|TestScripts`, "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	res := map[string]string{}
	dec := json.NewDecoder(out)
	for {
		var e struct{ Action, Package, Test string }
		if dec.Decode(&e) != nil {
			break
		}
		if e.Test != "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") {
			res[strings.TrimPrefix(e.Package, "github.com/muster-config/muster/")+"."+e.Test] = e.Action
		}
	}
	_ = cmd.Wait() // a failing test is in res
	if len(res) == 0 {
		return nil, fmt.Errorf("go test ran nothing")
	}
	return res, nil
}
