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
}

// newKeys sorts out the request's files. ok is false for a request that has no tree.
func newKeys(req *Request, seed cacheKey) (k *keys, ok bool) {
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
			return nil, false
		}
		if name, ok := serviceOf(f.Path); ok {
			k.own[name] = append(k.own[name], f)
			continue
		}
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
	return k, true
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
		b = append(append(b, f.Path...), ' ')
		b = append(strconv.AppendInt(b, int64(len(f.Data)), 10), '\n')
		h.Write(b)
		h.Write(f.Data)
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
	Name    string
	Labels  map[string]string
	Carries bool
	Asked   bool
	Hosts   *manifest.HostsPolicy `json:",omitempty"`
}

// ofService is the key of a service's answer under the policy.
func (k *keys) ofService(name string, policy *manifest.Policy) (cacheKey, need) {
	own := k.own[name]
	n := need{whole: k.sharedReaches}
	if slices.Contains(policy.Precedence, "host") {
		n.hosts = k.sharedHosts
		for _, f := range own {
			n.hosts = n.hosts || strings.HasPrefix(f.Path, "services/"+name+"/overlays/host/") || path.Ext(f.Path) == ".cue" && mayNameHosts(f.Data)
		}
	}
	for _, f := range own {
		n.whole = n.whole || path.Ext(f.Path) == ".cue" && k.reaches(name, f)
	}
	parts := struct {
		Kind                   string
		Service                string
		Own, Shared            cacheKey
		Files, Leaves, Schemas bool
		Precedence             []string
		Cohorts                []cohortPart
		Epochs                 map[string]uint64
		Fleet, Whole           *cacheKey
		Inventory              *manifest.Inventory
		InventoryFile          *cacheKey
		Overrides              []Override `json:",omitempty"`
	}{
		Kind: "service", Service: name, Own: sumFiles(own), Shared: k.sharedSum, Files: k.req.FilesToo, Leaves: k.req.LeavesToo, Schemas: k.req.SchemasToo,
		Precedence: policy.Precedence, Epochs: map[string]uint64{},
	}
	for _, c := range sorted(policy.Cohorts) {
		p := policy.Cohorts[c]
		part := cohortPart{
			Name: c, Labels: p.Labels, Carries: carries(p.Services, name), Asked: len(k.req.Cohorts) == 0 || slices.Contains(k.req.Cohorts, c),
		}
		if n.hosts {
			part.Hosts = &p.Hosts
		}
		parts.Cohorts = append(parts.Cohorts, part)
	}
	parts.Overrides = overridesOf(k.req.Overrides, name)
	for target, epochs := range k.req.Epochs {
		if e := epochs[name]; e != 0 {
			parts.Epochs[target] = e
		}
	}
	if n.hosts {
		parts.Fleet, parts.Inventory = &k.fleetSum, policy.Inventory
		if f, ok := k.inventory(policy); ok {
			sum := sumFiles([]TreeFile{f})
			parts.InventoryFile = &sum
		}
	}
	if n.whole {
		sum := k.tree()
		parts.Whole = &sum
	}
	return k.key(parts), n
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
	return sha256.Sum256(fmt.Appendf(nil, "entry 1\n%q\n%q\n%q\n%q", EvaluatorVersion, executable, schema.Fleet, schema.Service))
}
