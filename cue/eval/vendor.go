package eval

import (
	"fmt"
	"path"
	"strings"

	"cuelang.org/go/mod/modfile"
)

// vendorDir is where vendored packages are shown to CUE's loader; no tree has such a name by accident.
const vendorDir = "muster-vendored"

// vendor makes the packages under cue.mod/gen, cue.mod/pkg and cue.mod/usr importable. CUE's loader finds them on a disk only; from an fs.FS
// it follows the replacements of cue.mod/local-module.cue. So the vendored files are shown once more as modules of their own, and the module
// file gets replacements that lead there. A tree that brings its own local-module.cue is left alone. Positions lead back to the real files.
func (t *tree) vendor() {
	if _, own := t.files[localModulePath]; own {
		return
	}
	shown := map[string][]byte{}
	for _, kind := range []string{"gen", "pkg", "usr"} {
		for name, data := range t.files {
			rest, ok := strings.CutPrefix(name, "cue.mod/"+kind+"/")
			if !ok || !strings.Contains(rest, "/") {
				continue
			}
			to := path.Join(vendorDir, rest)
			if _, taken := shown[to]; taken {
				to = path.Join(path.Dir(to), kind+"_"+path.Base(to)) // the kinds are merged
			}
			shown[to], t.origin[to] = data, name
		}
	}
	if len(shown) == 0 {
		return
	}
	module, err := modfile.Parse(t.files[modulePath], modulePath)
	if err != nil {
		return // the loader says why
	}
	var deps, local strings.Builder
	replace := func(dep, version string) {
		base, major, _ := strings.Cut(dep, "@")
		fmt.Fprintf(&local, "deps: %q: {v: %q, replaceWith: %q}\n", dep, version, "./"+path.Join(vendorDir, base))
		shown[path.Join(vendorDir, base, modulePath)] = fmt.Appendf(nil, "module: %q\nlanguage: version: \"v0.17.0\"\n", base+"@"+major)
	}
	// A dependency that is vendored is that module; what else is vendored belongs to a module of its first path element.
	rest := map[string]bool{}
	for name := range t.origin {
		covered := false
		for dep := range module.Deps {
			base, _, _ := strings.Cut(dep, "@")
			covered = covered || strings.HasPrefix(name, path.Join(vendorDir, base)+"/")
		}
		if !covered {
			rest[strings.Split(name, "/")[1]] = true
		}
	}
	for _, dep := range sorted(module.Deps) {
		base, _, _ := strings.Cut(dep, "@")
		for name := range t.origin {
			if strings.HasPrefix(name, path.Join(vendorDir, base)+"/") {
				replace(dep, module.Deps[dep].Version)
				break
			}
		}
	}
	for _, host := range sorted(rest) {
		fmt.Fprintf(&deps, "deps: %q: v: \"v0.0.1\"\n", host+"@v0")
		replace(host+"@v0", "v0.0.1")
	}
	for to, name := range t.origin {
		delete(t.files, name) // else CUE finds it twice
		t.vendored[name] = shown[to]
	}
	for name, data := range shown {
		t.files[name] = data
	}
	t.files[modulePath] = append(append(t.files[modulePath][:len(t.files[modulePath]):len(t.files[modulePath])], '\n'), deps.String()...)
	t.files[localModulePath] = []byte(local.String())
}
