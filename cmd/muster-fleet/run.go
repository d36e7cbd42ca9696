package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/fleet"
	"github.com/muster-config/muster/cmd/internal/keydir"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/open"
)

func (f *flags) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if err := f.validate(); err != nil {
		return err
	}
	if f.names {
		for _, name := range f.list() {
			fmt.Fprintln(stdout, name)
		}
		return nil
	}
	began := time.Now()
	o, err := f.options(ctx, stderr)
	if err != nil {
		return err
	}
	var ln net.Listener
	if f.metrics != "" {
		if ln, err = (&net.ListenConfig{}).Listen(ctx, "tcp", f.metrics); err != nil {
			return cli.Fail(cli.Usage, "give --metrics a free address of this machine, such as 127.0.0.1:9464", "--metrics: %w", err)
		}
	}
	hosts, err := fleet.New(o)
	if err != nil {
		if ln != nil {
			ln.Close()
		}
		return cli.Fail(cli.Usage, "", "%w", err)
	}
	defer hosts.Close()
	said := stdout
	if f.json {
		said = stderr
	}
	fmt.Fprintf(said, "muster-fleet: %s of cohort %s, with %s, for %s\n", cli.Count(f.hosts, "host"), f.cohort, cli.Names(o.Services, 5), f.duration)
	if ln != nil {
		fmt.Fprintf(said, "muster-fleet: http://%s/metrics\n", ln.Addr())
	}
	until, end := context.WithTimeout(ctx, f.duration)
	defer end()
	ended := make(chan error, 2)
	if ln != nil {
		go func() { err := hosts.Serve(until, ln); end(); ended <- err }()
	} else {
		ended <- nil
	}
	go func() { err := hosts.Run(until); end(); ended <- err }()
	f.tell(until, began, hosts, said)
	err = errors.Join(<-ended, <-ended)
	fmt.Fprintf(said, "muster-fleet: ended after %s: %s\n", time.Since(began).Round(time.Second), hosts.Line())
	if f.json {
		err = errors.Join(err, cli.PrintJSON(stdout, hosts.Summary()))
	}
	return err
}

// tell says who runs what, each time that it has changed and at most once a second.
func (f *flags) tell(ctx context.Context, began time.Time, hosts *fleet.Fleet, out io.Writer) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if line := hosts.Line(); line != last {
			fmt.Fprintf(out, "%6.1fs  %s\n", time.Since(began).Seconds(), line)
			last = line
		}
	}
}

func (f *flags) options(ctx context.Context, stderr io.Writer) (fleet.Options, error) {
	o := fleet.Options{
		Hosts: f.list(), Cohort: f.cohort, Services: f.services, Poll: f.poll, Collector: f.collector, Client: api.ClientOptions{TokenFile: f.tokenFile, CAFile: f.caFile},
		Deaf: f.deaf, Down: f.down, DownFrom: f.downAfter, Refuse: f.refuse, Latency: f.latency, Requests: f.requests, Errors: f.errors, Seed: f.seed, Ramp: f.ramp,
		Version: "muster-fleet " + cli.Version,
	}
	if o.Ramp == 0 {
		o.Ramp = time.Duration(f.hosts) * time.Millisecond
	}
	if len(f.labels) > 0 {
		o.Labels = func(string) map[string]string { return f.labels }
	}
	if f.verbose {
		o.Log = slog.New(slog.NewTextHandler(stderr, nil))
	}
	if f.bad > 0 {
		harm := fleet.Harm{After: f.badAfter, ErrorRate: f.badErrors, Latency: f.badLatency, Ill: f.badIll, Restarts: f.badRestarts}
		if f.badRefused {
			harm.Refused = errors.New("exit status 1: not a configuration that this host can use")
		}
		o.Effect = func(_ string, epoch uint64, _ []bundle.File) fleet.Harm {
			if epoch == f.bad {
				return harm
			}
			return fleet.Harm{}
		}
	}
	var err error
	if o.Keyring, o.Repo, err = keydir.ReadKeyring(f.keyring); err != nil {
		return o, err
	}
	if f.store != "" {
		s, err := open.OpenRead(ctx, f.store)
		if err != nil {
			return o, cli.Fail(cli.Usage, "", "--store: %w", err)
		}
		o.Store = agent.StoreCarrier{Store: s}
	}
	if len(o.Services) == 0 {
		if o.Services, err = f.carried(ctx, o); err != nil {
			return o, err
		}
	}
	return o, nil
}

// carried are the services of the cohort's newest order.
func (f *flags) carried(ctx context.Context, o fleet.Options) ([]string, error) {
	c, err := api.NewClient(f.collector, o.Client)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	const hint = "publish a release, or name the services with --service"
	data, _, err := c.GetHead(ctx, f.cohort, manifest.Mark{}, 0)
	switch {
	case errors.Is(err, api.ErrNotFound):
		return nil, cli.Fail(cli.Usage, hint, "cohort %s has no order yet", f.cohort)
	case err != nil:
		return nil, err
	}
	trust, err := manifest.NewTrust(o.Repo, o.Keyring)
	if err != nil {
		return nil, err
	}
	_, view, err := trust.AcceptHead(f.cohort, data, time.Now())
	if err != nil {
		return nil, fmt.Errorf("the order of cohort %s: %w", f.cohort, err)
	}
	var names []string
	for _, st := range view.Statements {
		for name := range st.Evidence {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return nil, cli.Fail(cli.Usage, hint, "the order of cohort %s carries no service", f.cohort)
	}
	return names, nil
}
