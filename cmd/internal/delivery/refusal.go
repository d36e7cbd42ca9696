package delivery

import (
	"errors"
	"time"

	"github.com/muster-config/muster/pipeline/forge"
)

// longestRefusal is between two tries of what the forge refuses.
const longestRefusal = 10 * time.Minute

// thing is what is said of a release: a deployment, the status, the revert; of epoch 0 what is said of commits that were refused.
type thing struct {
	epoch uint64
	what  string
}

// refusal is a thing that the forge refuses: a right is missing, or it does not take it.
type refusal struct {
	text  string
	next  time.Time
	pause time.Duration
}

// allowed does a thing. A forge that is away is an error, and everything waits for it. One that answers and refuses is about this thing alone: that is said once, the thing is
// tried again after a pause that grows, since a right may be given, and it holds up no other.
func (d *Deliverer) allowed(of thing, do func() error) error {
	had := d.refusal[of]
	if had != nil && time.Now().Before(had.next) {
		return nil
	}
	err := do()
	if !errors.Is(err, forge.ErrDenied) && !errors.Is(err, forge.ErrInvalid) && !errors.Is(err, forge.ErrNotFound) {
		if err == nil {
			delete(d.refusal, of)
		}
		return err
	}
	if had == nil {
		had = &refusal{pause: firstPause}
		d.refusal[of] = had
	}
	if text := err.Error(); had.text != text {
		said := false
		for _, r := range d.refusal {
			said = said || r.text == text
		}
		if had.text = text; !said {
			var e *forge.Error
			if errors.As(err, &e) && e.Next != "" {
				text += "; " + e.Next
			}
			d.cfg.Say(text + "; it is tried again from time to time, and nothing else waits for it")
		}
	}
	had.next, had.pause = time.Now().Add(had.pause), min(2*had.pause, longestRefusal)
	return nil
}
