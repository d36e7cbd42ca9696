package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

const (
	liarStore = "00112233445566778899aabbccddeeff"
	liarRepo  = "acme/config"
)

var liarNow = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// liar is a collector that shows what the test gives it. What is signed is genuine; what it says of hosts is its word.
type liar struct {
	t       *testing.T
	release manifest.Release
	heads   map[string][]byte
	hosts   map[string][]api.Host // by cohort
	signed  map[string]*manifest.Envelope
	shows   *manifest.Release // in place of release
	keyring []byte
}

func (l *liar) seal(kind manifest.Kind, v any, by *keys.Key) manifest.Envelope {
	l.t.Helper()
	e, err := manifest.Seal(kind, v, by)
	if err != nil {
		l.t.Fatal(err)
	}
	return *e
}

func (l *liar) encode(v any) []byte {
	l.t.Helper()
	data, err := wire.Encode(v)
	if err != nil {
		l.t.Fatal(err)
	}
	return data
}

func liarDigest(text string) string { e := manifest.Envelope{Payload: []byte(text)}; return e.Digest() }

func liarObject(text string) manifest.Object {
	return manifest.Object{Object: liarDigest(text), Size: 10, Tar: liarDigest(text + " tar"), TarSize: 10240}
}

// newLiar is epoch 7 of two cohorts: eu with the hosts a and b, us with the host c. All have confirmed.
func newLiar(t *testing.T) *liar {
	l := &liar{t: t, heads: map[string][]byte{}, hosts: map[string][]api.Host{}, signed: map[string]*manifest.Envelope{}}
	root, release, rollout := keys.FromSeed(1), keys.FromSeed(2), keys.FromSeed(3)
	l.keyring = l.encode(l.seal(manifest.KindKeyring, keys.NewKeyring(liarRepo, liarNow.Add(-time.Hour), root.Public(), release.Public(), rollout.Public(), keys.FromSeed(4).Public()), root))
	policy := manifest.RolloutPolicy{Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, Gates: map[string]manifest.Gate{}, MinReported: 1, MaxInFlight: "10%", Spread: "0s", Timeout: "1h", OnFailure: "rollback", Watch: "30m"}
	ana := manifest.Person{Name: "Ana", Email: "ana@example.com", At: liarNow}
	l.release = manifest.Release{
		V: 1, Store: liarStore, Repo: liarRepo, Epoch: 7, Prev: liarDigest("prev"), Kind: manifest.ReleaseCommit, Commit: strings.Repeat("7", 40), Tree: strings.Repeat("8", 40), Parents: []string{}, Author: ana, Committer: ana,
		Subject: "change", Evaluator: "muster", Settings: liarDigest("settings"), Source: liarObject("source"), Created: liarNow.Add(-10 * time.Minute),
		Policy:  manifest.Policy{Precedence: []string{"env"}, Cohorts: map[string]manifest.CohortPolicy{}, Rollouts: map[string]manifest.RolloutPolicy{"standard": policy}},
		Cohorts: map[string]manifest.ReleaseCohort{},
	}
	for cohort, names := range map[string][]string{"eu": {"a", "b"}, "us": {"c"}} {
		l.release.Policy.Cohorts[cohort] = manifest.CohortPolicy{Labels: map[string]string{}, Services: []string{"web"}, Hosts: manifest.HostsPolicy{List: names}, Rollout: "standard"}
		st := l.seal(manifest.KindStatement, manifest.Statement{V: 1, Store: liarStore, Repo: liarRepo, Cohort: cohort, Epoch: 7, Commit: l.release.Commit, Bundle: liarObject(cohort), Content: liarDigest("content " + cohort), Files: 1,
			Evidence: map[string]manifest.Grade{"web": manifest.GradeDisk}, Inputs: liarDigest("inputs"), Content0: liarDigest("content0")}, release)
		l.release.Cohorts[cohort] = manifest.ReleaseCohort{State: manifest.StateBuilt, Epoch: 7, Statement: &st}
		m := manifest.Manifest{V: 1, Store: liarStore, Repo: liarRepo, Cohort: cohort, Era: 1, Serial: 5, Issued: liarNow.Add(-time.Minute), FreshUntil: liarNow.Add(time.Hour), Statements: []manifest.Envelope{st},
			Rollout: manifest.Rollout{PolicyName: "standard", PolicyEpoch: 7, Policy: policy, Target: 7, Baseline: 7, Wave: 1, Phase: manifest.PhaseDone, Since: liarNow, Why: "all", By: "ana"}, Assign: []manifest.Assignment{{Epoch: 7, Why: "baseline"}}}
		l.heads[cohort] = l.encode(manifest.Head{Manifest: l.seal(manifest.KindManifest, m, rollout), Overrides: []manifest.Envelope{}})
		for _, name := range names {
			l.hosts[cohort] = append(l.hosts[cohort], api.Host{Host: name, Cohort: cohort, Verdict: verdict.Confirmed})
			l.signs(cohort, name, nil)
		}
	}
	return l
}

// signs has a host sign a report: that it runs epoch 7, unless change says otherwise.
func (l *liar) signs(cohort, name string, change func(r *report.Report)) {
	l.t.Helper()
	key := keys.FromSeed(name[0])
	r := report.Report{V: 1, Repo: liarRepo, Store: liarStore, Cohort: cohort, Host: name, Labels: map[string]string{}, Boot: "b1", Counter: 3, Key: key.Public(), Agent: "test", Reads: 1, At: liarNow.Add(-time.Second), Seen: "1-5-0",
		Desired: 7, Attempted: 7, Running: 7, Content: liarDigest("content " + cohort), Mode: report.ModeEnforce, Phase: report.PhaseIdle, Grade: manifest.GradeDisk, Confirmed: true, Services: map[string]report.Service{}, Poll: 60}
	if change != nil {
		change(&r)
	}
	e := l.seal(manifest.KindReport, r, key)
	l.signed[name] = &e
}

// elder is a report from before the release.
func elder(r *report.Report) {
	r.At, r.Seen, r.Desired, r.Attempted, r.Running, r.Content = liarNow.Add(-time.Hour), "1-4-0", 6, 6, 6, liarDigest("content 6")
}

func (l *liar) says(cohort, name string, code verdict.Code) {
	for i := range l.hosts[cohort] {
		if l.hosts[cohort][i].Host == name {
			l.hosts[cohort][i].Verdict = code
		}
	}
}

func (l *liar) expects(cohort string, list []string, least int) {
	p := l.release.Policy.Cohorts[cohort]
	p.Hosts = manifest.HostsPolicy{List: list}
	if least > 0 {
		p.Hosts.Expect = &manifest.Expect{Min: least, Max: 10}
	}
	l.release.Policy.Cohorts[cohort] = p
}

func (l *liar) Hosts(_ context.Context, cohort, _ string) ([]api.Host, error) {
	return l.hosts[cohort], nil
}

func (l *liar) HostSigned(_ context.Context, host string) (*api.Host, error) {
	if l.signed[host] == nil {
		return nil, api.ErrNotFound
	}
	return &api.Host{Host: host, Signed: l.signed[host]}, nil
}

func (l *liar) GetHead(_ context.Context, cohort string, _ manifest.Mark, _ time.Duration) ([]byte, manifest.Mark, error) {
	if l.heads[cohort] == nil {
		return nil, manifest.Mark{}, api.ErrNotFound
	}
	return l.heads[cohort], manifest.Mark{}, nil
}

func (l *liar) Object(_ context.Context, key string) (io.ReadCloser, int64, error) {
	if !strings.HasPrefix(key, "releases/") {
		return nil, 0, api.ErrNotFound
	}
	shown := l.release
	if l.shows != nil {
		shown = *l.shows
	}
	data := l.encode(l.seal(manifest.KindRelease, shown, keys.FromSeed(2)))
	return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
}

// What the collector says is believed only where it costs nothing: each lie is found out, and what is honest passes.
func TestVerifyDistrustsTheCollector(t *testing.T) {
	for _, tt := range []struct {
		name string
		lie  func(l *liar, p *prover)
		code int
		says string // error and what is printed
	}{
		{"honest", func(*liar, *prover) {}, cli.OK, "proven by the signatures of 3 hosts"},
		{"honest, by commit", func(l *liar, p *prover) { p.commit = l.release.Commit }, cli.OK, "3 hosts"},
		{"honest, one cohort", func(_ *liar, p *prover) { p.cohort = "us" }, cli.OK, "1 host"},
		{"another release than asked for", func(l *liar, _ *prover) {
			r := l.release
			r.Epoch = 6
			r.Cohorts = map[string]manifest.ReleaseCohort{"eu": {State: manifest.StateHolds, Epoch: 5}}
			l.shows = &r
		}, cli.NotTrusted, "shows release 6 as release 7"},
		{"the release of another commit", func(_ *liar, p *prover) { p.commit = strings.Repeat("9", 40) }, cli.NotTrusted, "signed for commit 7777"},
		{"a release of an override for a commit", func(l *liar, p *prover) {
			p.commit, l.release.Kind, l.release.OverrideID = l.release.Commit, manifest.ReleaseOverride, "o-1"
			end := liarNow.Add(time.Hour)
			l.release.NotAfter = &end
		}, cli.NotTrusted, "release 7"},
		{"a cohort is left out", func(l *liar, _ *prover) { delete(l.heads, "us"); delete(l.hosts, "us") }, cli.No, "not proven: cohort us: "},
		{"a cohort's hosts have not confirmed", func(l *liar, _ *prover) { l.signs("us", "c", elder) }, cli.No, "only claimed of c"},
		{"a cohort that is blocked", func(l *liar, _ *prover) {
			l.release.Cohorts["us"] = manifest.ReleaseCohort{State: manifest.StateBlocked, Reason: "web: not valid"}
		}, cli.NotTrusted, "nothing to confirm: web: not valid"},
		{"a cohort that is not there", func(_ *liar, p *prover) { p.cohort = "asia" }, cli.NotTrusted, "has no cohort asia"},
		{"a listed host is left out", func(l *liar, _ *prover) { l.hosts["eu"] = l.hosts["eu"][:1]; delete(l.signed, "b") }, cli.No, "only claimed of b"},
		{"a listed host that failed is called silent", func(l *liar, _ *prover) {
			l.says("eu", "b", verdict.Silent)
			l.signs("eu", "b", func(r *report.Report) { r.Confirmed, r.Reason = false, "web: deaf" })
		}, cli.No, "the collector says silent, and it does not say that it is confirmed: web: deaf"},
		{"a listed host that failed is called retired", func(l *liar, _ *prover) {
			l.says("eu", "b", verdict.Retired)
			l.signs("eu", "b", func(r *report.Report) { r.Running = 6 })
		}, cli.No, "the collector says retired"},
		{"a listed host that failed is called unexpected", func(l *liar, _ *prover) {
			l.says("eu", "b", verdict.Unexpected)
			l.signs("eu", "b", elder)
		}, cli.No, "only claimed of b"},
		{"a listed host without a report is called retired", func(l *liar, _ *prover) {
			l.says("eu", "b", verdict.Retired)
			delete(l.signed, "b")
		}, cli.No, "only claimed of b"},
		{"a silent host that knew the release", func(l *liar, _ *prover) {
			l.says("eu", "b", verdict.Silent)
			l.signs("eu", "b", func(r *report.Report) { elder(r); r.Desired = 7 })
		}, cli.No, "only claimed of b"},
		{"honest: silent since before", func(l *liar, _ *prover) { l.says("eu", "b", verdict.Silent); l.signs("eu", "b", elder) }, cli.OK, "2 hosts, 1 owed"},
		{"honest: retired since before", func(l *liar, _ *prover) { l.says("eu", "b", verdict.Retired); l.signs("eu", "b", elder) }, cli.OK, "2 hosts, 1 owed"},
		{"silent since before, and strict", func(l *liar, p *prover) {
			p.strict = true
			l.says("eu", "b", verdict.Silent)
			l.signs("eu", "b", elder)
		}, cli.No, "only claimed of b"},
		{"an older report, but said to be confirmed", func(l *liar, _ *prover) { l.signs("eu", "b", elder) }, cli.No, "only claimed of b"},
		{"all of a cohort are silent", func(l *liar, _ *prover) { l.says("us", "c", verdict.Silent); l.signs("us", "c", elder) }, cli.No, "not proven: cohort us: proven by 0 hosts, and it takes 1"},
		{"a cohort without hosts", func(l *liar, _ *prover) { l.expects("us", nil, 1); l.hosts["us"] = nil }, cli.No, "by too few in cohort us"},
		{"fewer than are expected", func(l *liar, _ *prover) { l.expects("eu", []string{"a"}, 3) }, cli.No, "not proven: cohort eu: proven by 2 hosts, and it takes 3"},
		{"honest: as many as are expected", func(l *liar, _ *prover) { l.expects("eu", nil, 2) }, cli.OK, "3 hosts"},
		{"a report of somebody else", func(l *liar, _ *prover) { l.signed["b"] = l.signed["a"] }, cli.NotTrusted, "not their hosts' own: b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLiar(t)
			trust, err := manifest.NewTrust(liarRepo, l.keyring)
			if err != nil {
				t.Fatal(err)
			}
			p := &prover{on: true, epoch: 7, from: l, trust: trust, now: func() time.Time { return liarNow }}
			tt.lie(l, p)
			v, err := p.run(t.Context(), liarNow, plain(io.Discard))
			var out bytes.Buffer
			v.print(&out, p.epoch)
			if got := out.String() + fmt.Sprint(err); cli.CodeOf(err) != tt.code || !strings.Contains(got, tt.says) {
				t.Errorf("exit %d, want %d with %q: %s", cli.CodeOf(err), tt.code, tt.says, got)
			}
			if v != nil && !slices.IsSortedFunc(v.Claimed, func(a, b unproven) int { return strings.Compare(a.Cohort+"/"+a.Host, b.Cohort+"/"+b.Host) }) {
				t.Errorf("not in order: %v", v.Claimed)
			}
		})
	}
}
