package distributor

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"maps"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
)

// Seen is a host as a collector shows it.
type Seen struct {
	Host, Cohort     string
	Desired, Running uint64             // as the collector says
	Signed           *manifest.Envelope // what the host signed last; nil if the collector has nothing that it could show
}

// The next steps that findings about hosts name.
const (
	nextAgain   = "check again; if it stays, see whether the collector reads this store, and its log"
	nextForged  = "find out who reports as this host before anything else"
	nextDrifted = "the agent puts it right by itself; muster-agent verify on the host says which files"
)

// FsckFleet is Fsck that also holds hosts against the store: what each signed about itself against the signed statements and heads, and what the collector makes of it
// against both. The hosts are to be asked before: a store is then never behind them.
func FsckFleet(ctx context.Context, st store.Reader, keyring []byte, now time.Time, hosts []Seen) (*Report, error) {
	return check(ctx, st, keyring, now, func(f *fsck) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, h := range hosts {
				if err := f.host(ctx, h); err != nil {
					return err
				}
			}
			return nil
		}
	})
}

func (f *fsck) host(ctx context.Context, h Seen) error {
	key := "host " + h.Cohort + "/" + h.Host
	f.report.Checked.Hosts++
	if h.Signed == nil {
		f.notice(key, "", "the collector has no report that it signed")
		return nil
	}
	r, err := signedBy(h)
	if err != nil {
		f.problem(key, nextForged, "%v", err)
		return nil
	}
	if r.Store != f.storeID || r.Repo != f.report.Repo {
		f.problem(key, "correct sources: in its agent.yaml, or check another store", "reports about store %q of repo %q", r.Store, r.Repo)
		return nil
	}
	if r.Running != h.Running {
		f.problem(key, nextAgain, "signed that it runs epoch %d, and the collector says epoch %d", r.Running, h.Running)
	}
	if err := f.ordered(key, h, r); err != nil {
		return err
	}
	if r.Running == 0 {
		return nil
	}
	return f.content(ctx, key, h, r)
}

// signedBy is what a host signed, as that host.
func signedBy(h Seen) (*report.Report, error) {
	r, err := report.Decode(h.Signed.Payload)
	if err != nil {
		return nil, fmt.Errorf("the report that the collector shows cannot be read: %w", err)
	}
	pub := ed25519.PublicKey(r.Key)
	if _, err := h.Signed.VerifySignatures(manifest.KindReport, map[string]ed25519.PublicKey{manifest.KeyIDOf(pub): pub}); err != nil {
		return nil, fmt.Errorf("the report that the collector shows is not signed by the key in it: %w", err)
	}
	if r.Host != h.Host || r.Cohort != h.Cohort {
		return nil, fmt.Errorf("the report that the collector shows is of host %s of cohort %s", r.Host, r.Cohort)
	}
	return r, nil
}

// ordered checks a host, and the collector's word on it, against the cohort's head.
func (f *fsck) ordered(key string, h Seen, r *report.Report) error {
	view := f.heads[h.Cohort]
	if view == nil {
		if r.Seen != "" {
			f.problem(key, nextRestore, "has seen order %s of cohort %s, and the store has no head of it that verifies", r.Seen, h.Cohort)
		}
		return nil
	}
	if seen, err := manifest.ParseMark(r.Seen); err == nil && seen.Compare(view.Mark()) > 0 {
		f.problem(key, "the store is older than its hosts: restore a newer backup, or muster rollout refresh to go on from here", "has seen order %s, and the newest in the store is %s", r.Seen, view.Mark())
		return nil
	}
	want, err := manifest.Resolve(view, manifest.Host{Name: h.Host, Labels: maps.Clone(r.Labels)}, f.now)
	if err != nil {
		f.notice(key, "", "the head of cohort %s assigns nothing to it: %v", h.Cohort, err)
		return nil
	}
	if want.Epoch() != h.Desired {
		f.problem(key, nextAgain, "is to run epoch %d by the head in the store, and epoch %d as the collector says", want.Epoch(), h.Desired)
	}
	return nil
}

// content checks what a host says that lies on its disk against what was signed for the epoch that it says it runs.
func (f *fsck) content(ctx context.Context, key string, h Seen, r *report.Report) error {
	rel := f.releases[r.Running]
	if rel == nil {
		f.problem(key, nextRestore, "runs epoch %d, of which the store has no release that verifies", r.Running)
		return nil
	}
	part := rel.Cohorts[h.Cohort]
	envs := []*manifest.Envelope{part.Statement}
	for i := range part.Overridden {
		envs = append(envs, &part.Overridden[i])
	}
	for _, env := range envs {
		if env == nil {
			continue
		}
		st, err := manifest.DecodeStatement(env.Payload)
		if err != nil || st.Override != r.Override {
			continue // one that cannot be read is told by chain
		}
		content := st.Content
		own, err := variants(ctx, f.st, st)
		if err != nil {
			return err
		}
		for _, v := range own {
			if v.Host == h.Host {
				content = v.Content
			}
		}
		if content != r.Content {
			f.problem(key, nextDrifted, "has %.19s… on its disk, and %.19s… was signed as epoch %d", r.Content, content, r.Running)
		}
		return nil
	}
	f.problem(key, nextRestore, "runs epoch %d, and that release has no statement for cohort %s like it (override %q)", r.Running, h.Cohort, r.Override)
	return nil
}
