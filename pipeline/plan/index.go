package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/bundle"
)

// sideIndex finds the units of a side.
type sideIndex struct {
	Side
	units  map[string]map[string]byHost // cohort → service
	listed map[string]fleetHosts        // by cohort, as this side says
}

// byHost are the units of one service in one cohort; "" is the cohort's own.
type byHost map[string]*eval.Unit

// of is what a host gets: its own unit, or the cohort's.
func (b byHost) of(host string) *eval.Unit {
	if u := b[host]; u != nil {
		return u
	}
	return b[""]
}

func index(s Side) *sideIndex {
	x := &sideIndex{Side: s, units: map[string]map[string]byHost{}}
	for i := range s.Units {
		u := &s.Units[i]
		if x.units[u.Cohort] == nil {
			x.units[u.Cohort] = map[string]byHost{}
		}
		if x.units[u.Cohort][u.Service] == nil {
			x.units[u.Cohort][u.Service] = byHost{}
		}
		x.units[u.Cohort][u.Service][u.Host] = u
	}
	return x
}

// has reports whether a cohort is rendered whole.
func (x *sideIndex) has(cohort string) bool {
	_, ok := x.Policy.Cohorts[cohort]
	return ok && !x.Refused && x.Blocked[cohort] == ""
}

// hosts are the hosts of a cohort that have files of their own, sorted.
func (x *sideIndex) hosts(cohort string) []string {
	found := map[string]bool{}
	for _, units := range x.units[cohort] {
		for host := range units {
			found[host] = true
		}
	}
	delete(found, "")
	return slices.Sorted(maps.Keys(found))
}

// content0 is the content digest of what epoch 0 renders for a cohort, or for one host of it.
func (x *sideIndex) content0(cohort, host string) string {
	var files []bundle.File
	for service, units := range x.units[cohort] {
		if units[""] == nil {
			continue
		}
		for _, f := range units.of(host).Files {
			files = append(files, bundle.File{Path: path.Join(service, f.Name), Mode: f.Mode, Data: f.Data})
		}
	}
	slices.SortFunc(files, func(a, b bundle.File) int { return strings.Compare(a.Path, b.Path) })
	return bundle.ContentDigest(files)
}

// digest is Plan.Digest.
func (x *sideIndex) digest() string {
	h := sha256.New()
	for _, cohort := range slices.Sorted(maps.Keys(x.Policy.Cohorts)) {
		if !x.has(cohort) {
			continue
		}
		for _, host := range append([]string{""}, x.hosts(cohort)...) {
			h.Write([]byte(place{cohort, host}.String() + " " + x.content0(cohort, host) + "\n"))
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// sources are the evaluated files by path.
func (s Side) sources() map[string][]byte {
	files := make(map[string][]byte, len(s.Source))
	for _, f := range s.Source {
		files[f.Path] = f.Data
	}
	return files
}
