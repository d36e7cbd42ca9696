package rollout

import (
	"errors"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/verdict"
)

// Host is one expected host as an observer sees it.
type Host struct {
	Name      string
	Labels    map[string]string
	Verdict   verdict.Code // under the head of Observed.Mark
	Running   uint64
	Attempted uint64
	Silent    time.Time // since when, if Verdict is silent
	Left      bool      // silent because its agent said that it stops
	Waits     time.Time // applying: until then it waits for its turn of the spread, by its own clock; zero: it does not
	Told      time.Time // silent, or under an override: when it was told to take what it is told, as the observer heard; zero: unknown
	Reported  gate.Host // for the built-in gates
}

// Observed is what an observer knows of a cohort's hosts. Verdicts rest on the head of that mark: under another head they say nothing.
type Observed struct {
	Mark  manifest.Mark
	Hosts []Host // expected and not retired
	// Unseen is why there may be hosts that nobody has heard of, "" if Hosts are all.
	Unseen string
	// Settling is why hosts that report may not be known yet, "" if that is over: an observer that was just started, say. Nothing goes forward until then, since who is not known would
	// be told with the others.
	Settling string
	// Gates is what the gates of the rollout under way say of its wave, or of the time after its last one; before a rollout: whether they are broken.
	Gates []manifest.GateVerdict
	// Siblings are the other cohorts of the newest release.
	Siblings []Sibling
	// Services gives for each epoch that matters (target, baseline, fallback, halted ones, the newest) the digest of each service's files as rendered with epoch 0, host variants
	// included under "service@host". An epoch that could not be read is absent: then nothing is known to be restored.
	Services map[uint64]map[string]string
}

// Sibling is another cohort, as its newest verified head and the newest release say.
type Sibling struct {
	Cohort  string
	Order   int
	Epoch   uint64           // the one that stands for it after the newest release
	Rollout manifest.Rollout // zero if it has no head yet
}

// ErrUnjudged says that nothing can be decided yet, since hosts were seen under another head than the one that stands.
var ErrUnjudged = errors.New("hosts are not judged under the newest head yet")
