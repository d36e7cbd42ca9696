package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// forged is the stored head with an override in it that its operator key may not sign: for a cohort that is not the key's, or for a longer time than it may act. Whoever has such a key
// and stands between a host and the store can show it that. nil: there is nothing to forge with.
func (w *World) forged(h *host) []byte {
	f, now := h.fleet, time.Now().UTC().Truncate(time.Second)
	w.mu.Lock()
	v, first := f.head, f.first
	w.mu.Unlock()
	if v == nil || first == nil || len(v.Head.Overrides) >= manifest.MaxOverrides {
		return nil
	}
	// What it leads to is in the store: the first release that the cohort had.
	st := first.Statement
	st.Override, st.Epoch = fmt.Sprintf("forged-%s-%d", h.name, now.Unix()), v.Manifest.Rollout.Target+1
	own, err := manifest.Seal(manifest.KindStatement, st, narrow)
	if err != nil {
		return nil
	}
	o := manifest.Override{
		V: manifest.Version, Store: st.Store, Repo: st.Repo, Cohort: f.name, ID: st.Override, Author: "mallory", Reason: "none", Created: now, NotAfter: now.Add(24 * time.Hour), Epoch: st.Epoch,
		Patches: []manifest.Patch{patchOf(services[0], "forged\n")}, Statement: own,
	}
	if f.name != narrowCohort {
		o.NotAfter = now.Add(narrowTTL)
	}
	env, err := manifest.Seal(manifest.KindOverride, o, narrow)
	if err != nil {
		return nil
	}
	data, err := wire.Encode(manifest.Head{Manifest: v.Head.Manifest, Overrides: append(slices.Clone(v.Head.Overrides), *env), Beat: v.Head.Beat + 1})
	if err != nil {
		return nil
	}
	return data
}
