package eval

import (
	"strings"
	"testing"
)

// Values of .env layers are strings: a schema that wants another type is told so, one that takes strings can compute with them.
func TestEnvValuesAreStrings(t *testing.T) {
	const env = "-- services/s/base.env --\n# c\nexport PORT=8080\nNAME='a b'\n-- services/s/overlays/env/prod.env --\nPORT=9090\n"
	said := text(t, env+"-- services/s/s.cue --\npackage s\n#Config: {PORT!: int, NAME!: string}\nvalues: #Config\n")
	for _, want := range []string{`PORT: "9090" is a string, not an integer: every value in an .env file is a string`, "set at    services/s/overlays/env/prod.env:1:6"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not said:\n%s", want, said)
		}
	}
	res := Evaluate(repo(oneCohort + env + "-- services/s/s.cue --\npackage s\nimport \"strconv\"\n#Config: {PORT!: =~\"^[0-9]+$\", NAME!: string}\nvalues: #Config\n" +
		"files: \"s.json\": {format: \"json\", data: {port: strconv.Atoi(values.PORT), name: values.NAME}}\n"))
	if got, want := file(t, res, "prod", "s", "s.json"), "{\n  \"name\": \"a b\",\n  \"port\": 9090\n}\n"; got != want {
		t.Errorf("got %s\n%s", got, Format(res.Problems))
	}
	// Without `files` the file has base's format.
	res = Evaluate(repo(oneCohort + env))
	if got, want := file(t, res, "prod", "s", "s.env"), "NAME='a b'\nPORT=9090\n"; got != want {
		t.Errorf("got %s\n%s", got, Format(res.Problems))
	}
}

// TOML layers beside others: types are kept, lists and tables merge by the same rules, and what TOML cannot hold is said at its path.
func TestTOMLLayers(t *testing.T) {
	const toml = "-- services/s/base.toml --\nport = 80\nratio = 0.5\nl = [1, 2]\n[t]\na = 1\nb = true\n"
	res := Evaluate(repo(oneCohort + toml + "-- services/s/overlays/env/prod.yaml --\nl: [3]\nt: {a: null}\n"))
	if got, want := file(t, res, "prod", "s", "s.toml"), "l = [3]\nport = 80\nratio = 0.5\n\n[t]\nb = true\n"; got != want {
		t.Errorf("got %s\n%s", got, Format(res.Problems))
	}
	said := text(t, "-- services/s/base.toml --\nport = 80\n-- services/s/overlays/env/prod.yaml --\nl: [null]\nbig: 9223372036854775808\n")
	if !strings.Contains(said, "set at    services/s/overlays/env/prod.yaml:") || !strings.Contains(said, "toml cannot hold this") {
		t.Errorf("what TOML cannot hold:\n%s", said)
	}
}
