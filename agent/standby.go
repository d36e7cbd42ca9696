package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// standby is a release that this host is taken to when an override on it ends. It is fetched, verified and unpacked while the override acts: an override ends by the host's own clocks, and
// the host may be cut off from every source by then.
type standby struct {
	Target   target `json:"target"`
	Dir      string `json:"dir"`
	Variants string `json:"variants,omitempty"` // the object that said which bundle is this host's
}

// is says whether it is what a head assigns. With variants in an object that is told by the object: this host's own may be out of reach.
func (s standby) is(r manifest.Resolution) bool {
	if s.Target.Epoch != r.Epoch() || s.Target.Override != r.Override || s.Target.Commit != r.Statement.Commit {
		return false
	}
	if r.Variants != nil {
		return s.Variants == r.Variants.Object
	}
	return s.Target.Content == r.Content && s.Target.Bundle == r.Bundle
}

// standby is the entry for what a head assigns, nil if there is none.
func (s *state) standby(r manifest.Resolution) *standby {
	for i := range s.Standby {
		if s.Standby[i].is(r) {
			return &s.Standby[i]
		}
	}
	return nil
}

// known completes a resolution by what the object with the variants said when the release was unpacked.
func (s standby) known(r manifest.Resolution) manifest.Resolution {
	t := s.Target
	r.Bundle, r.Content, r.Files, r.Evidence, r.Variants = t.Bundle, t.Content, t.Files, t.Evidence, nil
	return r
}

// beneath is what a view assigns to a host without the override that acts on it now, and without any: two releases at most, which bounds the disk. None if no override acts.
func beneath(v *manifest.View, host manifest.Host, now time.Time) []manifest.Resolution {
	r, err := manifest.Resolve(v, host, now)
	if err != nil || r.Source != manifest.FromOverride {
		return nil
	}
	w := *v
	w.Overrides = slices.DeleteFunc(slices.Clone(v.Overrides), func(o manifest.VerifiedOverride) bool { return o.ID == r.Override })
	var list []manifest.Resolution
	for {
		next, err := manifest.Resolve(&w, host, now)
		if err == nil {
			list = append(list, next)
		}
		if len(w.Overrides) == 0 || err == nil && next.Source != manifest.FromOverride {
			return list
		}
		w.Overrides = nil
	}
}

// ended says whether a release came by an override that acts no more on this host, whatever acts in its place. One that another override hides still acts.
func (a *Agent) ended(t target) bool {
	if t.Override == "" || a.view == nil {
		return false
	}
	w := *a.acting(a.view)
	w.Overrides = slices.DeleteFunc(slices.Clone(w.Overrides), func(o manifest.VerifiedOverride) bool { return o.ID != t.Override })
	r, err := manifest.Resolve(&w, manifest.Host{Name: a.cfg.Host, Labels: maps.Clone(a.cfg.Labels)}, a.now())
	return err == nil && r.Override != t.Override
}

// lack is what stands by for the end of an override and is not on the disk.
type lack struct {
	key   string // of all that should stand by
	text  string // "": nothing is lacking
	tries int
	at    time.Time // not before
}

// standBy sees to it that what the host goes to when an override on it ends is on its disk, and stays there until then. It comes after everything else of a settle, and yields to the next
// thing to be done. What does not work is said in the status and tried again, at the latest at the next full re-sync.
func (a *Agent) standBy(ctx context.Context, h how) {
	if a.cfg.Mode == ModeObserve || h.install || a.view == nil || ctx.Err() != nil {
		return
	}
	if len(a.view.Overrides) == 0 && len(a.st.Standby) == 0 {
		a.noteLack(nil, nil)
		return
	}
	host, now := manifest.Host{Name: a.cfg.Host, Labels: maps.Clone(a.cfg.Labels)}, a.now()
	needed := beneath(a.acting(a.view), host, now)
	var keep []standby
	if len(needed) == 0 {
		// The override is over. What stood by is what the host is taken to now: until another release is wanted, it stays.
		for _, s := range a.st.Standby {
			if a.want == nil || s.Target.key() == a.want.key() {
				keep = append(keep, s)
			}
		}
	}
	var key strings.Builder
	for _, r := range needed {
		fmt.Fprintf(&key, "%d/%s/%s ", r.Epoch(), r.Override, r.Bundle.Object)
	}
	if a.lack.key != key.String() {
		a.lack = lack{key: key.String(), text: a.lack.text}
	}
	// While the override itself cannot be fetched, nothing else is asked for.
	look := h.verify || a.fetches == 0 && !now.Before(a.lack.at)
	var missing []string
	var failure error
	for _, r := range needed {
		had := a.st.standby(r)
		if had != nil && !h.verify {
			keep = append(keep, *had)
			continue
		}
		err := errLater
		if look && !errors.Is(failure, errLater) {
			var s standby
			if s, err = a.unpackStandby(ctx, r); err == nil {
				keep = append(keep, s)
				continue
			}
			failure = err
		}
		if errors.Is(err, errLater) && had != nil {
			keep = append(keep, *had) // not looked at, and it was well when it was
			continue
		}
		missing = append(missing, lackText(r, err))
	}
	a.noteStandby(keep)
	a.noteLack(missing, failure)
}

// noteStandby makes a list the one that stands by.
func (a *Agent) noteStandby(list []standby) {
	if slices.EqualFunc(list, a.st.Standby, func(x, y standby) bool {
		return x.Dir == y.Dir && x.Variants == y.Variants && x.Target.key() == y.Target.key()
	}) {
		return
	}
	a.st.Standby = list
	a.dirty, a.sweepDue = true, true
	if err := a.persist(); err != nil {
		a.log.Error("state not written", "err", err) // found on the disk at the next start all the same
	}
}

// noteLack says what is missing, where that is new, and when it is looked for again.
func (a *Agent) noteLack(missing []string, failure error) {
	l := a.lack
	text := strings.Join(missing, "; ")
	switch {
	case text == "":
		a.lack.text, a.lack.tries, a.lack.at = "", 0, time.Time{}
		if l.text != "" {
			a.log.Info("what this host goes to when the override on it ends is on its disk, or no override acts any more")
		}
	case errors.Is(failure, errLater):
		a.lack.at = time.Time{} // nothing was wrong
	case failure != nil:
		a.lack.text, a.lack.tries = text, l.tries+1
		a.lack.at = a.now().Add(backoff(l.tries, a.timing.retry, a.cfg.Poll))
		if l.text != text {
			a.log.Warn("the end of an override has to be fetched", "lacks", text)
		}
	}
	if a.lack.text != l.text {
		a.shot(a.report())
	}
}

// lackText says what is missing.
func lackText(r manifest.Resolution, why error) string {
	what := fmt.Sprintf("epoch %d", r.Epoch())
	if r.Override != "" {
		what += " with override " + r.Override
	}
	text := what + ", which this host goes to when the override on it ends, is not on its disk: cut off from its sources it could not leave the override"
	if why != nil {
		text += " (" + why.Error() + ")"
	}
	return text
}

// errLater is something that can wait, while something else is to be done.
var errLater = errors.New("something else comes first")

// unpackStandby brings a release to the disk and verifies it there.
func (a *Agent) unpackStandby(ctx context.Context, r manifest.Resolution) (standby, error) {
	var s standby
	if r.Variants != nil {
		s.Variants = r.Variants.Object
		if had := a.st.standby(r); had != nil {
			r = had.known(r)
		} else {
			doc, err := a.variants(ctx, *r.Variants)
			if err != nil {
				return s, fmt.Errorf("read the host variants of release %d: %w", r.Epoch(), err)
			}
			r = r.WithVariants(a.cfg.Host, doc)
		}
	}
	s.Target = targetOf(r)
	staged, err := a.stageFrom(ctx, s.Target, func(ctx context.Context, c Carrier) (io.ReadCloser, error) {
		if a.busy() {
			return nil, errLater
		}
		body, err := openSteady(ctx, c, r.Bundle, a.timing.stall)
		if err != nil {
			return nil, err
		}
		return yielding{body, a.busy}, nil
	})
	if err != nil {
		return s, err
	}
	s.Dir = staged.Dir
	return s, nil
}

// busy says whether something waits for the deciding goroutine.
func (a *Agent) busy() bool { return len(a.hints) > 0 || len(a.nudge) > 0 }

// yielding is a body whose reading ends when something else is to be done.
type yielding struct {
	io.ReadCloser
	busy func() bool
}

func (y yielding) Read(p []byte) (int, error) {
	if y.busy() {
		return 0, errLater
	}
	return y.ReadCloser.Read(p)
}
