package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/rollout/rehearse"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/pipeline"
)

// simulation is what `rollout simulate` is asked.
type simulation struct {
	hosts                    int
	list, storeURL, begin    string
	apply                    time.Duration
	refuse, back, mute, base string
	events                   float64
	runs                     int
	seed                     uint64
}

func (a *app) rolloutSimulateCmd() *cobra.Command {
	var e evaluation
	var s simulation
	cmd := &cobra.Command{
		Use:   "simulate COHORT",
		Short: "try a rollout policy on your hosts: waves, times, and what it would not see",
		Long: `Takes an imaginary release to a cohort under the policy of the files on disk (or of
--rev), with the rules of the real controller and imaginary hosts: how many hosts
each wave has, how long it takes, and how the rollout ends when hosts fail at the
rates given. Nothing is published, and nobody is asked.

Then it says of each gate and wave what it cannot see at that size: the smallest
factor on the base rate (or on the value) that the gate finds in 95 of 100 cases.

Hosts are those of the fleet's lists, its inventory file or --inventory; with --store
those that the collector wrote down there; or as many as --hosts says.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.simulate(cmd.Context(), args[0], e, s) },
	}
	e.flags(cmd)
	f := cmd.Flags()
	f.Var(fromOne[int]{to: &s.hosts, most: 10_000}, "hosts", "how many hosts, instead of those that are known")
	f.StringVar(&s.list, "inventory", "", "a CSV file of hosts (host,cohort,LABEL…)")
	f.StringVar(&s.storeURL, "store", "", "the store in which the collector wrote who is there")
	f.StringVar(&s.begin, "begin", "", "when the release is published; windows go by it (default now)")
	f.DurationVar(&s.apply, "apply", 10*time.Second, "how long a host takes to apply and confirm, half of it more or less")
	f.StringVar(&s.refuse, "refuse", "0%", "share of the hosts that refuse the release")
	f.StringVar(&s.back, "roll-back", "0%", "share of the hosts that take it and go back by themselves")
	f.StringVar(&s.mute, "silence", "0%", "share of the hosts that fall silent with it")
	s.runs = 100
	f.Var(fromOne[int]{to: &s.runs, most: 10_000}, "runs", "how often, with other hosts failing each time")
	f.Uint64Var(&s.seed, "seed", 1, "of the first run")
	f.Float64Var(&s.events, "events", 10, "requests of a host in a second, for what gates can see")
	f.StringVar(&s.base, "base", "0.1%", "share of them that is bad while all is well")
	return cmd
}

// foreseen is what `rollout simulate --json` prints.
type foreseen struct {
	Cohort string         `json:"cohort"`
	Policy string         `json:"policy"`
	Hosts  int            `json:"hosts"`
	From   string         `json:"from"` // where the hosts are from
	Waves  []foreseenWave `json:"waves"`
	TookS  float64        `json:"took_s"`
	WatchS float64        `json:"watch_s"`
	Gates  []foreseenGate `json:"gates"`
	Runs   *foreseenRuns  `json:"runs,omitempty"`
	Notes  []string       `json:"notes"`
}

type foreseenWave struct {
	Wave    int     `json:"wave"`
	Takes   string  `json:"takes"`
	Hosts   int     `json:"hosts"`
	BeginsS float64 `json:"begins_s"`
	ToldS   float64 `json:"told_s"` // when its last host was told
	OverS   float64 `json:"over_s"`
}

type foreseenGate struct {
	Gate  string     `json:"gate"`
	Asks  string     `json:"asks"`
	Sees  []*float64 `json:"sees"` // by wave: the smallest factor that it finds; null: none at that size
	Waves []string   `json:"-"`
}

type foreseenRuns struct {
	Runs     int            `json:"runs"`
	Ends     map[string]int `json:"ends"`
	Waves    map[int]int    `json:"waves"`   // of those that did not end well: at which wave
	Touched  int            `json:"touched"` // the most hosts that were told in one that did not end well
	SlowestS float64        `json:"slowest_s"`
	BackS    float64        `json:"back_s"` // the longest way back
	Why      string         `json:"why"`    // of the first that did not end well
}

func (a *app) simulate(ctx context.Context, cohort string, e evaluation, s simulation) error {
	rates := map[string]float64{}
	for flag, text := range map[string]string{"refuse": s.refuse, "roll-back": s.back, "silence": s.mute, "base": s.base} {
		v, err := shareOf(text)
		if err != nil {
			return cli.Fail(cli.Usage, "give it as 5% or 0.05", "--%s: %w", flag, err)
		}
		rates[flag] = v
	}
	begin := time.Now().UTC().Truncate(time.Second)
	if s.begin != "" {
		var err error
		if begin, err = time.Parse(time.RFC3339, s.begin); err != nil {
			return cli.Fail(cli.Usage, "a time is written 2026-12-01T08:00:00Z", "--begin %q is not a time", s.begin)
		}
	}
	switch {
	case s.apply <= 0 || s.apply > time.Hour:
		return cli.Fail(cli.Usage, "", "--apply %s is not above 0, and at most 1h", s.apply)
	case s.events <= 0:
		return cli.Fail(cli.Usage, "", "--events %g is not above 0", s.events)
	}
	r, err := a.evaluated(ctx, e)
	if err != nil {
		return err
	}
	fleet, ok := r.Policy.Cohorts[cohort]
	if !ok {
		return unknownCohort(cohort, slices.Collect(maps.Keys(r.Policy.Cohorts)))
	}
	hosts, from, err := s.known(ctx, r, cohort, fleet)
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		return cli.Fail(cli.Usage, "say how many with --hosts, or name them with --inventory", "nobody says how many hosts cohort %s has", cohort)
	}
	in := rehearse.Input{Cohort: cohort, Policy: r.Policy.Rollouts[fleet.Rollout], Hosts: hosts, Begin: begin, Apply: s.apply, Seed: s.seed}
	well, err := rehearse.Run(in)
	if err != nil {
		return err
	}
	out := &foreseen{Cohort: cohort, Policy: fleet.Rollout, Hosts: len(hosts), From: from, Waves: []foreseenWave{}, Gates: []foreseenGate{}, Notes: []string{}, TookS: well.Took.Seconds()}
	for _, w := range well.Waves {
		out.Waves = append(out.Waves, foreseenWave{w.Wave, w.Takes, w.Hosts, w.Begins.Seconds(), w.Told.Seconds(), w.Over.Seconds()})
	}
	if well.End != rehearse.Done {
		out.Notes = append(out.Notes, fmt.Sprintf("also a good release does not arrive: %s at wave %d: %s", well.End, well.Wave, well.Why))
	}
	if watch, err := time.ParseDuration(in.Policy.Watch); err == nil {
		out.WatchS = watch.Seconds()
	}
	if len(in.Policy.ApproveBefore) > 0 {
		out.Notes = append(out.Notes, "approvals come at once here")
	}
	out.Gates = seen(in.Policy, well, len(hosts), s.events, rates["base"])
	in.Refuse, in.RollBack, in.Silence = rates["refuse"], rates["roll-back"], rates["silence"]
	if in.Refuse+in.RollBack+in.Silence > 1 {
		return cli.Fail(cli.Usage, "", "--refuse, --roll-back and --silence are more than all hosts together")
	}
	if in.Refuse+in.RollBack+in.Silence > 0 {
		if out.Runs, err = s.fail(ctx, in); err != nil {
			return err
		}
	}
	if a.json {
		return cli.PrintJSON(a.out, out)
	}
	a.printForeseen(out, s)
	return nil
}

// evaluated reads the fleet's policy.
func (a *app) evaluated(ctx context.Context, e evaluation) (*pipeline.Rendered, error) {
	repo, err := a.repo()
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	t, err := tree(repo, e.rev)
	if err != nil {
		return nil, err
	}
	r, err := a.evaluate(ctx, t, e, pipeline.Options{CheckOnly: true})
	if err != nil {
		return nil, err
	}
	if r.Policy.Cohorts == nil {
		printProblems(a.errOut, onlyErrors(r.Problems))
		return nil, cli.Fail(cli.No, "", "the fleet is not valid: %s", countProblems(r.Problems))
	}
	return r, nil
}

// known are the hosts to try it on, and where they are from.
func (s *simulation) known(ctx context.Context, r *pipeline.Rendered, cohort string, fleet manifest.CohortPolicy) (hosts []rehearse.Host, from string, err error) {
	if s.hosts > 0 {
		return numbered(s.hosts), "--hosts", nil
	}
	if s.storeURL != "" {
		return stored(ctx, s.storeURL, cohort)
	}
	opts, err := readInventory(s.list)
	if err != nil {
		return nil, "", err
	}
	list, from := opts.Inventory, s.list
	if list == nil && r.Policy.Inventory != nil && r.Policy.Inventory.File != "" {
		from = path.Clean(r.Policy.Inventory.File)
		for _, f := range r.Source {
			if f.Path == from {
				if list, err = inventory.ParseCSV(f.Data); err != nil {
					return nil, "", cli.Fail(cli.No, "", "inventory %s: %w", from, err)
				}
			}
		}
	}
	had := map[string]bool{}
	for _, h := range list {
		if h.Cohort == cohort && (len(fleet.Hosts.Match) == 0 || inventory.Matches(fleet.Hosts.Match, h.Labels)) {
			hosts = append(hosts, rehearse.Host{Name: h.Name, Labels: h.Labels})
			had[h.Name] = true
		}
	}
	if len(hosts) == 0 {
		from = "the fleet's list"
	}
	for _, name := range fleet.Hosts.List {
		if !had[name] {
			hosts = append(hosts, rehearse.Host{Name: name})
		}
	}
	if e := fleet.Hosts.Expect; len(hosts) == 0 && e != nil {
		return numbered(e.Max), "the number that the fleet expects", nil
	}
	return hosts, from, nil
}

func numbered(n int) []rehearse.Host {
	hosts := make([]rehearse.Host, n)
	for i := range hosts {
		hosts[i].Name = fmt.Sprintf("host-%05d", i+1)
	}
	return hosts
}

// stored are the hosts that a collector wrote down.
func stored(ctx context.Context, url, cohort string) ([]rehearse.Host, string, error) {
	st, err := open.OpenRead(ctx, url)
	if err != nil {
		return nil, "", cli.Fail(codeOr(err, cli.Usage), storeHint(url), "%w", err)
	}
	obj, err := st.Get(ctx, manifest.KeyInventory, inventory.MaxBytes)
	if err != nil {
		return nil, "", fmt.Errorf("read %s, which a collector writes: %w", manifest.KeyInventory, err)
	}
	doc, err := inventory.ParseDocument(obj.Data)
	if err != nil {
		return nil, "", cli.Fail(cli.NotTrusted, "", "%s: %w", manifest.KeyInventory, err)
	}
	var hosts []rehearse.Host
	for _, h := range doc.Cohorts[cohort].Hosts {
		hosts = append(hosts, rehearse.Host{Name: h.Host, Labels: h.Labels})
	}
	return hosts, fmt.Sprintf("the collector, at %s", at(doc.At)), nil
}

// fail runs it often, with hosts that fail.
func (s *simulation) fail(ctx context.Context, in rehearse.Input) (*foreseenRuns, error) {
	out := &foreseenRuns{Ends: map[string]int{}, Waves: map[int]int{}}
	for i := range s.runs {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		in.Seed = s.seed + uint64(i)
		got, err := rehearse.Run(in)
		if err != nil {
			return nil, err
		}
		out.Runs++
		out.Ends[got.End]++
		if got.End == rehearse.Done {
			continue
		}
		out.Waves[got.Wave]++
		out.Touched = max(out.Touched, got.Touched)
		out.SlowestS, out.BackS = max(out.SlowestS, got.Took.Seconds()), max(out.BackS, got.Back.Seconds())
		if out.Why == "" {
			out.Why = got.Why
		}
	}
	return out, nil
}

// seen is what each gate finds in each wave.
func seen(p manifest.RolloutPolicy, well *rehearse.Result, n int, events, base float64) []foreseenGate {
	list := []foreseenGate{}
	for _, name := range slices.Sorted(maps.Keys(p.Gates)) {
		g := p.Gates[name]
		out := foreseenGate{Gate: name, Asks: standing.Asks(g), Sees: []*float64{}}
		for _, w := range well.Waves {
			bake := rollout.Bake(&p, w.Wave)
			text := "does not bake"
			var sees *float64
			if bake > 0 {
				text = "nothing"
				if f := gate.Detectable(g, gate.Size{Canary: w.Hosts, Control: n - w.Hosts, Events: events, Base: base, Bake: bake}); !math.IsInf(f, 0) && !math.IsNaN(f) {
					sees, text = &f, strconv.FormatFloat(f, 'f', 1, 64)+" ×"
				}
			}
			out.Sees, out.Waves = append(out.Sees, sees), append(out.Waves, text)
		}
		list = append(list, out)
	}
	return list
}

func (a *app) printForeseen(out *foreseen, s simulation) {
	line := func(format string, args ...any) { fmt.Fprintln(a.out, cli.Printable(fmt.Sprintf(format, args...))) }
	seconds := func(s float64) string {
		text := cli.Elapsed(time.Duration(s * float64(time.Second)))
		if rest, ok := strings.CutSuffix(text, "m0s"); ok {
			text = rest + "m"
		}
		return text
	}
	line("%s: policy %s on %s (%s)", out.Cohort, out.Policy, cli.Count(out.Hosts, "host"), out.From)
	fmt.Fprintln(a.out)
	rows := [][]string{{"WAVE", "TAKES", "HOSTS", "BEGINS", "ALL TOLD", "OVER"}}
	for _, w := range out.Waves {
		rows = append(rows, []string{strconv.Itoa(w.Wave), w.Takes, cli.Number(w.Hosts), seconds(w.BeginsS), seconds(w.ToldS), seconds(w.OverS)})
	}
	cli.PrintTable(a.out, rows)
	line("in all %s, then watched for %s", seconds(out.TookS), seconds(out.WatchS))
	for _, n := range out.Notes {
		line("%s", n)
	}
	if len(out.Gates) > 0 {
		fmt.Fprintln(a.out)
		line("what a gate sees, at %g requests of a host in a second of which %s are bad while all is well:", s.events, s.base)
		head := []string{"GATE"}
		for _, w := range out.Waves {
			head = append(head, fmt.Sprintf("WAVE %d", w.Wave))
		}
		table := [][]string{append(head, "ASKS")}
		for _, g := range out.Gates {
			table = append(table, append(append([]string{g.Gate}, g.Waves...), g.Asks))
		}
		cli.PrintTable(a.out, table)
		line("(the smallest factor on what is usual that it finds in 95 of 100 cases: less than that may pass)")
	} else {
		fmt.Fprintln(a.out)
		line("the policy has no gates: only hosts that refuse, go back or fall silent stop a rollout")
	}
	if r := out.Runs; r != nil {
		fmt.Fprintln(a.out)
		line("with %s of the hosts refusing, %s going back and %s falling silent, in %s:", s.refuse, s.back, s.mute, cli.Count(r.Runs, "run"))
		for _, end := range slices.Sorted(maps.Keys(r.Ends)) {
			line("  %s: %d", end, r.Ends[end])
		}
		if bad := r.Runs - r.Ends[rehearse.Done]; bad > 0 {
			var at []string
			for _, w := range slices.Sorted(maps.Keys(r.Waves)) {
				at = append(at, fmt.Sprintf("%d at wave %d", r.Waves[w], w))
			}
			line("  those that did not end well: %s; at most %s told; found after at most %s, back after at most %s more", strings.Join(at, ", "), cli.Count(r.Touched, "host"), seconds(r.SlowestS), seconds(r.BackS))
			line("  such as: %s", r.Why)
		}
	}
}

// shareOf reads "5%" or "0.05".
func shareOf(s string) (float64, error) {
	digits, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(digits, 64)
	if percent {
		v /= 100
	}
	if err != nil || v < 0 || v > 1 || math.IsNaN(v) {
		return 0, fmt.Errorf("%q is not a share", s)
	}
	return v, nil
}
