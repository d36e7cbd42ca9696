package distributor_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/wire"
)

// signer is a key made from a name: the same in every run.
type signer struct{ key ed25519.PrivateKey }

func newSigner(name string) signer {
	seed := sha256.Sum256([]byte(name))
	return signer{ed25519.NewKeyFromSeed(seed[:])}
}

func (s signer) Public() ed25519.PublicKey       { return s.key.Public().(ed25519.PublicKey) }
func (s signer) KeyID() string                   { return manifest.KeyIDOf(s.Public()) }
func (s signer) Sign(msg []byte) ([]byte, error) { return ed25519.Sign(s.key, msg), nil }
func (s signer) public(name string) manifest.PublicKey {
	return manifest.PublicKey{Type: "ed25519", Public: s.Public(), Name: name}
}

const repoName = "acme/config"

var (
	start      = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	rootKey    = newSigner("root")
	releaseKey = newSigner("release")
	rolloutKey = newSigner("rollout")

	operatorKey = newSigner("operator") // may act on all cohorts but lab, for two hours
)

func keyring(t testing.TB, repo string) []byte {
	t.Helper()
	env, err := manifest.Seal(manifest.KindKeyring, manifest.Keyring{
		V: 1, Repo: repo, Version: 1, Era: 1, Issued: start,
		Keys: map[string]manifest.PublicKey{rootKey.KeyID(): rootKey.public("root"), releaseKey.KeyID(): releaseKey.public("release"), rolloutKey.KeyID(): rolloutKey.public("rollout"), operatorKey.KeyID(): operatorKey.public("operator")},
		Roles: manifest.Roles{
			Root:    manifest.RootRole{Keys: []string{rootKey.KeyID()}, Threshold: 1},
			Release: []manifest.ReleaseRole{{Key: releaseKey.KeyID()}}, Rollout: []string{rolloutKey.KeyID()}, Operator: []manifest.OperatorRole{{Key: operatorKey.KeyID(), Cohorts: []string{"eu", "us"}, MaxTTL: "2h"}},
		},
	}, rootKey)
	if err != nil {
		t.Fatal(err)
	}
	return encode(t, env)
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	data, err := wire.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// history is a repository with straight or forked history, and what each commit renders.
type history struct {
	commits map[string]*commit
}

type commit struct {
	id, parent string
	cohorts    map[string]map[string]string // cohort → service → text of its one file; one that begins with "!" blocks the cohort
	hosts      map[string]map[string]string // "cohort/host" → service → text there
}

// commit adds one on top of parent ("" for a root) whose cohorts are the parent's with changes "cohort/service=text", "-cohort/service",
// "cohort/service@host=text" or "-cohort/service@host" applied.
func (h *history) commit(parent string, changes ...string) string {
	c := &commit{parent: parent, cohorts: map[string]map[string]string{}, hosts: map[string]map[string]string{}}
	if p := h.commits[parent]; p != nil {
		for name, services := range p.cohorts {
			c.cohorts[name] = maps.Clone(services)
		}
		for name, services := range p.hosts {
			c.hosts[name] = maps.Clone(services)
		}
	}
	for _, change := range changes {
		if rest, ok := strings.CutPrefix(change, "-"); ok {
			cohort, service, _ := strings.Cut(rest, "/")
			if service, host, ok := strings.Cut(service, "@"); ok {
				delete(c.hosts[cohort+"/"+host], service)
				continue
			}
			delete(c.cohorts[cohort], service)
			if len(c.cohorts[cohort]) == 0 {
				delete(c.cohorts, cohort)
			}
			continue
		}
		where, text, _ := strings.Cut(change, "=")
		cohort, service, _ := strings.Cut(where, "/")
		if service, host, ok := strings.Cut(service, "@"); ok {
			if c.hosts[cohort+"/"+host] == nil {
				c.hosts[cohort+"/"+host] = map[string]string{}
			}
			c.hosts[cohort+"/"+host][service] = text
			continue
		}
		if c.cohorts[cohort] == nil {
			c.cohorts[cohort] = map[string]string{}
		}
		c.cohorts[cohort][service] = text
	}
	sum := sha256.Sum256(fmt.Append(nil, parent, changes, len(h.commits)))
	c.id = hex.EncodeToString(sum[:20])
	if h.commits == nil {
		h.commits = map[string]*commit{}
	}
	h.commits[c.id] = c
	return c.id
}

func (h *history) contains(id, ancestor string) bool {
	for ; id != ""; id = h.commits[id].parent {
		if id == ancestor {
			return true
		}
	}
	return false
}

const settings = "sha256:5e77000000000000000000000000000000000000000000000000000000000000"

// job makes a commit ready to be published.
func (h *history) job(id string) *distributor.Job {
	c := h.commits[id]
	parents := []string{}
	if c.parent != "" {
		parents = append(parents, c.parent)
	}
	person := manifest.Person{Name: "Ana", Email: "ana@example.com", At: start}
	identity := distributor.Commit{ID: id, Tree: id[:39] + "0", Parents: parents, Author: person, Committer: person, Subject: "change"}
	return &distributor.Job{
		Commit: identity, Settings: settings,
		Contains: func(_ context.Context, ancestor string) (bool, error) { return h.contains(id, ancestor), nil },
		Build: func(ctx context.Context, in distributor.BuildInput) (*distributor.Build, error) {
			b := &distributor.Build{Commit: identity, Evaluator: "test", Settings: settings, Policy: c.policy(), Cohorts: map[string]distributor.CohortBuild{}}
			b.Source = []bundle.File{{Path: "fleet/fleet.cue", Mode: 0o644, Data: fmt.Append(nil, c.cohorts, c.hosts)}}
			for name := range c.cohorts {
				built, err := c.build(ctx, in, name)
				if err == nil && !built.Same && built.Blocked == "" {
					built.Overridden, err = c.overridden(ctx, in, name)
				}
				if err != nil {
					return nil, err
				}
				b.Cohorts[name] = built
			}
			return b, nil
		},
	}
}

// build makes a cohort's part as the pipeline does, of one file a service.
func (c *commit) build(ctx context.Context, in distributor.BuildInput, name string) (distributor.CohortBuild, error) {
	for _, text := range c.cohorts[name] {
		if strings.HasPrefix(text, "!") {
			return distributor.CohortBuild{Blocked: text[1:]}, nil
		}
	}
	st, err := in.Stands(ctx, name)
	if err != nil {
		return distributor.CohortBuild{}, err
	}
	hosts := []string{""}
	stood := map[string]string{} // host → content0 of its own
	for where := range c.hosts {
		if cohort, host, _ := strings.Cut(where, "/"); cohort == name {
			hosts = append(hosts, host)
		}
	}
	if st != nil {
		for _, v := range st.Variants {
			stood[v.Host] = v.Content0
			hosts = append(hosts, v.Host)
		}
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	same := st != nil
	var own distributor.VariantBuild
	out := distributor.CohortBuild{Inputs: settings}
	for _, host := range hosts {
		v := distributor.VariantBuild{Host: host, Index: bundle.Index{Services: map[string]bundle.Service{}}, Evidence: map[string]manifest.Grade{}}
		for service, text := range c.cohorts[name] {
			if theirs, ok := c.hosts[name+"/"+host][service]; ok {
				text = theirs
			}
			file := bundle.File{Path: service + "/" + service + ".txt", Mode: 0o644, Data: []byte(text)}
			digest := bundle.ContentDigest([]bundle.File{file})
			v.Files = append(v.Files, file)
			v.Index.Services[service] = bundle.Service{Epoch: in.Epoch, Digest: digest, Digest0: digest, Files: 1}
			v.Evidence[service] = manifest.GradeProcess
		}
		v.Content0 = bundle.ContentDigest(v.Files)
		from := ""
		if st != nil {
			stands := st.Content0
			if content0, ok := stood[host]; ok {
				stands, from = content0, host
			}
			same = same && stands == v.Content0
			old, err := in.Index(ctx, name, from)
			if err != nil {
				return out, err
			}
			for s, now := range v.Index.Services {
				if before, ok := old.Services[s]; ok && before.Digest0 == now.Digest0 {
					now.Epoch = before.Epoch
					v.Index.Services[s] = now
				}
			}
		}
		if host == "" {
			own = v
		} else if !maps.Equal(v.Index.Services, own.Index.Services) {
			out.Variants = append(out.Variants, v)
		}
	}
	if same {
		return distributor.CohortBuild{Same: true}, nil
	}
	out.Index, out.Files, out.Evidence, out.Content0 = own.Index, own.Files, own.Evidence, own.Content0
	return out, nil
}

func (c *commit) policy() manifest.Policy {
	p := manifest.Policy{Precedence: []string{"env"}, Cohorts: map[string]manifest.CohortPolicy{}, Rollouts: map[string]manifest.RolloutPolicy{
		"standard": {
			Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, Gates: map[string]manifest.Gate{}, MinReported: 0.95, MaxInFlight: "10%", Spread: "0s", Timeout: "2h",
			OnFailure: "rollback", Watch: "30m", ApproveBefore: []int{}, Windows: []string{},
		},
	}}
	for name, services := range c.cohorts {
		p.Cohorts[name] = manifest.CohortPolicy{
			Labels: map[string]string{"env": "prod"}, Services: slices.Sorted(maps.Keys(services)), Hosts: manifest.HostsPolicy{List: []string{"web-1"}}, Rollout: "standard", Order: 100,
		}
	}
	return p
}

// place is a store with a publisher.
type place struct {
	t     testing.TB
	store store.Store
	now   time.Time
	pub   *distributor.Publisher
}

func newPlace(t testing.TB, st store.Store) *place {
	t.Helper()
	if st == nil {
		st = mem.New()
	}
	p := &place{t: t, store: st, now: start}
	pub, err := distributor.NewPublisher(distributor.Config{
		Store: st, Repo: repoName, Release: releaseKey, Rollout: rolloutKey, Keyring: keyring(t, repoName), Now: func() time.Time { return p.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	p.pub = pub
	return p
}

func (p *place) publish(job *distributor.Job, rollout bool) (*distributor.Result, error) {
	return p.pub.Publish(p.t.Context(), job.Commit, job.Contains, job.Build, distributor.PublishOptions{RolloutNow: rollout, Settings: job.Settings})
}

func (p *place) mustPublish(job *distributor.Job, rollout bool) *distributor.Result {
	p.t.Helper()
	res, err := p.publish(job, rollout)
	if err != nil {
		p.t.Fatalf("publish %s: %v", job.Commit.ID, err)
	}
	if len(res.Warnings) > 0 {
		p.t.Fatalf("publish %s: warnings %q", job.Commit.ID, res.Warnings)
	}
	return res
}

// fsck checks the whole store, with st below any fault, and wants it clean.
func (p *place) fsck(st store.Reader) *distributor.Report {
	p.t.Helper()
	report, err := distributor.Fsck(p.t.Context(), st, keyring(p.t, repoName), p.now)
	if err != nil {
		p.t.Fatalf("fsck: %v", err)
	}
	for _, problem := range report.Problems {
		p.t.Errorf("fsck: %s", problem)
	}
	return report
}

// dump gives all objects of a store.
func dump(t testing.TB, st store.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	infos, err := st.List(t.Context(), "", "", 100_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		obj, err := st.Get(t.Context(), info.Key, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		all[info.Key] = string(obj.Data)
	}
	return all
}

func keysUnder(all map[string]string, prefix string) []string {
	var keys []string
	for key := range all {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// release reads a release without trusting it: what the publisher wrote.
func (p *place) release(epoch uint64) manifest.Release {
	p.t.Helper()
	obj, err := p.store.Get(p.t.Context(), manifest.KeyRelease(epoch), manifest.MaxReleaseBytes)
	if err != nil {
		p.t.Fatal(err)
	}
	var env manifest.Envelope
	var rel manifest.Release
	if err := wire.Decode(obj.Data, &env); err != nil {
		p.t.Fatal(err)
	}
	if err := wire.Decode(env.Payload, &rel); err != nil {
		p.t.Fatal(err)
	}
	return rel
}

// index reads the index of a cohort's standing bundle.
func (p *place) index(res *distributor.Result, cohort string) bundle.Index {
	p.t.Helper()
	obj, err := p.store.Get(p.t.Context(), manifest.KeyBundle(res.Cohorts[cohort].Bundle), bundle.MaxCompressed)
	if err != nil {
		p.t.Fatal(err)
	}
	plan, err := bundle.Scan(bytes.NewReader(obj.Data))
	if err != nil {
		p.t.Fatal(err)
	}
	return plan.Index
}

// head resolves what a host of a cohort is told to run.
func (p *place) head(cohort string) (*manifest.View, uint64) {
	p.t.Helper()
	obj, err := p.store.Get(p.t.Context(), manifest.KeyHead(cohort), manifest.MaxHeadBytes)
	if err != nil {
		p.t.Fatal(err)
	}
	trust, err := manifest.NewTrust(repoName, keyring(p.t, repoName))
	if err != nil {
		p.t.Fatal(err)
	}
	_, view, err := trust.AcceptHead(cohort, obj.Data, p.now)
	if err != nil {
		p.t.Fatal(err)
	}
	res, err := manifest.Resolve(view, manifest.Host{Name: "web-1"}, p.now)
	if err != nil {
		p.t.Fatal(err)
	}
	return view, res.Epoch()
}
