package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/wire"
)

// holdName is the document that a hold is in. It is not part of state.json: it is on disk, and in force, before whoever asked for it gets an answer, whatever the deciding goroutine is
// busy with.
const holdName = "hold.json"

// MaxHold is the longest hold.
const MaxHold = 90 * 24 * time.Hour

// ErrHoldRefused is a hold that lacks something, or asks for too much.
var ErrHoldRefused = errors.New("not held")

// ErrNoHold says that there is nothing to end.
var ErrNoHold = errors.New("this host is not held")

// HoldOrder asks for a hold: who, why, and until when, by For or Until.
type HoldOrder struct {
	By    string        `json:"by"`
	Why   string        `json:"why"`
	For   time.Duration `json:"for,omitempty"`
	Until time.Time     `json:"until,omitzero"`
}

// IsZero says whether no hold is asked for.
func (o HoldOrder) IsZero() bool { return o.Why == "" && o.For == 0 && o.Until.IsZero() }

// end is when a hold that begins now is over.
func (o HoldOrder) end(now time.Time) (time.Time, error) {
	refuse := func(format string, args ...any) (time.Time, error) {
		return time.Time{}, fmt.Errorf("%w: %s", ErrHoldRefused, fmt.Sprintf(format, args...))
	}
	until := o.Until
	switch {
	case strings.TrimSpace(o.Why) == "":
		return refuse("the reason is missing")
	case len(o.Why) > report.MaxReason:
		return refuse("the reason is longer than %d bytes", report.MaxReason)
	case len(o.By) > report.MaxReason:
		return refuse("the name of who asks is longer than %d bytes", report.MaxReason)
	case o.For == 0 && o.Until.IsZero():
		return refuse("the end is missing")
	case o.For != 0 && !o.Until.IsZero():
		return refuse("it has two ends")
	case o.For != 0:
		if o.For < time.Second {
			return refuse("%s is no time to hold: a second at least", o.For)
		}
		until = now.Add(o.For)
	}
	switch {
	case !until.After(now):
		return refuse("its end, %s, is past; by this host's clock it is %s", until.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case until.Sub(now) > MaxHold:
		return refuse("it lasts longer than %d days", int(MaxHold/(24*time.Hour)))
	}
	return until, nil
}

// heldDoc is hold.json.
type heldDoc struct {
	V    int          `json:"v"`
	Hold *report.Hold `json:"hold,omitempty"` // none: it is over
	Span span         `json:"span,omitzero"`
	// Target is the one release that the host may be taken to all the same: what `apply --from` brought. Empty: none.
	Target string `json:"target,omitempty"`
}

// holds keeps the host's hold. It is safe beside the deciding goroutine.
type holds struct {
	mem    Memory
	moment func() probe.Moment
	now    func() time.Time

	mu  sync.Mutex
	doc *heldDoc
}

// load reads the document, once. A broken one is an error: to forget a hold silently would change a host that somebody wants to stay as it is.
func (h *holds) load() error {
	if h.doc != nil {
		return nil
	}
	data, err := h.mem.Load(holdName)
	if errors.Is(err, fs.ErrNotExist) {
		h.doc = &heldDoc{V: 1}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", holdName, err)
	}
	doc, err := decodeHold(data)
	if err == nil {
		h.doc = doc
	}
	return err
}

func decodeHold(data []byte) (*heldDoc, error) {
	doc := new(heldDoc)
	err := wire.Decode(data, doc)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s is broken (%w): remove it to go on without a hold", holdName, err)
	case doc.V != 1:
		return nil, fmt.Errorf("%s has version %d and was written by a newer muster-agent; this one reads 1", holdName, doc.V)
	}
	return doc, nil
}

func (h *holds) save(doc *heldDoc) error {
	data, err := wire.Encode(doc)
	if err != nil {
		return fmt.Errorf("encode %s: %w", holdName, err)
	}
	if err := h.mem.Save(holdName, data); err != nil {
		return fmt.Errorf("write %s: %w", holdName, err)
	}
	h.doc = doc
	return nil
}

// current is the hold in force, nil if there is none. over is one that has just ended.
func (h *holds) current() (doc, over *heldDoc, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil || h.doc.Hold == nil {
		return nil, nil, err
	}
	m := h.moment()
	if h.doc.Span.over(h.now(), m) {
		over := h.doc
		// Should the write fail, it is over all the same, and found to be so again at the next start.
		if err := h.save(&heldDoc{V: 1}); err != nil {
			h.doc = &heldDoc{V: 1}
		}
		return nil, over, nil
	}
	next := *h.doc
	if next.Span.keep(m) {
		_ = h.save(&next) // what it keeps is a minute of running time: the next look tries again
	}
	return h.doc, nil, nil
}

// set makes a hold the one in force. limit bounds its end, if it is not zero.
func (h *holds) set(o HoldOrder, target string, limit time.Time) (*heldDoc, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	until, err := o.end(now)
	if err != nil {
		return nil, err
	}
	if !limit.IsZero() && limit.Before(until) {
		until = limit
	}
	if err := h.load(); err != nil {
		return nil, err
	}
	held := report.Hold{By: strings.ToValidUTF8(o.By, "?"), Why: report.CutReason(o.Why), Since: now.UTC().Truncate(time.Second), Until: until.UTC().Truncate(time.Second)}
	if !held.Until.After(now) {
		held.Until = until.UTC()
	}
	doc := &heldDoc{V: 1, Hold: &held, Span: newSpan(held.Until, held.Until.Sub(now), h.moment()), Target: target}
	return doc, h.save(doc)
}

// peek is the hold in force, nil if there is none. It changes nothing.
func (h *holds) peek() *report.Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.load(); err != nil || h.doc.Hold == nil || h.doc.Span.over(h.now(), h.moment()) {
		return nil
	}
	return h.doc.Hold
}

// restore makes an earlier document the one in force again, unless somebody has held the host anew, or ended the hold, since mine was set.
func (h *holds) restore(mine, earlier *heldDoc) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.doc == nil || h.doc.Hold != mine.Hold {
		return nil
	}
	if earlier == nil {
		earlier = &heldDoc{V: 1}
	}
	return h.save(earlier)
}

// put makes an earlier document the one in force again.
func (h *holds) put(doc *heldDoc) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if doc == nil {
		doc = &heldDoc{V: 1}
	}
	return h.save(doc)
}

// Hold keeps the host as it is until the end of the hold: it is in force when this returns. A change that is past its swap is brought to its end first. Safe beside Run.
func (a *Agent) Hold(o HoldOrder) (report.Hold, error) {
	doc, err := a.held.set(o, "", time.Time{})
	if err != nil {
		return report.Hold{}, err
	}
	h := *doc.Hold
	a.log.Warn("held", "by", h.By, "why", h.Why, "until", h.Until)
	a.wake()
	return h, nil
}

// Unhold ends the hold. Safe beside Run.
func (a *Agent) Unhold(by, why string) (report.Hold, error) {
	doc, _, err := a.held.current()
	switch {
	case err != nil:
		return report.Hold{}, err
	case doc == nil:
		return report.Hold{}, ErrNoHold
	}
	if err := a.held.put(nil); err != nil {
		return report.Hold{}, err
	}
	a.log.Warn("no longer held", "by", by, "why", why, "held_by", doc.Hold.By)
	a.wake()
	return *doc.Hold, nil
}

// wake lets Run look at the host now.
func (a *Agent) wake() {
	select {
	case a.nudge <- struct{}{}:
	default:
	}
}

// holding is the hold in force, nil if there is none. While hold.json cannot be read the host is held: nobody knows better.
func (a *Agent) holding() *heldDoc {
	doc, over, err := a.held.current()
	if err != nil {
		return &heldDoc{Hold: &report.Hold{By: "muster-agent", Why: report.CutReason(err.Error()), Since: a.since, Until: a.now().Add(a.cfg.Poll).UTC()}}
	}
	if over != nil {
		a.log.Warn("the hold is over", "by", over.Hold.By, "why", over.Hold.Why, "until", over.Hold.Until)
		a.wake() // it may have ended after this look went by it
	}
	return doc
}

// heldBack is the hold that keeps the host from being taken to a release, nil if none does.
func (a *Agent) heldBack(t target) *report.Hold {
	if doc := a.holding(); doc != nil && (doc.Target == "" || doc.Target != t.key()) {
		return doc.Hold
	}
	return nil
}

// showHold says in the report why the host stays as it is.
func (a *Agent) showHold(h *report.Hold) {
	a.phase, a.code, a.tries = report.PhaseIdle, CodeHeld, 0
	a.reason = holdText(h)
}

func holdText(h *report.Hold) string {
	return fmt.Sprintf("held by %s until %s: %s", h.By, h.Until.UTC().Format(time.RFC3339), h.Why)
}
