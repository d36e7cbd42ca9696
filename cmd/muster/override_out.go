package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cmd/internal/publish"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/parcel"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/pipeline"
)

// outing is `override set --out`: an override into a file, where there is no store; and `--from`, which brings it into the store afterwards.
type outing struct {
	out, head, from string
}

func (s *outing) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.out, "out", "", "no store: write it into this file, for muster-agent apply --from")
	cmd.Flags().StringVar(&s.head, "head", "", "with --out: the cohort's newest head, a `file` that muster-agent status --head wrote, or the word collector")
	cmd.Flags().StringVar(&s.from, "from", "", "set what a file of --out says, now that there is a store again")
}

// check is about what can be told before anything is read.
func (s *overrideSet) checkOut() (time.Duration, error) {
	switch {
	case s.head == fromCollector && !s.conn.given():
		return 0, cli.Fail(cli.Usage, "give --collector, or --head FILE", "--head collector: no collector is named")
	case len(s.labels) > 0 || len(s.cohorts) > 1:
		return 0, cli.Fail(cli.Usage, "give one --cohort; a file for each", "a head is of one cohort, and so is a file")
	case len(s.cohorts) == 0 && s.head == fromCollector:
		return 0, cli.Fail(cli.Usage, "give --cohort, and with --host only some of its hosts", "say where")
	}
	if _, err := os.Lstat(s.out); err == nil {
		return 0, cli.Fail(cli.Usage, "give another name, or remove it", "--out: %s is there already", s.out)
	}
	for _, h := range s.hosts {
		if !manifest.ValidHost(h) {
			return 0, cli.Fail(cli.Usage, "", "--host %q is not a host name", h)
		}
	}
	return ttlOf(s.ttl)
}

// fromCollector is the word for --head that asks the collector.
const fromCollector = "collector"

// overrideOut makes an override without a store.
func (a *app) overrideOut(ctx context.Context, s *overrideSet, patches []manifest.Patch) error {
	ttl, err := s.checkOut()
	if err != nil {
		return err
	}
	keyring, signer, err := s.operating.signing(ctx)
	if err != nil {
		return err
	}
	head, cohort, err := s.theHead(ctx)
	if err != nil {
		return err
	}
	o, err := distributor.OpenApart(ctx, cohort, head, keyring, signer, time.Now)
	if err != nil {
		return cli.Fail(codeOr(err, cli.NotTrusted), cli.HintOf(err), "--head %s: %w", s.head, err)
	}
	if err := o.May(cohort, ttl); err != nil {
		return cli.Fail(cli.NotTrusted, "take the key of somebody who may, or a shorter --ttl", "%w", err)
	}
	if err := s.fresh(ctx, o); err != nil {
		return err
	}
	l, err := a.layerApart(ctx, s, o, cohort, patches)
	if err != nil {
		return err
	}
	if err := a.showOverride(ctx, map[string]*layered{cohort: l}, s, ttl); err != nil {
		return err
	}
	if err := a.askYes(s.yes); err != nil {
		return err
	}
	change := distributor.Change{ID: s.id, Author: whoami(), Reason: s.reason + " (--out: by hand)", TTL: ttl, Cohorts: map[string]distributor.ChangeOf{
		cohort: {Hosts: s.hosts, Patches: patches, Commit: l.base.Plain.Commit, Over: l.base.Plain.Epoch},
	}}
	made, objects, err := o.MakeApart(ctx, cohort, change, func(ctx context.Context, epoch uint64) (*distributor.CohortBuild, error) {
		none := func(context.Context, string) (*bundle.Index, error) { return nil, nil }
		b, err := publish.Overridden(ctx, l.rendered, cohort, l.stack, epoch, &l.base.Plain, none)
		var misfit *publish.Misfit
		if errors.As(err, &misfit) {
			return nil, cli.Fail(cli.No, "", "the override is not valid for cohort %s: %s; nothing was written", cohort, misfit.Reason)
		}
		return b, err
	})
	if err != nil {
		return err
	}
	if err := writeParcel(s.out, objects); err != nil {
		return err
	}
	return a.sayOut(s, cohort, made, l)
}

// again is the name of an override that takes the place of another one, which it cannot have since that one is ended by its own.
func again(id string, n int) string {
	suffix := fmt.Sprintf("-%d", n)
	return strings.TrimRight(id[:min(len(id), manifest.MaxNameBytes-len(suffix))], "-_") + suffix
}

// nameAgain gives an override that hosts got by hand its name in the store: near its own, so that it is found by that.
func (s *overrideSet) nameAgain(ctx context.Context, o *distributor.Operator, id string) error {
	views, err := o.Heads(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	for n := 2; n < 100; n++ {
		name, free := again(id, n), true
		for _, v := range views {
			free = free && distributor.Taken(v, name, now) == nil && !distributor.Spent(v, name, now)
		}
		if free {
			s.id = name
			return nil
		}
	}
	return nil // one is made up
}

// sayOut says what was written, and what to do with it.
func (a *app) sayOut(s *overrideSet, cohort string, made *distributor.Made, l *layered) error {
	if a.json {
		return cli.PrintJSON(a.out, overrideDone{ID: s.id, Epoch: made.Epoch, NotAfter: made.NotAfter.UTC(), Cohorts: map[string]overrideDoneCohort{
			cohort: {State: "written", Hosts: append([]string{}, s.hosts...), Why: "nothing has it yet: muster-agent apply --from " + s.out},
		}})
	}
	where := "every host of " + cohort
	if len(s.hosts) > 0 {
		where = cli.Names(s.hosts, 5) + " of " + cohort
	}
	fmt.Fprintf(a.out, "%s holds override %s for %s until %s; no host has it yet\n", s.out, s.id, where, made.NotAfter.UTC().Format(time.RFC3339))
	fmt.Fprintf(a.out, "on each host:       muster-agent apply --from %s --reason '%s' --for %s\n", filepath.Base(s.out), strings.ReplaceAll(cli.Printable(s.reason), "'", ""), s.ttl)
	fmt.Fprintf(a.out, "with a store again: muster override set --from %s --now --id %s, and after that muster-agent unhold on each of them\n", filepath.Base(s.out), again(s.id, 2))
	fmt.Fprintf(a.out, "it is laid over epoch %d, commit %s, as order %s says; a host that has seen a newer order refuses it\n", l.base.Plain.Epoch, cli.Short(l.base.Plain.Commit), l.base.View.Mark())
	return nil
}

// theHead reads the head to build on, and tells of which cohort it is. Nothing is believed of it yet.
func (s *overrideSet) theHead(ctx context.Context) (data []byte, cohort string, err error) {
	if s.head == fromCollector {
		c, err := s.conn.open()
		if err != nil {
			return nil, "", err
		}
		defer c.Close()
		data, _, err = c.GetHead(ctx, s.cohorts[0], manifest.Mark{}, 0)
		return data, s.cohorts[0], err
	}
	f, err := os.Open(s.head)
	if err != nil {
		return nil, "", cli.Fail(cli.Usage, "`muster-agent status --head > head.json` on a host of the cohort", "--head: %w", err)
	}
	defer f.Close()
	if data, err = io.ReadAll(io.LimitReader(f, manifest.MaxHeadBytes+1)); err != nil {
		return nil, "", fmt.Errorf("--head: %w", err)
	}
	head, err := manifest.DecodeHead(data)
	if err != nil {
		return nil, "", cli.Fail(cli.NotTrusted, "`muster-agent status --head > head.json` on a host of the cohort", "--head %s: %w", s.head, err)
	}
	m, err := manifest.DecodeManifest(head.Manifest.Payload) // whose signature OpenApart checks; this only finds the cohort
	if err != nil {
		return nil, "", cli.Fail(cli.NotTrusted, "", "--head %s: %w", s.head, err)
	}
	if len(s.cohorts) == 1 && s.cohorts[0] != m.Cohort {
		return nil, "", cli.Fail(cli.Usage, "take the head from a host of that cohort", "--head %s is of cohort %s, not of %s", s.head, m.Cohort, s.cohorts[0])
	}
	return data, m.Cohort, nil
}

// layerApart evaluates what the cohort runs from the clone of the config repo, and the override over it. That the clone gives what the cohort runs is proven by the digest in the signed
// statement, of all its files as rendered for epoch 0.
func (a *app) layerApart(ctx context.Context, s *overrideSet, o *distributor.Operator, cohort string, patches []manifest.Patch) (*layered, error) {
	base, err := o.BaseApart(ctx, cohort)
	if errors.Is(err, rollout.ErrNothing) {
		return nil, cli.Fail(cli.No, "take the head of a host that runs something", "%w", err)
	}
	if err != nil {
		return nil, err
	}
	repo, err := a.repo()
	if err != nil {
		return nil, cli.Fail(codeOr(err, cli.Usage), "run it in a clone of the config repo, or name one with -C DIR: where there is no store, the sources come from there", "%w", err)
	}
	defer repo.Close()
	t, err := repo.Commit(base.Plain.Commit)
	if err != nil {
		return nil, cli.Fail(codeOr(err, cli.No), "get this commit into the clone: git fetch, or another clone", "commit %s, which cohort %s runs: %w", cli.Short(base.Plain.Commit), cohort, err)
	}
	r, err := a.evaluate(ctx, t, s.evaluation, pipeline.Options{Cohorts: []string{cohort}, Leaves: true})
	if err != nil {
		return nil, err
	}
	if err := sameAsRun(ctx, r, base); err != nil {
		return nil, err
	}
	carried := r.Policy.Cohorts[cohort].Services
	for _, p := range patches {
		if !slices.Contains(carried, p.Service) {
			return nil, cli.Fail(cli.Usage, strings.TrimSpace(cli.Suggest(p.Service, carried)+" it carries "+cli.Names(carried, 10)), "cohort %s does not carry service %q", cohort, p.Service)
		}
	}
	if list := r.Policy.Cohorts[cohort].Hosts.List; len(list) > 0 {
		for _, h := range s.hosts {
			if !slices.Contains(list, h) {
				return nil, cli.Fail(cli.Usage, strings.TrimSpace(cli.Suggest(h, list)+" it has "+cli.Names(list, 10)), "no host %q in cohort %s", h, cohort)
			}
		}
	}
	base.Release = &manifest.Release{Epoch: base.Plain.Epoch, Commit: base.Plain.Commit, Tree: r.Identity.Tree, Policy: r.Policy}
	l := &layered{base: base, rendered: r, patches: patches, hosts: s.hosts}
	l.stack = append(slices.Clone(base.Living), manifest.VerifiedOverride{Override: manifest.Override{ID: s.id, Cohort: cohort, Hosts: s.hosts, Patches: patches}})
	under, err := r.Override(ctx, cohort, publish.Layers(cohort, l.stack))
	if err != nil {
		return nil, err
	}
	if under.Failed() {
		printProblems(a.out, onlyErrors(under.Problems))
		return nil, cli.Fail(cli.No, "correct the values; what does not validate reaches no host", "the override is not valid for cohort %s: nothing was written", cohort)
	}
	return l, nil
}

// sameAsRun refuses to build on a clone that does not give what the cohort runs.
func sameAsRun(ctx context.Context, r *pipeline.Rendered, base *distributor.Base) error {
	differs := func(why string) error {
		return cli.Fail(cli.NotTrusted, "use the clone, and the version of muster, that the release was published with",
			"commit %s in this clone does not give what cohort %s runs as epoch %d (%s): an override over it could change more than it says; nothing was written", cli.Short(base.Plain.Commit), base.Cohort, base.Plain.Epoch, why)
	}
	if _, ok := r.Policy.Cohorts[base.Cohort]; !ok {
		return differs("it does not have this cohort")
	}
	plain, err := r.Override(ctx, base.Cohort, nil)
	if err != nil {
		return differs(err.Error())
	}
	cohorts, err := plain.At(ctx, base.Plain.Epoch, func(context.Context, string) (*pipeline.Stood, error) { return nil, nil })
	if err != nil {
		return differs(err.Error())
	}
	c := cohorts[base.Cohort]
	switch {
	case c.Blocked != "":
		return differs(c.Blocked)
	case c.Content0 != base.Plain.Content0 && c.Inputs != base.Plain.Inputs:
		return differs("its files, or the evaluator, are others")
	case c.Content0 != base.Plain.Content0:
		return differs("its files are others")
	}
	return nil
}

// writeParcel writes the file, which must not be there. It may hold what others must not read.
func writeParcel(path string, objects map[string][]byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return cli.Fail(cli.Local, "give another name", "--out: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(path)
			err = fmt.Errorf("--out %s: %w", path, err)
		}
	}()
	if err := parcel.Write(f, objects); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// broughtBack reads what a file of --out says, judged by the keyring, and makes this call one that sets it in the store.
func (s *overrideSet) broughtBack(ctx context.Context, args []string) (*manifest.VerifiedOverride, []manifest.Patch, error) {
	if len(args) > 0 || s.file != "" || s.out != "" || s.head != "" || s.reason != "" || s.ttl != "" || len(s.cohorts)+len(s.labels)+len(s.hosts) > 0 {
		return nil, nil, cli.Fail(cli.Usage, "give --from FILE with --now or --collector, and nothing else of what the file says", "--from says what, where, why and until when")
	}
	keyring, _, err := s.operating.signing(ctx)
	if err != nil {
		return nil, nil, err
	}
	f, err := os.Open(s.from)
	if err != nil {
		return nil, nil, cli.Fail(cli.Usage, "the file that `muster override set --out` wrote", "--from: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("--from: %w", err)
	}
	p, err := parcel.Open(f, info.Size())
	if err != nil {
		return nil, nil, fmt.Errorf("--from %s: %w", s.from, err)
	}
	trust, err := manifest.NewTrust("", keyring)
	if err != nil {
		return nil, nil, fmt.Errorf("keyring: %w", err)
	}
	head, err := p.Read(manifest.KeyHead(p.Cohort()), manifest.MaxHeadBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("--from %s: %w", s.from, err)
	}
	_, view, err := trust.AcceptHead(p.Cohort(), head, time.Now())
	if err != nil {
		return nil, nil, fmt.Errorf("--from %s: %w", s.from, err)
	}
	var o *manifest.VerifiedOverride
	for i := range view.Overrides {
		if v := &view.Overrides[i]; v.Ended == nil && distributor.MadeApart(v.Epoch) && (o == nil || v.Epoch > o.Epoch) {
			o = v
		}
	}
	if o == nil {
		return nil, nil, cli.Fail(cli.Usage, "the file that `muster override set --out` wrote", "--from %s holds no override that was made by hand", s.from)
	}
	left := time.Until(o.NotAfter).Truncate(time.Second)
	if left < time.Second {
		return nil, nil, cli.Fail(cli.No, "set it anew if it is still needed; hosts have ended it by themselves", "override %s ended at %s", o.ID, o.NotAfter.UTC().Format(time.RFC3339))
	}
	s.cohorts, s.hosts, s.labels = []string{o.Cohort}, o.Hosts, nil
	s.ttl = left.String()
	s.reason = fmt.Sprintf("%s: %s by %s, now in the store", strings.TrimSuffix(o.Reason, " (--out: by hand)"), o.ID, o.Author)
	return o, o.Patches, nil
}

// endApart ends the override that hosts got by hand, once the store has one in its place: those that are not held any more go over to it.
func (a *app) endApart(ctx context.Context, s *overrideSet, o *distributor.Operator, apart *manifest.VerifiedOverride) error {
	f := distributor.Found{Cohort: apart.Cohort, VerifiedOverride: *apart}
	if _, err := o.End(ctx, f, whoami(), "override "+s.id+" is in its place"); err != nil {
		return fmt.Errorf("end %s, which hosts got by hand: %w", apart.ID, err)
	}
	if !a.json {
		fmt.Fprintf(a.out, "%s: %s, which hosts got by hand, is ended; `muster-agent unhold` on those that are held lets them go over to %s\n", apart.Cohort, apart.ID, s.id)
	}
	return nil
}
