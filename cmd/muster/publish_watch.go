package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// watching are the flags of `publish --watch`.
type watching struct {
	on                    bool
	branch, remote, cache string
	tokenFile             string
	every                 time.Duration
	hook, hookSecret      string // address to listen on for webhooks, and the file with their secret
}

func (w *watching) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.on, "watch", false, "publish every commit of a branch as it comes, until Ctrl-C")
	cmd.Flags().StringVar(&w.branch, "branch", "main", "with --watch: the branch")
	cmd.Flags().StringVar(&w.remote, "remote", "", "with --watch: the repository to fetch from, instead of the one here")
	cmd.Flags().StringVar(&w.cache, "cache", "", "with --remote: the directory to fetch into; it is muster's own, and made anew when it is broken")
	cmd.Flags().StringVar(&w.tokenFile, "remote-token-file", "", "with --remote https://…: file with the token for it, read anew for each fetch")
	cmd.Flags().StringVar(&w.hook, "webhook", "", "with --watch: listen here (127.0.0.1:8070) for GitHub's webhooks, and look at once when one comes")
	cmd.Flags().StringVar(&w.hookSecret, "webhook-secret-file", "", "file with the secret that webhooks are signed with")
	cmd.Flags().DurationVar(&w.every, "every", 0, "with --watch: between two looks at the branch (default 1s, with --remote 30s)")
}

// check finds flags that do not go together.
func (w *watching) check(cmd *cobra.Command) error {
	set := cmd.Flags().Changed
	if !w.on {
		for _, name := range []string{"remote", "cache", "remote-token-file", "every", "webhook", "webhook-secret-file"} {
			if set(name) {
				return cli.Fail(cli.Usage, "add --watch, or leave it out", "--%s goes with --watch", name)
			}
		}
		if set("branch") && !set("github") {
			return cli.Fail(cli.Usage, "add --watch or --github, or leave it out", "--branch goes with --watch")
		}
		return nil
	}
	switch {
	case set("rev"):
		return cli.Fail(cli.Usage, "--watch follows --branch", "--watch and --rev exclude each other")
	case w.branch == "":
		return cli.Fail(cli.Usage, "", "--branch is empty")
	case w.remote != "" && w.cache == "":
		return cli.Fail(cli.Usage, "give --cache DIR, a directory that is not there yet", "--cache is missing")
	case w.cache != "" && w.remote == "":
		return cli.Fail(cli.Usage, "give --remote URL, or leave it out", "--cache goes with --remote")
	case w.tokenFile != "" && w.remote == "":
		return cli.Fail(cli.Usage, "give --remote URL, or leave it out", "--remote-token-file goes with --remote")
	case (w.hook == "") != (w.hookSecret == ""):
		return cli.Fail(cli.Usage, "a webhook that nobody signed would be anybody's", "--webhook and --webhook-secret-file go together")
	case w.every < 0 || set("every") && w.every < 100*time.Millisecond:
		return cli.Fail(cli.Usage, "", "--every %s is too short: at least 100ms", w.every)
	case w.every == 0 && w.remote != "":
		w.every = 30 * time.Second
	case w.every == 0:
		w.every = time.Second
	}
	return nil
}

// upstream is where followed commits come from.
type upstream struct {
	name  string
	tip   func(ctx context.Context) (string, error) // of the branch; fetches first, if there is something to fetch from
	repo  func(ctx context.Context) (*source.Repo, error)
	close func() error
}

func (p *publishing) upstream(ctx context.Context) (*upstream, error) {
	if p.watch.remote != "" {
		return p.remote(ctx)
	}
	repo, err := source.Open(p.dir)
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	// A branch that was never there is a typo. One that goes away later is waited for.
	if _, err := repo.Tip(p.watch.branch); err != nil {
		return nil, cli.Fail(codeOr(err, cli.Usage), "name the branch with --branch", "%w", err)
	}
	open := func(context.Context) (*source.Repo, error) { return source.Open(p.dir) }
	return &upstream{
		name: fmt.Sprintf("branch %s of %s", p.watch.branch, p.dir),
		tip: func(ctx context.Context) (string, error) {
			repo, err := open(ctx)
			if err != nil {
				return "", err
			}
			defer repo.Close()
			return repo.Tip(p.watch.branch)
		},
		repo:  open,
		close: func() error { return nil },
	}, nil
}

// follow publishes the branch until ctx ends.
func (p *publishing) follow(ctx context.Context) error {
	up, err := p.upstream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = up.close() }()
	// What does not heal by waiting is said at once; a store that does not answer now may answer later.
	if err := p.publisher.Check(ctx); err != nil && cli.CodeOf(err, rules...) != cli.Unreachable {
		return err
	}
	p.say(event{Following: up.name, Store: p.store.URL()}, "following %s, publishing to %s", up.name, p.store.URL())
	var job *publish.Prepared // the one under way
	f := &distributor.Follower{
		Publisher: p.publisher, Tip: up.tip, Every: p.watch.every,
		Options: distributor.PublishOptions{RolloutNow: p.now, RemoveCohorts: p.removed},
		Open: func(ctx context.Context, commit string) (*distributor.Job, error) {
			repo, err := up.repo(ctx)
			if err != nil {
				return nil, err
			}
			if job, err = publish.Prepare(repo, commit, pipeline.Options{}); err != nil {
				return nil, err
			}
			job.Build = p.attributed(repo, job.Build)
			return &job.Job, nil
		},
		Done: func(commit string, res *distributor.Result, err error) { p.followed(ctx, job, commit, res, err) },
		Trouble: func(err error) {
			if err == nil {
				p.say(event{Recovered: true}, "it works again")
				return
			}
			p.say(event{Trouble: err.Error()}, "%s; trying on", err)
		},
	}
	wake, stop, err := p.listen(ctx)
	if err != nil {
		return err
	}
	defer stop()
	f.Wake = wake
	defer p.deliver(ctx)()
	return f.Run(ctx)
}

// event is one line of `publish --watch --json`.
type event struct {
	At        time.Time           `json:"at"`
	Following string              `json:"following,omitempty"`
	Store     string              `json:"store,omitempty"`
	Commit    string              `json:"commit,omitempty"`
	Published *distributor.Result `json:"published,omitempty"`
	Refused   string              `json:"refused,omitempty"` // why the commit is not published
	Trouble   string              `json:"trouble,omitempty"` // what hinders; it is tried on
	Recovered bool                `json:"recovered,omitempty"`
	GitHub    string              `json:"github,omitempty"` // what was told there, or could not be
}

// say prints one line, for people or for programs.
func (p *publishing) say(e event, format string, args ...any) {
	p.saying.Lock() // what is told on GitHub is told beside
	defer p.saying.Unlock()
	e.At = time.Now().UTC().Truncate(time.Second)
	if p.json {
		if line, err := json.Marshal(e); err == nil {
			fmt.Fprintf(p.out, "%s\n", line)
		}
		return
	}
	fmt.Fprintf(p.out, "%s  %s\n", e.At.Format(time.RFC3339), cli.Printable(fmt.Sprintf(format, args...)))
}

// followed tells what became of a commit.
func (p *publishing) followed(ctx context.Context, job *publish.Prepared, commit string, res *distributor.Result, err error) {
	var refused *publish.Refused
	p.hand(commit, res, err)
	switch {
	case errors.As(err, &refused):
		printProblems(p.errOut, refused.Problems)
		p.say(event{Commit: commit, Refused: err.Error()}, "commit %s is not valid: %s; nothing was published, waiting for the next commit", cli.Short(commit), countProblems(refused.Problems))
		return
	case err != nil:
		p.say(event{Commit: commit, Refused: err.Error()}, "%s; waiting for the next commit", err)
		return
	}
	p.tellCollector(ctx, res)
	p.printFound(job, res)
	for _, w := range res.Warnings {
		fmt.Fprintf(p.errOut, "muster: warning: %s\n", cli.Printable(w))
	}
	p.say(event{Commit: commit, Published: res}, "epoch %d is commit %s: %s (%s)", res.Epoch, cli.Short(commit), job.Commit.Subject, outcome(res))
	if p.json {
		return
	}
	for _, name := range res.Blocked {
		p.say(event{}, "%s", blockedLine(name, res.Cohorts[name].Epoch, res.Cohorts[name].Reason))
	}
}

// outcome is "built eu, us; assigned eu; blocked asia", or "nothing changed".
func outcome(res *distributor.Result) string {
	var parts []string
	for _, p := range []struct {
		word  string
		names []string
	}{{"built", res.Changed}, {"assigned", res.Assigned}, {"waits for its rollout", res.Waiting}, {"blocked", res.Blocked}} {
		if len(p.names) > 0 {
			parts = append(parts, p.word+" "+cli.Names(p.names, 10))
		}
	}
	switch {
	case res.Already:
		parts = append([]string{"published before"}, parts...)
	case parts == nil:
		return "nothing changed"
	}
	return strings.Join(parts, "; ")
}
