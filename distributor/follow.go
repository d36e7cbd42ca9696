package distributor

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"
	"unicode"
)

// maxWait is the longest pause between two tries of what did not work for a passing reason.
const maxWait = 5 * time.Minute

// Follower publishes the tip of a branch whenever it moves.
type Follower struct {
	Publisher *Publisher
	// Tip gives the commit id at the branch's tip. It may fetch; an error is looked at again, ever less often.
	Tip func(ctx context.Context) (string, error)
	// Open reads a commit.
	Open  func(ctx context.Context, commit string) (*Job, error)
	Every time.Duration // between two looks at the tip; default 1s
	// Wake, if set, is a hint to look now. It is for speed only, and does not shorten the pause after something went wrong.
	Wake    <-chan struct{}
	Options PublishOptions
	Log     *slog.Logger
	// Done, if set, is told of every commit that was published or refused, one after the other.
	Done func(commit string, res *Result, err error)
	// Trouble, if set, is told when following is hindered by something that passes (the forge or the store is away, the branch is gone), again when it is another
	// thing, and with nil once it works again.
	Trouble func(err error)
}

// renewEvery is how often a Follower that assigns looks after the freshness of heads; they are fresh for manifest.MaxFreshFor.
const renewEvery = time.Hour

// Run follows until ctx ends, and then returns nil: what it publishes is complete at every moment. A refused commit is recorded and told once, and the next tip is
// waited for; so is one that does not contain what was released, since history was rewritten. What fails for another reason is tried again, ever less often, until
// the tip moves. It never stops by itself.
func (f *Follower) Run(ctx context.Context) error {
	if f.Log == nil {
		f.Log = slog.New(slog.DiscardHandler)
	}
	every := f.Every
	if every <= 0 {
		every = time.Second
	}
	var (
		done string // settled: published, or refused for good
		last string // the tip tried last
		said string // the trouble that was told last
		wait = every
	)
	renewed := time.Now()
	for {
		commit, err := f.Tip(ctx)
		if err == nil && commit != last {
			last, wait = commit, every
		}
		var res *Result
		switch {
		case err != nil:
			commit = last
		case commit != done:
			res, err = f.publish(ctx, commit)
			renewed = time.Now()
		case f.Options.RolloutNow && time.Since(renewed) >= renewEvery:
			renewed = time.Now()
			f.renew(ctx, commit)
		}
		if ctx.Err() != nil {
			return nil
		}
		final := errors.Is(err, ErrRefused) || errors.Is(err, ErrRewritten)
		switch trouble := kind(err); {
		case err == nil || final:
			wait = every
			if said != "" {
				said = ""
				f.trouble(commit, nil)
			}
			if commit != done {
				done = commit
				f.settled(commit, res, err)
			}
		default:
			if trouble != said {
				said = trouble
				f.trouble(commit, err)
			}
			wait = min(2*wait, maxWait)
		}
		// A little less at random, so that many who lost the same forge do not come back at once.
		t := time.NewTimer(wait - rand.N(wait/10+1))
		wake := f.Wake
		if said != "" {
			wake = nil
		}
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		case <-wake:
			t.Stop()
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

// renew publishes a settled tip again: nothing new comes of it, but heads that are half through their freshness are signed anew.
func (f *Follower) renew(ctx context.Context, commit string) {
	if _, err := f.publish(ctx, commit); err != nil && ctx.Err() == nil && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrRewritten) {
		f.Log.Warn("heads were not renewed; it will be tried again", "commit", commit, "err", err)
	}
}

// settled tells what became of a commit.
func (f *Follower) settled(commit string, res *Result, err error) {
	if err != nil {
		f.Log.Error("commit is not published", "commit", commit, "err", err)
	} else {
		f.Log.Info("published", "commit", commit, "epoch", res.Epoch, "changed", len(res.Changed), "assigned", len(res.Assigned), "blocked", len(res.Blocked))
	}
	if f.Done != nil {
		f.Done(commit, res, err)
	}
}

func (f *Follower) trouble(commit string, err error) {
	if err != nil {
		f.Log.Warn("publishing will be tried again", "commit", commit, "err", err)
	} else {
		f.Log.Info("it works again", "commit", commit)
	}
	if f.Trouble != nil {
		f.Trouble(err)
	}
}

// kind is an error's text without its digits: the port of a connection or a count is no other trouble.
func kind(err error) string {
	if err == nil {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, err.Error())
}
