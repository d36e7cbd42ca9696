package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/collector"
	"github.com/muster-config/muster/pipeline"
)

var someProblems = []eval.Problem{
	{
		Severity: eval.SeverityError, Service: "checkout", Cohorts: []string{"prod-eu", "prod-us", "staging"}, Path: "log_level",
		Message: `"loud" is not one of "info", "warn"`, SetAt: []eval.Pos{{File: "services/checkout/overlays/env/prod.yaml", Line: 3, Col: 12}},
		SchemaAt: []eval.Pos{{File: "services/checkout/schema.cue", Line: 6, Col: 2}},
	},
	{Severity: eval.SeverityError, Service: "search", Message: "50% of\x1b it: has no file"},
	{Severity: eval.SeverityWarning, Service: "search", Cohorts: []string{"staging"}, Path: "a,b", Message: "is odd", SetAt: []eval.Pos{{File: "x,y:z.yaml"}}},
}

func TestPrintProblems(t *testing.T) {
	var b bytes.Buffer
	printProblems(&b, someProblems)
	want := `log_level: "loud" is not one of "info", "warn"  (3 cohorts: prod-eu, prod-us, staging)
    set at    services/checkout/overlays/env/prod.yaml:3:12
    schema at services/checkout/schema.cue:6:2
search: 50% of? it: has no file
warning: a,b: is odd                            (cohort staging)
    set at    x,y:z.yaml
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if got := countProblems(someProblems); got != "2 errors, 1 warning" {
		t.Errorf("counted %q", got)
	}

	b.Reset()
	if err := printAnnotations(&b, someProblems); err != nil {
		t.Fatal(err)
	}
	want = `::error file=services/checkout/overlays/env/prod.yaml,line=3,col=12,title=checkout%3A log_level::log_level: "loud" is not one of "info", "warn" (prod-eu, prod-us, staging)%0Aschema at services/checkout/schema.cue:6:2
::error title=search::search: 50%25 of? it: has no file
::warning file=x%2Cy%3Az.yaml,title=search%3A a%2Cb::a,b: is odd (staging)
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

// Which services nothing checks: a schema may come from a library, and that of a package below is another's.
func TestWithout(t *testing.T) {
	res := &pipeline.Rendered{}
	for path, text := range map[string]string{
		"services/own/s.cue": "package own\n#Config: a: int\nvalues: #Config\n", "services/lib/s.cue": "package lib\nvalues: l.#C\n", "services/line/s.cue": "package line, values: #C\n",
		"services/below/sub/s.cue": "package sub\nvalues: 1\n", "services/files/s.cue": "package files\nfiles: \"a\": data: values\n", "services/bare/base.yaml": "values: 1\n",
	} {
		res.Source = append(res.Source, bundle.File{Path: path, Data: []byte(text)})
	}
	if diff := cmp.Diff([]string{"bare", "below", "files"}, without(res, []string{"bare", "below", "files", "lib", "line", "own"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The commented agent.yaml and collector.yaml that init writes are ones that agent and collector take.
func TestSkeletonConfigs(t *testing.T) {
	dir := t.TempDir()
	if _, err := writeSkeleton(dir); err != nil {
		t.Fatal(err)
	}
	cfg, err := agent.LoadConfig(dir + "/deploy/agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Cohort != "prod" || cfg.Services["hello"].Confirm == nil {
		t.Errorf("agent.yaml says %+v", cfg)
	}
	col, err := collector.LoadConfig(dir + "/deploy/collector.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if col.Store == "" || col.Keyring != cfg.Keyring {
		t.Errorf("collector.yaml says %+v", col)
	}

	// So are they with every setting that is commented out.
	for _, name := range []string{"agent.yaml", "collector.yaml"} {
		path := filepath.Join(dir, "deploy", name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		full := commented.ReplaceAll(data, []byte("$1$2"))
		if bytes.Equal(full, data) {
			t.Errorf("%s has nothing commented out", name)
		}
		if err := os.WriteFile(path, full, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := agent.LoadConfig(dir + "/deploy/agent.yaml"); err != nil {
		t.Error(err)
	}
	if _, err := collector.LoadConfig(dir + "/deploy/collector.yaml"); err != nil {
		t.Error(err)
	}
}

// commented is a setting in a comment, and no prose.
var commented = regexp.MustCompile(`(?m)^( *)# ([a-z_]+: .*|- .*)$`)
