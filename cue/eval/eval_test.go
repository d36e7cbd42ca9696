package eval

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

func TestMain(m *testing.M) {
	Child()
	os.Exit(m.Run())
}

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file below testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

// dirRequest is a request with all files below a directory.
func dirRequest(t testing.TB, dir string) *Request {
	t.Helper()
	req := &Request{FilesToo: true}
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(root, name)
		req.Files = append(req.Files, TreeFile{Path: name, Data: data})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// repo is a request with the files of a txtar text.
func repo(text string) *Request {
	req := &Request{FilesToo: true}
	for _, f := range txtar.Parse([]byte(text)).Files {
		req.Files = append(req.Files, TreeFile{Path: f.Name, Data: f.Data})
	}
	return req
}

// show writes the rendered files of one cohort as txtar.
func show(res *Result, cohort string) string {
	var a txtar.Archive
	for _, u := range res.Units {
		if u.Cohort != cohort {
			continue
		}
		for _, f := range u.Files {
			a.Files = append(a.Files, txtar.File{Name: u.Service + "/" + f.Name, Data: f.Data})
		}
	}
	return string(txtar.Format(&a))
}

func TestConvention(t *testing.T) {
	res := Evaluate(dirRequest(t, "testdata/convention"))
	if len(res.Problems) > 0 {
		t.Fatalf("problems:\n%s", Format(res.Problems))
	}
	for _, cohort := range sorted(res.Policy.Cohorts) {
		golden(t, "golden/"+cohort+".txtar", show(res, cohort))
	}
	for _, u := range res.Units {
		if u.UsesEpoch || u.Evidence != "process" || u.Host != "" {
			t.Errorf("unit %s/%s: %+v", u.Service, u.Cohort, u)
		}
	}
}

// The skeleton of `muster init` and the example are what people start from.
func TestShippedRepos(t *testing.T) {
	for _, dir := range []string{"../../cmd/muster/skeleton", "../../examples/acme"} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			res := Evaluate(dirRequest(t, dir))
			if len(res.Problems) > 0 {
				t.Errorf("problems:\n%s", Format(res.Problems))
			}
			if len(res.Units) == 0 {
				t.Error("nothing was rendered")
			}
		})
	}
}
