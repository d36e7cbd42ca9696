package distributor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// Errors of publishing; test with errors.Is.
var (
	// ErrRewritten refuses a commit that does not contain the newest released one: history was rewritten or is not known, or the commit is older. Exit code 3.
	ErrRewritten = errors.New("not a descendant of the last released commit")
	// ErrRefused is the commit's own fault: it does not evaluate, or breaks a limit. It is recorded and not tried again.
	ErrRefused = errors.New("commit refused")
	// ErrMaybePublished says that the answer to the one write that commits a release was lost and could not be found out.
	ErrMaybePublished = errors.New("may have been published")
	// ErrContended says that other publishers were first again and again. Exit code 3.
	ErrContended = errors.New("other publishers were first")
	// ErrDamaged says that an object of the store is not what a signed document says it is. Exit code 4.
	ErrDamaged = errors.New("damaged object")
)

// races bound how often a publisher starts again after it lost an epoch.
const races = 64

// Config is what a Publisher needs.
type Config struct {
	Store   store.Store
	Repo    string          // name of the config repo: the keyring's
	Release manifest.Signer // signs releases and statements
	Rollout manifest.Signer // signs heads; nil: nothing can be assigned
	Keyring []byte          // the bootstrap keyring that a person trusts
	By      string          // who, in heads; default "muster publish"
	Now     func() time.Time
	Log     *slog.Logger
}

// Validate checks that all that is required is there.
func (c *Config) Validate() error {
	switch {
	case c.Store == nil:
		return errors.New("publisher: no store")
	case c.Repo == "":
		return errors.New("publisher: no repo name")
	case c.Release == nil:
		return errors.New("publisher: no release key")
	case len(c.Keyring) == 0:
		return errors.New("publisher: no keyring")
	case c.Now == nil:
		return errors.New("publisher: no clock")
	}
	return nil
}

// Publisher appends releases to a store. It keeps nothing that a store does not have: any number of them may work on one store. Safe for concurrent use.
type Publisher struct {
	cfg     Config
	indexes indexes
}

// NewPublisher makes a publisher. It reads and writes nothing yet.
func NewPublisher(cfg Config) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.By == "" {
		cfg.By = "muster publish"
	}
	return &Publisher{cfg: cfg}, nil
}

// Check finds out whether publishing can begin: the keyring, the keys and the store go together. An empty store gets its identity and the keyring by it.
func (p *Publisher) Check(ctx context.Context) error {
	_, err := p.open(ctx)
	return err
}

// PublishOptions are how one commit is published.
type PublishOptions struct {
	RolloutNow bool   // assign every cohort at once
	Settings   string // digest of the publisher's settings: with the commit, the key by which a release is skipped as already there
	// RemoveCohorts may be missing from the commit's fleet although the last release has them.
	RemoveCohorts []string
}

// Result is what a publishing came to. Its JSON is a promise to scripts.
type Result struct {
	Epoch   uint64                  `json:"epoch"`
	Commit  string                  `json:"commit"`
	Changed []string                `json:"changed"` // cohorts with new content, sorted
	Cohorts map[string]CohortResult `json:"cohorts"`

	Already  bool     `json:"-"` // the commit was released before, under this epoch
	Assigned []string `json:"-"` // cohorts that got a new head now, sorted
	Waiting  []string `json:"-"` // cohorts whose head does not assign what stands: they wait for a rollout; sorted
	Blocked  []string `json:"-"` // cohorts in state blocked, sorted: exit code 1
	Newest   uint64   `json:"-"` // the release that heads were moved to: Epoch, or a newer one that was published meanwhile
	Warnings []string `json:"-"` // what went wrong beside the release, which stands
}

// CohortResult is what a release means for one cohort: the statement that stands after it.
type CohortResult struct {
	State   manifest.CohortState `json:"state"`
	Epoch   uint64               `json:"epoch"`
	Bundle  string               `json:"bundle"`
	Content string               `json:"content"`
	Size    int64                `json:"size"`
	// Reason is why it is blocked; Variants counts the hosts that have a bundle of their own.
	Reason   string `json:"reason,omitempty"`
	Variants int    `json:"variants,omitempty"`
}

// Publish takes one commit to the store: one release, also if nothing changed. ancestry reports whether the commit contains another one; build is called anew
// whenever another publisher was first. With a Result and an error the release stands and what came after it failed.
func (p *Publisher) Publish(ctx context.Context, commit Commit, ancestry func(ctx context.Context, ancestor string) (bool, error), build BuildFunc, opts PublishOptions) (*Result, error) {
	if opts.RolloutNow && p.cfg.Rollout == nil {
		return nil, errors.New("assigning needs the rollout key: give --rollout-key, or publish without --rollout=now")
	}
	s, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	rel, already, err := s.release(ctx, commit, ancestry, build, opts)
	if errors.Is(err, ErrRefused) {
		if note := s.index(ctx, manifest.CommitIndex{V: manifest.Version, Commit: commit.ID, Reason: line(because(commit, err)), At: s.reader.now()}); note != nil {
			p.cfg.Log.Warn("refused commit not recorded", "commit", commit.ID, "err", note)
		}
	}
	if err != nil {
		return nil, err
	}
	res, err := s.result(ctx, rel)
	if err != nil {
		return nil, err
	}
	res.Already = already
	if err := s.index(ctx, manifest.CommitIndex{V: manifest.Version, Commit: commit.ID, Epoch: rel.Epoch, At: rel.Created}); err != nil {
		res.warn(fmt.Sprintf("index of the commit not written: %v", err))
	}
	err = s.announce(ctx, rel, opts.RolloutNow, res)
	slices.Sort(res.Warnings)
	for _, w := range res.Warnings {
		p.cfg.Log.Warn(w, "commit", commit.ID, "epoch", rel.Epoch)
	}
	return res, err
}

// because is a refusal without what its reader knows: which commit, and that it was refused.
func because(commit Commit, err error) string {
	text := err.Error()
	for _, known := range []string{fmt.Sprintf("build commit %.12s: ", commit.ID), fmt.Sprintf("commit %.12s: ", commit.ID), ErrRefused.Error() + ": "} {
		text = strings.TrimPrefix(text, known)
	}
	return text
}

func (r *Result) warn(text string) { r.Warnings = append(r.Warnings, text) }

// session is one publishing: the store's identity and keys as read at its start.
type session struct {
	*Publisher
	*reader
}

// release finds or makes the release of the commit. already: it was there before.
func (s *session) release(ctx context.Context, commit Commit, ancestry func(context.Context, string) (bool, error), build BuildFunc, opts PublishOptions) (rel *verified, already bool, err error) {
	for race := range races {
		if err := pause(ctx, race); err != nil {
			return nil, false, err
		}
		newest, next, err := s.newest(ctx)
		if err != nil {
			return nil, false, err
		}
		if newest != nil {
			// A release in which a cohort is blocked is built once more: what blocked it may be gone.
			if newest.is(commit, opts.Settings) && !newest.blocks() {
				return newest, true, nil
			}
			if err := s.mayFollow(ctx, newest, commit, ancestry); err != nil {
				return nil, false, err
			}
		}
		if err := s.lost(ctx, newest); err != nil {
			return nil, false, err
		}
		rel, err := s.append(ctx, newest, next, commit, build, opts)
		if errors.Is(err, errLost) {
			s.cfg.Log.Info("another publisher was first, starting again", "commit", commit.ID, "epoch", next)
			if infos, err := s.cfg.Store.List(ctx, manifest.PrefixReleases, manifest.KeyRelease(next-1), 1); err == nil && (len(infos) == 0 || infos[0].Key != manifest.KeyRelease(next)) {
				// Taken, and yet not there: a directory or a link in a store of files. Burnt, like junk.
				s.cfg.Log.Warn("epoch is taken by what is no object, and skipped", "epoch", next)
				s.blocked[next] = true
			}
			continue
		}
		return rel, err == nil && rel == newest, err
	}
	return nil, false, fmt.Errorf("publish commit %.12s: %w %d times in a row; nothing was published, try again", commit.ID, ErrContended, races)
}

// mayFollow checks that the commit may be released after newest: it contains newest's commit. A list of parents that contains it is enough; else history is asked.
func (s *session) mayFollow(ctx context.Context, newest *verified, commit Commit, ancestry func(context.Context, string) (bool, error)) error {
	if newest.Commit == commit.ID || slices.Contains(commit.Parents, newest.Commit) {
		return nil
	}
	contains, err := ancestry(ctx, newest.Commit)
	switch {
	case err != nil:
		return fmt.Errorf("commit %.12s: %w (%.12s, epoch %d), as far as this repository knows: %w; fetch the whole history and try again", commit.ID, ErrRewritten, newest.Commit, newest.Epoch, err)
	case contains:
		return nil
	}
	if ix, err := s.readIndex(ctx, commit.ID); err == nil && ix.Epoch != 0 && ix.Epoch < newest.Epoch {
		return fmt.Errorf("commit %.12s: %w (%.12s, epoch %d): it was released before, as epoch %d; to go back, publish a revert", commit.ID, ErrRewritten, newest.Commit, newest.Epoch, ix.Epoch)
	}
	return fmt.Errorf("commit %.12s: %w (%.12s, epoch %d): it is older and already contained in it, or history was rewritten; publish a commit on top of that one", commit.ID, ErrRewritten, newest.Commit, newest.Epoch)
}
