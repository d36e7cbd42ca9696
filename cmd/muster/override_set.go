package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline"
)

// overrideSet is one call of `override set`.
type overrideSet struct {
	operating
	evaluation
	outing
	cohorts, labels, hosts []string
	file, reason, ttl, id  string
	now, yes               bool
	timeout                time.Duration
}

func (a *app) overrideSetCmd() *cobra.Command {
	var s overrideSet
	cmd := &cobra.Command{
		Use:   "set [SERVICE [PATH=VALUE…]]",
		Short: "lay values over those of the config repo, on some cohorts or hosts, for a time",
		Long: `Lays values over those of the config repo, above every layer, until --ttl is over:

  muster override set --cohort 'prod-*' checkout timeout_ms=5000 --reason INC-311 --ttl 2h

A value is written as in YAML; null removes what the layers give. With --file the
values come from a layer file of SERVICE, or of several services, whose names stand
at its top level. They are validated like every layer, against what the cohorts run:
what does not validate is refused, and there is no switch for that. It takes the
operator key and the store: no forge, no CI, no collector.

It shows what will change, and asks for the word yes. Then it goes to one host
first, and when the collector says that this host confirms it, to the others, no
more at once than the rollout policy's max_in_flight. A host that refuses it, or
goes back, ends it. With --now it goes to all at once, and the record says so.

Every release that is published meanwhile carries it along. A commit under which it
no longer validates is blocked for that cohort, until either is changed.

Without a store --out FILE writes it into a file that "muster-agent apply --from FILE"
takes on each host. It is laid over what --head says, with the sources from the clone
of the config repo (-C), which must give exactly what the cohort runs. Validation and
the operator key's bounds are the same. With a store again, --from FILE sets it there.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.overrideSet(cmd.Context(), &s, args) },
	}
	s.operating.flags(cmd)
	s.outing.flags(cmd)
	cmd.Flags().StringSliceVar(&s.cohorts, "cohort", nil, "cohorts, also as patterns: 'prod-*'")
	cmd.Flags().StringSliceVar(&s.labels, "label", nil, "cohorts with this label, as in env=prod; several must all fit")
	cmd.Flags().StringSliceVar(&s.hosts, "host", nil, "only these hosts")
	cmd.Flags().StringVar(&s.file, "file", "", "the values, as a layer file (YAML, JSON, TOML)")
	cmd.Flags().StringVar(&s.reason, "reason", "", "why, for those who ask later")
	cmd.Flags().StringVar(&s.ttl, "ttl", "", "how long it lasts, as in 2h")
	cmd.Flags().StringVar(&s.id, "id", "", "its name, such as the incident's; made up if left out")
	cmd.Flags().BoolVar(&s.now, "now", false, "all hosts at once, without trying it on one first")
	cmd.Flags().BoolVar(&s.yes, "yes", false, "do not ask")
	cmd.Flags().DurationVar(&s.timeout, "timeout", 5*time.Minute, "how long hosts may take to confirm it, each step")
	cmd.Flags().BoolVar(&s.noCache, "no-cache", false, "evaluate everything anew")
	return cmd
}

// overrideDone is `override set --json`.
type overrideDone struct {
	ID       string                        `json:"id"`
	Epoch    uint64                        `json:"epoch"`
	NotAfter time.Time                     `json:"not_after"`
	Cohorts  map[string]overrideDoneCohort `json:"cohorts"`
}

type overrideDoneCohort struct {
	State     string   `json:"state"` // in force, stopped (some hosts have it), ended (a host refused it)
	Hosts     []string `json:"hosts"` // that it is for; empty: the whole cohort
	Confirmed int      `json:"confirmed"`
	Why       string   `json:"why,omitempty"`
}

func (a *app) overrideSet(ctx context.Context, s *overrideSet, args []string) error {
	var apart *manifest.VerifiedOverride
	var patches []manifest.Patch
	if s.from != "" {
		var err error
		if apart, patches, err = s.broughtBack(ctx, args); err != nil {
			return err
		}
	}
	ttl, err := s.check(args)
	if err != nil {
		return err
	}
	if s.from == "" {
		if patches, err = s.patches(args); err != nil {
			return err
		}
	}
	if s.out != "" {
		return a.overrideOut(ctx, s, patches)
	}
	o, st, err := s.operating.open(ctx)
	if errors.Is(err, api.ErrUnreachable) {
		return withoutCollector(err, "with --now it is set in the store; with the store gone too: --head and --out FILE, for `muster-agent apply --from FILE`")
	}
	if code := codeOr(err, cli.Local); err != nil && code == cli.Unreachable {
		return cli.Fail(code, "with the bucket gone, --head and --out FILE make it for `muster-agent apply --from FILE`, host by host; else check --store", "%w", err)
	}
	if err != nil {
		return err
	}
	newest, err := o.Newest(ctx)
	if err != nil {
		return err
	}
	if newest == nil {
		return cli.Fail(cli.No, "publish a commit first", "nothing was published yet: there is nothing to override")
	}
	hosts, err := s.selected(newest)
	if err != nil {
		return err
	}
	if err := s.known(ctx, newest, hosts); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		if err := o.May(name, ttl); err != nil {
			return cli.Fail(cli.NotTrusted, "take the key of somebody who may, or a shorter --ttl", "%w", err)
		}
	}
	if apart != nil && s.id == "" {
		if err := s.nameAgain(ctx, o, apart.ID); err != nil {
			return err
		}
	}
	if err := s.fresh(ctx, o); err != nil {
		return err
	}
	layered, err := a.layerOver(ctx, s, o, hosts, patches)
	if err != nil {
		return err
	}
	order := map[string][]string{}
	for name, l := range layered {
		if order[name], err = s.steps(ctx, l); errors.Is(err, api.ErrUnreachable) {
			return cli.Fail(codeOr(err, cli.Unreachable), "--now sets it on all hosts at once, without the collector, and lets the record say so", "it cannot be tried on one host first: %w", err)
		}
		if err != nil {
			return err
		}
	}
	if err := a.showOverride(ctx, layered, s, ttl); err != nil {
		return err
	}
	if err := a.askYes(s.yes); err != nil {
		return err
	}
	change := distributor.Change{ID: s.id, Author: whoami(), Reason: s.reason, TTL: ttl, Cohorts: map[string]distributor.ChangeOf{}}
	if s.now {
		change.Reason += " (--now: all hosts at once)"
	}
	for name, l := range layered {
		change.Cohorts[name] = distributor.ChangeOf{Hosts: hosts[name], Patches: l.patches, Commit: l.base.Release.Commit, Over: l.base.Plain.Epoch}
	}
	made, err := o.Make(ctx, change, func(ctx context.Context, epoch uint64) (map[string]distributor.CohortBuild, error) {
		builds := map[string]distributor.CohortBuild{}
		for name, l := range layered {
			b, err := publish.Overridden(ctx, l.rendered, name, l.stack, epoch, &l.base.Plain, o.Index(l.base))
			var misfit *publish.Misfit
			if errors.As(err, &misfit) {
				return nil, cli.Fail(cli.No, "", "the override is not valid for cohort %s: %s; nothing was changed", name, misfit.Reason)
			}
			if err != nil {
				return nil, err
			}
			builds[name] = *b
		}
		return builds, nil
	})
	if err != nil {
		return err
	}
	if err := a.spreadOverride(ctx, s, o, st, made, layered, order); err != nil || apart == nil {
		return err
	}
	return a.endApart(ctx, s, o, apart)
}

// check is about what can be told before anything is read.
func (s *overrideSet) check(args []string) (time.Duration, error) {
	switch {
	case len(args) == 0 && s.file == "" && s.from == "":
		return 0, cli.Fail(cli.Usage, "as in: muster override set --cohort prod checkout timeout_ms=5000 --reason INC-311 --ttl 2h", "say what to change: a service with PATH=VALUE, or --file")
	case len(args) > 1 && s.file != "":
		return 0, cli.Fail(cli.Usage, "", "PATH=VALUE and --file exclude each other")
	case len(args) == 1 && s.file == "":
		return 0, cli.Fail(cli.Usage, "give PATH=VALUE after the service, as in timeout_ms=5000, or --file", "say what to change in %s", cli.Printable(args[0]))
	case len(s.cohorts) == 0 && len(s.labels) == 0 && len(s.hosts) == 0 && s.out == "":
		return 0, cli.Fail(cli.Usage, "give --cohort, --label or --host", "say where")
	case strings.TrimSpace(s.reason) == "":
		return 0, cli.Fail(cli.Usage, "say why with --reason: it is kept, and shown to those who ask later", "--reason is missing")
	case !utf8.ValidString(s.reason) || strings.ContainsFunc(s.reason, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }):
		// An order does not carry it, and that would show only after the release was written.
		return 0, cli.Fail(cli.Usage, "write it in one line of plain text", "--reason carries a control character, or is not UTF-8")
	case len(s.reason) > 1000:
		return 0, cli.Fail(cli.Usage, "", "--reason is longer than 1000 bytes")
	case s.id != "" && !manifest.ValidName(s.id):
		return 0, cli.Fail(cli.Usage, "small letters, digits, - and _, as in inc-311", "--id %q is not a name", s.id)
	case s.out != "" && s.head == "":
		return 0, cli.Fail(cli.Usage, "`muster-agent status --head > head.json` on a host of the cohort, then --head head.json; or --head collector", "--out goes without a store, so it needs --head: what the cohort is to run")
	case s.out == "" && s.head != "":
		return 0, cli.Fail(cli.Usage, "with a store the head is read from there", "--head goes with --out")
	case s.out == "" && !s.now && !s.conn.given():
		return 0, cli.Fail(cli.Usage, "give --collector, which says when the first host confirms it; or --now, which goes to all hosts at once and lets the record say so",
			"without a collector it cannot be tried on one host first")
	}
	return ttlOf(s.ttl)
}

func (s *overrideSet) patches(args []string) ([]manifest.Patch, error) {
	if s.file == "" {
		values, err := eval.Patch(args[1:])
		if err != nil {
			return nil, cli.Fail(cli.Usage, "a setting is written timeout_ms=5000; null removes", "%w", err)
		}
		return []manifest.Patch{{Service: args[0], Values: values}}, nil
	}
	f, err := os.Open(s.file)
	if err != nil {
		return nil, cli.Fail(cli.Usage, "", "--file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, manifest.MaxSmallBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > manifest.MaxSmallBytes {
		return nil, cli.Fail(cli.Usage, "", "--file %s is larger than %d bytes", s.file, manifest.MaxSmallBytes)
	}
	if len(args) == 1 {
		values, err := eval.PatchFile(s.file, data)
		if err != nil {
			return nil, cli.Fail(cli.No, "", "%w", err)
		}
		return []manifest.Patch{{Service: args[0], Values: values}}, nil
	}
	all, err := eval.PatchFiles(s.file, data)
	if err != nil {
		return nil, cli.Fail(cli.No, "", "%w", err)
	}
	var list []manifest.Patch
	for _, service := range slices.Sorted(maps.Keys(all)) {
		list = append(list, manifest.Patch{Service: service, Values: all[service]})
	}
	return list, nil
}

// selected are the cohorts that the user means, each with the hosts, none for all.
func (s *overrideSet) selected(newest *manifest.Release) (map[string][]string, error) {
	known := slices.Sorted(maps.Keys(newest.Policy.Cohorts))
	out := map[string][]string{}
	for _, pattern := range s.cohorts {
		any := false
		for _, name := range known {
			ok, err := path.Match(pattern, name)
			if err != nil {
				return nil, cli.Fail(cli.Usage, "* and ? stand for letters", "--cohort %q is not a pattern", pattern)
			}
			if ok {
				any, out[name] = true, nil
			}
		}
		if !any {
			return nil, unknownCohort(pattern, known)
		}
	}
	if len(s.labels) > 0 {
		fits := map[string]bool{}
		for _, name := range known {
			fits[name] = len(s.cohorts) == 0 || slices.Contains(slices.Collect(maps.Keys(out)), name)
		}
		for _, l := range s.labels {
			k, v, ok := strings.Cut(l, "=")
			if !ok {
				return nil, cli.Fail(cli.Usage, "a label is written env=prod", "--label %q has no value", l)
			}
			for _, name := range known {
				fits[name] = fits[name] && newest.Policy.Cohorts[name].Labels[k] == v
			}
		}
		out = map[string][]string{}
		for _, name := range known {
			if fits[name] {
				out[name] = nil
			}
		}
		if len(out) == 0 {
			return nil, cli.Fail(cli.Usage, "`muster status` lists the cohorts", "no cohort has %s", cli.Names(s.labels, 5))
		}
	}
	if len(s.hosts) == 0 {
		return out, nil
	}
	for _, h := range s.hosts {
		if !manifest.ValidHost(h) {
			return nil, cli.Fail(cli.Usage, "", "--host %q is not a host name", h)
		}
	}
	if len(out) == 0 {
		for _, h := range s.hosts {
			any := false
			for _, name := range known {
				if slices.Contains(newest.Policy.Cohorts[name].Hosts.List, h) {
					any, out[name] = true, append(out[name], h)
				}
			}
			if !any {
				return nil, cli.Fail(cli.Usage, "give --cohort too", "no cohort's list of hosts has %s, so that its cohort is not known", h)
			}
		}
	} else if len(out) > 1 {
		return nil, cli.Fail(cli.Usage, "give the one cohort that they are in", "--host with several cohorts")
	} else {
		for name := range out {
			out[name] = slices.Clone(s.hosts)
		}
	}
	for name := range out {
		slices.Sort(out[name])
		out[name] = slices.Compact(out[name])
	}
	return out, nil
}

// known refuses hosts that are not there: by the cohort's list, or else, where it lists none, by what the collector has heard of. That one is not to be asked, or is down, is no reason
// to refuse: this is for emergencies.
func (s *overrideSet) known(ctx context.Context, newest *manifest.Release, hosts map[string][]string) error {
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		if len(hosts[name]) == 0 {
			continue
		}
		list := newest.Policy.Cohorts[name].Hosts.List
		if len(list) == 0 {
			if !s.conn.given() {
				continue
			}
			var cerr *cli.Error
			if _, err := s.conn.runs(ctx, name, hosts[name]); errors.As(err, &cerr) {
				return err // of a host that it does not know
			}
			continue
		}
		for _, h := range hosts[name] {
			if !slices.Contains(list, h) {
				return unknownHost(h, name, list)
			}
		}
	}
	return nil
}

// fresh gives the override its id, which no other that acts has.
func (s *overrideSet) fresh(ctx context.Context, o *distributor.Operator) error {
	if s.id == "" {
		var b [3]byte
		rand.Read(b[:]) // never fails
		s.id = fmt.Sprintf("o-%s-%s", time.Now().UTC().Format("0102-1504"), hex.EncodeToString(b[:]))
		return nil
	}
	found, err := o.Overrides(ctx)
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.ID == s.id {
			return cli.Fail(cli.No, "take another --id, or end that one first", "override %s acts already, on cohort %s by %s: %s", s.id, f.Cohort, f.Author, f.Reason)
		}
	}
	views, err := o.Heads(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(views)) {
		if t := distributor.Taken(views[name], s.id, time.Now()); t != nil {
			return cli.Fail(cli.No, "take another --id", "override %s acted on cohort %s and was ended; hosts keep that until %s, so that another of this name would act nowhere", s.id, name, t.NotAfter.UTC().Format(time.RFC3339))
		}
		if distributor.Spent(views[name], s.id, time.Now()) {
			return cli.Fail(cli.No, "take another --id", "override %s was used before on cohort %s: another of this name would act on no host that its end took out", s.id, name)
		}
	}
	return nil
}

// askYes asks for the word.
func (a *app) askYes(yes bool) error { return a.askWord(yes, "set it", "not set: nothing was changed") }

// layered is an override of one cohort, laid over what the cohort runs.
type layered struct {
	base     *distributor.Base
	rendered *pipeline.Rendered
	patches  []manifest.Patch
	stack    []manifest.VerifiedOverride // with those that live below it
	hosts    []string
}
