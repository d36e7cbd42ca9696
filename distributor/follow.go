package distributor

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// maxWait is the longest pause between two tries of a commit that could not be published for a passing reason.
const maxWait = 5 * time.Minute

// Follower publishes the tip of a branch whenever it moves.
type Follower struct {
	Publisher *Publisher
	// Tip gives the commit id at the branch's tip.
	Tip func(ctx context.Context) (string, error)
	// Open reads a commit.
	Open    func(ctx context.Context, commit string) (*Job, error)
	Every   time.Duration // between two looks at the tip; default 1s
	Options PublishOptions
	Log     *slog.Logger
	// Done, if set, is told of every commit that was published or refused, one after the other.
	Done func(commit string, res *Result, err error)
}

// renewEvery is how often a Follower that assigns looks after the freshness of heads; they are fresh for manifest.MaxFreshFor.
const renewEvery = time.Hour

// Run follows until ctx ends, and then returns nil: what it publishes is complete at every moment. A refused commit is recorded and logged once, and the next tip is
// waited for. What fails for another reason is tried again, ever less often, until the tip moves.
func (f *Follower) Run(ctx context.Context) error {
	log := f.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	every := f.Every
	if every <= 0 {
		every = time.Second
	}
	var (
		done string // settled: published, or refused for good
		said string // the error that was logged last
		wait = every
	)
	var last string // the tip tried last
	renewed := time.Now()
	for {
		commit, err := f.Tip(ctx)
		if err == nil && commit != last {
			last, wait = commit, every
		}
		var res *Result
		switch {
		case err != nil:
		case commit != done:
			res, err = f.publish(ctx, commit)
			renewed = time.Now()
		case f.Options.RolloutNow && time.Since(renewed) >= renewEvery:
			// A settled tip is published again: nothing new comes of it, but heads that are half through their freshness are signed anew.
			renewed = time.Now()
			if _, again := f.publish(ctx, commit); again != nil && ctx.Err() == nil && !errors.Is(again, ErrRefused) && !errors.Is(again, ErrRewritten) {
				log.Warn("heads were not renewed; it will be tried again", "commit", commit, "err", again)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		switch final := errors.Is(err, ErrRefused) || errors.Is(err, ErrRewritten); {
		case err == nil || final:
			wait, said = every, ""
			if commit != done {
				done = commit
				if final {
					log.Error("commit is not published", "commit", commit, "err", err)
				} else {
					log.Info("published", "commit", commit, "epoch", res.Epoch, "changed", len(res.Changed), "assigned", len(res.Assigned))
				}
				if f.Done != nil {
					f.Done(commit, res, err)
				}
			}
		default:
			if err.Error() != said {
				said = err.Error()
				log.Warn("publishing will be tried again", "commit", commit, "err", err)
			}
			wait = min(2*wait, maxWait)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

func (f *Follower) publish(ctx context.Context, commit string) (*Result, error) {
	job, err := f.Open(ctx, commit)
	if err != nil {
		return nil, err
	}
	opts := f.Options
	opts.Settings = job.Settings
	return f.Publisher.Publish(ctx, job.Commit, job.Contains, job.Build, opts)
}
