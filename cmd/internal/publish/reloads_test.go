package publish_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// layered stands in for CUE, honestly: it knows nothing but the tree it is given and the epochs it is told. fleet/<cohort> lists the services of a cohort, one
// a line; services/<service>/base is a service's text, to which .../cohort/<cohort> and .../host/<host> append; EPOCH is replaced, "broken" is an error;
// services/<service>/confirm is its grade. Hosts are named <cohort>-<n>.
func layered(_ context.Context, req *eval.Request, _ eval.Limits) (*eval.Result, error) {
	tree := map[string]string{}
	for _, f := range req.Files {
		tree[f.Path] = string(f.Data)
	}
	res := &eval.Result{Policy: manifest.Policy{Precedence: []string{"cohort", "host"}, Cohorts: map[string]manifest.CohortPolicy{}, Rollouts: map[string]manifest.RolloutPolicy{
		"standard": {Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, MinReported: 0.95, MaxInFlight: "10%", Spread: "0s", Timeout: "2h", OnFailure: "rollback", Watch: "30m"},
	}}}
	for name, text := range tree {
		if cohort, ok := strings.CutPrefix(name, "fleet/"); ok {
			res.Policy.Cohorts[cohort] = manifest.CohortPolicy{
				Labels: map[string]string{}, Services: strings.Fields(text), Rollout: "standard", Hosts: manifest.HostsPolicy{List: []string{cohort + "-1", cohort + "-2", cohort + "-3"}},
			}
		}
	}
	for cohort, policy := range res.Policy.Cohorts {
		if len(req.Cohorts) > 0 && !slices.Contains(req.Cohorts, cohort) {
			continue
		}
		for _, service := range policy.Services {
			if len(req.Services) > 0 && !slices.Contains(req.Services, service) {
				continue
			}
			dir := "services/" + service + "/"
			unit := func(host, key, text string) {
				if strings.Contains(text, "broken") {
					res.Problems = append(res.Problems, eval.Problem{Severity: eval.SeverityError, Service: service, Cohorts: []string{cohort}, Message: "broken"})
					return
				}
				epoch := strconv.FormatUint(req.Epochs[key][service], 10)
				res.Units = append(res.Units, eval.Unit{
					Service: service, Cohort: cohort, Host: host, Evidence: manifest.Grade(tree[dir+"confirm"]), UsesEpoch: strings.Contains(text, "EPOCH"),
					Files: []eval.File{{Name: "conf", Mode: 0o644, Data: []byte(strings.ReplaceAll(text, "EPOCH", epoch))}},
				})
			}
			own := tree[dir+"base"] + tree[dir+"cohort/"+cohort]
			unit("", cohort, own)
			for _, host := range policy.Hosts.List {
				if overlay, ok := tree[dir+"host/"+host]; ok {
					unit(host, cohort+"/"+host, own+overlay)
				}
			}
		}
	}
	return res, nil
}

// repoTree is a tree in memory.
type repoTree struct {
	id    string
	files map[string]string
}

func (t repoTree) Identity() source.Identity {
	who := source.Person{Name: "Ana", Email: "ana@example.com", At: now}
	return source.Identity{Commit: t.id, Tree: t.id, Author: who, Committer: who, Subject: "change"}
}
func (t repoTree) Files() []string { return slices.Sorted(maps.Keys(t.files)) }
func (t repoTree) FS() fs.FS {
	m := fstest.MapFS{}
	for name, text := range t.files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

// edit makes one random change to a tree: services come, go and change, in a cohort or on a host; the number of the release comes into a file and goes; grades,
// the services of cohorts, and files that nothing is rendered from change; now and then something breaks.
func edit(r *rand.Rand, files map[string]string) {
	service := "services/" + string(rune('a'+r.IntN(8))) + "/"
	cohort := []string{"eu", "us", "asia"}[r.IntN(3)]
	text := []string{"x", "y", "z", "n=EPOCH", "m=EPOCH", "n=EPOCH m=EPOCH"}[r.IntN(6)]
	_, there := files[service+"base"]
	for file, text := range files { // what is broken is soon corrected
		if text == "broken" && r.IntN(2) > 0 {
			files[file] = " corrected"
		}
	}
	layer := service + "cohort/" + cohort
	if r.IntN(3) == 0 {
		layer = fmt.Sprintf("%shost/%s-%d", service, cohort, 1+r.IntN(3))
	}
	n := r.IntN(20)
	if service == "services/h/" { // a literal 0 in place of the number is seen, but not where another place of the same file has the number
		text = []string{"x", "n=0"}[r.IntN(2)]
		if n < 8 {
			text = []string{"x", "n=0", "n=EPOCH"}[r.IntN(3)]
		}
	}
	switch {
	case n < 3:
		files["README.md"] = fmt.Sprint(r.Uint64())
	case n < 4:
		files["fleet/"+cohort] = files["fleet/"+cohort] + " " // the same services
	case !there:
		files[service+"base"], files[service+"confirm"] = text, "process"
		files["fleet/"+cohort] += " " + strings.Split(service, "/")[1]
	case n < 8:
		files[service+"base"] = text
	case n < 13:
		files[layer] = " +" + text
	case n < 16:
		delete(files, layer)
	case n < 17:
		files[service+"confirm"] = []string{"process", "disk", "reloaded"}[r.IntN(3)]
	case n < 18:
		files[layer] = "broken"
	case n < 19: // the service leaves the cohort, or comes to it
		list := strings.Fields(files["fleet/"+cohort])
		name := strings.Split(service, "/")[1]
		if i := slices.Index(list, name); i >= 0 && len(list) > 1 {
			list = slices.Delete(list, i, i+1)
		} else if i < 0 {
			list = append(list, name)
		}
		slices.Sort(list)
		files["fleet/"+cohort] = strings.Join(list, "\n")
	default: // the service goes altogether
		name := strings.Split(service, "/")[1]
		for file, text := range files {
			if strings.HasPrefix(file, "fleet/") {
				list := slices.DeleteFunc(strings.Fields(text), func(s string) bool { return s == name })
				if len(list) == 0 {
					return // the last one of a cohort stays
				}
			}
		}
		for file, text := range files {
			if strings.HasPrefix(file, service) {
				delete(files, file)
			} else if strings.HasPrefix(file, "fleet/") {
				files[file] = strings.Join(slices.DeleteFunc(strings.Fields(text), func(s string) bool { return s == name }), "\n")
			}
		}
	}
	for file, text := range files { // no cohort carries what is not there
		if strings.HasPrefix(file, "fleet/") {
			list := slices.DeleteFunc(strings.Fields(text), func(s string) bool { _, ok := files["services/"+s+"/base"]; return !ok })
			if len(list) < len(strings.Fields(text)) {
				files[file] = strings.Join(list, "\n")
			}
		}
	}
}

// running is what one service runs on one host.
type running struct {
	source string // its text before EPOCH is replaced: what a person wrote for this host
	bytes  string // its file
	epoch  uint64
}

// Over a thousand random commits a service is reloaded on a host if, and only if, what is written for it there has changed; and then, and only then, its service
// epoch is that of the release. In every cohort, on hosts with and without files of their own, through blocked releases and the coming and going of variants.
func TestThousandCommitsReloadOnlyWhatChanged(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	commits := 1000
	if testing.Short() || raceEnabled {
		commits = 100
	}
	st := mem.New()
	pub := publisher(t, st)
	files := map[string]string{"fleet/eu": "a b c d e f g h", "fleet/us": "a b c d", "fleet/asia": "e f g h"}
	for _, name := range strings.Fields(files["fleet/eu"]) {
		files["services/"+name+"/base"], files["services/"+name+"/confirm"] = "x", "process"
	}
	hosts := map[string]map[string]running{} // host → service
	var reloads, blocked, variants, held int
	last := uint64(0)
	fetch := fetcher{map[string]*manifest.View{}, map[string]map[string]running{}}
	for n := range commits {
		if n > 0 {
			for range 1 + r.IntN(3) {
				edit(r, files)
			}
		}
		sum := sha256.Sum256(fmt.Append(nil, seed, n))
		tree := repoTree{hex.EncodeToString(sum[:20]), maps.Clone(files)}
		opts := pipeline.Options{Evaluate: layered}
		contains := func(context.Context, string) (bool, error) { return true, nil }
		res, err := pub.Publish(t.Context(), publish.Commit(tree.Identity()), contains, publish.Func(tree, opts), distributor.PublishOptions{RolloutNow: true, Settings: opts.Settings()})
		if err != nil {
			if strings.Contains(err.Error(), "broken") {
				blocked++
				continue // every cohort is blocked
			}
			t.Fatalf("commit %d: %v", n, err)
		}
		if res.Epoch != last+1 {
			t.Fatalf("commit %d is epoch %d after %d", n, res.Epoch, last)
		}
		last = res.Epoch
		for cohort, c := range res.Cohorts {
			variants += c.Variants
			if c.State == manifest.StateBlocked {
				blocked++
			}
			if c.State == manifest.StateHolds {
				held++
			}
			for i := range 3 {
				host := fmt.Sprintf("%s-%d", cohort, i+1)
				had, is := hosts[host], fetch.runs(t, st, cohort, host)
				hosts[host] = is
				if c.State != manifest.StateBlocked {
					written(t, files, cohort, host, is)
				} else {
					for name, s := range is {
						s.source = had[name].source
						is[name] = s
					}
				}
				for name, s := range is {
					old, was := had[name]
					changed := !was || old.source != s.source
					if changed {
						reloads++
					}
					if (old.bytes != s.bytes || !was) != changed || changed != (s.epoch == res.Epoch) || !changed && s.epoch != old.epoch {
						t.Fatalf("commit %d, epoch %d (%s): host %s, service %s: it ran %+v, and runs %+v", n, res.Epoch, c.State, host, name, old, s)
					}
					if strings.ReplaceAll(s.source, "EPOCH", fmt.Sprint(s.epoch)) != s.bytes {
						t.Fatalf("commit %d: host %s, service %s has %q of %q at its epoch %d", n, host, name, s.bytes, s.source, s.epoch)
					}
				}
			}
		}
	}
	t.Logf("%d releases, %d reloads, %d times blocked, %d held, %d variants", last, reloads, blocked, held, variants)
	if commits == 1000 && (reloads < 1000 || blocked < 5 || variants < 500 || held < 100 || last < 800) {
		t.Error("the commits were not random enough")
	}
	report, err := distributor.Fsck(t.Context(), st, nil, now)
	if err != nil || !report.OK() {
		t.Errorf("fsck: %v, %+v", err, report.Problems)
	}
}

// written fills in what is written for a host, and checks that these are all the services it runs.
func written(t *testing.T, files map[string]string, cohort, host string, is map[string]running) {
	t.Helper()
	list := strings.Fields(files["fleet/"+cohort])
	if len(list) != len(is) {
		t.Fatalf("host %s runs %v, want %v", host, slices.Sorted(maps.Keys(is)), list)
	}
	for _, name := range list {
		s := is[name]
		dir := "services/" + name + "/"
		s.source = files[dir+"base"] + files[dir+"cohort/"+cohort] + files[dir+"host/"+host]
		is[name] = s
	}
}

// fetcher remembers heads that it verified, and what bundles hold.
type fetcher struct {
	views   map[string]*manifest.View
	bundles map[string]map[string]running
}

// runs is what a host fetches under the head that stands: the very bytes of its bundle.
func (f fetcher) runs(t *testing.T, st *mem.Store, cohort, host string) map[string]running {
	t.Helper()
	obj, err := st.Get(t.Context(), manifest.KeyHead(cohort), manifest.MaxHeadBytes)
	if err != nil {
		return map[string]running{} // blocked since its beginning
	}
	if f.views[string(obj.Data)] == nil {
		keyring, err := st.Get(t.Context(), manifest.KeyKeyring(1), manifest.MaxKeyringBytes)
		if err != nil {
			t.Fatal(err)
		}
		trust, err := manifest.NewTrust("acme/config", keyring.Data)
		if err != nil {
			t.Fatal(err)
		}
		if _, f.views[string(obj.Data)], err = trust.AcceptHead(cohort, obj.Data, now); err != nil {
			t.Fatal(err)
		}
	}
	res, err := manifest.Resolve(f.views[string(obj.Data)], manifest.Host{Name: host}, now.Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if known, ok := f.bundles[res.Bundle.Object]; ok {
		return maps.Clone(known)
	}
	data, err := st.Get(t.Context(), manifest.KeyBundle(res.Bundle.Object), bundle.MaxCompressed)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := bundle.Scan(bytes.NewReader(data.Data))
	if err != nil || plan.Content != res.Content {
		t.Fatalf("host %s: %v, content %s", host, err, plan.Content)
	}
	out := map[string]running{}
	err = bundle.Extract(bytes.NewReader(data.Data), plan, func(e bundle.Entry, r io.Reader) error {
		text, err := io.ReadAll(r)
		name, _, _ := strings.Cut(e.Path, "/")
		out[name] = running{bytes: string(text), epoch: plan.Index.Services[name].Epoch}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f.bundles[res.Bundle.Object] = out
	return maps.Clone(out)
}
