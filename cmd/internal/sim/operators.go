package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

// narrow is an operator key that may act on one cohort only, and for a short time.
var narrow = keys.FromSeed(5)

const (
	narrowCohort = "eu"
	narrowTTL    = 10 * time.Minute
)

// ring is the keyring of every world: both operator keys are in it.
func ring(issued time.Time) (*manifest.Envelope, error) {
	k := keys.NewKeyring(repo, issued, signing.Root.Public(), signing.Release.Public(), signing.Rollout.Public(), signing.Operator.Public())
	k.Keys[narrow.KeyID()] = manifest.PublicKey{Type: "ed25519", Public: narrow.Public(), Name: "narrow"}
	k.Roles.Operator = append(k.Roles.Operator, manifest.OperatorRole{Key: narrow.KeyID(), Cohorts: []string{narrowCohort}, MaxTTL: narrowTTL.String()})
	if err := k.Validate(); err != nil {
		return nil, err
	}
	return manifest.Seal(manifest.KindKeyring, k, signing.Root)
}

// operator is a person with an operator key: what `muster override` does, she does with the same code.
type operator struct {
	w    *World
	name string
	key  manifest.Signer
	n    int // overrides made
}

func (p *operator) open() (*distributor.Operator, error) {
	return distributor.OpenOperator(p.w.ctx, p.w.link(&actor{w: p.w, name: p.name}), p.w.keyring, p.key, time.Now)
}

func (p *operator) note(what, format string, args ...any) { p.w.note(p.name, what, format, args...) }

// operate is what such a person does while everything goes wrong.
func (p *operator) operate(d *draw, end time.Time) {
	w := p.w
	for w.pause(d.between(30*time.Second, 5*time.Minute)) && time.Now().Before(end) {
		switch n := d.n(100); {
		case n < 55:
			p.set(p.want(d))
		case n < 75:
			p.change(d, faultExtend, func(o *distributor.Operator, f distributor.Found) error {
				return p.extend(o, f, d.between(4*time.Minute, 20*time.Minute).Truncate(time.Second))
			})
		default:
			p.change(d, faultEnd, func(o *distributor.Operator, f distributor.Found) error { return p.end(o, f, "it is over") })
		}
	}
}

// wanted is an override as it is asked for.
type wanted struct {
	id, service, text string
	ttl               time.Duration
	now               bool
	hosts             map[string][]string
}

func (p *operator) want(d *draw) *wanted {
	w := p.w
	p.n++
	x := &wanted{id: fmt.Sprintf("%s-%d", p.name, p.n), service: services[0], ttl: d.between(4*time.Minute, 22*time.Minute).Truncate(time.Second), now: d.percent(35), hosts: map[string][]string{}}
	if d.percent(25) {
		x.service = services[1]
	}
	switch n := d.n(10); {
	case n < 5:
		x.hosts[pick(d, w.cohorts).name] = nil
	case n < 7:
		for _, f := range w.cohorts { // as a pattern does
			x.hosts[f.name] = nil
		}
	default:
		f := pick(d, w.cohorts)
		for range 1 + d.n(4) {
			x.hosts[f.name] = append(x.hosts[f.name], pick(d, f.hosts).name)
		}
		slices.Sort(x.hosts[f.name])
		x.hosts[f.name] = slices.Compact(x.hosts[f.name])
	}
	t := trait{kind: traitGood}
	if d.percent(20) {
		t = w.harm(d)
		w.census.fault(faultBadOverride)
	}
	x.text = fmt.Sprintf("%s by %s\n", x.service, x.id)
	w.traits.Store(x.text, t)
	w.mu.Lock()
	w.ops.texts[digestOf(x.service, x.text)] = x.text
	w.mu.Unlock()
	return x
}

// set makes an override and takes it to its hosts: to one first, and when that confirms it, to the others in steps; or to all at once.
func (p *operator) set(x *wanted) {
	w := p.w
	o, err := p.open()
	if err != nil {
		p.note("override", "%s: %v", x.id, err)
		return
	}
	bases, stacks := map[string]*distributor.Base{}, map[string][]manifest.VerifiedOverride{}
	change := distributor.Change{ID: x.id, Author: p.name, Reason: "simulated", TTL: x.ttl, Cohorts: map[string]distributor.ChangeOf{}}
	patches := []manifest.Patch{patchOf(x.service, x.text)}
	for _, f := range w.cohorts {
		hosts, ok := x.hosts[f.name]
		if !ok {
			continue
		}
		if err := o.May(f.name, x.ttl); err != nil {
			w.census.fault(faultMayNot)
			p.note("override", "%s: %v", x.id, err)
			return
		}
		b, err := o.Base(w.ctx, f.name)
		if err != nil {
			p.note("override", "%s: %v", x.id, err)
			return
		}
		one := manifest.VerifiedOverride{Override: manifest.Override{ID: x.id, Cohort: f.name, Hosts: hosts, Patches: patches}}
		texts := w.textsOf(b.Release.Commit)
		if texts == nil || w.misfit(&one, texts) != "" {
			p.note("override", "%s: not valid for %s", x.id, f.name)
			return // as `muster override set` refuses it
		}
		if slices.ContainsFunc(b.Living, func(l manifest.VerifiedOverride) bool { return l.Patches[0].Service == x.service }) {
			w.census.fault(faultTwo)
		}
		bases[f.name], stacks[f.name] = b, append(slices.Clone(b.Living), one)
		change.Cohorts[f.name] = distributor.ChangeOf{Hosts: hosts, Patches: patches, Commit: b.Release.Commit, Over: b.Plain.Epoch}
	}
	made, err := o.Make(w.ctx, change, func(ctx context.Context, epoch uint64) (map[string]distributor.CohortBuild, error) {
		builds := map[string]distributor.CohortBuild{}
		for _, f := range w.cohorts {
			name, b := f.name, bases[f.name]
			if b == nil {
				continue
			}
			c, err := layered(ctx, name, epoch, b.Release.Commit, w.textsOf(b.Release.Commit), stacks[name], &b.Plain, o.Index(b))
			if err != nil {
				return nil, err
			}
			builds[name] = c
		}
		return builds, nil
	})
	if err != nil {
		p.note("override", "%s: %v", x.id, err)
		return
	}
	w.mean(x, made.NotAfter)
	w.census.fault(faultOverride)
	if x.now {
		w.census.fault(faultOverrideNow)
	}
	p.note("override", "%s of %s, epoch %d, on %v for %s, now %v", x.id, x.service, made.Epoch, x.hosts, x.ttl, x.now)
	for _, f := range w.cohorts {
		if _, ok := x.hosts[f.name]; ok && !p.spread(o, x, made, f, bases[f.name]) {
			return
		}
	}
}

// mean keeps what an override is for.
func (w *World) mean(x *wanted, notAfter time.Time) {
	m := &meant{id: x.id, service: x.service, text: x.text, cohorts: map[string]*meantFor{}}
	for name, hosts := range x.hosts {
		m.cohorts[name] = &meantFor{hosts: hosts, notAfter: notAfter}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ops.meant[x.id] = m
}

// textsOf are the texts of a commit.
func (w *World) textsOf(id string) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.commitOf(id); c != nil {
		return c.texts
	}
	return nil
}

// spread takes a made override to the hosts of a cohort; false when it stops there.
func (p *operator) spread(o *distributor.Operator, x *wanted, made *distributor.Made, f *fleet, b *distributor.Base) bool {
	if x.now {
		return p.put(o, x, made, f, nil) == nil
	}
	order, err := p.order(x, f)
	if err != nil || len(order) == 0 {
		p.note("override", "%s: no host of %s to try it on: %v", x.id, f.name, err)
		return false
	}
	step := rollout.InFlight(b.View.Manifest.Rollout.Policy.MaxInFlight, len(order))
	for told := 0; told < len(order); {
		next := min(len(order), told+step)
		if told == 0 {
			next = 1
		}
		hosts := slices.Clone(order[:next])
		if next == len(order) {
			hosts = nil // for those too that do not report now
		}
		if err := p.put(o, x, made, f, hosts); err != nil {
			return false
		}
		if !p.confirmed(o, x, made, f, order[:next]) {
			return false
		}
		told = next
	}
	return true
}

// order is the order in which hosts get it: those that report, and are well.
func (p *operator) order(x *wanted, f *fleet) ([]string, error) {
	list, err := p.hosts(f)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, h := range list {
		switch h.verdict {
		case verdict.Confirmed, verdict.Stale, verdict.Overridden, verdict.Applying, verdict.Lagging, verdict.Drifted:
			if of := x.hosts[f.name]; len(of) == 0 || slices.Contains(of, h.name) {
				names = append(names, h.name)
			}
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if manifest.Point(x.id, a) < manifest.Point(x.id, b) {
			return -1
		}
		return 1
	})
	return names, nil
}

// judged is what the collector says of a host.
type judged struct {
	name, why string
	verdict   verdict.Code
	desired   uint64
	runs      bool
}

func (p *operator) hosts(f *fleet) ([]judged, error) {
	if err := (&actor{w: p.w, name: p.name + "+"}).turn("hosts", f.name); err != nil {
		return nil, err
	}
	c, err := p.w.collector()
	if err != nil {
		return nil, err
	}
	hosts, err := c.Hosts(p.w.ctx, f.name, "")
	if err != nil {
		return nil, err
	}
	var list []judged
	for _, h := range hosts {
		list = append(list, judged{h.Host, h.Why, h.Verdict, h.Desired, h.Runs})
	}
	return list, nil
}

// put gives it to some hosts of a cohort, or to all that it is for.
func (p *operator) put(o *distributor.Operator, x *wanted, made *distributor.Made, f *fleet, hosts []string) error {
	env, err := o.Envelope(made, f.name, hosts)
	if err != nil {
		p.w.breach("overrides are signed", "%v", err)
		return err
	}
	p.w.mu.Lock()
	m := p.w.ops.meant[x.id].cohorts[f.name]
	m.told, m.all = hosts, hosts == nil
	p.w.mu.Unlock()
	if frozen, _ := p.w.frozenOrCovered(f); frozen {
		p.w.census.fault(faultFrozen)
	}
	return p.done(f, "override", x.id, func() (*rollout.Applied, error) { return o.Put(p.w.ctx, f.name, env) })
}

// done does something to a head, says what became of it, and lets the collector know.
func (p *operator) done(f *fleet, what, id string, do func() (*rollout.Applied, error)) error {
	_, err := do()
	if err != nil {
		p.note(what, "%s on %s: %v", id, f.name, err)
		if errors.Is(err, manifest.ErrMalformed) {
			p.w.breach("what operators do is believed", "%s on %s: %v", id, f.name, err)
		}
		return err
	}
	p.note(what, "%s on %s", id, f.name)
	if c, cerr := p.w.collector(); cerr == nil {
		c.Wrote(f.name)
	}
	return nil
}

// confirmed waits until hosts confirm it. One that refuses it or goes back ends it, everywhere.
func (p *operator) confirmed(o *distributor.Operator, x *wanted, made *distributor.Made, f *fleet, hosts []string) bool {
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); {
		list, err := p.hosts(f)
		n := 0
		for _, h := range list {
			if !slices.Contains(hosts, h.name) {
				continue
			}
			switch {
			case h.verdict == verdict.Failed || h.verdict == verdict.RolledBack || h.verdict == verdict.Refused:
				p.w.census.fault(faultOverrideRefused)
				p.note("override", "%s: %s %s", x.id, h.name, h.verdict)
				p.endAll(o, x.id, h.name+" "+string(h.verdict))
				return false
			case h.runs && h.verdict == verdict.Overridden && h.desired >= made.Epoch:
				n++
			}
		}
		if err == nil && n == len(hosts) {
			return true
		}
		if !p.w.pause(5 * time.Second) {
			return false
		}
	}
	p.note("override", "%s: not confirmed in time on %s", x.id, strings.Join(hosts, " "))
	return false
}

// endAll ends an override wherever it lives.
func (p *operator) endAll(o *distributor.Operator, id, why string) {
	found, err := o.Overrides(p.w.ctx)
	if err != nil {
		p.note("end", "%s: %v", id, err)
		return
	}
	for _, f := range found {
		if f.ID == id {
			_ = p.end(o, f, why) // noted
		}
	}
}

func (p *operator) end(o *distributor.Operator, f distributor.Found, why string) error {
	p.w.mu.Lock()
	if m := p.w.ops.meant[f.ID]; m != nil && m.cohorts[f.Cohort].ended.IsZero() {
		m.cohorts[f.Cohort].ended = time.Now()
	}
	p.w.mu.Unlock()
	return p.done(p.w.fleet(f.Cohort), "end", f.ID, func() (*rollout.Applied, error) { return o.End(p.w.ctx, f, p.name, why) })
}

func (p *operator) extend(o *distributor.Operator, f distributor.Found, ttl time.Duration) error {
	p.w.mu.Lock()
	if m := p.w.ops.meant[f.ID]; m != nil {
		of := m.cohorts[f.Cohort]
		of.notAfter = later(of.notAfter, time.Now().Add(ttl+time.Minute)) // the operator's look at the store takes a moment
	}
	p.w.mu.Unlock()
	return p.done(p.w.fleet(f.Cohort), "extend", f.ID, func() (*rollout.Applied, error) { return o.Extend(p.w.ctx, f, ttl, p.name, "still needed") })
}

// change does something to one of the overrides that live.
func (p *operator) change(d *draw, fault string, do func(*distributor.Operator, distributor.Found) error) {
	o, err := p.open()
	if err != nil {
		return
	}
	found, err := o.Overrides(p.w.ctx)
	if err != nil || len(found) == 0 {
		return
	}
	f := pick(d, found)
	if err := o.May(f.Cohort, 0); err != nil {
		p.w.census.fault(faultMayNot)
		return
	}
	if do(o, f) == nil {
		p.w.census.fault(fault)
	}
}

// unblock ends what keeps a commit from a cohort.
func (w *World) unblock(cohort string) {
	p := &operator{w: w, name: "zoe", key: signing.Operator}
	o, err := p.open()
	if err != nil {
		return
	}
	found, err := o.Overrides(w.ctx)
	if err != nil {
		return
	}
	for _, f := range found {
		if f.Cohort == cohort {
			_ = p.end(o, f, "a commit does not fit") // noted
		}
	}
}
