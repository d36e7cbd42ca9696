package collector

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/verdict"
)

const (
	// maxBoots is how many starts of an agent are remembered: a report of any of them that was sent before is known to be old.
	maxBoots = 32
	// quietReports is how many promised reports a conflict must be absent before a host is no duplicate any more.
	quietReports = 10
)

// host is what is known of one host in one cohort. It exists from its first report on, or while the inventory has it.
type host struct {
	name     string
	key      ed25519.PublicKey // pinned at first use; nil before the first report
	boots    []boot            // oldest first
	current  int               // index of the boot that spoke last
	report   *report.Report    // the last signed one that was accepted; nil before the first
	digest   string            // of its payload
	received time.Time         // last accepted report or heartbeat
	skew     time.Duration     // host clock minus ours at the last signed report

	silentFrom time.Time // silence counts from here if that is later than received
	conflict   time.Time // two boots spoke by turns, last
	foreign    time.Time // another key spoke, last
	listed     bool      // the inventory has had it
}

// boot is one start of an agent.
type boot struct {
	ID      string    `json:"id"`
	Counter uint64    `json:"counter"` // highest accepted
	Heard   time.Time `json:"heard"`
	Running uint64    `json:"running"`
}

// result is what became of one report.
type result struct {
	accepted bool
	counter  uint64
	signed   bool   // send a signed one
	refused  string // why it counts nothing; "" if it is only late
	changed  bool   // a verdict may be another now
	foreign  bool
}

func (h *host) promised() time.Duration {
	if h.report == nil {
		return 0
	}
	return time.Duration(h.report.Poll * float64(time.Second))
}

// quiet says whether a conflict seen at t is over.
func (h *host) quiet(t, now time.Time) bool {
	return t.IsZero() || now.Sub(t) > quietReports*max(h.promised(), time.Second)
}

// wasSilent says whether the host had missed what it promised.
func (h *host) wasSilent(now time.Time) bool {
	return now.Sub(h.received) > verdict.MissedReports*h.promised()
}

// speak takes one word of a boot: what orders reports, whatever they say. late means that it changes nothing.
func (h *host) speak(id string, counter uint64, now time.Time) (late bool, held uint64, fresh bool) {
	for i := range h.boots {
		b := &h.boots[i]
		if b.ID != id {
			continue
		}
		if counter <= b.Counter {
			return true, b.Counter, false
		}
		if i != h.current {
			// It was followed by another start, and yet it speaks on: two agents.
			h.conflict, fresh = now, true
			h.current = i
		}
		b.Counter, b.Heard = counter, now
		return false, counter, fresh
	}
	if len(h.boots) == maxBoots {
		h.boots = append(h.boots[:0], h.boots[1:]...)
	}
	h.boots = append(h.boots, boot{ID: id, Counter: counter, Heard: now})
	h.current = len(h.boots) - 1
	return false, counter, true
}

// take accepts a signed report whose signature was verified with the key inside it.
func (h *host) take(r *report.Report, digest string, now time.Time) result {
	if h.key == nil {
		h.key = bytes.Clone(r.Key)
	}
	if !bytes.Equal(h.key, r.Key) {
		h.foreign = now
		return result{foreign: true, changed: true, refused: fmt.Sprintf("host %s of cohort %s is known by another identity key (%s…): this one counts nothing until it is accepted; two machines must not have one host name", r.Host, r.Cohort, hex.EncodeToString(h.key[:4]))}
	}
	silent := h.report == nil || h.wasSilent(now)
	late, held, fresh := h.speak(r.Boot, r.Counter, now)
	if late {
		return result{counter: held}
	}
	changed := fresh || silent || h.digest != digest
	h.report, h.digest, h.received, h.skew = r, digest, now, r.At.Sub(now)
	h.boots[h.current].Running = r.Running
	return result{accepted: true, counter: held, changed: changed}
}

// beat accepts a heartbeat whose MAC was verified.
func (h *host) beat(id string, counter uint64, digest string, now time.Time) result {
	known := false
	for _, b := range h.boots {
		known = known || b.ID == id
	}
	if !known || h.report == nil {
		return result{signed: true}
	}
	silent := h.wasSilent(now)
	if h.boots[h.current].ID != id || digest != h.digest {
		// It says "as before" of a report that is not the last: it may be late, or of another agent. It counts only as a voice.
		late, held, fresh := h.speak(id, counter, now)
		return result{counter: held, signed: !late, changed: fresh}
	}
	late, held, _ := h.speak(id, counter, now)
	if late {
		return result{counter: held}
	}
	h.received = now
	return result{accepted: true, counter: held, changed: silent}
}

// input is what the host's verdict is made of. h is nil for a host of the inventory that nobody has heard of. Under c.mu.
func (c *Collector) input(cohortName, name string, co *cohort, h *host, now time.Time) verdict.Input {
	in := verdict.Input{Host: name, Cohort: cohortName, Poll: c.cfg.Poll, Now: now}
	in.Expected, in.ExpectedIn = c.expected(cohortName, name)
	last := c.lastRead
	if co != nil {
		in.View, in.ViewProblem = co.view, cmp.Or(co.problem, c.readErr)
		if c.inFleet(cohortName) || co.view != nil {
			last = co.lastRead
		}
	}
	if last.IsZero() {
		last = c.started.Add(-3 * c.cfg.Poll) // it has read nothing yet, so it knows nothing
	}
	in.ViewAge = now.Sub(last)
	if h == nil {
		return in
	}
	in.Retired = !in.Expected && in.ExpectedIn == "" && h.listed
	in.Report, in.Received, in.SilentFrom, in.Skew = h.report, h.received, h.silentFrom, h.skew
	in.Accepted = h.quiet(h.foreign, now)
	if in.Duplicate = !h.quiet(h.conflict, now); in.Duplicate {
		for _, b := range h.boots {
			if now.Sub(b.Heard) <= quietReports*max(h.promised(), time.Second) {
				in.Speakers = append(in.Speakers, verdict.Speaker{Boot: b.ID, Running: b.Running, Received: b.Heard})
			}
		}
	}
	if in.View != nil && h.report != nil {
		if res, err := manifest.Resolve(in.View, manifest.Host{Name: name, Labels: h.report.Labels}, now); err == nil {
			in.Released = co.assigned[res.Epoch()]
		}
	}
	return in
}

// inFleet says whether the newest release has the cohort. Under c.mu.
func (c *Collector) inFleet(cohort string) bool {
	if c.fleet == nil {
		return false
	}
	_, ok := c.fleet.Cohorts[cohort]
	return ok
}

// expected says whether the inventory has a host in a cohort, or in which other one. A cohort without a list expects everybody who reports. Under c.mu.
func (c *Collector) expected(cohort, host string) (bool, string) {
	if c.fleet == nil {
		return true, "" // nothing was released yet, or read: nobody is out of place
	}
	home := c.home[host]
	if home == cohort {
		return true, ""
	}
	p, ok := c.fleet.Cohorts[cohort]
	if ok && len(p.Hosts.List) == 0 {
		return home == "", home
	}
	return false, home
}

// judged is one host with its verdict.
type judged struct {
	verdict.HostInput
	host *host // nil: nobody has heard of it
}

// judge gives every host of a cohort that the inventory has or that has reported, with its verdict. Under c.mu.
func (c *Collector) judge(name string, now time.Time) []judged {
	co := c.cohorts[name]
	var list []judged
	add := func(hostName string, h *host) {
		in := c.input(name, hostName, co, h, now)
		list = append(list, judged{verdict.HostInput{Input: in, Verdict: verdict.Of(in)}, h})
	}
	if co != nil {
		for hostName, h := range co.hosts {
			add(hostName, h)
		}
	}
	if c.inFleet(name) {
		for _, hostName := range c.fleet.Cohorts[name].Hosts.List {
			if co == nil || co.hosts[hostName] == nil {
				if c.home[hostName] == name {
					add(hostName, nil)
				}
			}
		}
	}
	return list
}

// short is how many hosts a cohort expects by number beyond those that are there. Under c.mu.
func (c *Collector) short(name string, hosts []judged) int {
	if !c.inFleet(name) || c.fleet.Cohorts[name].Hosts.Expect == nil {
		return 0
	}
	n := 0
	for _, h := range hosts {
		if h.Input.Expected {
			n++
		}
	}
	return max(0, c.fleet.Cohorts[name].Hosts.Expect.Min-n)
}
