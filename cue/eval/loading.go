package eval

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/load"
	"cuelang.org/go/cue/token"
)

// load reads the packages of the given directories from the tree. Explicit directories only: `./...` finds nothing in an fs.FS.
func (t *tree) load(dirs ...string) map[string]*build.Instance {
	out := make(map[string]*build.Instance, len(dirs))
	for _, inst := range t.instances(dirs...) {
		if inst.Err == nil && slices.Contains(dirs, inst.Dir) {
			out[inst.Dir] = inst
		}
	}
	// One broken directory can take the answer for all the others with it: ask for each that is missing alone.
	for _, dir := range dirs {
		if out[dir] == nil {
			out[dir] = t.instances(dir)[0]
		}
	}
	return out
}

func (t *tree) instances(dirs ...string) []*build.Instance {
	args := make([]string, len(dirs))
	for i, d := range dirs {
		args[i] = "./" + d
	}
	return load.Instances(args, &load.Config{
		FS:  t,
		Dir: "/",
		// No registry is asked, nothing of this process's environment is seen.
		Env: []string{"CUE_REGISTRY=none"},
		FromFSPath: func(p string) string {
			if p == "/" {
				return "."
			}
			p = strings.TrimPrefix(p, "/")
			if real, ok := t.origin[p]; ok {
				return real
			}
			return p
		},
	})
}

// broken reports what keeps a package from being built: syntax, imports, and files that CUE would leave out without a word.
func (t *tree) broken(service, dir string, inst *build.Instance) []Problem {
	var out []Problem
	if inst.Err != nil {
		for _, e := range errors.Errors(inst.Err) {
			p := Problem{Severity: SeverityError, Service: service, Message: t.loadError(dir, e), SetAt: positions(append([]token.Pos{e.Position()}, e.InputPositions()...)...)}
			if len(p.SetAt) == 0 {
				p.SetAt = []Pos{{File: dir}}
			}
			out = append(out, p)
		}
		return out
	}
	built := map[string]bool{}
	for _, f := range inst.BuildFiles {
		built[f.Filename] = true
	}
	for _, name := range t.cueFiles(dir) {
		if built[name] || strings.HasSuffix(name, "_tool.cue") {
			continue // tool files are for the stock cue command
		}
		why := "CUE leaves it out"
		switch base := path.Base(name); {
		case strings.HasPrefix(base, "."), strings.HasPrefix(base, "_"):
			why = "CUE leaves out files whose name starts with . or _: rename it"
		case strings.HasSuffix(base, "_test.cue"):
			why = "CUE leaves out files whose name ends in _test.cue: rename it"
		default:
			for _, f := range inst.IgnoredFiles {
				if f.Filename != name || f.ExcludeReason == nil {
					continue
				}
				if why += ": " + f.ExcludeReason.Error(); strings.Contains(why, "no package name") {
					why = fmt.Sprintf("no package clause, so CUE leaves it out: begin it with `package %s`", inst.PkgName)
				}
			}
		}
		out = append(out, Problem{Severity: SeverityError, Service: service, Message: why, SetAt: []Pos{{File: name}}})
	}
	return out
}

// found is the part of a syntax error that quotes the source.
var found = regexp.MustCompile(`,? found .*$`)

// loadError is the text of an error of the loader. It quotes nothing of a line that may hold a secret.
func (t *tree) loadError(dir string, e errors.Error) string {
	if at := e.Position(); at.IsValid() {
		name := strings.TrimPrefix(at.Filename(), "/")
		lines := strings.Split(string(t.files[name])+string(t.vendored[name]), "\n")
		for l := at.Line() - 2; l < at.Line(); l++ {
			if l >= 0 && l < len(lines) && secretName.MatchString(lines[l]) {
				return "not valid CUE"
			}
		}
	}
	format, args := e.Msg()
	text := fmt.Sprintf(format, args...)
	if inner := errors.Unwrap(e); strings.HasPrefix(text, "import failed") && inner != nil {
		text = inner.Error()
		for _, at := range positions(append([]token.Pos{e.Position()}, e.InputPositions()...)...) {
			text = strings.TrimPrefix(text, at.String()+": ") // it is told beside the message, and not twice
		}
		text = "import failed: " + text
	}
	text = strings.Join(strings.Fields(found.ReplaceAllString(text, "")), " ")
	if strings.HasPrefix(text, "no CUE files") || strings.HasPrefix(text, "build constraints exclude") {
		text = "no file of " + dir + " has a package clause"
	}
	return cut(text, 3*maxShown)
}
