package eval

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func openCache(t testing.TB) *Cache {
	t.Helper()
	c, err := OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// cached runs req through the cache, and fails if the answer is another one than without.
func cached(t testing.TB, c *Cache, req *Request) *Result {
	t.Helper()
	got, err := c.Run(t.Context(), req, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Evaluate(req), got); d != "" {
		t.Fatalf("without and with the cache (-without +with):\n%s", d)
	}
	return got
}

// entries are the files of a cache that hold answers.
func entries(t testing.TB, c *Cache) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(c.store.dir, "??", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// noChild ends every child at once, and so all services that it would have evaluated have problems.
var noChild = Limits{Total: time.Nanosecond}

// here evaluates in this process.
func here(s *supervisor, _ context.Context, names []string) error {
	if s.got.policy == nil {
		evaluateFleet(newTree(s.req.Files), s.got)
		return nil
	}
	req := *s.req
	req.Services = names
	evaluate(&req, &s.got.policy.Policy, 2, s.got)
	return nil
}

func TestCacheAnswersWithoutAChild(t *testing.T) {
	c := openCache(t)
	req := dirRequest(t, "testdata/convention")
	want := cached(t, c, req)
	got, err := c.Run(t.Context(), req, noChild)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-first +again):\n%s", d)
	}
	// What is asked for counts: without the files, with the leaves, for some cohorts, at another epoch.
	for name, change := range map[string]func(*Request){
		"files":  func(r *Request) { r.FilesToo = false },
		"leaves": func(r *Request) { r.LeavesToo = true },
		"cohort": func(r *Request) { r.Cohorts = []string{want.Units[0].Cohort} },
		"epoch": func(r *Request) {
			r.Epochs = map[string]map[string]uint64{want.Units[0].Cohort: {want.Units[0].Service: 7}}
		},
	} {
		r := *req
		change(&r)
		before := len(entries(t, c))
		res, err := c.Run(t.Context(), &r, noChild)
		if err != nil {
			t.Fatal(err)
		}
		if !res.Failed() {
			t.Errorf("%s: nothing was to be evaluated", name)
		}
		cached(t, c, &r)
		if small := !r.FilesToo && !r.LeavesToo; small != (len(entries(t, c)) == before) {
			t.Errorf("%s: %d entries, then %d", name, before, len(entries(t, c)))
		}
		if res, err = c.Run(t.Context(), &r, noChild); err != nil || res.Failed() {
			t.Errorf("%s: something is to be evaluated again: %v %v", name, err, res.Problems)
		}
	}
	// What is not asked for does not.
	narrowed := *req
	narrowed.Services = []string{want.Units[0].Service}
	res, err := c.Run(t.Context(), &narrowed, noChild)
	if err != nil || res.Failed() || len(res.Units) == 0 || len(res.Units) == len(want.Units) {
		t.Errorf("%d units, %v", len(res.Units), err)
	}
	narrowed.Services = []string{"nobody"}
	cached(t, c, &narrowed)
}

// replaced is req with one file changed, added, or removed (data "").
func replaced(req *Request, name, data string) *Request {
	out := *req
	out.Files = slices.DeleteFunc(slices.Clone(req.Files), func(f TreeFile) bool { return f.Path == name })
	if data != "" {
		out.Files = append(out.Files, TreeFile{Path: name, Data: []byte(data)})
	}
	return &out
}

// What is evaluated again after a change: nothing that it cannot touch, and all that it may.
func TestCacheDependencies(t *testing.T) {
	const module = "muster.example/config"
	files := "-- fleet/fleet.cue --\npackage fleet\nprecedence: [\"env\", \"host\"]\n" +
		"cohorts: prod: {labels: env: \"prod\", hosts: list: [\"h1\", \"h2\"]}\ncohorts: test: {labels: env: \"test\", hosts: expect: 1, services: [\"plain\", \"typed\"]}\n" +
		"-- lib/types/types.cue --\npackage types\n#Port: int & >0\n" +
		"-- services/plain/base.yaml --\na: 1\n" +
		"-- services/typed/t.cue --\npackage typed\nimport \"" + module + "/lib/types\"\n#Config: port!: types.#Port\nvalues: #Config\n-- services/typed/base.yaml --\nport: 1\n" +
		"-- services/own/a.cue --\npackage own\nimport \"" + module + "/services/own/sub\"\n#Config: port!: sub.#Port\nvalues: #Config\nbase: port: 1\n-- services/own/sub/s.cue --\npackage sub\n#Port: int\n" +
		"-- services/nosy/a.cue --\npackage nosy\nimport \"" + module + "/services/own/sub\"\n#Config: port!: sub.#Port\nvalues: #Config\nbase: port: 1\n" +
		"-- services/hosted/base.yaml --\na: 1\n-- services/hosted/overlays/host/h1.yaml --\na: 2\n"
	const all = 6 // the fleet and five services
	for name, tt := range map[string]struct {
		file, data string
		want       int // evaluated anew, the fleet counted too
	}{
		"a layer":              {"services/plain/base.yaml", "a: 2\n", 2}, // and nosy
		"a layer of another":   {"services/typed/base.yaml", "port: 2\n", 2},
		"a package":            {"services/own/sub/s.cue", "package sub\n#Port: >0\n", 2},
		"the nosy one":         {"services/nosy/b.yaml", "x", 1},
		"a library":            {"lib/types/types.cue", "package types\n#Port: int & >1\n", all},
		"another library":      {"lib/x/x.cue", "package x\n", all},
		"a package above":      {"services/x.cue", "package typed\n", all},
		"a package at the top": {"x.cue", "package typed\n", all},
		"a rollout":            {"fleet/rollout.cue", "package fleet\nrollouts: standard: waves: [{percent: 100}]\n", 3}, // the fleet, nosy, hosted
		"a host":               {"fleet/hosts.cue", "package fleet\ncohorts: test: hosts: list: [\"h9\"]\n", 3},
		"a label":              {"fleet/labels.cue", "package fleet\ncohorts: test: labels: region: \"eu\"\n", all},
		"a new service":        {"services/new/base.yaml", "a: 1\n", 3}, // it, the fleet and nosy
		"a removed service":    {"services/hosted/base.yaml", "", 2},
		"nothing":              {"services/plain/base.yaml", "a: 1\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := openCache(t)
			req := repo(files)
			res := cached(t, c, req)
			if res.Failed() {
				t.Fatal(Format(res.Problems))
			}
			if got := len(entries(t, c)); got != all {
				t.Fatalf("%d entries, want %d", got, all)
			}
			cached(t, c, replaced(req, tt.file, tt.data))
			if got := len(entries(t, c)) - all; got != tt.want {
				t.Errorf("%d were evaluated anew, want %d", got, tt.want)
			}
		})
	}
}

// Ways in which a service reaches what lies outside its directory: the key of its answer holds that too.
func TestCacheReaches(t *testing.T) {
	const hosts = "-- fleet/fleet.cue --\npackage fleet\nprecedence: [\"host\"]\ncohorts: prod: hosts: list: [\"h2\"]\n-- services/b/v.json --\n{\"v\": 1}\n-- services/b/sub/s.cue --\npackage sub\nn: 1\n" +
		"-- services/b/base.yaml --\nn: 1\n-- services/a/base.yaml --\nn: 1\n"
	const more = "package fleet\nprecedence: [\"host\"]\ncohorts: prod: hosts: list: [\"h1\", \"h2\"]\n"
	for name, tt := range map[string]struct{ files, file, data string }{
		"a host in a package above":  {"-- services/x.cue --\npackage a\noverlay: host: h1: n: 3\n-- services/a/a.cue --\npackage a\n", "fleet/fleet.cue", more},
		"a host from a library":      {"-- lib/l/l.cue --\npackage l\nhost: h1: n: 3\n-- services/a/a.cue --\npackage a\nimport \"muster.example/config/lib/l\"\noverlay: l\n", "fleet/fleet.cue", more},
		"a host by a computed label": {"-- services/a/a.cue --\npackage a\noverlay: (\"ho\" + \"st\"): h1: n: 3\n", "fleet/fleet.cue", more},
		"a host by an escape":        {"-- services/a/a.cue --\npackage a\noverlay: \"h\\u006fst\": h1: n: 3\n", "fleet/fleet.cue", more},
		"a host in embedded data":    {"-- services/a/o.json --\n{\"host\": {\"h1\": {\"n\": 3}}}\n-- services/a/a.cue --\n@extern(embed)\n\npackage a\n\noverlay: _ @embed(file=o.json)\n", "fleet/fleet.cue", more},
		"a file that is embedded": {
			"-- services/x.cue --\n@extern(embed)\n\npackage a\n\n_v: _ @embed(file=b/v.json)\nfiles: \"v.json\": {format: \"json\", data: _v}\n-- services/a/a.cue --\npackage a\n",
			"services/b/v.json", "{\"v\": 2}\n",
		},
		"a service as a module": {
			"-- cue.mod/module.cue --\nmodule: \"muster.example/config@v0\"\nlanguage: version: \"v0.17.0\"\ndeps: \"other.org/b@v0\": v: \"v0.0.1\"\n" +
				"-- cue.mod/local-module.cue --\ndeps: \"other.org/b@v0\": {v: \"v0.0.1\", replaceWith: \"./services/b\"}\n" +
				"-- services/b/cue.mod/module.cue --\nmodule: \"other.org/b@v0\"\nlanguage: version: \"v0.17.0\"\n" +
				"-- services/a/a.cue --\npackage a\nimport \"other.org/b/sub\"\nfiles: \"n.json\": {format: \"json\", data: sub.n}\n",
			"services/b/sub/s.cue", "package sub\nn: 2\n",
		},
		"an import by an escape": {
			"-- services/a/a.cue --\npackage a\nimport \"muster.example/config/\\u0073ervices/b/sub\"\nfiles: \"n.json\": {format: \"json\", data: sub.n}\n",
			"services/b/sub/s.cue", "package sub\nn: 2\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := openCache(t)
			c.run = here
			req := repo(hosts + tt.files)
			was := cached(t, c, req)
			is := cached(t, c, replaced(req, tt.file, tt.data))
			if was.Failed() || is.Failed() {
				t.Fatal(Format(slices.Concat(was.Problems, is.Problems)))
			}
			of := func(r *Result) []Unit {
				return slices.DeleteFunc(slices.Clone(r.Units), func(u Unit) bool { return u.Service != "a" })
			}
			if cmp.Equal(of(was), of(is)) {
				t.Error("the change reaches nothing: the case shows nothing")
			}
		})
	}
}

// edit changes a repository somehow; what results need not be valid.
func edit(t *rapid.T, files map[string]string) {
	names := slices.Sorted(maps.Keys(files))
	name := rapid.SampledFrom(names).Draw(t, "file")
	service := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "service")
	put := func(name, data string) { files[name] = data }
	number := fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "n"))
	switch rapid.IntRange(0, 18).Draw(t, "edit") {
	case 0:
		delete(files, name)
	case 1: // renamed, maybe over another
		to := rapid.SampledFrom(append(names, "services/d/base.yaml", "lib/l/m.cue", "fleet/x.cue", "services/a/b.txt")).Draw(t, "to")
		files[to] = files[name]
		if to != name {
			delete(files, name)
		}
	case 2:
		put("services/"+service+"/base.yaml", "n: "+number+"\n")
	case 3:
		put("services/"+service+"/overlays/env/"+rapid.SampledFrom([]string{"prod", "test", "nope"}).Draw(t, "env")+".yaml", "n: "+number+"\n")
	case 4:
		put("lib/l/l.cue", "package l\n#N: int & >="+number+"\n")
	case 5:
		put("services/"+service+"/s.cue", "package "+service+"\nimport \"muster.example/config/lib/l\"\n#Config: n!: l.#N\nvalues: #Config\n")
	case 6:
		put("services/"+service+"/s.cue", "package "+service+"\nimport o \"muster.example/config/services/"+rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "other")+"/sub\"\n#Config: n!: int | *o.n\nvalues: #Config\n")
	case 7:
		put("services/"+service+"/sub/s.cue", "package sub\nn: "+number+"\n")
	case 8:
		put("services/"+service+"/s.cue", "package "+service+"\nimport \"muster.example/config/fleet\"\nfiles: \"p.json\": {format: \"json\", data: [for k, _ in fleet.cohorts {k}]}\n")
	case 9:
		put("services/x.cue", "package "+service+"\n_above: "+number+"\nfiles: \"above.json\": {format: \"json\", data: _above}\n")
	case 10:
		put("fleet/more.cue", "package fleet\ncohorts: more: {labels: env: \"m"+number+"\", hosts: list: [\"h"+number+"\"], services: [\""+service+"\"]}\n")
	case 11:
		put("fleet/order.cue", "package fleet\nprecedence: "+rapid.SampledFrom([]string{`["env"]`, `["env", "cohort"]`, `["env", "host"]`}).Draw(t, "precedence")+"\n")
	case 12:
		put("services/"+service+"/overlays/host/h"+number+".yaml", "n: "+number+"\n")
	case 15:
		put("fleet/inventory.cue", "package fleet\ninventory: file: \""+rapid.SampledFrom([]string{"fleet/hosts.csv", "./services/a/hosts.csv", "lib/hosts.csv"}).Draw(t, "list")+"\"\n")
	case 16:
		put(rapid.SampledFrom([]string{"fleet/hosts.csv", "services/a/hosts.csv", "lib/hosts.csv"}).Draw(t, "list"), "host,cohort,rack\nh"+number+",test,r"+number+"\nh1,prod,r\n")
	case 17:
		put("services/"+service+"/s.cue", "package "+service+"\nhost: {name: *\"none\" | string, labels: [string]: string}\noverlay: host: h1: n: "+number+"\nfiles: \"h.json\": {format: \"json\", data: host}\n")
	case 18:
		put("services/"+service+"/s.cue", "package "+service+"\nfiles: \"h.txt\": {format: \"text\", from: \""+rapid.SampledFrom([]string{"lib/l/l.cue", "base.yaml", "sub/s.cue"}).Draw(t, "from")+"\"}\n")
	case 14:
		put("fleet/test.cue", "package fleet\ncohorts: test: services: [\""+service+"\"]\n")
	case 13:
		put("lib/l/l.cue", "package l\nimport o \"muster.example/config/services/"+service+"/sub\"\n#N: int & >=o.n\n")
	}
}

// A cache that has seen the history of a repository answers each state of it as if there were none.
func TestCacheIsNeverWrong(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := openCache(t)
		c.run = here
		files := map[string]string{
			"fleet/fleet.cue":      "package fleet\ncohorts: prod: {labels: env: \"prod\", hosts: expect: 1}\ncohorts: test: {labels: env: \"test\", hosts: list: [\"h1\", \"h2\"]}\n",
			"fleet/test.cue":       "package fleet\ncohorts: test: services: [\"a\"]\n",
			"fleet/order.cue":      "package fleet\nprecedence: [\"env\"]\n",
			"services/a/base.yaml": "n: 1\n", "services/b/base.yaml": "n: 1\n", "services/c/base.yaml": "n: 1\n",
			"lib/l/l.cue": "package l\n#N: int\n",
		}
		var past []map[string]string
		for range rapid.IntRange(1, 5).Draw(rt, "steps") {
			if len(past) > 0 && rapid.IntRange(0, 4).Draw(rt, "back") == 0 {
				files = maps.Clone(rapid.SampledFrom(past).Draw(rt, "past"))
			} else {
				past = append(past, maps.Clone(files))
				edit(rt, files)
			}
			req := &Request{FilesToo: rapid.Bool().Draw(rt, "files"), LeavesToo: rapid.Bool().Draw(rt, "leaves")}
			for _, name := range slices.Sorted(maps.Keys(files)) {
				req.Files = append(req.Files, TreeFile{Path: name, Data: []byte(files[name])})
			}
			if rapid.Bool().Draw(rt, "epoch") {
				req.Epochs = map[string]map[string]uint64{"prod": {"a": uint64(rapid.IntRange(0, 2).Draw(rt, "at"))}}
			}
			got, err := c.Run(t.Context(), req, Limits{})
			if err != nil {
				rt.Fatal(err)
			}
			if d := cmp.Diff(Evaluate(req), got); d != "" {
				rt.Fatalf("without and with the cache (-without +with):\n%s", d)
			}
		}
	})
}

// Whatever happens to the files of a cache, the answers are right.
func TestCacheDamage(t *testing.T) {
	req := repo(oneCohort + "-- services/a/base.yaml --\na: 1\n-- services/b/base.yaml --\na: 2\n")
	damage := map[string]func(data []byte) []byte{
		"empty":    func([]byte) []byte { return nil },
		"cut":      func(data []byte) []byte { return data[:len(data)-1] },
		"cut head": func(data []byte) []byte { return data[:20] },
		"longer":   func(data []byte) []byte { return append(data, 0) },
		"foreign":  func([]byte) []byte { return []byte(strings.Repeat("something else ", 30)) },
		"a bit":    func(data []byte) []byte { data[len(data)-3] ^= 4; return data },
		"zeros":    func(data []byte) []byte { return make([]byte, len(data)) },
	}
	for name, change := range damage {
		t.Run(name, func(t *testing.T) {
			c := openCache(t)
			cached(t, c, req)
			for _, e := range entries(t, c) {
				data, err := os.ReadFile(e)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(e, change(bytes.Clone(data)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cached(t, c, req)
			if res, err := c.Run(t.Context(), req, noChild); err != nil || res.Failed() {
				t.Errorf("the entries were not written anew: %v", err)
			}
		})
	}
	t.Run("swapped", func(t *testing.T) {
		c := openCache(t)
		cached(t, c, req)
		names := entries(t, c)
		for i := range names {
			if err := os.Rename(names[i], names[(i+1)%len(names)]+".x"); err != nil {
				t.Fatal(err)
			}
		}
		for i := range names {
			if err := os.Rename(names[i]+".x", names[i]); err != nil {
				t.Fatal(err)
			}
		}
		cached(t, c, req)
	})
	t.Run("a directory in the place of an entry", func(t *testing.T) {
		c := openCache(t)
		cached(t, c, req)
		for _, e := range entries(t, c) {
			if err := errors.Join(os.Remove(e), os.Mkdir(e, 0o700)); err != nil {
				t.Fatal(err)
			}
		}
		cached(t, c, req)
	})
	t.Run("nothing can be written", func(t *testing.T) {
		c := openCache(t)
		if err := os.RemoveAll(c.store.dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.store.dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		cached(t, c, req)
	})
}

// What a limit cut off is no property of the input: it is asked for again.
func TestCacheForgetsLimits(t *testing.T) {
	c := openCache(t)
	req := repo(oneCohort + "-- services/big/base.yaml --\na: " + strings.Repeat("x", 200_000) + "\n-- services/c/base.yaml --\na: 1\n")
	res, err := c.Run(t.Context(), req, Limits{Output: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	onlyBlames(t, res, "big", "evaluation gave more than 100000 bytes", "c")
	if res := cached(t, c, req); res.Failed() {
		t.Error(Format(res.Problems))
	}
}

func TestCacheIsPrivate(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "evaluations"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "evaluations"), 0o777); err != nil {
		t.Fatal(err)
	}
	c, err := OpenCache(dir)
	if err != nil {
		t.Fatal(err)
	}
	cached(t, c, repo(oneCohort+"-- services/a/base.yaml --\na: 1\n"))
	err = filepath.WalkDir(c.store.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err == nil && fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", name, fi.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// A link leads to where somebody else may write.
	other := t.TempDir()
	if err := os.Symlink(other, filepath.Join(other, "evaluations")); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCache(other); err == nil {
		t.Error("a symlink was taken for the cache's directory")
	}
}

func TestCacheIsBounded(t *testing.T) {
	c := openCache(t)
	c.store.limit = 64 << 10
	now := time.Now()
	for i := range 100 {
		key := cacheKey{byte(i), 1}
		c.store.put(key, bytes.Repeat([]byte{byte(i)}, 4<<10))
		when := now.Add(time.Duration(i-100) * time.Minute)
		if err := os.Chtimes(c.store.path(key), when, when); err != nil {
			t.Fatal(err)
		}
		c.store.tidy()
	}
	left := entries(t, c)
	if n := int64(len(left)); n*4<<10 > c.store.limit+c.store.limit/4 || n < 4 {
		t.Errorf("%d entries of 4 KiB are left of a limit of %d", n, c.store.limit)
	}
	if _, ok := c.store.get(cacheKey{99, 1}); !ok {
		t.Error("the newest is gone")
	}
	if _, ok := c.store.get(cacheKey{0, 1}); ok {
		t.Error("the oldest is still there")
	}
	// What a killed process left goes too, and what a living one is writing stays.
	old, young := filepath.Join(c.store.dir, "tmp-old"), filepath.Join(c.store.dir, "tmp-young")
	if err := errors.Join(os.WriteFile(old, nil, 0o600), os.WriteFile(young, nil, 0o600), os.Chtimes(old, now.Add(-2*time.Hour), now.Add(-2*time.Hour))); err != nil {
		t.Fatal(err)
	}
	c.store.evict()
	if _, err := os.Stat(old); err == nil {
		t.Error("an old temporary file is still there")
	}
	if _, err := os.Stat(young); err != nil {
		t.Error(err)
	}
}

// Processes that write, read and evict at once never see half an entry.
func TestCacheIsShared(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		c, err := OpenCache(dir) // as each process does
		if err != nil {
			t.Fatal(err)
		}
		c.store.limit = 256 << 10
		wg.Go(func() {
			for i := range 400 {
				key := cacheKey{byte(i % 16)}
				if got, ok := c.store.get(key); ok && !bytes.Equal(got, bytes.Repeat([]byte{byte(i % 16)}, 8<<10)) {
					t.Errorf("entry %d holds something else", i%16)
				}
				c.store.put(key, bytes.Repeat([]byte{byte(i % 16)}, 8<<10))
				c.store.tidy()
			}
		})
	}
	wg.Wait()
}
