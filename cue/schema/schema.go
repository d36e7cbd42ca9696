// Package schema holds the shipped CUE definitions of what engineers write in a config repo: the fleet, and what a service says about its
// files. They are unified with the repo's own values by package eval; users import nothing.
package schema

import _ "embed"

// Fleet is the source of #Fleet, which the package in fleet/ is checked against.
//
//go:embed fleet.cue
var Fleet string

// Service is the source of #File and #Service, for the fields `files` and `confirm` of a service's package.
//
//go:embed service.cue
var Service string
