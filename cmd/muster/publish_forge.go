package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/delivery"
	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/source"
)

// Patience with GitHub: whoever publishes once waits little, a follower has time.
const (
	oncePatience   = 30 * time.Second
	followPatience = 2 * time.Minute
)

func (p *publishing) forgeFlags(cmd *cobra.Command) {
	p.forge.flags(cmd, ": who proposed and approved a commit goes into its release, and with --watch and --collector what becomes of it is told there [MUSTER_GITHUB]")
	cmd.Flags().StringVar(&p.per, "deployments", string(delivery.PerEnv), "with --github: a deployment for each env (label), each cohort, or none")
	cmd.Flags().BoolVar(&p.noPull, "no-revert", false, "with --github: make no pull request that takes back what was rolled back")
}

// openForge opens GitHub, if it is asked for.
func (p *publishing) openForge(cmd *cobra.Command) error {
	if p.forge.repo == "" {
		p.forge.repo = os.Getenv("MUSTER_GITHUB")
	}
	if p.forge.repo == "" {
		for _, name := range []string{"github-api", "github-token-file", "github-app", "github-app-key", "github-installation", "deployments", "no-revert"} {
			if cmd.Flags().Changed(name) {
				return cli.Fail(cli.Usage, "add --github OWNER/NAME, or leave it out", "--%s goes with --github", name)
			}
		}
		return nil
	}
	if err := oneOf("deployments", p.per, string(delivery.PerEnv), string(delivery.PerCohort), string(delivery.PerNone)); err != nil {
		return err
	}
	patience := oncePatience
	if p.watch.on {
		patience = followPatience
	}
	var err error
	if p.github, err = p.forge.client(patience); err != nil {
		return err
	}
	if p.github == nil {
		return cli.Fail(cli.Usage, "set GITHUB_TOKEN, or give --github-token-file, or --github-app and --github-app-key", "--github needs a token")
	}
	return nil
}

// sayCalls says what it took of GitHub.
func (p *publishing) sayCalls() {
	if p.github != nil {
		fmt.Fprintf(p.errOut, "muster: note: %s\n", p.github.Calls())
	}
}

// attributed is build with the attribution of its commit.
func (p *publishing) attributed(repo *source.Repo, build distributor.BuildFunc) distributor.BuildFunc {
	a := &attribution{branch: p.watch.branch, repo: repo, warn: func(text string) { fmt.Fprintf(p.errOut, "muster: warning: %s\n", cli.Printable(text)) }}
	if p.github != nil {
		a.forge = p.github.Aside() // not behind what is told of deliveries, which may wait for a limit
	}
	return a.around(build)
}

// deliver begins to tell on GitHub what becomes of releases, beside the publishing. The function that it gives waits for its end.
func (p *publishing) deliver(ctx context.Context) (wait func()) {
	if p.github == nil {
		return func() {}
	}
	if !p.conn.given() {
		fmt.Fprintln(p.errOut, "muster: note: nothing is told on GitHub: only a collector knows what became of a release; give --collector")
		return func() {}
	}
	client, err := p.conn.open()
	if err != nil {
		fmt.Fprintf(p.errOut, "muster: warning: nothing is told on GitHub: %s\n", cli.Printable(err.Error()))
		return func() {}
	}
	p.deliverer = delivery.New(delivery.Config{
		Forge: p.github, Collector: client, Load: p.load, Branch: p.watch.branch, Per: delivery.Per(p.per), Revert: !p.noPull, URL: client.URL(),
		Say: func(text string) { p.say(event{GitHub: text}, "%s", text) },
	})
	var running sync.WaitGroup
	running.Go(func() { p.deliverer.Run(ctx) })
	return running.Wait
}

// load reads a release from the store.
func (p *publishing) load(ctx context.Context, epoch uint64) (*manifest.Release, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	h, err := distributor.OpenHistory(ctx, p.store, p.keys.ring, time.Now())
	if err != nil {
		return nil, err
	}
	d, err := h.Release(ctx, epoch)
	if err != nil {
		return nil, err
	}
	return d.Release, nil
}

// hand gives what became of a commit to whoever tells it.
func (p *publishing) hand(commit string, res *distributor.Result, err error) {
	switch {
	case p.deliverer == nil:
	case err == nil:
		p.deliverer.Published(res.Epoch)
	case errors.Is(err, distributor.ErrRefused):
		p.deliverer.Refused(commit, whyRefused(err))
	}
}

// tellRefused says on the commit that it was refused, when nobody follows. It waits a moment, not more.
func (p *publishing) tellRefused(ctx context.Context, commit string, err error) {
	if p.github == nil || !errors.Is(err, distributor.ErrRefused) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, attributing)
	defer cancel()
	serr := p.github.Status(ctx, commit, forge.Status{Context: delivery.Context, State: forge.Bad, Description: "refused: " + whyRefused(err)})
	if serr != nil && !errors.Is(serr, context.Canceled) {
		fmt.Fprintf(p.errOut, "muster: warning: the refusal is not told on GitHub: %s\n", forgeNote(serr))
	}
}

// whyRefused is why a commit was refused, in a line that begins with what matters.
func whyRefused(err error) string {
	var invalid *publish.Refused
	if errors.As(err, &invalid) {
		return "not valid: " + countProblems(invalid.Problems)
	}
	text := err.Error()
	if _, why, ok := strings.Cut(text, distributor.ErrRefused.Error()+": "); ok {
		return why
	}
	return text
}
