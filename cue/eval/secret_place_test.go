package eval

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestB134SecretInAnotherPlace: a value that stands where something with a secret in it belongs is that secret.
func TestB134SecretInAnotherPlace(t *testing.T) {
	for name, files := range map[string]string{
		"a marked field below":   "-- services/s/base.yaml --\ndb: \"postgres://u:LEAKPW@h/db\"\n-- services/s/s.cue --\npackage s\n#Config: {db!: {file!: string @secret()}}\nvalues: #Config\n",
		"a name below":           "-- services/s/base.yaml --\ndb: LEAKPW\n-- services/s/s.cue --\npackage s\n#Config: {db: {password!: string}}\nvalues: #Config\n",
		"an item of a list":      "-- services/s/base.yaml --\nusers: [LEAKPW]\n-- services/s/s.cue --\npackage s\n#Config: {users: [...{name?: string, password!: string}]}\nvalues: #Config\n",
		"a list for a struct":    "-- services/s/base.yaml --\ndb: [LEAKPW]\n-- services/s/s.cue --\npackage s\n#Config: {db: {password!: string}}\nvalues: #Config\n",
		"a choice":               "-- services/s/base.yaml --\ndb: LEAKPW\n-- services/s/s.cue --\npackage s\n#Config: {db: {password!: string} | {file!: string}}\nvalues: #Config\n",
		"a pattern":              "-- services/s/base.yaml --\ndbs: {a: LEAKPW}\n-- services/s/s.cue --\npackage s\n#Config: {dbs: [string]: {password!: string}}\nvalues: #Config\n",
		"in base of the package": "-- services/s/s.cue --\npackage s\nbase: db: \"LEAKPW\"\n#Config: {db: {password!: string}}\nvalues: #Config\n",
		"fixed by the package":   "-- services/s/base.yaml --\na: 1\n-- services/s/s.cue --\npackage s\n#Config: {a: int, db: {password!: string}}\nvalues: #Config & {db: \"LEAKPW\"}\n",
		"an address":             "-- services/s/base.yaml --\nport: \"postgres://u:LEAKPW@h/db\"\n-- services/s/s.cue --\npackage s\n#Config: {port: int}\nvalues: #Config\n",
		"a key":                  "-- services/s/base.yaml --\ntoken: LEAKPW-1234\nby: {LEAKPW-1234: x}\n-- services/s/s.cue --\npackage s\n#Config: {token: string, by: [string]: int}\nvalues: #Config\n",
	} {
		t.Run(name, func(t *testing.T) {
			req := repo(threeCohorts + "\n" + files)
			res := Evaluate(req)
			if !res.Failed() {
				t.Fatal("it is valid")
			}
			all, err := json.Marshal(res.Problems)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(all)+Format(res.Problems), "LEAKPW") {
				t.Error(Format(res.Problems))
			}
		})
	}
}

// A key that is a secret is hidden among the values too.
func TestSecretKeys(t *testing.T) {
	req := repo(threeCohorts + "\n-- services/s/base.yaml --\ntoken: LEAKPW-1234\nby: {LEAKPW-1234: 1}\n")
	req.LeavesToo = true
	if got := leafText(Evaluate(req), "s", "staging", ""); strings.Contains(got, "LEAKPW") || !strings.Contains(got, "by.") {
		t.Error(got)
	}
}

// Files whose names begin with a dot are no layers.
func TestDotFiles(t *testing.T) {
	res := Evaluate(repo(threeCohorts + `
-- services/s/base.yaml --
a: 1
-- services/s/.base.yaml --
a: 2
-- services/s/overlays/.gitignore --
*.bak
-- services/s/overlays/env/.prod.yaml.swp --
x
-- services/s/overlays/env/.prod.yaml --
a: 2
-- services/s/overlays/.old/prod.yaml --
a: 3
`))
	if len(res.Problems) > 0 {
		t.Errorf("problems:\n%s", Format(res.Problems))
	}
	res = Evaluate(repo(threeCohorts + "\n-- services/s/base.yaml --\na: 1\n-- services/s/overlays/.prod.cue --\npackage s\n"))
	if !res.Failed() {
		t.Error("a .cue file is never left out without a word")
	}
}

// A NUL is refused however it is spelt, where it is.
func TestNUL(t *testing.T) {
	for name, files := range map[string]string{
		"yaml": "-- services/s/base.yaml --\nx: {a: \"b\\0c\"}\n",
		"json": "-- services/s/base.json --\n{\"x\": {\"a\": \"b\\u0000c\"}}\n",
		"toml": "-- services/s/base.toml --\nx = {a = \"b\\u0000c\"}\n",
		"cue":  "-- services/s/s.cue --\npackage s\nbase: x: a: \"b\\u0000c\"\nvalues: _\n",
	} {
		t.Run(name, func(t *testing.T) {
			res := Evaluate(repo(threeCohorts + "\n" + files))
			if len(res.Problems) != 1 || !strings.HasSuffix(res.Problems[0].Path, "x.a") || !strings.Contains(res.Problems[0].Message, "NUL") || len(res.Problems[0].SetAt) != 1 {
				t.Errorf("problems:\n%s", Format(res.Problems))
			}
		})
	}
}

// Something else in an entry's place does not hold up the reader.
func TestCachePipe(t *testing.T) {
	mkfifo, err := exec.LookPath("mkfifo")
	if err != nil {
		t.Fatal(err)
	}
	c := openCache(t)
	c.run = here
	req := repo(threeCohorts + "\n-- services/s/base.yaml --\na: 1\n")
	cached(t, c, req)
	pipes := append(entries(t, c), filepath.Join(c.store.dir, "written"))
	for _, name := range pipes {
		if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if out, err := exec.Command(mkfifo, name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	done := make(chan *Result, 1)
	go func() {
		res, err := c.Run(t.Context(), req, Limits{})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	select {
	case res := <-done:
		if res == nil || res.Failed() {
			t.Errorf("%+v", res)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for the pipe")
	}
}
