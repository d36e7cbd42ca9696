package eval

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/mod/modfile"

	"github.com/muster-config/muster/cue/schema"
	"github.com/muster-config/muster/distributor/manifest"
)

// cacheKey is the digest of everything that decides an answer.
type cacheKey [sha256.Size]byte

// MarshalText makes keys short in the text that other keys are computed from.
func (k cacheKey) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, k[:]), nil }

// keys computes the keys of a request's answers. A service's answer depends on its own directory, on everything that lies in no service and not in
// the fleet (CUE may load any of it), on what the policy says of cohorts, on the request, and on the evaluator. One whose CUE files import another
// service or the fleet depends on the whole tree; so does everything when the shared files do. In doubt more is taken in: a key that changes too often
// is cold, and never wrong.
type keys struct {
	req    *Request
	seed   cacheKey              // the evaluator
	module string                // the module path of the tree, without its version
	own    map[string][]TreeFile // by service
	names  []string              // of services, sorted
	shared []TreeFile            // in no service and not in the fleet
	fleet  []TreeFile

	sharedSum, fleetSum cacheKey
	tree                func() cacheKey // of the whole tree, which nearly nothing needs
	sharedReaches       bool            // shared files import services or the fleet
	sharedHosts         bool            // shared CUE files may be about hosts

	// What under sets.
	policy *manifest.Policy
	plain  cacheKey        // of what the policy says of all services
	hosted func() cacheKey // of what it says of hosts too
}

// newKeys sorts out the request's files, and reads those that concern more than one service. ok is false for a request that has no tree.
func newKeys(req *Request, seed cacheKey) (k *keys, ok bool, err error) {
	k = &keys{req: req, seed: seed, own: map[string][]TreeFile{}}
	byPath := func(a, b TreeFile) int { return strings.Compare(a.Path, b.Path) }
	files := req.Files
	if !slices.IsSortedFunc(files, byPath) {
		files = slices.Clone(files)
		slices.SortStableFunc(files, byPath)
	}
	module := moduleText
	for i, f := range files {
		if !fs.ValidPath(f.Path) || f.Path == "." || i > 0 && files[i-1].Path == f.Path {
			return nil, false, nil
		}
		if name, ok := serviceOf(f.Path); ok {
			own, from := k.own[name], i // those of one service stand together
			if own != nil {
				from -= len(own)
			}
			k.own[name] = files[from : i+1 : i+1]
			continue
		}
		if err := read(files[i : i+1]); err != nil {
			return nil, false, err
		}
		f = files[i]
		if strings.HasPrefix(f.Path, fleetDir+"/") {
			k.fleet = append(k.fleet, f)
			continue
		}
		k.shared = append(k.shared, f)
		switch f.Path {
		case modulePath:
			module = string(f.Data)
		case localModulePath: // it can show any directory under any name
			k.sharedReaches = k.sharedReaches || mentions(f.Data) || bytes.Contains(f.Data, []byte(`".`)) && !bytes.Contains(f.Data, []byte(`"./`))
		}
	}
	if m, err := modfile.Parse([]byte(module), modulePath); err == nil {
		k.module, _, _ = strings.Cut(m.Module, "@")
	}
	k.names = sorted(k.own)
	for _, f := range k.shared {
		if path.Ext(f.Path) != ".cue" {
			continue
		}
		dir := path.Dir(f.Path)
		k.sharedReaches = k.sharedReaches || k.reaches("", f) || (dir == "." || dir == "services") && embeds(f.Data)
		k.sharedHosts = k.sharedHosts || mayNameHosts(f.Data)
	}
	k.sharedSum, k.fleetSum = sumFiles(k.shared), sumFiles(k.fleet)
	k.tree = sync.OnceValue(func() cacheKey { return sumFiles(files) })
	return k, true, nil
}

// mentions reports whether text may name a service's directory or the fleet's. An escape may spell anything.
func mentions(data []byte) bool {
	return bytes.Contains(data, []byte("services")) || bytes.Contains(data, []byte(fleetDir)) || bytes.IndexByte(data, '\\') >= 0
}

func embeds(data []byte) bool { return bytes.Contains(data, []byte("@embed")) }

// reaches reports whether a CUE file of a service (or "" for a shared file, or the fleet) imports anything of another one.
func (k *keys) reaches(service string, f TreeFile) bool {
	if !bytes.Contains(f.Data, []byte("import")) || !mentions(f.Data) {
		return false
	}
	parsed, err := parser.ParseFile(f.Path, f.Data, parser.ImportsOnly)
	if err != nil {
		return true
	}
	for spec := range parsed.ImportSpecs() {
		if k.reached(service, spec) {
			return true
		}
	}
	return false
}

func (k *keys) reached(service string, spec *ast.ImportSpec) bool {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil || strings.HasPrefix(p, ".") || strings.HasPrefix(p, "/") {
		return true
	}
	p, _, _ = strings.Cut(p, ":")
	p, _, _ = strings.Cut(p, "@")
	if k.module != "" {
		p = strings.TrimPrefix(p, k.module+"/")
	}
	if own := "services/" + service; service != "" && (p == own || strings.HasPrefix(p, own+"/")) && !strings.Contains(p, "..") {
		return false
	}
	return strings.Contains(p, "services") || strings.Contains(p, fleetDir)
}

// A label that is computed may come to anything.
var computedLabel = regexp.MustCompile(`\)\s*[?!]?\s*:`)

// mayNameHosts reports whether a CUE file may have to do with hosts: an overlay for one, or `host` in the package.
func mayNameHosts(data []byte) bool {
	return bytes.Contains(data, []byte("host")) || bytes.IndexByte(data, '\\') >= 0 || embeds(data) || bytes.Contains(data, []byte("Unmarshal")) ||
		computedLabel.Match(data)
}

// writeFiles feeds a digest without ambiguity.
func writeFiles(h hash.Hash, files []TreeFile) {
	var b []byte
	for _, f := range files {
		b = append(strconv.AppendInt(b[:0], int64(len(f.Path)), 10), ' ')
		b = append(b, f.Path...)
		sum := f.sum()
		h.Write(append(b, sum[:]...))
	}
}

func sumFiles(files []TreeFile) cacheKey {
	h := sha256.New()
	writeFiles(h, files)
	return cacheKey(h.Sum(nil))
}

// key is the digest of parts, which are plain data.
func (k *keys) key(parts any) cacheKey {
	text, err := json.Marshal(parts)
	if err != nil {
		panic("eval: " + err.Error()) // plain data always encodes
	}
	h := sha256.New()
	h.Write(k.seed[:])
	h.Write(text)
	return cacheKey(h.Sum(nil))
}

// ofFleet is the key of the fleet's policy, if that does not read a file of a service: lists tells.
func (k *keys) ofFleet() cacheKey {
	parts := struct {
		Kind          string
		Names         []string
		Shared, Fleet cacheKey
		Whole         *cacheKey
	}{Kind: "fleet", Names: k.names, Shared: k.sharedSum, Fleet: k.fleetSum}
	if k.sharedReaches || slices.ContainsFunc(k.fleet, func(f TreeFile) bool { return path.Ext(f.Path) == ".cue" && k.reaches("", f) }) {
		sum := k.tree()
		parts.Whole = &sum
	}
	return k.key(parts)
}

// lists reports whether the list of hosts is a file in a service's directory, which the key of the fleet does not hold.
func lists(policy *manifest.Policy) bool {
	if policy.Inventory == nil {
		return false
	}
	_, service := serviceOf(path.Clean(policy.Inventory.File))
	return service
}

// need says which files the answer of a service depends on beside its own and the shared ones.
type need struct{ whole, hosts bool }

// cohortPart is what decides of a cohort; also of those that do not carry the service, since a warning tells which values cohorts have.
type cohortPart struct {
	Name   string
	Labels map[string]string
	Asked  bool
	Hosts  *manifest.HostsPolicy `json:",omitempty"`
}

// under sets the policy that ofService goes by.
func (k *keys) under(policy *manifest.Policy) {
	k.policy = policy
	cohorts := func(hosts bool) (out []cohortPart) {
		for _, c := range sorted(policy.Cohorts) {
			p := policy.Cohorts[c]
			part := cohortPart{Name: c, Labels: p.Labels, Asked: len(k.req.Cohorts) == 0 || slices.Contains(k.req.Cohorts, c)}
			if hosts {
				part.Hosts = &p.Hosts
			}
			out = append(out, part)
		}
		return out
	}
	k.plain = k.key(struct {
		Kind                   string
		Shared                 cacheKey
		Files, Leaves, Schemas bool
		Precedence             []string
		Cohorts                []cohortPart
	}{"policy", k.sharedSum, k.req.FilesToo, k.req.LeavesToo, k.req.SchemasToo, policy.Precedence, cohorts(false)})
	k.hosted = sync.OnceValue(func() cacheKey {
		parts := struct {
			Kind          string
			Cohorts       []cohortPart
			Fleet         cacheKey
			Inventory     *manifest.Inventory
			InventoryFile *cacheKey
		}{Kind: "hosts", Cohorts: cohorts(true), Fleet: k.fleetSum, Inventory: policy.Inventory}
		if f, ok := k.inventory(policy); ok {
			sum := sumFiles([]TreeFile{f})
			parts.InventoryFile = &sum
		}
		return k.key(parts)
	})
}

// ofService is the key of a service's answer under the policy. What a service's CUE files come to here is found in kept where they were not read.
func (k *keys) ofService(name string, kept keeper) (cacheKey, need, error) {
	own := sumFiles(k.own[name])
	n, err := k.needs(name, own, kept)
	if err != nil {
		return cacheKey{}, n, err
	}
	e := &encoder{b: make([]byte, 0, 512)}
	e.b = append(e.b, k.seed[:]...)
	e.string("service")
	e.string(name)
	e.b = append(append(e.b, own[:]...), k.plain[:]...)
	for _, c := range sorted(k.policy.Cohorts) {
		e.bool(carries(k.policy.Cohorts[c].Services, name))
	}
	for _, target := range sorted(k.req.Epochs) {
		if epoch := k.req.Epochs[target][name]; epoch != 0 {
			e.string(target)
			e.uint(epoch)
		}
	}
	if overrides := overridesOf(k.req.Overrides, name); len(overrides) > 0 {
		sum := k.key(overrides)
		e.string("/overrides") // no target is called so
		e.b = append(e.b, sum[:]...)
	}
	e.string("/") // nor so
	e.bool(n.hosts)
	e.bool(n.whole)
	if n.hosts {
		sum := k.hosted()
		e.b = append(e.b, sum[:]...)
	}
	if n.whole {
		sum := k.tree()
		e.b = append(e.b, sum[:]...)
	}
	return sha256.Sum256(e.b), n, nil
}

// The bits of what is kept of a service's CUE files.
const (
	factWhole = 1 << iota
	factHosts
)

// needs says what the answer of a service depends on.
func (k *keys) needs(name string, own cacheKey, kept keeper) (need, error) {
	byHost := slices.Contains(k.policy.Precedence, "host")
	n := need{whole: k.sharedReaches, hosts: byHost && k.sharedHosts}
	unread := false
	for _, f := range k.own[name] {
		n.hosts = n.hosts || byHost && strings.HasPrefix(f.Path, "services/"+name+"/overlays/host/")
		unread = unread || f.Unread != nil && path.Ext(f.Path) == ".cue"
	}
	var key cacheKey
	if unread {
		e := &encoder{b: slices.Clone(k.seed[:])}
		e.string("facts")
		e.string(k.module)
		e.string(name)
		key = sha256.Sum256(append(e.b, own[:]...))
		if fact, ok := kept.get(key); ok && len(fact) == 1 {
			n.whole, n.hosts = n.whole || fact[0]&factWhole != 0, n.hosts || byHost && fact[0]&factHosts != 0
			return n, nil
		}
	}
	var fact byte
	for i := range k.own[name] {
		if path.Ext(k.own[name][i].Path) != ".cue" {
			continue
		}
		f := slices.Clone(k.own[name][i : i+1]) // others may look at the files at the same time
		if err := read(f); err != nil {
			return n, err
		}
		if k.reaches(name, f[0]) {
			fact |= factWhole
		}
		if mayNameHosts(f[0].Data) {
			fact |= factHosts
		}
	}
	if unread {
		kept.put(key, []byte{fact})
	}
	n.whole, n.hosts = n.whole || fact&factWhole != 0, n.hosts || byHost && fact&factHosts != 0
	return n, nil
}

// carries looks a name up in a policy's list of services, which is sorted.
func carries(services []string, name string) bool {
	_, ok := slices.BinarySearch(services, name)
	return ok
}

// inventory is the file that says which hosts there are; it may lie anywhere in the tree.
func (k *keys) inventory(policy *manifest.Policy) (TreeFile, bool) {
	if policy.Inventory == nil || policy.Inventory.File == "" {
		return TreeFile{}, false
	}
	name := path.Clean(policy.Inventory.File)
	i := slices.IndexFunc(k.req.Files, func(f TreeFile) bool { return f.Path == name })
	if i < 0 {
		return TreeFile{}, false
	}
	return k.req.Files[i], true
}

// filesFor are the files that the answers of these services may depend on, and no others: an answer cannot depend on what its key does not hold.
func (k *keys) filesFor(names []string, n need, policy *manifest.Policy) []TreeFile {
	if n.whole {
		return k.req.Files
	}
	files := slices.Clone(k.shared)
	for _, name := range names {
		files = append(files, k.own[name]...)
	}
	if n.hosts {
		files = append(files, k.fleet...)
		if f, ok := k.inventory(policy); ok && !slices.ContainsFunc(files, func(g TreeFile) bool { return g.Path == f.Path }) {
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b TreeFile) int { return cmp.Compare(a.Path, b.Path) })
	return files
}

// evaluatorSeed names what evaluates: other code, another schema or another form of entry never finds the entries of this one.
func evaluatorSeed(executable string) cacheKey {
	return sha256.Sum256(fmt.Appendf(nil, "entry 2\n%q\n%q\n%q\n%q", EvaluatorVersion, executable, schema.Fleet, schema.Service))
}
