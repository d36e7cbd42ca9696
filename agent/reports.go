package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/chance"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/wire"
)

// reports brings the newest report to the collector. Nobody waits for it: an older report that was not sent yet is dropped for a newer one, and a
// collector that hangs or refuses costs this goroutine only (B078).
type reports struct {
	to    Reporter
	id    *identity
	ran   *counts
	now   func() time.Time
	log   *slog.Logger
	every time.Duration
	sync  func() time.Duration // between two full re-syncs, as things are
	tm    *timing

	mu     sync.Mutex
	next   *report.Report
	asof   time.Time // when its AgeS were right
	lazy   bool
	watch  bool          // somebody judges this host by its probes: each report tells them
	gen    uint64        // of next
	done   uint64        // generation that the collector has
	passed chan struct{} // closed and renewed when done moves
	wake   chan struct{}

	// Of the sending goroutine.
	counter uint64
	digest  string // payload digest of the last signed report that was accepted
	state   []byte // its comparable part
	key     []byte // this boot's heartbeat key
	last    string // last thing logged
}

func newReports(to Reporter, id *identity, ran *counts, every time.Duration, sync func() time.Duration, now func() time.Time, log *slog.Logger, tm *timing) *reports {
	return &reports{to: to, id: id, ran: ran, every: every, sync: sync, now: now, log: log, tm: tm, wake: make(chan struct{}, 1), passed: make(chan struct{})}
}

// put makes r the newest report. A lazy one is about a step that is mostly over in a moment: it is sent only if it is still the newest after that.
func (q *reports) put(r report.Report, lazy, watch bool) {
	if q.to == nil {
		return
	}
	q.mu.Lock()
	q.next, q.lazy, q.watch, q.asof = &r, lazy, watch, q.now()
	q.gen++
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// flush waits until the newest report has arrived, at most for limit.
func (q *reports) flush(ctx context.Context, limit time.Duration) {
	if q.to == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	q.mu.Lock()
	q.lazy = false
	gen := q.gen
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
	for {
		q.mu.Lock()
		there, passed := q.done >= gen, q.passed
		q.mu.Unlock()
		if there {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-passed:
		}
	}
}

// run sends until ctx ends.
func (q *reports) run(ctx context.Context) {
	if q.to == nil {
		return
	}
	fails := 0
	timer := time.NewTimer(jitter(q.every))
	defer timer.Stop()
	for {
		wait := false
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
			wait = q.lazyNow()
		case <-timer.C:
		}
		if wait {
			pause := time.NewTimer(q.tm.lazy)
			select {
			case <-ctx.Done():
				pause.Stop()
				return
			case <-q.wake: // a newer one, or flush
				pause.Stop()
				select {
				case q.wake <- struct{}{}:
				default:
				}
				continue
			case <-pause.C:
			}
		}
		// What is put within a moment is one report.
		if !sleep(ctx, gather) {
			return
		}
		select {
		case <-q.wake:
		default:
		}
		err := q.send(ctx)
		pause := jitter(q.every)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			q.say(slog.LevelWarn, "report not delivered", err.Error())
			pause = backoff(fails, q.tm.retry, min(q.every, time.Minute))
			fails++
			// While the collector is away, news waits for the next try like everything else.
			if !sleep(ctx, pause) {
				return
			}
			pause = 0
		} else {
			fails = 0
		}
		timer.Reset(pause)
	}
}

// gather is how long a report waits for a newer one that comes at once.
const gather = 100 * time.Microsecond

func (q *reports) lazyNow() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lazy
}

// send delivers the newest report: signed if the host's state changed, else as a heartbeat.
func (q *reports) send(ctx context.Context) error {
	q.mu.Lock()
	next, gen, asof, watch := q.next, q.gen, q.asof, q.watch
	q.mu.Unlock()
	if next == nil {
		return nil
	}
	r := *next
	// This goroutine lives on when the one that decides hangs, on a sick disk say. No confirmation outlives two re-syncs.
	if limit := 2 * q.sync(); r.Confirmed && q.now().Sub(asof) > limit {
		r.Confirmed, r.Reason = false, fmt.Sprintf("not probed for more than %s", limit)
	}
	age := q.now().Sub(asof).Seconds()
	services := make(map[string]report.Service, len(r.Services))
	for name, s := range r.Services {
		s.AgeS = max(s.AgeS+age, 0)
		services[name] = s
	}
	r.Services, r.Probes = services, q.ran.untold()
	state, err := comparable(r)
	if err != nil {
		return err
	}
	// What is not in state yet is bounded: ages, and a few numbers a probe. Only a large report is looked at as a whole.
	if len(state) > report.MaxReportBytes/4 || len(r.Services)+len(r.Probes) > 1000 {
		if err := fit(&r); err != nil {
			return err
		}
		if state, err = comparable(r); err != nil {
			return err
		}
	}
	signed := q.digest == "" || q.key == nil || !bytes.Equal(state, q.state) || watch && len(r.Probes) > 0
	for range 2 {
		q.counter++
		var item api.ReportItem
		var digest string
		if signed {
			r.Counter, r.At = q.counter, q.now().UTC()
			env, err := manifest.Seal(manifest.KindReport, r, q.id)
			if err != nil {
				return fmt.Errorf("seal report: %w", err)
			}
			item.Signed, digest = env, env.Digest()
		} else {
			item.Heartbeat = q.heartbeat(r)
		}
		ctx, cancel := context.WithTimeout(ctx, q.tm.post)
		res, err := q.to.Report(ctx, item)
		cancel()
		if err != nil {
			return err
		}
		q.counter = max(q.counter, res.Counter)
		if len(res.HeartbeatKey) > 0 {
			q.key = bytes.Clone(res.HeartbeatKey)
		}
		if res.SendSigned && !signed {
			signed = true
			continue
		}
		if !res.Accepted {
			q.digest = ""
			if res.Error == "" {
				res.Error = "no reason given"
			}
			return fmt.Errorf("the collector refuses it: %s", res.Error)
		}
		if signed {
			q.digest, q.state = digest, state
			q.ran.told(r.Probes)
		}
		break
	}
	q.say(slog.LevelInfo, "reports are delivered", "")
	q.mu.Lock()
	q.done = gen
	close(q.passed)
	q.passed = make(chan struct{})
	q.mu.Unlock()
	return nil
}

// reserve is room for what the signing adds: counter and time.
const reserve = 256

// fit makes a report small enough to be read: a host with very many services says less about each rather than nothing at all.
func fit(r *report.Report) error {
	small := func() (bool, error) {
		data, err := wire.Encode(r)
		if err != nil {
			return false, fmt.Errorf("encode report: %w", err)
		}
		return len(data) <= report.MaxReportBytes-reserve, nil
	}
	steps := []func(){
		func() {},
		func() { r.Probes = nil },
		func() { r.Drift = r.Drift[:min(len(r.Drift), 5)] },
		func() { // the reasons of all but a few
			n := 0
			for _, name := range sorted(r.Services) {
				s := r.Services[name]
				if s.Reason != "" {
					if n++; n > 20 {
						s.Reason = ""
						r.Services[name] = s
					}
				}
			}
		},
		func() { // those that are well; the report as a whole still counts them
			maps.DeleteFunc(r.Services, func(_ string, s report.Service) bool { return s.State == stateConfirmed })
		},
		func() {
			for _, name := range sorted(r.Services)[min(len(r.Services), 200):] {
				delete(r.Services, name)
			}
		},
	}
	for _, step := range steps {
		step()
		if ok, err := small(); ok || err != nil {
			return err
		}
	}
	return errors.New("the report is too large, whatever is left out")
}

func (q *reports) heartbeat(r report.Report) *api.Heartbeat {
	h := &api.Heartbeat{Repo: r.Repo, Cohort: r.Cohort, Host: r.Host, Boot: r.Boot, Counter: q.counter, Digest: q.digest}
	h.MAC = api.HeartbeatMAC(q.key, *h)
	return h
}

// say logs what is new about the way to the collector, not each try.
func (q *reports) say(level slog.Level, msg, err string) {
	if q.last == msg+err || q.last == "" && err == "" {
		q.last = msg + err
		return
	}
	q.last = msg + err
	if err == "" {
		q.log.Log(context.Background(), level, msg)
		return
	}
	q.log.Log(context.Background(), level, msg, "err", err)
}

// comparable is the part of a report whose change is worth a signature: all but time, counter, ages and latencies.
func comparable(r report.Report) ([]byte, error) {
	r.Counter, r.At, r.Probes = 0, time.Time{}, nil
	services := make(map[string]report.Service, len(r.Services))
	for name, s := range r.Services {
		s.AgeS = 0
		services[name] = s
	}
	r.Services = services
	data, err := wire.Encode(r)
	if err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	return data, nil
}

// jitter spreads d by a tenth to both sides.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + chance.N(d/5+1)
}

// backoff is the pause after the n-th failure in a row (0 is the first): doubling from first to most, half of it at random.
func backoff(n int, first, most time.Duration) time.Duration {
	d := most
	if n < 30 {
		d = min(first<<n, most)
	}
	return d/2 + chance.N(d/2+1)
}

// sleep waits, or is false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// sendOnce is for Once: one try, with no goroutine behind it.
func (q *reports) sendOnce(ctx context.Context) error {
	if q.to == nil {
		return nil
	}
	if err := q.send(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
