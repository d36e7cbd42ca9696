package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/manifest"
)

// flags are how the user wants the fleet.
type flags struct {
	collector, tokenFile, caFile, store, keyring, cohort, prefix, metrics string
	services                                                              []string
	labels                                                                map[string]string
	hosts                                                                 int
	poll, duration, ramp                                                  time.Duration
	seed                                                                  uint64
	names, json, verbose                                                  bool

	deaf, down, refuse   int
	downAfter, latency   time.Duration
	requests, errors     float64
	bad                  uint64
	badErrors            float64
	badLatency, badAfter time.Duration
	badIll, badRefused   bool
	badRestarts          time.Duration
}

// add gives the command its flags.
func (f *flags) add(cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	s := cmd.Flags()
	s.IntVar(&f.hosts, "hosts", 10, "number of hosts")
	s.StringVar(&f.prefix, "prefix", "sim", "hosts are called PREFIX-0000, PREFIX-0001 …")
	s.BoolVar(&f.names, "names", false, "print the hosts' names, one a line, and end")
	s.StringVar(&f.cohort, "cohort", "", "their cohort")
	s.StringToStringVar(&f.labels, "label", nil, "a label that all of them have, as role=web")
	s.StringSliceVar(&f.services, "service", nil, "a service that runs on them; default: all that the cohort's newest order carries")
	s.StringVar(&f.keyring, "keyring", "", "keyring.json, where their trust begins")
	s.StringVar(&f.collector, "collector", os.Getenv("MUSTER_COLLECTOR"), "URL of the collector")
	s.StringVar(&f.tokenFile, "token-file", os.Getenv("MUSTER_TOKEN_FILE"), "file with the agents' token")
	s.StringVar(&f.caFile, "ca-file", "", "certificates that sign the collector's")
	s.StringVar(&f.store, "store", "", "URL of the store, as their second source; default: the collector alone")
	s.DurationVar(&f.poll, "poll", 0, "as in agent.yaml; default 1m")
	s.DurationVar(&f.duration, "for", time.Hour, "how long they run, up to 24h")
	s.DurationVar(&f.ramp, "ramp", 0, "time over which they start; default: a millisecond each")
	s.StringVar(&f.metrics, "metrics", "", "address for Prometheus, as 127.0.0.1:9464")
	s.Uint64Var(&f.seed, "seed", 1, "of all chance")
	s.BoolVar(&f.json, "json", false, "print at the end what every host did")
	s.BoolVar(&f.verbose, "verbose", false, "log what the agents log")
	s.IntVar(&f.deaf, "deaf", 0, "hosts whose processes do not hear reloads")
	s.IntVar(&f.down, "down", 0, "hosts that are down")
	s.DurationVar(&f.downAfter, "down-after", 0, "these go down so long after the start; default: they never come up")
	s.IntVar(&f.refuse, "refuse", 0, "hosts whose own check refuses every release but their first")
	s.DurationVar(&f.latency, "latency", 2*time.Millisecond, "time that a process takes to answer")
	s.Float64Var(&f.requests, "requests", 20, "requests a second that each host's product serves")
	s.Float64Var(&f.errors, "error-rate", 0.001, "share of them that fails, whatever runs")
	s.Uint64Var(&f.bad, "bad-epoch", 0, "the release that does harm; default: none")
	s.Float64Var(&f.badErrors, "bad-error-rate", 0.2, "share of requests that fail where it runs")
	s.DurationVar(&f.badLatency, "bad-latency", 0, "time that processes take longer to answer where it runs")
	s.DurationVar(&f.badAfter, "bad-after", 0, "the harm begins so long after a process loaded it")
	s.BoolVar(&f.badIll, "bad-ill", false, "processes that run it answer nobody")
	s.BoolVar(&f.badRefused, "bad-refused", false, "the hosts' own checks refuse it")
	s.DurationVar(&f.badRestarts, "bad-restarts", 0, "processes that run it crash, and start anew so often")
}

// maxHosts bounds --hosts.
const maxHosts = 100_000

// list is the hosts' names.
func (f *flags) list() []string {
	names := make([]string, f.hosts)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%04d", f.prefix, i)
	}
	return names
}

func (f *flags) validate() error {
	fail := func(format string, args ...any) error {
		return cli.Fail(cli.Usage, "`muster-fleet run --help` lists the flags", format, args...)
	}
	share := func(v float64) bool { return v >= 0 && v <= 1 }
	switch {
	case f.hosts < 1 || f.hosts > maxHosts:
		return fail("--hosts %d is not between 1 and %d", f.hosts, maxHosts)
	case !manifest.ValidHost(f.prefix + "-0000"):
		return fail("--prefix %q does not begin a host name", f.prefix)
	case f.names:
		return nil
	case f.cohort == "":
		return fail("--cohort is missing")
	case !manifest.ValidName(f.cohort):
		return fail("--cohort %q is not a cohort name", f.cohort)
	case f.keyring == "":
		return fail("--keyring is missing")
	case f.collector == "":
		return fail("--collector is missing")
	case f.duration <= 0 || f.duration > 24*time.Hour:
		return fail("--for %s is not above 0 and up to 24h", f.duration)
	case f.poll != 0 && f.poll < agent.MinPoll:
		return fail("--poll %s is below the least, %s", f.poll, agent.MinPoll)
	case f.deaf < 0 || f.down < 0 || f.refuse < 0 || f.deaf+f.down+f.refuse > f.hosts:
		return fail("--deaf, --down and --refuse are together more than the %s, or below 0", cli.Count(f.hosts, "host"))
	case !share(f.errors) || !share(f.badErrors):
		return fail("--error-rate and --bad-error-rate are shares between 0 and 1")
	case f.requests < 0 || f.requests > 1e6:
		return fail("--requests %g is not between 0 and 1000000", f.requests)
	case f.latency < 0 || f.badLatency < 0 || f.badAfter < 0 || f.badRestarts < 0 || f.downAfter < 0 || f.ramp < 0:
		return fail("a duration is below 0")
	}
	return nil
}
