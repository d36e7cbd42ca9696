// Package eval turns the tree of a config repo into files: it merges layers in Go, lets CUE validate and compute, and writes canonical
// files. It is the only importer of cuelang.org/go. Evaluation runs in a child process, since it cannot be cancelled: what crosses the
// border is plain data (Request, Result).
package eval

import (
	"crypto/sha256"
	"errors"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// EvaluatorVersion names what rendered: "muster <line> cue <version>". Another value may render other bytes.
var EvaluatorVersion = "muster 0.1 cue v0.17.1"

// TreeFile is one regular file of a commit's tree (symlinks already followed by pipeline/source). Path is slash-separated from the root.
type TreeFile struct {
	Path string
	Data []byte
	// Sum is the SHA-256 of the content where it is known; then Unread may get the content, in place of Data, if it is needed after all.
	Sum    [sha256.Size]byte
	Unread func() ([]byte, error)
}

func (f *TreeFile) sum() [sha256.Size]byte {
	if f.Sum == ([sha256.Size]byte{}) {
		f.Sum = sha256.Sum256(f.Data)
	}
	return f.Sum
}

// read gets the contents that were left out.
func read(files []TreeFile) error {
	errs := make([]error, len(files))
	inParallel(len(files), func(i int) {
		f := &files[i]
		if f.Unread == nil {
			return
		}
		if f.Data, errs[i] = f.Unread(); errs[i] == nil {
			f.Unread = nil
		}
	})
	return errors.Join(errs...)
}

// Request is what the child is asked.
type Request struct {
	Files []TreeFile
	// Services and Cohorts narrow the work; empty means all.
	Services []string
	Cohorts  []string
	// Epochs gives release.epoch by cohort (or "cohort/host" for a variant), then service; missing means 0.
	Epochs map[string]map[string]uint64
	// Overrides are layers above all others, the oldest first.
	Overrides []Override
	// FilesToo asks for the bytes of the files. Without it everything is checked and encoded all the same, and files have a name and a mode only.
	FilesToo bool
	// LeavesToo asks for every value with where it comes from: for plan and explain.
	LeavesToo bool
	// SchemasToo asks for each service's #Config as JSON Schema.
	SchemasToo bool
}

// Limits bound one evaluation. The zero value means the defaults.
type Limits struct {
	Wall   time.Duration // of one service, or of the fleet; default 30s
	Total  time.Duration // of all; default 10m
	Memory int64         // bytes, RLIMIT_DATA of the child; default 4 GiB
	Output int64         // bytes of one service's answer; default 256 MiB. All may give four times as much
}

// Result is what the child answers. Order is stable: problems by service, path, position; units by service, cohort, host.
type Result struct {
	Policy   manifest.Policy
	Units    []Unit
	Problems []Problem
	Schemas  map[string][]byte // by service, those that have a schema; nil unless asked for
}

// Failed reports whether any problem is an error.
func (r *Result) Failed() bool {
	for _, p := range r.Problems {
		if p.Severity == SeverityError {
			return true
		}
	}
	return false
}

// Unit is one service rendered for one cohort, or for one host of it whose files differ.
type Unit struct {
	Service   string
	Cohort    string
	Host      string // "" for the cohort; a host that has an overlay of its own gets a unit beside it
	Files     []File
	Evidence  manifest.Grade // required grade (`confirm`)
	UsesEpoch bool           // refers to release.epoch: must be rendered again once the service epoch is known
	Leaves    []Leaf         // sorted by path; nil unless asked for
	// Secrets are hex SHA-256 of the canonical JSON of each text that the service has in a secret, and of each line of one, sorted: to find them in a file
	// without knowing them. nil unless leaves are asked for.
	Secrets []string
}

// Origin is where a value comes from.
type Origin string

// The origins.
const (
	OriginLayer    Origin = "layer"    // a layer gives it
	OriginComputed Origin = "computed" // the package computes it after the merge
	OriginDefault  Origin = "default"  // the schema's default
	OriginRemoved  Origin = "removed"  // a layer deletes what lies below: there is no value, Setting says who removed it
)

// Setting is what one layer says at a path, or at an ancestor path that covers it. Value is canonical JSON in one line, null for a deletion; it is
// empty for a secret, whose Sum tells only whether it changed.
type Setting struct {
	Layer  string // "base", "env=prod", "env+region=prod+eu", "cohort=prod-eu", "host=web-1"; "" for computed values and defaults
	Value  string
	Secret bool
	Sum    string // hex SHA-256 of the canonical JSON
	At     Pos    // where it is written; for a computed value or a default its place in the package
}

// Leaf is one value of a unit: a scalar, a whole list (lists replace as one), or an empty struct.
type Leaf struct {
	Path []string
	Setting
	Origin  Origin
	Shadows []Setting // what lower layers say, the nearest first; for a computed value or a default what any layer says
}

// File is one rendered file; Name is relative to the service's directory in the bundle. Mode is permission bits.
type File struct {
	Name   string
	Mode   uint32
	Format string // as `files` declares it: what the bytes are does not follow from the name
	// Secret tells that the file holds a secret of the service, or may hold one in another spelling; its text is not to be shown. It is known where files and
	// leaves are asked for.
	Secret bool
	Data   []byte
}

// Severity of a problem.
type Severity string

// Severities. Only errors refuse.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
	SeverityNotice  Severity = "notice"
)

// Pos is a place in the tree; File is a path from the root, Line and Col count from 1; zero means unknown.
type Pos struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Col  int    `json:"col"`
}

// Problem is one finding, folded over the cohorts that have it. It never carries the value of a secret.
type Problem struct {
	Severity Severity `json:"severity"`
	Service  string   `json:"service,omitempty"` // "" for the fleet or the tree
	Cohorts  []string `json:"cohorts"`           // sorted; empty when it is not about a cohort
	Path     string   `json:"path"`              // dotted, of the values: "limits.cpus"; "" for a whole file
	Message  string   `json:"message"`           // one line: `"verbose" is not one of "info", "debug"`
	SetAt    []Pos    `json:"set_at"`
	SchemaAt []Pos    `json:"schema_at"`
}
