package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
)

// services are those of every cohort. "app" is the one that things go wrong with more often.
var services = []string{"app", "web"}

// trait is what the text of a service's file does to its hosts.
type trait struct {
	kind  string
	share uint64        // of hosts, in percent
	delay time.Duration // traitErrors, traitLate: until users see it
}

// The traits of a text.
const (
	traitGood    = "good"
	traitRefused = "refused by the check"
	traitReload  = "reload fails"
	traitIll     = "ill after the reload"
	traitDeaf    = "not loaded"
	traitMute    = "takes the machine down"
	traitErrors  = "errors"
	traitLate    = "errors later"
)

// hits says whether a host is one of those that a text does something to.
func (t trait) hits(h *host, content string) bool {
	return t.kind != "" && t.kind != traitGood && h.w.fixed("trait", h.name, content)%100 < t.share
}

// trait is what a text does.
func (w *World) trait(content string) trait {
	t, _ := w.traits.Load(content)
	found, _ := t.(trait)
	return found
}

// textOf finds a text by the digest of the service that has it. Under w.mu.
func (w *World) textOf(digest string) string {
	if text, ok := w.ops.texts[digest]; ok {
		return text
	}
	for _, c := range w.commits {
		for _, s := range services {
			if digestOf(s, c.texts[s]) == digest {
				return c.texts[s]
			}
		}
	}
	return ""
}

func fileOf(service, content string) []bundle.File {
	return []bundle.File{{Path: service + "/" + service + ".conf", Mode: 0o644, Data: []byte(content)}}
}

func digestOf(service, content string) string { return bundle.ContentDigest(fileOf(service, content)) }

// commit is one state of the config repo.
type commit struct {
	n      int
	epoch  uint64
	id     string
	texts  map[string]string
	policy manifest.Policy
	kind   string
	at     time.Time
}

// change makes the next commit: the texts of services that change, and perhaps another policy.
func (w *World) change(kind string, texts map[string]string, edit func(*manifest.Policy)) commit {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := commit{n: 1, texts: map[string]string{}, kind: kind}
	if n := len(w.commits); n > 0 {
		last := w.commits[n-1]
		c.n, c.policy = last.n+1, last.policy
		for s, text := range last.texts {
			c.texts[s] = text
		}
	} else {
		c.policy = w.firstPolicy()
	}
	for s, text := range texts {
		c.texts[s] = text
	}
	if edit != nil {
		rollouts := map[string]manifest.RolloutPolicy{}
		for name, r := range c.policy.Rollouts {
			rollouts[name] = r
		}
		c.policy.Rollouts = rollouts
		edit(&c.policy)
	}
	c.id = fmt.Sprintf("%040x", c.n)
	return c
}

// publish takes a commit to the store, until that is done.
func (w *World) publish(c commit) bool {
	w.mu.Lock()
	if c.n > len(w.commits) {
		w.commits = append(w.commits, c) // before it is known to be there: controllers may be faster than the answer
	}
	var parents []string
	if c.n > 1 {
		parents = []string{w.commits[c.n-2].id}
	}
	w.mu.Unlock()
	who := manifest.Person{Name: "ana", Email: "ana@example.com", At: time.Now().UTC().Truncate(time.Second)}
	of := distributor.Commit{ID: c.id, Tree: c.id, Parents: parents, Author: who, Committer: who, Subject: c.kind}
	contains := func(context.Context, string) (bool, error) { return true, nil }
	for {
		res, err := w.publisher.Publish(w.ctx, of, contains, w.builder(of, c), distributor.PublishOptions{Settings: sumOf("settings")})
		if err == nil {
			w.mu.Lock()
			w.commits[c.n-1].epoch, w.commits[c.n-1].at = res.Epoch, time.Now()
			for name, part := range res.Cohorts {
				w.ops.stands[name] = part.Epoch
			}
			w.mu.Unlock()
			w.note("ci", "publish", "epoch %d: %s, changed %v", res.Epoch, c.kind, res.Changed)
			return true
		}
		w.note("ci", "publish", "%v", err)
		if errors.Is(err, distributor.ErrRefused) {
			return true // no cohort can be built: there is no release of it
		}
		if !w.pause(10 * time.Second) {
			return false
		}
	}
}

func sumOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// builder is the prepared build of a commit: every cohort has every service, with the same file.
func (w *World) builder(of distributor.Commit, c commit) distributor.BuildFunc {
	var files []bundle.File
	for _, s := range services {
		files = append(files, fileOf(s, c.texts[s])...)
	}
	content0 := bundle.ContentDigest(files)
	return func(ctx context.Context, in distributor.BuildInput) (*distributor.Build, error) {
		w.builds(in.Epoch, &c)
		b := &distributor.Build{Commit: of, Evaluator: "sim", Settings: sumOf("settings"), Policy: c.policy, Source: files, Cohorts: map[string]distributor.CohortBuild{}}
		for _, f := range w.cohorts {
			stands, err := in.Stands(ctx, f.name)
			if err != nil {
				return nil, err
			}
			same := stands != nil && stands.Content0 == content0
			under, blocked, err := w.underOverrides(ctx, in, f.name, &c, same)
			switch {
			case err != nil:
				return nil, err
			case blocked != "":
				w.blocks(&c, f.name, blocked)
				b.Cohorts[f.name] = distributor.CohortBuild{Blocked: blocked}
				continue
			case same:
				b.Cohorts[f.name] = distributor.CohortBuild{Same: true}
				continue
			}
			var old *bundle.Index
			if stands != nil {
				if old, err = in.Index(ctx, f.name, ""); err != nil {
					return nil, err
				}
			}
			plain := built(f.name, "", in.Epoch, c.id, c.texts, old)
			plain.Overridden = under
			b.Cohorts[f.name] = plain
		}
		return b, nil
	}
}

// firstPolicy is how cohorts take releases at first. Times are short, so that hours hold many rollouts.
func (w *World) firstPolicy() manifest.Policy {
	most := func(v float64) *float64 { return &v }
	gates := map[string]manifest.Gate{
		"errors":  {Prometheus: "errors", Max: most(0.05), Every: "15s", Fails: 2, NoData: "wait"},
		"refused": {Reported: "refused", Max: most(0), Every: "15s", Fails: 1, NoData: "wait"},
	}
	base := manifest.RolloutPolicy{
		Gates: gates, MinReported: 0.9, MaxFailed: 1, MaxInFlight: "20%", Spread: "0s", Timeout: "12m0s", OnFailure: "rollback", Watch: "10m0s", ApproveBefore: []int{}, Windows: []string{},
	}
	alpha, eu, us := base, base, base
	alpha.Waves = []manifest.Wave{{Percent: 1, Bake: "2m0s"}, {Percent: 33, Bake: "1m0s"}, {Percent: 100, Bake: "1m0s"}}
	eu.Waves = []manifest.Wave{{Match: map[string]string{"canary": "true"}, Bake: "2m0s"}, {Percent: 30, Bake: "2m0s"}, {Percent: 100, Bake: "0s"}}
	us.Waves = []manifest.Wave{{Count: 2, Bake: "2m0s"}, {Percent: 100, Bake: "1m0s"}}
	us.ApproveBefore = []int{2}
	us.MaxInFlight, eu.MaxInFlight = "5", "34%"
	switch w.fixed("policy") % 4 {
	case 1:
		us.OnFailure, us.MaxFailed = "halt", 0
	case 2:
		eu.Independent = true
		eu.Spread = "30s"
	case 3:
		eu.Waves[0] = manifest.Wave{Percent: 10, Bake: "3m0s"}
		eu.MaxInFlight = "4"
	}
	p := manifest.Policy{
		Precedence: []string{"env"}, Cohorts: map[string]manifest.CohortPolicy{}, Rollouts: map[string]manifest.RolloutPolicy{"standard": base, "alpha": alpha, "eu": eu, "us": us},
	}
	standard := base
	standard.Waves = []manifest.Wave{{Percent: 100, Bake: "0s"}}
	p.Rollouts["standard"] = standard
	ordered := w.fixed("order")%3 == 0
	for _, f := range w.cohorts {
		c := manifest.CohortPolicy{Labels: map[string]string{"env": f.name}, Services: services, Hosts: manifest.HostsPolicy{List: names(f.hosts)}, Rollout: f.name, Order: 100}
		if ordered {
			c.Order = 100 + f.order
		}
		p.Cohorts[f.name] = c
	}
	return p
}
