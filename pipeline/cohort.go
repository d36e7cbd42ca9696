package pipeline

import (
	"maps"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
)

// cohort is what epoch 0 renders for one cohort.
type cohort struct {
	services map[string]service
	hosts    map[string]map[string]service // host → the services whose files differ there
}

// service is one service rendered for a cohort, or for a host of it.
type service struct {
	files     []bundle.File
	digest0   string
	evidence  manifest.Grade
	usesEpoch bool
}

func newService(u eval.Unit, verdict bool) service {
	if verdict {
		return service{} // it is there: more is not asked for
	}
	s := service{files: bundleFiles(u), evidence: u.Evidence, usesEpoch: u.UsesEpoch}
	s.digest0 = bundle.ContentDigest(s.files)
	return s
}

// services are all that a host gets, by name.
type services map[string]service

// of is what a host gets, or the cohort for "": the host's own services in place of the cohort's. One that the cohort does not carry is none of it.
func (c *cohort) of(host string) services {
	if len(c.hosts[host]) == 0 {
		return c.services
	}
	all := maps.Clone(c.services)
	for name, s := range c.hosts[host] {
		if _, ok := all[name]; ok {
			all[name] = s
		}
	}
	return all
}

// owner says which unit renders a service for a host: the host's own, or the cohort's ("").
func (c *cohort) owner(host, service string) string {
	if _, ok := c.hosts[host][service]; ok {
		return host
	}
	return ""
}

// files0 are the files as epoch 0 renders them, sorted by path.
func (all services) files0() []bundle.File {
	var files []bundle.File
	for _, s := range all {
		files = append(files, s.files...)
	}
	sortFiles(files)
	return files
}

func sortFiles(files []bundle.File) {
	slices.SortFunc(files, func(a, b bundle.File) int { return strings.Compare(a.Path, b.Path) })
}

func (all services) evidence() map[string]manifest.Grade {
	grades := map[string]manifest.Grade{}
	for name, s := range all {
		grades[name] = s.evidence
	}
	return grades
}

// embeds reports whether a service refers to release.epoch.
func (all services) embeds() bool {
	for _, s := range all {
		if s.usesEpoch {
			return true
		}
	}
	return false
}
