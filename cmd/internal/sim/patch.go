package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
)

// operations are the deeds of operators, and what is known of them. Under w.mu.
type operations struct {
	meant   map[string]*meant              // override → what it is for
	texts   map[string]string              // digest of a service's files → text, of overrides
	epochs  map[uint64]int                 // epoch → the commit that was built as it
	blocked map[int]map[string]string      // commit → cohort → why it was blocked when it was last built
	carried map[uint64]map[string][]string // epoch → cohort → overrides under which it was built
	healed  time.Time                      // when all faults were taken away
	stands  map[string]uint64              // cohort → what stands for it after the newest commit
}

func newOperations() operations {
	return operations{meant: map[string]*meant{}, texts: map[string]string{}, epochs: map[uint64]int{}, blocked: map[int]map[string]string{}, carried: map[uint64]map[string][]string{}, stands: map[string]uint64{}}
}

// meant is what an operator wants an override to be.
type meant struct {
	id, service, text string
	cohorts           map[string]*meantFor
}

// meantFor is the same for one cohort.
type meantFor struct {
	hosts    []string  // that it was asked for; empty: all
	told     []string  // of them, those that it was given to so far
	all      bool      // it was given to all of them
	notAfter time.Time // the latest that was signed
	ended    time.Time // when a person began to end it
}

// covers says whether a host is one of those that it was given to.
func (m *meantFor) covers(host string) bool {
	if m.all {
		return len(m.hosts) == 0 || slices.Contains(m.hosts, host)
	}
	return slices.Contains(m.told, host)
}

// values is the patch that gives a service another text.
type values struct {
	Text string `json:"text"`
}

func patchOf(service, text string) manifest.Patch {
	data, err := json.Marshal(values{text})
	if err != nil {
		panic(err) // a string
	}
	return manifest.Patch{Service: service, Values: string(data)}
}

// laid are texts with overrides over them, the oldest first, as the host sees them: the last one is over everything that its statement is for, those below it are where they act.
func laid(base map[string]string, overrides []manifest.VerifiedOverride, host string) (map[string]string, error) {
	out := maps.Clone(base)
	for i, o := range overrides {
		if i < len(overrides)-1 && len(o.Hosts) > 0 && !slices.Contains(o.Hosts, host) {
			continue
		}
		for _, p := range o.Patches {
			var v values
			if err := json.Unmarshal([]byte(p.Values), &v); err != nil {
				return nil, fmt.Errorf("patch of override %s: %w", o.ID, err)
			}
			out[p.Service] = v.Text
		}
	}
	return out, nil
}

// misfit says why an override cannot be laid over texts; "" if it can.
func (w *World) misfit(o *manifest.VerifiedOverride, base map[string]string) string {
	for _, p := range o.Patches {
		if w.fixed("misfit", o.ID, base[p.Service])%100 < 12 {
			return fmt.Sprintf("override %s no longer fits: %s does not validate under it", o.ID, p.Service)
		}
	}
	return ""
}

// built is one cohort, or one host, with the texts of its services. Services that are as old says keep the epoch that they have there.
func built(cohort, host string, epoch uint64, commit string, texts map[string]string, old *bundle.Index) distributor.CohortBuild {
	b := distributor.CohortBuild{
		Index:    bundle.Index{V: 1, Repo: repo, Cohort: cohort, Host: host, Epoch: epoch, Commit: commit, Services: map[string]bundle.Service{}},
		Evidence: map[string]manifest.Grade{}, Inputs: sumOf(commit),
	}
	for _, s := range services {
		b.Files = append(b.Files, fileOf(s, texts[s])...)
		d := digestOf(s, texts[s])
		svc := bundle.Service{Epoch: epoch, Digest: d, Digest0: d, Files: 1}
		if old != nil && old.Services[s].Digest0 == d {
			svc.Epoch = old.Services[s].Epoch
		}
		b.Index.Services[s], b.Evidence[s] = svc, manifest.GradeProcess
	}
	b.Content0 = bundle.ContentDigest(b.Files)
	return b
}

// layered is a cohort under overrides, the oldest first. stands is what stands under the last of them, or below it.
func layered(ctx context.Context, cohort string, epoch uint64, commit string, base map[string]string, overrides []manifest.VerifiedOverride, stands *manifest.Statement, index func(context.Context, string) (*bundle.Index, error)) (distributor.CohortBuild, error) {
	texts, err := laid(base, overrides, "")
	if err != nil {
		return distributor.CohortBuild{}, err
	}
	old, err := index(ctx, "")
	if err != nil {
		return distributor.CohortBuild{}, err
	}
	b := built(cohort, "", epoch, commit, texts, old)
	for _, host := range ownHosts(overrides) {
		own, err := laid(base, overrides, host)
		if err != nil {
			return b, err
		}
		if maps.Equal(own, texts) {
			continue
		}
		had := old
		if slices.ContainsFunc(stands.Variants, func(v manifest.Variant) bool { return v.Host == host }) {
			if had, err = index(ctx, host); err != nil {
				return b, err
			}
		}
		v := built(cohort, host, epoch, commit, own, had)
		b.Variants = append(b.Variants, distributor.VariantBuild{Host: host, Index: v.Index, Files: v.Files, Evidence: v.Evidence, Content0: v.Content0})
	}
	return b, nil
}

// ownHosts are the hosts that an override below the last one is for.
func ownHosts(overrides []manifest.VerifiedOverride) (list []string) {
	for _, o := range overrides[:len(overrides)-1] {
		list = append(list, o.Hosts...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// underOverrides builds a cohort under each override that lives on it; blocked says why it cannot.
func (w *World) underOverrides(ctx context.Context, in distributor.BuildInput, cohort string, c *commit, same bool) (list []distributor.OverriddenBuild, blocked string, err error) {
	living, err := in.Overrides(ctx, cohort)
	if err != nil {
		return nil, "", err
	}
	var below []manifest.VerifiedOverride
	for i := range living {
		o := &living[i]
		below = append(below, o.VerifiedOverride)
		if blocked = w.misfit(&o.VerifiedOverride, c.texts); blocked != "" {
			return nil, blocked, nil
		}
		if same {
			continue
		}
		b, err := layered(ctx, cohort, in.Epoch, c.id, c.texts, below, &o.Stands, o.Index)
		if err != nil {
			return nil, "", err
		}
		list = append(list, distributor.OverriddenBuild{ID: o.ID, CohortBuild: b})
		w.mu.Lock()
		w.ops.carried[in.Epoch][cohort] = append(w.ops.carried[in.Epoch][cohort], o.ID)
		w.mu.Unlock()
		w.census.fault(faultCarried)
	}
	return list, "", nil
}

// builds notes which commit an epoch is to be.
func (w *World) builds(epoch uint64, c *commit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ops.epochs[epoch] = c.n
	w.ops.blocked[c.n] = map[string]string{}
	w.ops.carried[epoch] = map[string][]string{}
}

func (w *World) blocks(c *commit, cohort, why string) {
	w.census.fault(faultBlocked)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ops.blocked[c.n][cohort] = why
}

// released is the commit of an epoch; nil if it is none's. Under w.mu.
func (w *World) released(epoch uint64) *commit {
	n, ok := w.ops.epochs[epoch]
	if !ok {
		return nil
	}
	return &w.commits[n-1]
}

// commitOf finds a commit by its id. Under w.mu.
func (w *World) commitOf(id string) *commit {
	for i := range w.commits {
		if w.commits[i].id == id {
			return &w.commits[i]
		}
	}
	return nil
}
