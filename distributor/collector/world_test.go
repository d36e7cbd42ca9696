package collector

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

func TestMain(m *testing.M) {
	childMain()
	goleak.VerifyTestMain(withServer{m})
}

// withServer ends what the tests started together.
type withServer struct{ *testing.M }

func (m withServer) Run() int {
	defer stopServer()
	return m.M.Run()
}

const (
	storeID = "00112233445566778899aabbccddeeff"
	repo    = "acme/config"
)

var (
	rootKey, releaseKey, rolloutKey, strangerKey = keys.FromSeed(1), keys.FromSeed(2), keys.FromSeed(3), keys.FromSeed(99)
	start                                        = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
)

func digest(text string) string { e := manifest.Envelope{Payload: []byte(text)}; return e.Digest() }

func object(text string) manifest.Object {
	return manifest.Object{Object: digest(text), Size: int64(len(text)) + 1, Tar: digest(text + " tar"), TarSize: 10240}
}

// world is a store as a publisher and a controller leave it, without either.
type world struct {
	t       testing.TB
	store   store.Store
	keyring []byte
	mu      sync.Mutex
	clock   time.Time

	epoch   uint64
	serials map[string]uint64
	stands  map[string]uint64
	made    map[string]manifest.Envelope // "cohort/epoch" → statement
	policy  manifest.Policy
	note    string         // makes the content of what is published another one
	source  *bundle.Packed // the tree of what is published, if it is to be read
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, store: mem.New(), clock: start, serials: map[string]uint64{}, stands: map[string]uint64{}, made: map[string]manifest.Envelope{}}
	k := keys.NewKeyring(repo, start, rootKey.Public(), releaseKey.Public(), rolloutKey.Public(), keys.FromSeed(4).Public())
	w.keyring = w.encode(w.seal(manifest.KindKeyring, k, rootKey))
	rp := manifest.RolloutPolicy{Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, Gates: map[string]manifest.Gate{}, MinReported: 1, MaxInFlight: "10%", Spread: "0s", Timeout: "1h", OnFailure: "rollback", Watch: "30m"}
	w.policy = manifest.Policy{Precedence: []string{"env"}, Cohorts: map[string]manifest.CohortPolicy{}, Rollouts: map[string]manifest.RolloutPolicy{"standard": rp}}
	return w
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clock
}

func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	w.clock = w.clock.Add(d)
	w.mu.Unlock()
}

func (w *world) seal(kind manifest.Kind, v any, by ...*keys.Key) manifest.Envelope {
	w.t.Helper()
	var signers []manifest.Signer
	for _, k := range by {
		signers = append(signers, k)
	}
	e, err := manifest.Seal(kind, v, signers...)
	if err != nil {
		w.t.Fatal(err)
	}
	return *e
}

func (w *world) encode(v any) []byte {
	w.t.Helper()
	data, err := wire.Encode(v)
	if err != nil {
		w.t.Fatal(err)
	}
	return data
}

func (w *world) put(key string, data []byte) {
	w.t.Helper()
	if err := w.store.Put(w.t.Context(), key, data); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) cohort(name string, hosts ...string) {
	w.policy.Cohorts[name] = manifest.CohortPolicy{Labels: map[string]string{}, Services: []string{"checkout"}, Hosts: manifest.HostsPolicy{List: hosts}, Rollout: "standard"}
}

func contentOf(cohort string, epoch uint64) string { return digest(fmt.Sprint(cohort, " ", epoch, "")) }

// publish makes the next release: it builds the named cohorts, the others hold (or are blocked if nothing stands).
func (w *world) publish(built ...string) uint64 {
	w.t.Helper()
	w.epoch++
	rel := manifest.Release{
		V: 1, Store: storeID, Repo: repo, Epoch: w.epoch, Kind: manifest.ReleaseCommit, Commit: fmt.Sprintf("%040x", w.epoch), Tree: fmt.Sprintf("%040x", w.epoch+1000), Parents: []string{},
		Author: manifest.Person{Name: "Ana", Email: "ana@example.com", At: start}, Committer: manifest.Person{Name: "Ana", Email: "ana@example.com", At: start},
		Subject: fmt.Sprintf("change %d", w.epoch), Evaluator: "muster 0.1.0", Settings: digest("settings"), Source: object("source"), Created: w.now(), Policy: w.policy,
		Cohorts: map[string]manifest.ReleaseCohort{},
	}
	if p := w.source; p != nil {
		rel.Source = manifest.Object{Object: p.Object, Size: int64(len(p.Data)), Tar: p.Tar, TarSize: p.TarSize}
		w.put(manifest.KeySource(rel.Tree), p.Data)
	}
	for name := range w.policy.Cohorts {
		switch {
		case slices.Contains(built, name):
			e := w.seal(manifest.KindStatement, manifest.Statement{
				V: 1, Store: storeID, Repo: repo, Cohort: name, Epoch: w.epoch, Commit: rel.Commit, Bundle: object(fmt.Sprint("bundle ", name, w.epoch)), Content: digest(fmt.Sprint(name, " ", w.epoch, w.note)), Files: 1,
				Evidence: map[string]manifest.Grade{"checkout": manifest.GradeProcess}, Inputs: digest("inputs"), Content0: digest("content0"),
			}, releaseKey)
			w.stands[name], w.made[fmt.Sprint(name, "/", w.epoch)] = w.epoch, e
			rel.Cohorts[name] = manifest.ReleaseCohort{State: manifest.StateBuilt, Epoch: w.epoch, Statement: &e}
		case w.stands[name] > 0:
			rel.Cohorts[name] = manifest.ReleaseCohort{State: manifest.StateHolds, Epoch: w.stands[name]}
		default:
			rel.Cohorts[name] = manifest.ReleaseCohort{State: manifest.StateBlocked, Reason: "services/checkout/base.yaml:3:1: no such field"}
		}
	}
	w.put(manifest.KeyRelease(w.epoch), w.encode(w.seal(manifest.KindRelease, rel, releaseKey)))
	return w.epoch
}

// head makes the next head of a cohort, which assigns an epoch to all.
func (w *world) head(cohort string, epoch uint64, changes ...func(*manifest.Manifest)) []byte {
	w.t.Helper()
	w.serials[cohort]++
	m := manifest.Manifest{
		V: 1, Store: storeID, Repo: repo, Cohort: cohort, Era: 1, Serial: w.serials[cohort], Issued: w.now(), FreshUntil: w.now().Add(24 * time.Hour),
		Statements: []manifest.Envelope{w.made[fmt.Sprint(cohort, "/", epoch)]},
		Rollout:    manifest.Rollout{PolicyName: "standard", PolicyEpoch: epoch, Policy: w.policy.Rollouts["standard"], Target: epoch, Baseline: epoch, Wave: 1, Phase: manifest.PhaseDone, Since: w.now(), Why: "to all hosts at once", By: "ana"},
		Assign:     []manifest.Assignment{{Epoch: epoch, Why: "baseline"}},
	}
	for _, change := range changes {
		change(&m)
	}
	return w.encode(manifest.Head{Manifest: w.seal(manifest.KindManifest, m, rolloutKey), Overrides: []manifest.Envelope{}})
}

func (w *world) assign(cohort string, epoch uint64, changes ...func(*manifest.Manifest)) {
	w.t.Helper()
	w.put(manifest.KeyHead(cohort), w.head(cohort, epoch, changes...))
}

// rig is a collector whose reading and writing the test drives, behind a real server.
type rig struct {
	*world
	c      *Collector
	server *httptest.Server
	client *api.Client
	dir    string
	log    *logged
	config Config // what a test wants otherwise
}

type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t testing.TB, w *world, tokens *Tokens) *rig {
	r := &rig{world: w, dir: t.TempDir(), log: &logged{}}
	r.start(tokens)
	return r
}

// restartWith is restart, with receivers of notices.
func (r *rig) restartWith(to []Notify) {
	r.t.Helper()
	r.server.Close()
	r.c.Close()
	r.config.Notify = to
	r.start(nil)
	r.c.outbox.first = time.Millisecond
}

// start makes the collector, also anew over the same database.
func (r *rig) start(tokens *Tokens) {
	r.t.Helper()
	c, err := New(Config{Notify: r.config.Notify, Poll: time.Hour, Database: "sqlite://" + filepath.Join(r.dir, "state.db")}, Deps{Store: r.store, Keyring: r.keyring, Tokens: tokens, Now: r.now, Log: slog.New(slog.NewTextHandler(r.log, nil))})
	if err != nil {
		r.t.Fatal(err)
	}
	r.c = c
	r.server = httptest.NewServer(c.Handler())
	r.client = r.as("")
	stop := func() { r.server.Close(); r.client.Close(); c.Close() }
	r.t.Cleanup(stop)
}

// restart ends the collector as a kill would, but for what it flushed, and starts another.
func (r *rig) restart() {
	r.t.Helper()
	r.server.Close()
	r.c.Close()
	r.start(nil)
}

func (r *rig) as(token string) *api.Client {
	r.t.Helper()
	client, err := api.NewClient(r.server.URL, api.ClientOptions{Token: token})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(client.Close)
	return client
}

func (r *rig) read() {
	r.t.Helper()
	err := r.c.read(r.t.Context())
	r.c.noteRead(err)
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) flush() {
	r.t.Helper()
	if err := r.c.flush(r.t.Context(), r.now()); err != nil {
		r.t.Fatal(err)
	}
}

// agent speaks for one host, as the real one does.
type agent struct {
	*rig
	key     *keys.Key
	report  report.Report
	hbKey   []byte
	digest  string
	counter uint64
}

var seeds byte = 100

func (r *rig) agent(cohort, name string) *agent {
	seeds++
	key := keys.FromSeed(seeds)
	return &agent{rig: r, key: key, report: report.Report{
		V: 1, Repo: repo, Store: storeID, Cohort: cohort, Host: name, Labels: map[string]string{}, Boot: "boot-" + name, Key: key.Public(), Agent: "0.1.0", Reads: 1,
		Mode: "enforce", Phase: report.PhaseIdle, Services: map[string]report.Service{}, Poll: 60,
	}}
}

// runs makes the report say that the epoch is confirmed.
func (a *agent) runs(epoch uint64) *agent {
	r := &a.report
	r.Desired, r.Attempted, r.Running, r.Content, r.Confirmed, r.Grade = epoch, epoch, epoch, contentOf(r.Cohort, epoch), true, manifest.GradeProcess
	r.Services = map[string]report.Service{"checkout": {State: "confirmed", Epoch: epoch, Expected: epoch, Grade: manifest.GradeProcess}}
	return a
}

func (a *agent) signed() api.ReportItem {
	a.counter++
	a.report.Counter, a.report.At = a.counter, a.now()
	e := a.seal(manifest.KindReport, a.report, a.key)
	a.digest = e.Digest()
	return api.ReportItem{Signed: &e}
}

func (a *agent) heartbeat() api.ReportItem {
	a.counter++
	r := a.report
	h := &api.Heartbeat{Repo: r.Repo, Cohort: r.Cohort, Host: r.Host, Boot: r.Boot, Counter: a.counter, Digest: a.digest}
	h.MAC = api.HeartbeatMAC(a.hbKey, *h)
	return api.ReportItem{Heartbeat: h}
}

// say posts a signed report that must be accepted.
func (a *agent) say() api.ReportItem {
	a.t.Helper()
	item := a.signed()
	res, err := a.client.Report(context.Background(), item)
	if err != nil || !res.Accepted || res.Counter != a.counter {
		a.t.Fatalf("report of %s: %+v, %v", a.report.Host, res, err)
	}
	a.hbKey = res.HeartbeatKey
	return item
}

// host is what the API says of a host.
func (r *rig) host(name string) api.Host {
	r.t.Helper()
	h, err := r.client.Host(context.Background(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return *h
}

// is demands a verdict and a piece of its sentence.
func (r *rig) is(name string, code verdict.Code, why string) {
	r.t.Helper()
	if h := r.host(name); h.Verdict != code || !strings.Contains(h.Why, why) {
		r.t.Errorf("%s is %q: %s\nwant %q: %s", name, h.Verdict, h.Why, code, why)
	}
}

// wait asks for green.
func (r *rig) wait(epoch uint64, q api.WaitQuery) api.Wait {
	r.t.Helper()
	w, err := r.client.Wait(context.Background(), epoch, q)
	if err != nil {
		r.t.Fatal(err)
	}
	return *w
}

func codes(m map[verdict.Code]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s=%d", k, m[k]))
	}
	return strings.Join(parts, " ")
}

// sqlite is the rig's own database, for tests that go behind the collector's back.
func (r *rig) sqlite() *sqliteFile { return r.c.db.(*sqliteFile) }

func cancelled(t testing.TB) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx, cancel
}
