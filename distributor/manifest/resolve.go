package manifest

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// Host is what assignments look at: a name, and the labels of the host's own agent.yaml.
type Host struct {
	Name   string
	Labels map[string]string
}

// Source says which rule assigned a release.
type Source string

// The sources of an assignment, in their precedence.
const (
	FromHold     Source = "hold" // an assignment by host name
	FromOverride Source = "override"
	FromWave     Source = "wave"     // below or match
	FromBaseline Source = "baseline" // the unconditional last one
)

// Resolution is what a host is to run.
type Resolution struct {
	Source    Source
	Why       string
	Until     *time.Time
	Override  string // its id, if FromOverride
	Statement VerifiedStatement
	// What this host fetches and compares: the statement's own values, or its variant's.
	Bundle   Object
	Content  string
	Content0 string
	Files    int
	Evidence map[string]Grade
	// Variants is set when the statement's variants live in an object: fetch it, then call WithVariants.
	Variants *Object
}

// Epoch of the release that the host is to run.
func (r Resolution) Epoch() uint64 { return r.Statement.Epoch }

// Resolve says which release a host runs under a head now. Pure: agent, collector, controller, CLI and page call this one function.
// Precedence: hold, override, wave, baseline. Under an override the host runs the manifest's overridden statement of
// the epoch that the waves assign, or else the override's own first statement; but not if that was laid over a newer release
// than the waves assign: who is taken back from a release is taken back from it with an override on top, too.
func Resolve(v *View, host Host, now time.Time) (Resolution, error) {
	a, from, ok := assigned(v, host, now)
	if !ok {
		return Resolution{}, fmt.Errorf("cohort %s, host %s: %w", v.Manifest.Cohort, host.Name, ErrNoAssignment)
	}
	r := Resolution{Source: from, Why: a.Why, Until: a.Until}
	if from != FromHold {
		if o := overriding(v, host, a.Epoch, now); o != nil {
			r.Source, r.Why, r.Override = FromOverride, fmt.Sprintf("override %s by %s: %s", o.ID, o.Author, o.Reason), o.ID
			until := o.NotAfter
			r.Until = &until
			r.Statement = *o.First
			if st := v.statement(a.Epoch, o.ID); st != nil {
				r.Statement = *st
			}
			return r.variant(host.Name), nil
		}
	}
	st := v.statement(a.Epoch, "")
	if st == nil {
		return Resolution{}, fmt.Errorf("cohort %s, host %s: %w: no statement of epoch %d", v.Manifest.Cohort, host.Name, ErrNoAssignment, a.Epoch)
	}
	r.Statement = *st
	return r.variant(host.Name), nil
}

// assigned is the first assignment that matches. One by host name is a hold and goes before all, wherever it stands.
func assigned(v *View, host Host, now time.Time) (Assignment, Source, bool) {
	var found *Assignment
	from := FromBaseline
	for i := range v.Manifest.Assign {
		a := &v.Manifest.Assign[i]
		if a.Until != nil && !now.Before(*a.Until) {
			continue
		}
		switch {
		case len(a.Hosts) > 0:
			if slices.Contains(a.Hosts, host.Name) {
				return *a, FromHold, true
			}
		case found != nil:
		case a.Below != "":
			below, err := strconv.ParseUint(a.Below, 16, 64)
			if err == nil && Point(a.Salt, host.Name) < below {
				found, from = a, FromWave
			}
		case len(a.Match) > 0:
			if matches(a.Match, host.Labels) {
				found, from = a, FromWave
			}
		default:
			found = a
		}
	}
	if found == nil {
		return Assignment{}, "", false
	}
	return *found, from, true
}

func matches(want, have map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// overriding is the newest living override of a host that the waves lead to an epoch. An end, whoever carried it, ends every envelope of its id.
func overriding(v *View, host Host, epoch uint64, now time.Time) *VerifiedOverride {
	ended := map[string]bool{}
	for _, o := range v.Overrides {
		if o.Ended != nil {
			ended[o.ID] = true
		}
	}
	var best *VerifiedOverride
	for i := range v.Overrides {
		o := &v.Overrides[i]
		if !o.inForce(now) || ended[o.ID] || len(o.Hosts) > 0 && !slices.Contains(o.Hosts, host.Name) || v.Manifest.Rollout.passes(o.ID, host.Name) || !v.Reaches(&o.Override, epoch) {
			continue
		}
		if best == nil || compareOverrides(o, best) > 0 {
			best = o
		}
	}
	return best
}

// Reaches reports whether there is a statement of an override for hosts that are led to an epoch: one that was built for it, or the override's first one, if that is not of a newer release.
func (v *View) Reaches(o *Override, epoch uint64) bool {
	return o.Over <= epoch || v.statement(epoch, o.ID) != nil
}

// Yields reports whether an override acts on nobody, since the waves and the baseline lead nowhere that it reaches: the release that it was laid over was taken back.
func (v *View) Yields(o *Override, now time.Time) bool {
	led := false
	for i := range v.Manifest.Assign {
		a := &v.Manifest.Assign[i]
		if len(a.Hosts) > 0 || a.Until != nil && !now.Before(*a.Until) {
			continue
		}
		if v.Reaches(o, a.Epoch) {
			return false
		}
		led = true
	}
	return led
}

// compareOverrides orders overrides: of several on a host the last one acts.
func compareOverrides(a, b *VerifiedOverride) int {
	return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID), a.NotAfter.Compare(b.NotAfter))
}

// passes reports whether an override ends in steps, and a host is out of it already.
func (r *Rollout) passes(override, host string) bool {
	for _, e := range r.Endings {
		if e.Override != override {
			continue
		}
		if e.Below == "" {
			return true
		}
		if below, err := strconv.ParseUint(e.Below, 16, 64); err == nil && Point(e.Salt, host) < below {
			return true
		}
	}
	return false
}

// Living are the overrides that act at a time, the oldest release first, each id once: by its newest envelope, for all hosts that any of its envelopes is for. That one ends
// in steps does not show here.
func (v *View) Living(now time.Time) []VerifiedOverride {
	ended, whole := map[string]bool{}, map[string]bool{}
	hosts, newest := map[string][]string{}, map[string]*VerifiedOverride{}
	for i := range v.Overrides {
		o := &v.Overrides[i]
		ended[o.ID] = ended[o.ID] || o.Ended != nil
		if !o.inForce(now) {
			continue
		}
		whole[o.ID] = whole[o.ID] || len(o.Hosts) == 0
		hosts[o.ID] = append(hosts[o.ID], o.Hosts...)
		if newest[o.ID] == nil || compareOverrides(o, newest[o.ID]) > 0 {
			newest[o.ID] = o
		}
	}
	var list []VerifiedOverride
	for id, o := range newest {
		if ended[id] {
			continue
		}
		one := *o
		one.Hosts = nil
		if !whole[id] {
			slices.Sort(hosts[id])
			one.Hosts = slices.Compact(hosts[id])
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b VerifiedOverride) int { return compareOverrides(&a, &b) })
	return list
}

// statement finds a verified statement of the manifest; override "" is the plain one.
func (v *View) statement(epoch uint64, override string) *VerifiedStatement {
	for i := range v.Statements {
		if s := &v.Statements[i]; s.Epoch == epoch && s.Override == override {
			return s
		}
	}
	return nil
}

// variant fills in what the host fetches: its own variant's, or the cohort's.
func (r Resolution) variant(host string) Resolution {
	s := r.Statement
	r.Bundle, r.Content, r.Content0, r.Files, r.Evidence = s.Bundle, s.Content, s.Content0, s.Files, s.Evidence
	r.Variants = s.VariantsObject
	return r.pick(host, s.Variants)
}

func (r Resolution) pick(host string, list []Variant) Resolution {
	for _, v := range list {
		if v.Host == host {
			r.Bundle, r.Content, r.Content0, r.Files, r.Evidence = v.Bundle, v.Content, v.Content0, v.Files, v.Evidence
		}
	}
	return r
}

// WithVariants completes a resolution with the variants document named by r.Variants (its bytes already checked against the digest).
func (r Resolution) WithVariants(host string, doc Variants) Resolution {
	r.Variants = nil
	return r.pick(host, doc.Variants)
}

// Point is the place of a host on the ring of a salt: the first 8 bytes, big endian, of SHA-256(salt, 0x00, host).
func Point(salt, host string) uint64 {
	var room [256]byte // mostly enough
	sum := sha256.Sum256(append(append(append(room[:0], salt...), 0), host...))
	return binary.BigEndian.Uint64(sum[:])
}

// Turn is the part of a rollout's spread after which a host takes an epoch, from 0 to 1. Its ring is another than the waves': there the hosts of the first wave are neighbours.
func Turn(host string, epoch uint64) float64 {
	return float64(Point("spread/"+strconv.FormatUint(epoch, 10), host)) / math.Exp2(64)
}

// WaveSize is max(1, ceil(percent/100 × n)), 0 for n = 0.
func WaveSize(percent float64, n int) int {
	if n <= 0 {
		return 0
	}
	// 7% of 100 hosts is 7: what floating point leaves above a whole number is not a host.
	k := int(math.Ceil(percent/100*float64(n) - 1e-9))
	return min(max(1, k), n)
}

// Threshold picks `below` (16 hex digits) so that exactly k of the hosts have Point(salt, host) strictly less than it; all is true when k >= len(hosts),
// where no threshold is needed. Hosts are distinct.
func Threshold(salt string, hosts []string, k int) (below string, all bool) {
	k = max(k, 0)
	if k >= len(hosts) {
		return "", true
	}
	points := make([]uint64, len(hosts))
	for i, h := range hosts {
		points[i] = Point(salt, h)
	}
	slices.Sort(points)
	// The point of the first host that is left out: those before it are under it, and it is not.
	return fmt.Sprintf("%016x", points[k]), false
}
