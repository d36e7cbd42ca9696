package sim

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

const (
	// leaveFor is how long a host may take to leave an override that is over: a look every minute, one try that does not work, and the time to apply.
	leaveFor = 4 * time.Minute
	// rebootLoss is how much running time a start of the machine may give back.
	rebootLoss = 90 * time.Second
)

// granted is an override as a host learned of it.
type granted struct {
	manifest.VerifiedOverride
	at    time.Time     // when it reached the host
	left  time.Duration // of it, by the host's clock then
	boots int
	off   time.Duration // since then the machine was off
}

// pocket is what a host knows of overrides: what reached it stays with it until it is over, whatever later heads carry. Under host.mu.
type pocket struct {
	known  []granted
	acts   string    // the override that the stored head gives it
	turned time.Time // when that last changed by a head
	out    time.Time // when steps of the controller last took it out of one
}

func sameOverride(a, b *manifest.VerifiedOverride) bool {
	return a.ID == b.ID && a.Epoch == b.Epoch && a.Created.Equal(b.Created) && a.NotAfter.Equal(b.NotAfter) && (a.Ended == nil) == (b.Ended == nil) && slices.Equal(a.Hosts, b.Hosts)
}

// learn keeps the overrides of a head that reached a host. Under h.mu.
func (h *host) learn(v *manifest.View, now time.Time) {
	for i := range v.Overrides {
		o := &v.Overrides[i]
		if slices.ContainsFunc(h.pocket.known, func(g granted) bool { return sameOverride(&g.VerifiedOverride, o) }) {
			continue
		}
		g := granted{VerifiedOverride: *o}
		g.begin(h, now)
		h.pocket.known = append(h.pocket.known, g)
	}
	if n := len(h.pocket.known); n > 64 {
		h.pocket.known = append([]granted{}, h.pocket.known[n-48:]...)
	}
}

// begin begins to count the running time of an override that does not seem to be over.
func (g *granted) begin(h *host, now time.Time) {
	g.at, g.left, g.boots, g.off = now, min(g.NotAfter.Sub(now.Add(h.clock.off)), g.NotAfter.Sub(g.Created)), h.disk.boots, 0
}

// beginAnew is begin for those that seemed to be over when they came. Under h.mu.
func (h *host) beginAnew(now time.Time) {
	for i := range h.pocket.known {
		if g := &h.pocket.known[i]; g.left <= 0 {
			g.begin(h, now)
		}
	}
}

// with is a head together with what a host knows of overrides beside it. Under h.mu.
func (h *host) with(v *manifest.View) *manifest.View {
	if len(h.pocket.known) == 0 {
		return v
	}
	w := *v
	w.Overrides = slices.Clone(v.Overrides)
	for i := range h.pocket.known {
		w.Overrides = append(w.Overrides, h.pocket.known[i].VerifiedOverride)
	}
	return &w
}

// unspent is a head with what a host knows beside it, but for what is over by the host's running time. Under h.mu.
func (h *host) unspent(v *manifest.View, now time.Time) *manifest.View {
	if len(h.pocket.known) == 0 {
		return v
	}
	w := *h.with(v)
	w.Overrides = slices.DeleteFunc(w.Overrides, func(o manifest.VerifiedOverride) bool {
		return slices.ContainsFunc(h.pocket.known, func(g granted) bool {
			return g.Ended == nil && g.ID == o.ID && g.Created.Equal(o.Created) && g.NotAfter.Equal(o.NotAfter) && now.Sub(g.at)-g.off >= g.left-time.Second
		})
	})
	return &w
}

// bare is a head without overrides: where the rollout alone leads.
func bare(v *manifest.View) *manifest.View {
	if v == nil || len(v.Overrides) == 0 {
		return v
	}
	w := *v
	w.Overrides, w.Manifest.Rollout.Endings = nil, nil
	return &w
}

// overrides judges what a head does to hosts by overrides.
func (c *check) overrides() {
	c.bounds()
	if c.prev != nil {
		c.carries()
	}
	var out []string
	steps := false
	for _, h := range c.f.hosts {
		host := manifest.Host{Name: h.name, Labels: h.labels}
		is, err := manifest.Resolve(c.view, host, c.now)
		if err != nil {
			continue // see moves
		}
		if why := c.w.mayRun(c.f.name, h.name, is.Override, c.now, 0); why != "" {
			c.broken("an override acts only where and while it was asked for", "%s: %s", h.name, why)
		}
		if is.Override == "" {
			if led, err := manifest.Resolve(bare(c.view), host, c.now); err != nil || led.Epoch() != is.Epoch() || led.Content != is.Content {
				c.broken("without an override a host runs what the rollout says", "%s: %d and not %d", h.name, is.Epoch(), led.Epoch())
			}
		}
		if o := c.newest(host); is.Source != manifest.FromHold && (o == nil) != (is.Override == "") || o != nil && is.Override != "" && o.ID != is.Override {
			c.broken("of several overrides the newest acts", "%s: %q and not %+v", h.name, is.Override, o)
		}
		h.mu.Lock()
		if was := h.pocket.acts; was != is.Override {
			if was != "" && is.Override != was && c.byController() && (c.endsInSteps(was, h.name) || c.leaves(was, host)) {
				h.pocket.out = c.now
				steps = true
			} else {
				h.pocket.out = time.Time{} // a person's doing
			}
			h.pocket.acts, h.pocket.turned = is.Override, c.now
		}
		// Who left an override by the steps of a controller and is not there yet is on its way. One that cannot take what it goes to is counted by nobody.
		on := c.now.Sub(h.pocket.out) < 4*time.Minute && h.life != nil && c.now.Sub(h.heard) < 2*hostPoll && c.now.Sub(h.booted) > hearing &&
			(h.disk.current == nil || h.disk.current.Content != is.Content && !h.failed[h.disk.current.Content]) && !h.failed[is.Content] && c.now.Sub(h.stumbled) > 2*time.Minute
		h.mu.Unlock()
		if on {
			out = append(out, h.name)
		}
	}
	if most := limit(c.view.Manifest.Rollout.Policy, len(c.f.hosts)); steps && len(out) > most {
		c.broken("max_in_flight holds at the end of an override", "%d hosts are on their way, at most %d may be: %s", len(out), most, strings.Join(out, " "))
	}
	c.endings()
}

// endsInSteps says whether this head's steps, and not those of the one before, take a host out of an override.
func (c *check) endsInSteps(id, host string) bool {
	return stepsOut(c.view, id, host) && !stepsOut(c.prev, id, host)
}

// endings counts what controllers begin to end.
func (c *check) endings() {
	if c.prev == nil {
		return
	}
	// Who is out of one that ends at its time stays out, unless it lasts longer by now.
	for _, o := range c.view.Living(c.now) {
		for _, e := range c.prev.Manifest.Rollout.Endings {
			if e.Override != o.ID || !strings.HasSuffix(e.Why, o.NotAfter.UTC().Format(time.RFC3339)) {
				continue
			}
			for _, h := range c.f.hosts {
				if stepsOut(c.prev, o.ID, h.name) && !stepsOut(c.view, o.ID, h.name) {
					c.broken("the end of an override is not undone", "%s is under %s again", h.name, o.ID)
				}
			}
		}
	}
	begun := map[string]bool{}
	for _, e := range c.prev.Manifest.Rollout.Endings {
		begun[e.Override] = true
	}
	for _, e := range c.view.Manifest.Rollout.Endings {
		switch {
		case begun[e.Override]:
			c.w.census.fault(faultEndStep)
		case strings.HasPrefix(e.Why, "the config repo says the same"):
			c.w.census.fault(faultEndSame)
		default:
			c.w.census.fault(faultEndSteps)
		}
	}
}

// bounds holds every override of a head to the key that signed it, by what is known here of the keys.
func (c *check) bounds() {
	for i := range c.view.Overrides {
		o := &c.view.Overrides[i]
		if o.KeyID != narrow.KeyID() {
			continue
		}
		if ok, _ := path.Match(narrowCohort, c.f.name); !ok || o.Ended == nil && o.NotAfter.Sub(o.Created) > narrowTTL {
			c.broken("an operator key acts within its bounds", "override %s on %s for %s", o.ID, c.f.name, o.NotAfter.Sub(o.Created))
		}
	}
}

// carries: a head of an operator leaves the order as it is, and one of a controller the overrides; nobody takes an override away that is not over.
func (c *check) carries() {
	p, v := c.prev, c.view
	if v.Manifest.Serial == p.Manifest.Serial {
		if v.Head.Manifest.Digest() != p.Head.Manifest.Digest() || v.Head.Beat != p.Head.Beat+1 {
			c.broken("an override leaves the order as it is", "%s after %s", v.Mark(), p.Mark())
		}
		return
	}
	if v.Head.Beat != p.Head.Beat || !slices.EqualFunc(v.Head.Overrides, p.Head.Overrides, func(a, b manifest.Envelope) bool { return bytes.Equal(a.Payload, b.Payload) }) {
		c.broken("an order leaves overrides as they are", "%s after %s", v.Mark(), p.Mark())
	}
	// While one lives its statement goes along with what is led to, if a release was built with it.
	for _, o := range v.Living(c.now) {
		for _, a := range v.Manifest.Assign {
			has := func(s manifest.VerifiedStatement) bool { return s.Epoch == a.Epoch && s.Override == o.ID }
			if slices.Contains(c.w.ops.carried[a.Epoch][c.f.name], o.ID) && len(a.Hosts) == 0 && !slices.ContainsFunc(v.Statements, has) {
				c.broken("orders carry overridden statements along", "override %s, epoch %d: %s", o.ID, a.Epoch, outline(v))
			}
		}
	}
}

// newest is the override that is to act on a host: of those that live and are for it, and that no step took from it, the one that was made last.
func (c *check) newest(host manifest.Host) (best *manifest.VerifiedOverride) {
	for _, o := range c.view.Living(c.now) {
		if len(o.Hosts) > 0 && !slices.Contains(o.Hosts, host.Name) || stepsOut(c.view, o.ID, host.Name) || c.leftBehind(&o, host) {
			continue
		}
		if best == nil || o.Epoch > best.Epoch {
			best = &o
		}
	}
	return best
}

// leftBehind says whether a host is led back to before the release that an override was laid over, and nobody built the override for where it is led.
func (c *check) leftBehind(o *manifest.VerifiedOverride, host manifest.Host) bool {
	led, err := manifest.Resolve(c.bareView, host, c.now)
	if err != nil || led.Source == manifest.FromHold || o.Over <= led.Epoch() {
		return false
	}
	return !slices.ContainsFunc(c.view.Statements, func(s manifest.VerifiedStatement) bool { return s.Epoch == led.Epoch() && s.Override == o.ID })
}

// leaves says whether a host leaves an override with the way back from the release that it was laid over.
func (c *check) leaves(id string, host manifest.Host) bool {
	for _, o := range c.view.Living(c.now) {
		if o.ID == id && c.leftBehind(&o, host) {
			c.w.census.fault(faultBackOver)
			return true
		}
	}
	return false
}

// stepsOut says whether the steps that a head takes leave a host out of an override.
func stepsOut(v *manifest.View, id, host string) bool {
	return v != nil && slices.ContainsFunc(v.Manifest.Rollout.Endings, func(e manifest.Ending) bool {
		return e.Override == id && (e.Below == "" || fmt.Sprintf("%016x", manifest.Point(e.Salt, host)) < e.Below)
	})
}

// mayRun says why a host may not run an override, as far as its operator asked for it; "" for no override. Under w.mu.
func (w *World) mayRun(cohort, host, id string, now time.Time, grace time.Duration) string {
	if id == "" {
		return ""
	}
	m := w.ops.meant[id]
	if m == nil {
		return "nobody set override " + id
	}
	switch of := m.cohorts[cohort]; {
	case of == nil:
		return fmt.Sprintf("override %s is not for cohort %s", id, cohort)
	case !of.covers(host):
		return fmt.Sprintf("override %s is not for this host", id)
	case now.After(of.notAfter.Add(grace)):
		return fmt.Sprintf("override %s is over since %s", id, now.Sub(of.notAfter).Round(time.Second))
	}
	return ""
}

// swapsUnder judges a swap to what an override gives. A clock that is behind keeps an override for so long.
func (h *host) swapsUnder(before, next *installed, behind time.Duration) string {
	w, now := h.w, time.Now()
	if next.Override == "" {
		return ""
	}
	w.census.fault(faultOverridden)
	w.mu.Lock()
	defer w.mu.Unlock()
	if why := w.mayRun(h.fleet.name, h.name, next.Override, now, behind+2*time.Minute); why != "" {
		return why
	}
	// An override takes no release to a host that it was kept from.
	c := w.commitOf(next.Commit)
	if c == nil || before == nil || before.Commit == next.Commit || next.Epoch <= before.Epoch {
		return ""
	}
	for epoch, at := range h.fleet.fallen {
		if f := w.released(epoch); f == c && now.Sub(at) > hearing+h.fleet.slack() && !h.fleet.led(epoch) {
			return fmt.Sprintf("override %s takes commit %d to it, which fell as release %d %s ago", next.Override, c.n, epoch, now.Sub(at).Round(time.Second))
		}
	}
	return ""
}

// slack is how long a host may go by a head that is not the newest any more.
func (f *fleet) slack() time.Duration { return 2 * hostPoll }

// led says whether the stored head leads anybody to an epoch. Under w.mu.
func (f *fleet) led(epoch uint64) bool {
	return f.head != nil && slices.ContainsFunc(f.head.Manifest.Assign, func(a manifest.Assignment) bool { return a.Epoch == epoch })
}

// overrun demands that no live host runs an override that is over by its clocks, by the head that it saw, or by what its operator wanted, cut-off hosts included.
func (w *World) overrun() {
	now := time.Now()
	for _, h := range w.hosts {
		w.mu.Lock()
		since := now.Add(-leaveFor)
		cut := since.Before(w.gone[h.name]) && since.Before(w.gone[h.name+"+"]) || since.Before(w.ops.healed) // or was a moment ago
		w.mu.Unlock()
		h.mu.Lock()
		why, id := "", ""
		if cur := h.disk.current; cur != nil && cur.Override != "" && h.life != nil && now.Sub(h.booted) > leaveFor && now.Sub(h.clock.set) > leaveFor && now.Sub(h.stumbled) > leaveFor {
			id = cur.Override
			why = h.overstays(cur, now)
		}
		h.mu.Unlock()
		if why != "" {
			h.mu.Lock()
			say := func() string { return "it is down" }
			if h.life != nil && h.life.status != nil {
				say = h.life.status
			}
			for dir := range h.disk.releases {
				why += "; on disk " + dir
			}
			h.mu.Unlock()
			w.note(h.name, "stays", "%s", say())
			w.breach("no live host runs an override that is over", "%s: %s", h.name, why)
			return
		}
		if id != "" && cut {
			w.census.add("host cut off under an override")
		}
	}
}

// overstays says why a host is not to run an override any more. Under h.mu.
func (h *host) overstays(cur *installed, now time.Time) string {
	if h.told(cur.Content, leaveFor) && !h.spent(cur.Override, now) {
		return ""
	}
	if to, ok := h.leadsTo(now); ok && (h.failed[to.Content] || to.Content == cur.Content) {
		return "" // it cannot take what it is led to; or that is what it has, and only its name would change
	}
	to, ok := h.leadsTo(now)
	return fmt.Sprintf("it runs override %s, epoch %d, and no head that it saw and no clock of it allows that any more: its clock is off by %s, it is led to %d %q %.19s (%v)", cur.Override, cur.Epoch, h.clock.off, to.Epoch(), to.Override, to.Content, ok)
}

// leadsTo is what the newest head that a host saw leads it to now. Under h.mu.
func (h *host) leadsTo(now time.Time) (manifest.Resolution, bool) {
	best := -1
	for i := range h.views {
		if best < 0 || h.views[i].mark.Compare(h.views[best].mark) >= 0 {
			best = i
		}
	}
	if best < 0 {
		return manifest.Resolution{}, false
	}
	r, err := manifest.Resolve(h.with(h.views[best].view), manifest.Host{Name: h.name, Labels: h.labels}, now.Add(h.clock.off))
	return r, err == nil
}

// spent says whether an override is over by a host's running time, whatever its wall clock shows. Under h.mu.
func (h *host) spent(id string, now time.Time) bool {
	for i := range h.pocket.known {
		g := &h.pocket.known[i]
		if g.ID != id || g.Ended != nil {
			continue
		}
		ran := now.Sub(g.at) - g.off
		if ran < g.left+leaveFor+time.Duration(h.disk.boots-g.boots)*rebootLoss {
			return false
		}
	}
	return true
}

// wasOff takes a time in which the machine was off out of what it ran. Under h.mu.
func (h *host) wasOff(d time.Duration) {
	for i := range h.pocket.known {
		h.pocket.known[i].off += d
	}
}
