package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode"

	"github.com/muster-config/muster/distributor/wire"
)

// check collects the first thing that is wrong, so that the rules below read as a list.
type check struct{ err error }

func (c *check) that(ok bool, format string, args ...any) {
	if !ok && c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *check) in(where string, err error) {
	if err != nil && c.err == nil {
		c.err = fmt.Errorf("%s: %w", where, err)
	}
}

func (c *check) version(v int) {
	c.that(v <= Version, "v: version %d was written by a newer muster, this one reads 1 to %d: upgrade it", v, Version)
	c.that(v >= 1, "v: no version")
}

func (c *check) origin(store, repo string) {
	c.that(len(store) == 32 && validHex(store), "store: not 32 hex digits")
	c.that(ValidRepo(repo), "repo: not a repository name")
}

func (c *check) name(field, s string)   { c.that(ValidName(s), "%s: %.80q is not a name", field, s) }
func (c *check) digest(field, s string) { c.that(ValidDigest(s), "%s: not a digest", field) }
func (c *check) time(field string, t time.Time) {
	c.that(!t.IsZero() && t.Year() >= 1970 && t.Year() < 10000, "%s: not a time", field)
}

func (c *check) counter(field string, n uint64) {
	c.that(n <= MaxCounter, "%s: not below 2^53", field)
}

func (c *check) epoch(field string, n uint64) {
	c.that(n > 0 && n <= MaxCounter, "%s: not an epoch", field)
}

func (c *check) text(field, s string) {
	c.that(len(s) <= MaxTextBytes, "%s: longer than %d bytes", field, MaxTextBytes)
	// These texts reach terminals: lines and tabs are theirs, the rest could rewrite the screen.
	c.that(!strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }), "%s: carries a control character", field)
}

func (c *check) duration(field, s string) {
	d, err := time.ParseDuration(s)
	c.that(err == nil && d >= 0, "%s: not a duration", field)
}

// ValidRepo reports whether s names a config repo: 1 to 200 bytes, slash-separated parts of letters, digits, '.', '_', '-'.
func ValidRepo(s string) bool {
	if s == "" || len(s) > 200 || path.Clean(s) != s || strings.HasPrefix(s, "/") {
		return false
	}
	for _, part := range strings.Split(s, "/") {
		if !ValidHost(part) {
			return false
		}
	}
	return true
}

// Validate checks a grade.
func (g Grade) Validate() error {
	if g.Rank() == 0 {
		return fmt.Errorf("%.40q is not a grade", string(g))
	}
	return nil
}

// Rank orders grades: disk 1, reloaded 2, restarted 3, process 4; 0 for anything else.
func (g Grade) Rank() int {
	switch g {
	case GradeDisk:
		return 1
	case GradeReloaded:
		return 2
	case GradeRestarted:
		return 3
	case GradeProcess:
		return 4
	}
	return 0
}

// Validate checks an object.
func (o Object) Validate() error {
	var c check
	c.digest("object", o.Object)
	c.digest("tar", o.Tar)
	c.that(o.Size > 0 && o.Size <= MaxCounter, "size: out of range")
	c.that(o.TarSize > 0 && o.TarSize <= MaxCounter, "tar_size: out of range")
	return c.err
}

func (c *check) content(content, content0 string, files int, evidence map[string]Grade) {
	c.digest("content", content)
	c.digest("content0", content0)
	c.that(files >= 0 && files <= MaxFiles, "files: out of range")
	for service, g := range evidence {
		c.name("evidence", service)
		c.in("evidence."+service, g.Validate())
	}
}

// Validate checks a statement.
func (s *Statement) Validate() error {
	var c check
	c.version(s.V)
	c.origin(s.Store, s.Repo)
	c.name("cohort", s.Cohort)
	c.epoch("epoch", s.Epoch)
	c.that(ValidCommit(s.Commit), "commit: not a commit id")
	c.in("bundle", s.Bundle.Validate())
	c.content(s.Content, s.Content0, s.Files, s.Evidence)
	c.digest("inputs", s.Inputs)
	c.that(s.Override == "" || ValidName(s.Override), "override: not an id")
	c.that(len(s.Variants) <= MaxVariants, "variants: more than %d", MaxVariants)
	c.that(len(s.Variants) == 0 || s.VariantsObject == nil, "variants: both inline and in an object")
	c.in("variants", validVariants(s.Variants))
	if s.VariantsObject != nil {
		c.in("variants_object", s.VariantsObject.Validate())
	}
	return c.err
}

func validVariants(list []Variant) error {
	var c check
	for i, v := range list {
		c.that(ValidHost(v.Host), "%d: not a host name", i)
		c.that(i == 0 || list[i-1].Host < v.Host, "%d: not sorted by host, or a host twice", i)
		c.in(v.Host, v.Bundle.Validate())
		c.content(v.Content, v.Content0, v.Files, v.Evidence)
	}
	return c.err
}

// Validate checks a variants object.
func (v *Variants) Validate() error {
	var c check
	c.version(v.V)
	c.in("variants", validVariants(v.Variants))
	return c.err
}

// Validate checks a release. That its statements are signed and agree with it is VerifyRelease's part.
func (r *Release) Validate() error {
	var c check
	c.version(r.V)
	c.origin(r.Store, r.Repo)
	c.epoch("epoch", r.Epoch)
	c.that(r.Prev == "" || ValidDigest(r.Prev), "prev: not a digest")
	c.that(r.Kind == ReleaseCommit || r.Kind == ReleaseOverride, "kind: unknown")
	c.that(ValidCommit(r.Commit), "commit: not a commit id")
	c.that(ValidCommit(r.Tree), "tree: not a tree id")
	c.that(len(r.Parents) <= 1000, "parents: too many")
	for _, p := range r.Parents {
		c.that(ValidCommit(p), "parents: not a commit id")
	}
	for field, p := range map[string]Person{"author": r.Author, "committer": r.Committer} {
		c.text(field+".name", p.Name)
		c.text(field+".email", p.Email)
		c.time(field+".at", p.At)
	}
	c.text("subject", r.Subject)
	c.text("signer", r.Signer)
	c.that(r.PullRequest >= 0, "pull_request: negative")
	c.text("proposer", r.Proposer)
	c.that(len(r.Approvers) <= 1000, "approvers: too many")
	for _, a := range r.Approvers {
		c.text("approvers", a)
	}
	c.text("evaluator", r.Evaluator)
	c.digest("settings", r.Settings)
	c.in("source", r.Source.Validate())
	c.time("created", r.Created)
	c.in("policy", r.Policy.Validate())
	for name, rc := range r.Cohorts {
		c.name("cohorts", name)
		c.in("cohorts."+name, rc.validate(r.Epoch))
	}
	override := r.Kind == ReleaseOverride
	c.that(override == (r.OverrideID != "") && override == (r.NotAfter != nil), "override_id, not_after: go with kind override, and only with it")
	c.that(r.OverrideID == "" || ValidName(r.OverrideID), "override_id: not an id")
	return c.err
}

func (rc ReleaseCohort) validate(epoch uint64) error {
	var c check
	c.counter("epoch", rc.Epoch)
	c.text("reason", rc.Reason)
	c.that(len(rc.Overridden) <= MaxOverrides, "overridden: more than %d", MaxOverrides)
	switch rc.State {
	case StateBuilt:
		c.that(rc.Statement != nil && rc.Epoch == epoch, "built: needs a statement of this epoch")
		c.that(rc.Reason == "", "built: has a reason")
	case StateHolds:
		c.that(rc.Statement == nil && rc.Epoch > 0 && rc.Epoch < epoch && rc.Reason == "", "holds: needs the earlier epoch, and nothing else")
	case StateBlocked:
		c.that(rc.Statement == nil && rc.Epoch < epoch && rc.Reason != "", "blocked: needs a reason, and has no statement")
	default:
		c.that(false, "state: unknown")
	}
	return c.err
}

// Validate checks a manifest: exactly one selector in each assignment, the last one unconditional.
func (m *Manifest) Validate() error {
	var c check
	c.version(m.V)
	c.origin(m.Store, m.Repo)
	c.name("cohort", m.Cohort)
	c.counter("era", m.Era)
	c.that(m.Serial > 0 && m.Serial <= MaxCounter, "serial: out of range")
	c.time("issued", m.Issued)
	c.time("fresh_until", m.FreshUntil)
	c.that(m.FreshUntil.After(m.Issued) && m.FreshUntil.Sub(m.Issued) <= MaxFreshFor, "fresh_until: not within %s after issued", MaxFreshFor)
	c.that(len(m.Statements) >= 1 && len(m.Statements) <= MaxStatements, "statements: not 1 to %d", MaxStatements)
	c.in("rollout", m.Rollout.Validate())
	c.that(len(m.Assign) >= 1 && len(m.Assign) <= MaxAssignments, "assign: not 1 to %d", MaxAssignments)
	for i, a := range m.Assign {
		c.in(fmt.Sprintf("assign.%d", i), a.validate(i == len(m.Assign)-1))
	}
	return c.err
}

func (a Assignment) validate(last bool) error {
	var c check
	n := 0
	for _, set := range []bool{len(a.Hosts) > 0, a.Below != "" || a.Salt != "", len(a.Match) > 0} {
		if set {
			n++
		}
	}
	if last {
		c.that(n == 0 && a.Until == nil, "the last one is not unconditional")
	} else {
		c.that(n == 1, "needs exactly one of hosts, below, match")
	}
	c.that(len(a.Hosts) <= MaxAssignments, "hosts: too many")
	for _, h := range a.Hosts {
		c.that(ValidHost(h), "hosts: %.80q is not a host name", h)
	}
	if a.Below != "" || a.Salt != "" {
		c.that(len(a.Below) == 16 && validHex(a.Below), "below: not 16 hex digits")
		c.that(a.Salt != "" && len(a.Salt) <= 200, "salt: missing or too long")
	}
	c.in("match", validLabels(a.Match))
	c.epoch("epoch", a.Epoch)
	c.text("why", a.Why)
	if a.Until != nil {
		c.time("until", *a.Until)
	}
	return c.err
}

func validLabels(m map[string]string) error {
	var c check
	c.that(len(m) <= 100, "more than 100 labels")
	for k, v := range m {
		c.that(ValidName(k), "%.80q is not a label", k)
		c.that(len(v) <= 200 && strings.IndexFunc(v, unicode.IsControl) < 0, "value of %.80q is too long or carries a control character", k)
	}
	return c.err
}

// Validate checks a rollout state.
func (r *Rollout) Validate() error {
	var c check
	switch r.Phase {
	case PhaseIdle, PhaseAdvancing, PhaseBaking, PhaseDone, PhaseAwaitingApproval, PhasePaused, PhaseRollingBack, PhaseHalted:
	default:
		c.that(false, "phase: unknown")
	}
	c.name("policy_name", r.PolicyName)
	c.counter("policy_epoch", r.PolicyEpoch)
	c.counter("target", r.Target)
	c.counter("baseline", r.Baseline)
	c.that(r.Wave >= 0 && r.Wave <= 1000, "wave: out of range")
	c.time("since", r.Since)
	c.text("why", r.Why)
	c.text("by", r.By)
	c.in("policy", r.Policy.Validate())
	c.counter("fallback", r.Fallback)
	switch r.Was {
	case "", PhaseAdvancing, PhaseBaking, PhaseAwaitingApproval, PhaseDone:
	default:
		c.that(false, "was: not a phase that can be paused")
	}
	c.that(r.Told >= 0 && r.Extended >= 0, "told, extended: negative")
	c.that(len(r.Skipped) <= MaxGateVerdicts && len(r.Ignored) <= 100, "skipped, ignored: too many")
	for _, text := range append(append([]string{}, r.Skipped...), r.Ignored...) {
		c.text("skipped, ignored", text)
	}
	c.that(len(r.Verdicts) <= MaxGateVerdicts, "verdicts: more than %d", MaxGateVerdicts)
	for i := range r.Verdicts {
		c.in(fmt.Sprintf("verdicts.%d", i), r.Verdicts[i].Validate())
	}
	c.that(len(r.Endings) <= MaxOverrides, "endings: more than %d", MaxOverrides)
	for _, e := range r.Endings {
		c.name("endings.override", e.Override)
		c.that((e.Below == "") == (e.Salt == "") && len(e.Salt) <= 200, "endings: below and salt go together")
		c.that(e.Below == "" || len(e.Below) == 16 && validHex(e.Below), "endings.below: not 16 hex digits")
		c.text("endings.why", e.Why)
		c.text("endings.by", e.By)
	}
	c.that(len(r.Halts) <= MaxStops && len(r.Freezes) <= MaxStops, "halts, freezes: more than %d", MaxStops)
	stops := append(append(append([]Stop{}, r.Halts...), r.Freezes...), r.Holds...)
	if r.Pause != nil {
		stops = append(stops, *r.Pause)
	}
	for _, s := range stops {
		c.text("by", s.By)
		c.text("why", s.Why)
		c.time("since", s.Since)
		c.counter("epoch", s.Epoch)
		for _, h := range s.Hosts {
			c.that(ValidHost(h), "hosts: %.80q is not a host name", h)
		}
	}
	return c.err
}

// Validate checks a gate's verdict.
func (v *GateVerdict) Validate() error {
	var c check
	c.name("gate", v.Gate)
	switch v.Outcome {
	case OutcomePass, OutcomeFail, OutcomeInconclusive, OutcomeBroken:
	default:
		c.that(false, "outcome: unknown")
	}
	c.that(v.Wave >= 0 && v.Wave <= 1000, "wave: out of range")
	c.text("why", v.Why)
	c.time("from", v.From)
	c.time("to", v.To)
	c.that(len(v.Samples) <= MaxGateSamples, "samples: more than %d", MaxGateSamples)
	for _, s := range v.Samples {
		c.time("samples.at", s.At)
	}
	return c.err
}

// Validate checks an override.
func (o *Override) Validate() error {
	var c check
	c.version(o.V)
	c.origin(o.Store, o.Repo)
	c.name("cohort", o.Cohort)
	c.that(len(o.Hosts) <= MaxAssignments, "hosts: more than %d", MaxAssignments)
	for _, h := range o.Hosts {
		c.that(ValidHost(h), "hosts: %.80q is not a host name", h)
	}
	c.name("id", o.ID)
	c.text("author", o.Author)
	c.text("reason", o.Reason)
	c.that(o.Author != "" && o.Reason != "", "author, reason: required")
	c.time("created", o.Created)
	c.time("not_after", o.NotAfter)
	c.that(o.NotAfter.After(o.Created), "not_after: not after created")
	c.epoch("epoch", o.Epoch)
	c.counter("over", o.Over)
	c.that(o.Over < o.Epoch, "over: not before its own epoch")
	c.that(len(o.Patches) <= 1000, "patches: too many")
	for _, p := range o.Patches {
		c.name("patches.service", p.Service)
		var v map[string]json.RawMessage
		c.that(len(p.Values) <= MaxSmallBytes && wire.Decode([]byte(p.Values), &v) == nil, "patches.%s: values are not a JSON object", p.Service)
	}
	c.that((o.Statement == nil) == (o.Ended != nil), "needs its statement, or its end")
	if o.Ended != nil {
		c.text("ended.by", o.Ended.By)
		c.text("ended.reason", o.Ended.Reason)
		c.time("ended.at", o.Ended.At)
	}
	return c.err
}

// Validate checks a head's own part; the envelopes are Trust's.
func (h *Head) Validate() error {
	var c check
	c.counter("beat", h.Beat)
	c.that(len(h.Overrides) <= MaxOverrides, "overrides: more than %d", MaxOverrides)
	return c.err
}

// Validate checks a store's identity.
func (s *StoreID) Validate() error {
	var c check
	c.version(s.V)
	c.that(len(s.ID) == 32 && validHex(s.ID), "id: not 32 hex digits")
	return c.err
}

// Validate checks a commit's index entry.
func (x *CommitIndex) Validate() error {
	var c check
	c.version(x.V)
	c.that(ValidCommit(x.Commit), "commit: not a commit id")
	c.counter("epoch", x.Epoch)
	c.that((x.Epoch == 0) == (x.Reason != ""), "needs an epoch, or the reason of a refusal")
	c.time("at", x.At)
	if len(x.Reason) > MaxSmallBytes/2 {
		return errors.New("reason: too long")
	}
	return c.err
}
