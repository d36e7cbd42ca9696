package eval

import (
	"cuelang.org/go/cue"
)

// target is what a unit is for: a cohort, or one host of it.
type target struct {
	cohort     string
	labels     map[string]string
	host       string // "" for the cohort
	hostLabels map[string]string
	bare       bool // the host has a unit for the sake of an override only: to the package it is any host of the cohort
}

// name is the key in Request.Epochs.
func (t target) name() string {
	if t.host == "" {
		return t.cohort
	}
	return t.cohort + "/" + t.host
}

// value is the target's value of a label or joint label of the precedence; ok is false when it lacks one.
func (t target) value(label string) (value string, ok bool) {
	if label == "host" {
		return t.host, t.host != "" && !t.bare
	}
	return labelValue(label, t.cohort, t.labels)
}

// inject fills in what the package asks for. `host` is there in a variant only: for the cohort itself the package sees what it declares,
// so that `host: name: *"" | string` means any host.
func (r *serviceRun) inject(t target, epoch uint64) cue.Value {
	pkg := r.pkg
	if r.inst == nil {
		return pkg
	}
	fill := func(path cue.Path, value map[string]any) {
		if pkg.LookupPath(path).Exists() {
			pkg = pkg.FillPath(path, value)
		}
	}
	fill(cohortPath, map[string]any{"name": t.cohort, "labels": t.labels})
	fill(releasePath, map[string]any{"epoch": epoch})
	if t.host != "" && !t.bare {
		fill(hostPath, map[string]any{"name": t.host, "labels": t.hostLabels})
	}
	return pkg
}
