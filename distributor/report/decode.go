package report

import (
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// More limits: what a report may hold, so that one host costs a collector no more than another.
const (
	MaxServices  = 2000
	MaxInstances = 100 // of a service
	MaxProbes    = 2000
	MaxLabels    = 100
	MaxBoot      = 64
	MaxWord      = 64 // state, code, version of the agent
	MaxPath      = 512
	MaxPoll      = 24 * 3600 // seconds
)

// The modes of an agent.
const (
	ModeEnforce = "enforce"
	ModeObserve = "observe"
)

// Decode strictly decodes and checks one report (ranges, names, limits).
func Decode(data []byte) (*Report, error) {
	if len(data) > MaxReportBytes {
		return nil, fmt.Errorf("report: %d bytes, at most %d are read", len(data), MaxReportBytes)
	}
	r := new(Report)
	if err := wire.Decode(data, r); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return r, nil
}

// Validate checks ranges, names and limits. Texts (reasons, states) may hold any characters: a host whose command printed something odd must not become silent
// for it; who prints them makes them harmless.
func (r *Report) Validate() error {
	var c check
	c.that(r.V >= 1 && r.V <= manifest.Version, "v: version %d is not read here (1 to %d are)", r.V, manifest.Version)
	c.that(manifest.ValidRepo(r.Repo), "repo: not a repository name")
	c.that(r.Store == "" || validStore(r.Store), "store: not 32 hex digits")
	c.that(manifest.ValidName(r.Cohort), "cohort: %.80q is not a name", r.Cohort)
	c.that(manifest.ValidHost(r.Host), "host: %.80q is not a host name", r.Host)
	c.that(len(r.Labels) <= MaxLabels, "labels: more than %d", MaxLabels)
	for k, v := range r.Labels {
		c.that(manifest.ValidName(k), "labels: %.80q is not a label", k)
		c.that(len(v) <= 200 && plain(v), "labels.%.80s: the value is too long or holds a control character", k)
	}
	c.that(ValidBoot(r.Boot), "boot: not an id")
	c.that(r.Counter > 0 && r.Counter <= manifest.MaxCounter, "counter: not from 1 to below 2^53")
	c.that(len(r.Key) == ed25519.PublicKeySize, "key: not %d bytes", ed25519.PublicKeySize)
	c.word("agent", r.Agent)
	c.that(r.Reads >= 1 && r.Reads <= 1000, "reads: out of range")
	c.that(r.At.Year() >= 1 && r.At.Year() <= 9999, "at: not a time")
	if r.Seen != "" {
		_, err := manifest.ParseMark(r.Seen)
		c.that(err == nil, "seen: not <era>-<serial>-<beat>")
	}
	c.counter("desired", r.Desired)
	c.counter("attempted", r.Attempted)
	c.counter("running", r.Running)
	c.that(r.Content == "" || manifest.ValidDigest(r.Content), "content: not a digest")
	c.that(r.Override == "" || manifest.ValidName(r.Override), "override: not an id")
	switch manifest.Source(r.Source) {
	case "", manifest.FromHold, manifest.FromOverride, manifest.FromWave, manifest.FromBaseline:
	default:
		c.that(false, "source: %.80q is not known", r.Source)
	}
	c.that(r.Mode == ModeEnforce || r.Mode == ModeObserve, "mode: %.80q is not %s or %s", r.Mode, ModeEnforce, ModeObserve)
	switch r.Phase {
	case PhaseIdle, PhaseFetching, PhaseApplying, PhaseConfirming, PhaseFailed, PhaseRolledBack, PhaseRefused, PhaseLeaving:
	default:
		c.that(false, "phase: %.80q is not known", string(r.Phase))
	}
	c.grade("grade", r.Grade)
	c.text("reason", r.Reason)
	c.word("code", r.Code)
	c.that(r.Tries >= 0 && r.Tries <= math.MaxInt32, "tries: out of range")
	c.that(r.WaitsUntil == nil || r.WaitsUntil.Year() >= 1970 && r.WaitsUntil.Year() <= 9999, "waits_until: not a time")
	if h := r.Held; h != nil {
		c.text("held.by", h.By)
		c.text("held.why", h.Why)
		c.that(h.Since.Year() >= 1 && h.Since.Year() <= 9999 && h.Until.Year() >= 1 && h.Until.Year() <= 9999, "held: not a time")
	}
	c.that(len(r.Drift) <= MaxDrift, "drift: more than %d paths", MaxDrift)
	for _, p := range r.Drift {
		c.that(len(p) > 0 && len(p) <= MaxPath, "drift: a path is empty or longer than %d bytes", MaxPath)
	}
	c.that(r.Drifted >= 0 && r.Drifted <= math.MaxInt32, "drifted: out of range")
	c.that(len(r.Services) <= MaxServices, "services: more than %d", MaxServices)
	for name, s := range r.Services {
		c.that(manifest.ValidName(name), "services: %.80q is not a name", name)
		s.validate(&c, "services."+name)
	}
	c.that(len(r.Probes) <= MaxProbes, "probes: more than %d", MaxProbes)
	for name, p := range r.Probes {
		c.that(name != "" && len(name) <= 200 && plain(name), "probes: %.80q is not a name", name)
		c.that(p.Count >= 0 && p.Count <= math.MaxInt32 && p.Failures >= 0 && p.Failures <= p.Count, "probes.%.80s: counts out of range", name)
		c.that(finite(p.P50MS) && finite(p.MaxMS), "probes.%.80s: latencies out of range", name)
	}
	c.that(r.Poll > 0 && r.Poll <= MaxPoll, "poll_s: not above 0 and up to %d", MaxPoll)
	return c.err
}

func (s Service) validate(c *check, at string) {
	c.word(at+".state", s.State)
	c.counter(at+".epoch", s.Epoch)
	c.counter(at+".expected", s.Expected)
	c.grade(at+".grade", s.Grade)
	c.that(finite(s.AgeS), "%s.age_s: out of range", at)
	c.text(at+".reason", s.Reason)
	c.that(s.Restarts >= 0 && s.Restarts <= math.MaxInt32, "%s.restarts: out of range", at)
	c.that(len(s.Instances) <= MaxInstances, "%s.instances: more than %d", at, MaxInstances)
	for name, i := range s.Instances {
		c.that(manifest.ValidName(name), "%s.instances: %.80q is not a name", at, name)
		c.word(at+".instances."+name+".state", i.State)
		c.counter(at+".instances."+name+".epoch", i.Epoch)
		c.text(at+".instances."+name+".reason", i.Reason)
	}
}

// ValidBoot reports whether s is the id of a start of an agent: 1 to 64 letters, digits, '.', '_', '-'.
func ValidBoot(s string) bool { return len(s) <= MaxBoot && manifest.ValidHost(s) }

// CutReason makes any text fit to be a Reason: valid UTF-8, at most MaxReason bytes, cut between characters.
func CutReason(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= MaxReason {
		return s
	}
	const more = "…"
	n := MaxReason - len(more)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + more
}

func validStore(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 16 && s == strings.ToLower(s)
}

func plain(s string) bool { return strings.IndexFunc(s, unicode.IsControl) < 0 }

// finite is for durations and latencies: JSON has no infinity, but it has 1e308.
func finite(f float64) bool { return f >= 0 && f <= 1e12 }

// check keeps the first thing that is wrong.
type check struct{ err error }

func (c *check) that(ok bool, format string, args ...any) {
	if !ok && c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *check) counter(at string, n uint64) {
	c.that(n <= manifest.MaxCounter, "%s: not below 2^53", at)
}

func (c *check) grade(at string, g manifest.Grade) {
	c.that(g == "" || g.Rank() > 0, "%s: %.40q is not a grade", at, string(g))
}

func (c *check) word(at, s string) {
	c.that(len(s) <= MaxWord && plain(s), "%s: longer than %d bytes, or holds a control character", at, MaxWord)
}

func (c *check) text(at, s string) {
	c.that(len(s) <= MaxReason, "%s: longer than %d bytes", at, MaxReason)
}
