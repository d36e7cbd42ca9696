package collector

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/verdict"
)

const (
	// maxBoots is how many starts of an agent are remembered: a report of any of them that was sent before is known to be old. Of those before them only the newest time is kept
	// that one of them signed: an unknown start that says to be of that time, or before it, is one of them that somebody sends again.
	maxBoots = 32
	// olderAgain is how often the log has a line about a host whose clock went back.
	olderAgain = time.Hour
	// quietReports is how many promised reports a conflict must be absent before a host is no duplicate any more.
	quietReports = 10
)

// host is what is known of one host in one cohort. It exists from its first report on, or while the inventory has it.
type host struct {
	name     string
	key      ed25519.PublicKey // pinned at first use; nil before the first report
	boots    []boot            // oldest first
	current  int               // index of the boot that spoke last
	report   *report.Report    // what the last signed one that was accepted says, shared with other hosts: see shapes; nil before the first
	digest   [sha256.Size]byte // of its payload
	received time.Time         // last accepted report or heartbeat
	skew     time.Duration     // host clock minus ours at the last signed report
	probed   probed            // what its last word told of its probes

	silentFrom time.Time         // silence counts from here if that is later than received
	conflict   time.Time         // two boots spoke by turns, last
	foreign    time.Time         // another key spoke, last
	foreignKey ed25519.PublicKey // which
	listed     bool              // the inventory has had it
	pinned     time.Time         // a person accepted key then; zero: it is that of the first report

	floor time.Time // newest time that a start signed which is not remembered any more
	older time.Time // an unknown start was refused for it: the time that it signed, which a person may accept
	said  time.Time // when the log last had a line about that
}

// hostRow is what is stored of a host beside its report.
type hostRow struct {
	Key        []byte    `json:"key"`
	Boots      []boot    `json:"boots"`
	Current    int       `json:"current"`
	Received   time.Time `json:"received"`
	SkewS      float64   `json:"skew_s"`
	SilentFrom time.Time `json:"silent_from,omitzero"`
	Conflict   time.Time `json:"conflict,omitzero"`
	Foreign    time.Time `json:"foreign,omitzero"`
	ForeignKey []byte    `json:"foreign_key,omitempty"`
	Listed     bool      `json:"listed,omitempty"`
	Pinned     time.Time `json:"pinned,omitzero"`
	Floor      time.Time `json:"floor,omitzero"`
}

func (h *host) row() hostRow {
	return hostRow{
		Key: h.key, Boots: append([]boot{}, h.boots...), Current: h.current, Received: h.received, SkewS: h.skew.Seconds(), SilentFrom: h.silentFrom,
		Conflict: h.conflict, Foreign: h.foreign, ForeignKey: h.foreignKey, Listed: h.listed, Pinned: h.pinned, Floor: h.floor,
	}
}

// sum is a digest without its prefix.
func sum(digest string) (out [sha256.Size]byte) {
	_, _ = hex.Decode(out[:], []byte(strings.TrimPrefix(digest, "sha256:"))) // digests are checked where they come in; anything else equals none
	return out
}

// boot is one start of an agent.
type boot struct {
	ID      string    `json:"id"`
	Counter uint64    `json:"counter"` // highest accepted
	Heard   time.Time `json:"heard"`
	Running uint64    `json:"running"`
	At      time.Time `json:"at,omitzero"` // newest that it signed, by the host's clock
}

// result is what became of one report.
type result struct {
	accepted bool
	counter  uint64
	signed   bool   // send a signed one
	refused  string // why it counts nothing; "" if it is only late
	changed  bool   // a verdict may be another now
	foreign  bool
	older    bool
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
	for len(h.boots) >= maxBoots {
		h.boots = h.forgetBoot(h.boots)
	}
	h.boots = append(h.boots, boot{ID: id, Counter: counter, Heard: now})
	h.current = len(h.boots) - 1
	return false, counter, true
}

// forgetBoot takes the start out of the list that was not heard for longest. What it said stays known to be old.
func (h *host) forgetBoot(boots []boot) []boot {
	least := 0
	for i := range boots {
		if boots[i].Heard.Before(boots[least].Heard) {
			least = i
		}
	}
	h.raise(boots[least].At)
	return append(boots[:least:least], boots[least+1:]...)
}

// raise remembers the newest time that a forgotten start signed.
func (h *host) raise(at time.Time) {
	if at.After(h.floor) {
		h.floor = at
	}
}

// outdated says whether a report is of a start that was forgotten, as far as its own time tells: somebody sends it again, or the host's clock went far back.
func (h *host) outdated(r *report.Report) bool {
	for i := range h.boots {
		if h.boots[i].ID == r.Boot {
			return false // its counter says more
		}
	}
	return !h.floor.IsZero() && !r.At.After(h.floor)
}

// acceptOlder lets in a start that was refused for its time, and those after it: the host's clock is right now, and was ahead before.
func (h *host) acceptOlder() {
	h.floor = h.older.Add(-1)
	for i := range h.boots {
		if h.boots[i].At.After(h.floor) {
			h.boots[i].At = h.floor
		}
	}
	h.older, h.said = time.Time{}, time.Time{}
}

// take accepts a signed report whose signature was verified with the key inside it.
func (h *host) take(r *report.Report, digest string, now time.Time) result {
	if h.key == nil {
		h.key = bytes.Clone(r.Key)
	}
	if !bytes.Equal(h.key, r.Key) {
		h.foreign, h.foreignKey = now, bytes.Clone(r.Key)
		return result{foreign: true, changed: true, refused: fmt.Sprintf("host %s of cohort %s is known by another identity key (%s…): this one counts nothing until it is accepted; two machines must not have one host name", r.Host, r.Cohort, hex.EncodeToString(h.key[:4]))}
	}
	if h.outdated(r) {
		h.older = r.At
		return result{older: true, refused: fmt.Sprintf("host %s of cohort %s: this start of the agent says that it is %s, and one that was followed by %d others said %s: it counts as one that is sent again; set the host's clock, or `muster hosts accept %s` if the clock was ahead before",
			r.Host, r.Cohort, r.At.UTC().Format(time.RFC3339), maxBoots, h.floor.UTC().Format(time.RFC3339), r.Host)}
	}
	silent := h.report == nil || h.wasSilent(now)
	late, held, fresh := h.speak(r.Boot, r.Counter, now)
	if late {
		return result{counter: held}
	}
	of := sum(digest)
	changed := fresh || silent || h.digest != of
	h.report, h.digest, h.received, h.skew = r, of, now, r.At.Sub(now)
	b := &h.boots[h.current]
	b.Running = r.Running
	if r.At.After(b.At) {
		b.At = r.At
	}
	h.older = time.Time{} // its clock is well
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
	if h.boots[h.current].ID != id || sum(digest) != h.digest {
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
