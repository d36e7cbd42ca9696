package examples_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/examples"
)

func TestMain(m *testing.M) {
	eval.Child()
	os.Exit(m.Run())
}

var repos = map[string]fs.FS{"acme": examples.Acme(), "plain": examples.Plain()}

func request(t *testing.T, repo fs.FS) *eval.Request {
	t.Helper()
	req := &eval.Request{FilesToo: true}
	err := fs.WalkDir(repo, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(repo, name)
		req.Files = append(req.Files, eval.TreeFile{Path: name, Data: data})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// rendered are all files of all cohorts, and of the hosts that differ.
func rendered(res *eval.Result) string {
	var a txtar.Archive
	for _, u := range res.Units {
		where := u.Cohort
		if u.Host != "" {
			where += "@" + u.Host
		}
		for _, f := range u.Files {
			a.Files = append(a.Files, txtar.File{Name: fmt.Sprintf("%s/%s/%s %04o", where, u.Service, f.Name, f.Mode), Data: f.Data})
		}
	}
	slices.SortFunc(a.Files, func(a, b txtar.File) int { return strings.Compare(a.Name, b.Name) })
	return string(txtar.Format(&a))
}

// Every file is what testdata says. MUSTER_UPDATE=1 writes it anew: read the diff.
func TestExamples(t *testing.T) {
	for name, repo := range repos {
		t.Run(name, func(t *testing.T) {
			res, err := eval.Run(context.Background(), request(t, repo), eval.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if len(res.Problems) > 0 {
				t.Errorf("there is something to say about an example:\n%s", eval.Format(res.Problems))
			}
			got := rendered(res)
			golden := filepath.Join("testdata", name+".txtar")
			if os.Getenv("MUSTER_UPDATE") == "1" {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// A schema added to a service without one changes no byte of its file, as the README promises.
func TestPlainWithSchemas(t *testing.T) {
	req := request(t, examples.Plain())
	before := eval.Evaluate(req)
	for service, schema := range map[string]string{
		"web":    "listen!: string, timeout!: string, cache!: {size_mb!: int, warm?: string}, routes!: [...{path!: string, to!: string}]",
		"worker": "QUEUE!: string, CONCURRENCY!: =~\"^[0-9]+$\", GREETING!: string",
		"limits": "#Limit: {per_minute!: int, burst!: int}, defaults!: #Limit, tenants!: [string]: #Limit",
	} {
		text := fmt.Appendf(nil, "package %s\n#Config: {%s}\nvalues: #Config\n", service, schema)
		req.Files = append(req.Files, eval.TreeFile{Path: "services/" + service + "/schema.cue", Data: text})
	}
	after := eval.Evaluate(req)
	if len(after.Problems) > 0 {
		t.Fatalf("problems:\n%s", eval.Format(after.Problems))
	}
	if d := cmp.Diff(rendered(before), rendered(after)); d != "" || rendered(after) == "" {
		t.Errorf("(-without +with):\n%s", d)
	}
}

func TestReadmesTellOfEachService(t *testing.T) {
	for name, repo := range repos {
		readme, err := fs.ReadFile(repo, "README.md")
		if err != nil {
			t.Fatal(err)
		}
		services, err := fs.ReadDir(repo, "services")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range services {
			if !bytes.Contains(readme, []byte("`services/"+s.Name()+"`")) {
				t.Errorf("%s: the README does not tell of services/%s", name, s.Name())
			}
		}
	}
}
