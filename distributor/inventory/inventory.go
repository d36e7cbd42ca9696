// Package inventory holds who is expected to run which cohort: the lists that people and machines keep, read and compared. A leaf without I/O.
package inventory

import (
	"slices"
	"strings"
)

// Host is one expected host. Labels are the list's own columns; never nil.
type Host struct {
	Name   string
	Cohort string
	Labels map[string]string
}

// Limits of one list.
const (
	MaxBytes = 64 << 20
	MaxHosts = 1_000_000
)

// order sorts hosts by cohort and name.
func order(hosts []Host) {
	slices.SortFunc(hosts, func(a, b Host) int {
		if c := strings.Compare(a.Cohort, b.Cohort); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// Matches says whether labels have, for each label of match, one of the values that it accepts. An empty match matches nobody: it chooses nothing.
func Matches(match map[string][]string, labels map[string]string) bool {
	for label, values := range match {
		got, ok := labels[label]
		if !ok || !slices.Contains(values, got) {
			return false
		}
	}
	return len(match) > 0
}
