package publish_test

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/wire"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// evaluate stands in for CUE: each services/<name>/base.yaml is its service's file in the cohorts prod and staging, with EPOCH replaced; services/<name>/confirm
// is its grade. A base.yaml that says "broken" is an error.
func evaluate(_ context.Context, req *eval.Request, _ eval.Limits) (*eval.Result, error) {
	res := &eval.Result{Policy: manifest.Policy{Precedence: []string{"env"}, Cohorts: map[string]manifest.CohortPolicy{}, Rollouts: map[string]manifest.RolloutPolicy{
		"standard": {Waves: []manifest.Wave{{Percent: 100, Bake: "0s"}}, MinReported: 0.95, MaxInFlight: "10%", Spread: "0s", Timeout: "2h", OnFailure: "rollback", Watch: "30m"},
	}}}
	grades, texts := map[string]manifest.Grade{}, map[string]string{}
	for _, f := range req.Files {
		service := filepath.Base(filepath.Dir(f.Path))
		switch filepath.Base(f.Path) {
		case "confirm":
			grades[service] = manifest.Grade(strings.TrimSpace(string(f.Data)))
		case "base.yaml":
			texts[service] = string(f.Data)
		}
	}
	for _, cohort := range []string{"prod", "staging"} {
		policy := manifest.CohortPolicy{Labels: map[string]string{"env": cohort}, Hosts: manifest.HostsPolicy{List: []string{"web-1"}}, Rollout: "standard"}
		for service, text := range texts {
			policy.Services = append(policy.Services, service)
			if strings.Contains(text, "broken") {
				res.Problems = append(res.Problems, eval.Problem{Severity: eval.SeverityError, Service: service, Message: "broken", SetAt: []eval.Pos{{File: "services/" + service + "/base.yaml", Line: 1, Col: 1}}})
			}
			epoch := strconv.FormatUint(req.Epochs[cohort][service], 10)
			res.Units = append(res.Units, eval.Unit{
				Service: service, Cohort: cohort, Evidence: grades[service], UsesEpoch: strings.Contains(text, "EPOCH"),
				Files: []eval.File{{Name: service + ".yaml", Mode: 0o644, Data: []byte(strings.ReplaceAll(text, "EPOCH", epoch))}},
			})
		}
		res.Policy.Cohorts[cohort] = policy
	}
	return res, nil
}

type signer struct{ key ed25519.PrivateKey }

func newSigner(name string) signer {
	seed := sha256.Sum256([]byte(name))
	return signer{ed25519.NewKeyFromSeed(seed[:])}
}

func (s signer) Public() ed25519.PublicKey       { return s.key.Public().(ed25519.PublicKey) }
func (s signer) KeyID() string                   { return manifest.KeyIDOf(s.Public()) }
func (s signer) Sign(msg []byte) ([]byte, error) { return ed25519.Sign(s.key, msg), nil }

var (
	now     = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	root    = newSigner("root")
	release = newSigner("release")
	rollout = newSigner("rollout")
)

func publisher(t *testing.T, st store.Store) *distributor.Publisher {
	t.Helper()
	kr := manifest.Keyring{
		V: 1, Repo: "acme/config", Version: 1, Era: 1, Issued: now, Keys: map[string]manifest.PublicKey{},
		Roles: manifest.Roles{Root: manifest.RootRole{Keys: []string{root.KeyID()}, Threshold: 1}, Release: []manifest.ReleaseRole{{Key: release.KeyID()}}, Rollout: []string{rollout.KeyID()}},
	}
	for _, s := range []signer{root, release, rollout} {
		kr.Keys[s.KeyID()] = manifest.PublicKey{Type: "ed25519", Public: s.Public()}
	}
	env, err := manifest.Seal(manifest.KindKeyring, kr, root)
	if err != nil {
		t.Fatal(err)
	}
	data, err := wire.Encode(env)
	if err != nil {
		t.Fatal(err)
	}
	p, err := distributor.NewPublisher(distributor.Config{Store: st, Repo: "acme/config", Release: release, Rollout: rollout, Keyring: data, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// repo is a git repository in a directory of its own.
type repo struct {
	t   *testing.T
	dir string
}

func (r repo) git(args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=Ana", "GIT_AUTHOR_EMAIL=ana@example.com",
		"GIT_COMMITTER_NAME=Ana", "GIT_COMMITTER_EMAIL=ana@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func newRepo(t *testing.T) repo {
	r := repo{t, t.TempDir()}
	r.git("init", "-q", "-b", "main")
	return r
}

func (r repo) commit(files map[string]string) string {
	r.t.Helper()
	for name, text := range files {
		path := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", "change")
	return r.git("rev-parse", "HEAD")
}

func run(t *testing.T, st store.Store, dir, rev string) (*distributor.Result, error) {
	t.Helper()
	repo, err := source.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	job, err := publish.Job(repo, rev, pipeline.Options{Evaluate: evaluate})
	if err != nil {
		t.Fatal(err)
	}
	return publisher(t, st).Publish(t.Context(), job.Commit, job.Contains, job.Build, distributor.PublishOptions{RolloutNow: true, Settings: job.Settings})
}

func mustRun(t *testing.T, st store.Store, dir, rev string) *distributor.Result {
	t.Helper()
	res, err := run(t, st, dir, rev)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// The same commits published from two clones, one of them bare, give the same bundles.
func TestSameCommitSameBundles(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"services/a/base.yaml": "a: 1\n", "services/a/confirm": "process\n", "services/b/base.yaml": "epoch: EPOCH\r\n", "services/b/confirm": "disk\n", "README.md": "hello"})
	r.commit(map[string]string{"services/a/base.yaml": "a: 2\n"})
	bare := filepath.Join(t.TempDir(), "bare.git")
	r.git("clone", "-q", "--bare", r.dir, bare)
	var results [2][]*distributor.Result
	for i, dir := range []string{r.dir, bare} {
		st := mem.New()
		for _, rev := range []string{"HEAD~1", "HEAD"} {
			results[i] = append(results[i], mustRun(t, st, dir, rev))
		}
		report, err := distributor.Fsck(t.Context(), st, nil, now)
		if err != nil || !report.OK() {
			t.Errorf("fsck: %v, %+v", err, report)
		}
	}
	if diff := cmp.Diff(results[0], results[1]); diff != "" {
		t.Errorf("two clones differ:\n%s", diff)
	}
	if prod := results[0][1].Cohorts["prod"]; prod.State != manifest.StateBuilt || prod.Epoch != 2 || prod.Bundle == results[0][0].Cohorts["prod"].Bundle {
		t.Errorf("second release: %+v", prod)
	}
}

// Only the required evidence changes: the files stay, and a new statement says so.
func TestEvidenceChanges(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"services/a/base.yaml": "a: 1\n", "services/a/confirm": "process"})
	st := mem.New()
	first := mustRun(t, st, r.dir, "HEAD")
	r.commit(map[string]string{"services/a/confirm": "disk"})
	second := mustRun(t, st, r.dir, "HEAD")
	if c := second.Cohorts["prod"]; c.State != manifest.StateBuilt || c.Content != first.Cohorts["prod"].Content {
		t.Errorf("%+v", c)
	}
	r.commit(map[string]string{"README.md": "x"})
	if third := mustRun(t, st, r.dir, "HEAD"); third.Cohorts["prod"].State != manifest.StateHolds || third.Cohorts["prod"].Epoch != 2 {
		t.Errorf("%+v", third)
	}
}

func TestRefused(t *testing.T) {
	r := newRepo(t)
	bad := r.commit(map[string]string{"services/a/base.yaml": "broken\n", "services/a/confirm": "disk"})
	st := mem.New()
	_, err := run(t, st, r.dir, "HEAD")
	var refused *publish.Refused
	if !errors.As(err, &refused) || len(refused.Problems) == 0 || !errors.Is(err, distributor.ErrRefused) || !strings.Contains(err.Error(), "a: does not validate (services/a/base.yaml:1:1)") {
		t.Fatalf("%v", err)
	}
	if infos, err := st.List(t.Context(), manifest.PrefixReleases, "", 10); err != nil || len(infos) > 0 {
		t.Errorf("releases %v, %v", infos, err)
	}
	obj, err := st.Get(t.Context(), manifest.KeyCommit(bad), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if ix, err := manifest.DecodeCommitIndex(obj.Data); err != nil || !strings.Contains(ix.Reason, "a: does not validate") {
		t.Errorf("%+v, %v", ix, err)
	}
}

func TestWorkTreeIsNotPublished(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"services/a/base.yaml": "a: 1\n"})
	repo, err := source.Open(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := repo.WorkTree()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := publish.Func(tree, pipeline.Options{Evaluate: evaluate})(t.Context(), distributor.BuildInput{Epoch: 1}); err == nil {
		t.Error("published")
	}
}

// B014: a forced push, with real history.
func TestB014ForcedPush(t *testing.T) {
	r := newRepo(t)
	c1 := r.commit(map[string]string{"services/a/base.yaml": "a: 1\n", "services/a/confirm": "disk"})
	c2 := r.commit(map[string]string{"services/a/base.yaml": "a: 2\n"})
	st := mem.New()
	mustRun(t, st, r.dir, c2)
	r.git("reset", "-q", "--hard", c1)
	if _, err := run(t, st, r.dir, "HEAD"); !errors.Is(err, distributor.ErrRewritten) {
		t.Errorf("back to an older one: %v", err)
	}
	r.commit(map[string]string{"services/a/base.yaml": "a: 3\n"})
	if _, err := run(t, st, r.dir, "HEAD"); !errors.Is(err, distributor.ErrRewritten) {
		t.Errorf("sibling: %v", err)
	}
	r.git("reset", "-q", "--hard", c2)
	r.commit(nil)
	r.commit(map[string]string{"services/a/base.yaml": "a: 1\n"})
	if res := mustRun(t, st, r.dir, "HEAD"); res.Epoch != 2 || res.Cohorts["prod"].State != manifest.StateBuilt {
		t.Errorf("%+v", res)
	}
}
