package gate

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// Config are a Keeper's settings. The zero value asks only what agents report and http addresses.
type Config struct {
	Prometheus string            // address of a Prometheus, user and password in it if it wants them; empty: gates that ask prometheus are left to other controllers
	HTTPHosts  []string          // hosts, with a port or for any, that http gates may ask; nil: any that is not link-local
	Transport  http.RoundTripper // nil: one of its own
	Now        func() time.Time  // nil: time.Now
	Log        *slog.Logger      // nil: silent
	Setting    string            // what to say where Prometheus is empty and a gate asks it: that it is missing, and how to give it; "": what collector.yaml has for it
}

const (
	forget    = 5 * time.Minute  // a question that nobody asked for so long is asked no more
	atOnce    = 8                // gates asked at the same time
	againSoon = 10 * time.Second // before the start: a source that was down is asked again
	// mostLooks is how many looks are kept and judged: the newest.
	mostLooks = 5000
)

// Keeper asks beside the rollout's loop and remembers what it heard, for one question of each cohort: another one starts anew. It keeps nothing that it may not lose: what Prometheus said is
// asked again for the whole time of the question; what http addresses said before a restart is lost, and inconclusive. Safe for concurrent use.
type Keeper struct {
	now    func() time.Time
	client *http.Client // of http gates
	hosts  []string
	prom   *prometheus
	log    *slog.Logger
	// setting says how to name a Prometheus.
	setting string

	mu      sync.Mutex
	asked   map[string]*talk // by cohort
	changed chan struct{}
	wake    chan struct{}
}

// talk is one question, and what was heard of each of its gates.
type talk struct {
	q      Question
	last   time.Time // when it was asked last
	ctx    context.Context
	cancel context.CancelFunc
	gates  map[string]*heard
}

// heard is one gate's.
type heard struct {
	name   string
	gate   manifest.Gate
	said   string // logged last: what troubles it
	broken string
	// unasked is why this Keeper cannot ask it, though another one may.
	unasked string
	looks   map[int]Look // by number, from 1
	busy    bool
	tried   time.Time            // before the start: the last try
	seen    map[string]time.Time // reported: the report of a host that was counted last
}

// NewKeeper makes a Keeper; Run lets it ask.
func NewKeeper(c Config) (*Keeper, error) {
	k := &Keeper{now: c.Now, log: c.Log, client: newClient(c.Transport, farAway), hosts: c.HTTPHosts, asked: map[string]*talk{}, changed: make(chan struct{}), wake: make(chan struct{}, 1)}
	if k.now == nil {
		k.now = time.Now
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	if k.setting = c.Setting; k.setting == "" {
		k.setting = "collector.yaml names none: set prometheus: {url: …}"
	}
	if c.Prometheus != "" {
		base, err := parseAddress(c.Prometheus)
		if err != nil {
			return nil, fmt.Errorf("prometheus.url: %w", err)
		}
		k.prom = &prometheus{client: newClient(c.Transport, nil), base: base}
	}
	return k, nil
}

// Run asks until ctx ends, and waits for what it asked.
func (k *Keeper) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		next := k.start(ctx, &asking, slots)
		t := time.NewTimer(max(10*time.Millisecond, min(next.Sub(k.now()), time.Minute)))
		select {
		case <-ctx.Done():
			t.Stop()
			k.client.CloseIdleConnections()
			if k.prom != nil {
				k.prom.client.CloseIdleConnections()
			}
			return nil
		case <-k.wake:
		case <-t.C:
		}
		t.Stop()
	}
}

// Changed is closed when something was heard.
func (k *Keeper) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

// Judge judges by what was heard so far, and lets Run ask for the rest.
func (k *Keeper) Judge(_ context.Context, q Question) []manifest.GateVerdict {
	k.mu.Lock()
	t := k.asked[q.Cohort]
	if t == nil || !t.same(q) {
		if t != nil && t.cancel != nil {
			t.cancel()
		}
		t = &talk{gates: map[string]*heard{}}
		for name, g := range q.Gates {
			h := &heard{name: name, gate: g, looks: map[int]Look{}, seen: map[string]time.Time{}}
			if err := Check(g); err != nil {
				h.broken = err.Error()
			} else if g.Prometheus != "" && k.prom == nil {
				h.unasked = CannotAsk + "it asks prometheus, and " + k.setting
			}
			t.gates[name] = h
		}
		k.asked[q.Cohort] = t
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
	t.q, t.last = q, k.now()
	found := make(map[string]Heard, len(t.gates))
	for name, h := range t.gates {
		if h.gate.Reported != "" && q.Wave > 0 {
			h.report(q)
		}
		found[name] = h.all()
	}
	k.mu.Unlock()
	return Judge(q, found)
}

// same reports whether q is the question that is under way, later.
func (t *talk) same(q Question) bool {
	return t.q.Wave == q.Wave && t.q.Epoch == q.Epoch && t.q.Baseline == q.Baseline && (q.Wave == 0 || t.q.From.Equal(q.From)) && reflect.DeepEqual(t.q.Gates, q.Gates)
}

func (h *heard) all() Heard {
	out := Heard{Broken: h.broken, Unasked: h.unasked, Looks: make([]Look, 0, len(h.looks))}
	for _, l := range h.looks {
		out.Looks = append(out.Looks, l)
	}
	slices.SortFunc(out.Looks, func(a, b Look) int { return a.At.Compare(b.At) })
	return out
}

// start begins to ask what is due, and says when something is due next.
func (k *Keeper) start(ctx context.Context, asking *sync.WaitGroup, slots chan struct{}) (next time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	next = now.Add(time.Minute)
	for cohort, t := range k.asked {
		if now.Sub(t.last) > forget {
			if t.cancel != nil {
				t.cancel()
			}
			delete(k.asked, cohort)
			continue
		}
		if t.ctx == nil {
			t.ctx, t.cancel = context.WithCancel(ctx)
		}
		for _, h := range t.gates {
			if h.broken != "" || h.unasked != "" || h.busy || h.gate.Reported != "" {
				continue
			}
			first, n, again := h.wants(t.q, now)
			if again.Before(next) {
				next = again
			}
			if n == 0 {
				continue
			}
			h.busy, h.tried = true, now
			q := t.q
			asking.Add(1)
			go func() {
				defer asking.Done()
				select {
				case slots <- struct{}{}:
					defer func() { <-slots }()
				case <-t.ctx.Done():
					return
				}
				looks, broken := k.ask(t.ctx, q, h.gate, first, n)
				k.heard(t, h, first, looks, broken)
			}()
		}
	}
	return next
}

// wants says which looks are to be asked for now, n from first on, and when to look again.
func (h *heard) wants(q Question, now time.Time) (first, n int, again time.Time) {
	e := every(h.gate)
	if q.Wave == 0 {
		l, ok := h.looks[1]
		switch {
		case ok && !l.Down:
			return 0, 0, now.Add(time.Minute)
		case !h.tried.IsZero() && now.Sub(h.tried) < againSoon:
			return 0, 0, h.tried.Add(againSoon)
		}
		return 1, 1, now.Add(againSoon)
	}
	last := due(q.From, now, e)
	again = lookAt(q.From, e, last+1)
	if last < 1 {
		return 0, 0, again
	}
	if h.gate.HTTP != "" {
		// It tells how things are now: what was missed is missed.
		if _, ok := h.looks[last]; ok {
			return 0, 0, again
		}
		return last, 1, again
	}
	if _, ok := h.looks[last]; ok {
		return 0, 0, again // what a source that was down did not say is asked for with the next look
	}
	for i := max(1, last-mostLooks+1); i <= last; i++ {
		if l, ok := h.looks[i]; !ok || l.Down && i > last-mostPoints {
			return i, min(last-i+1, mostPoints), again
		}
	}
	return 0, 0, again
}

// heard keeps what was heard.
func (k *Keeper) heard(t *talk, h *heard, first int, looks []Look, broken string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t.ctx.Err() != nil {
		return // nobody asks this any more
	}
	h.busy = false
	h.broken = cmp.Or(h.broken, broken)
	said := h.broken
	if n := len(looks); said == "" && n > 0 && looks[n-1].Down {
		said = looks[n-1].Trouble
	}
	if said != h.said {
		if h.said = said; said != "" {
			k.log.Warn("gate says nothing", "cohort", t.q.Cohort, "gate", h.name, "why", clean(said))
		} else {
			k.log.Info("gate speaks again", "cohort", t.q.Cohort, "gate", h.name)
		}
	}
	for i, l := range looks {
		if old, ok := h.looks[first+i]; !ok || old.Down {
			h.looks[first+i] = l
		}
	}
	for i := range h.looks {
		if len(h.looks) > mostLooks && i <= first+len(looks)-1-mostLooks {
			delete(h.looks, i)
		}
	}
	close(k.changed)
	k.changed = make(chan struct{})
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// ask asks all that a gate needs for n looks.
func (k *Keeper) ask(ctx context.Context, q Question, g manifest.Gate, first, n int) (looks []Look, broken string) {
	e := every(g)
	start := lookAt(q.From, e, first)
	if q.Wave == 0 {
		start = k.now()
	}
	looks = make([]Look, n)
	for i := range looks {
		looks[i].At = start.Add(time.Duration(i) * e).UTC()
	}
	put := func(query string, who group, field func(*Look) **float64) bool {
		if query == "" {
			return true
		}
		list, wrong := k.read(ctx, q, g, query, who, start, e, n)
		if wrong != "" {
			broken = wrong
			return false
		}
		for i, r := range list {
			l := &looks[i]
			*field(l) = r.value
			if l.Trouble == "" && r.trouble != "" {
				l.Trouble = r.trouble
				if who == control {
					l.Trouble = "of the control group: " + r.trouble
				}
			}
			l.Down = l.Down || r.down
		}
		return true
	}
	query := cmp.Or(g.Prometheus, g.HTTP)
	ok := put(query, canary, func(l *Look) **float64 { return &l.Canary }) && put(g.Of, canary, func(l *Look) **float64 { return &l.OfCanary })
	if ok && g.Compare != nil && (q.compares() || q.Wave == 0) {
		_ = put(query, control, func(l *Look) **float64 { return &l.Control }) && put(g.Of, control, func(l *Look) **float64 { return &l.OfOthers })
	}
	return looks, broken
}

func (k *Keeper) read(ctx context.Context, q Question, g manifest.Gate, query string, who group, start time.Time, step time.Duration, n int) ([]reading, string) {
	if g.HTTP != "" {
		address := q.address(query, who)
		if u, err := parseAddress(address); err == nil && !k.mayAsk(u) {
			return nil, fmt.Sprintf("it asks %s, which gates.http_hosts in collector.yaml does not name", u.Host)
		}
		return []reading{readNumber(ctx, k.client, address)}, ""
	}
	return k.prom.ask(ctx, q.promQL(g, query, who), start, step, n)
}

// mayAsk reports whether http gates may ask an address.
func (k *Keeper) mayAsk(u *url.URL) bool {
	return k.hosts == nil || slices.ContainsFunc(k.hosts, func(h string) bool { return strings.EqualFold(h, u.Host) || strings.EqualFold(h, u.Hostname()) })
}

// report counts what hosts report into the look that is under way.
func (h *heard) report(q Question) {
	e := every(h.gate)
	i := due(q.From, q.Now, e) + 1
	since := func(host Host) bool {
		return host.At.After(q.From) && host.At.After(h.seen[host.Name])
	}
	l := look(h.gate.Reported, q, since)
	l.At = lookAt(q.From, e, i).UTC()
	old, ok := h.looks[i]
	switch h.gate.Reported {
	case probeFailures:
		if ok {
			for _, f := range []struct{ sum, more *float64 }{{l.Canary, old.Canary}, {l.OfCanary, old.OfCanary}, {l.Control, old.Control}, {l.OfOthers, old.OfOthers}} {
				*f.sum += *f.more
			}
		}
	case probeLatency:
		l.Canary, l.Control = cmp.Or(l.Canary, old.Canary), cmp.Or(l.Control, old.Control)
	}
	h.looks[i] = l
	delete(h.looks, i-mostLooks)
	for _, host := range slices.Concat(q.Canary, q.Control) {
		if host.At.After(h.seen[host.Name]) {
			h.seen[host.Name] = host.At
		}
	}
}

var _ Asker = (*Keeper)(nil)
