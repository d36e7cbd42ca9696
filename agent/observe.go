package agent

import (
	"context"
	"fmt"

	"github.com/muster-config/muster/distributor/report"
)

// observe is the whole of what an agent in mode observe does about a head: fetch, verify, compare, and say what would change. It swaps nothing, reloads
// nothing, repairs nothing and makes no link; what it fetched for the comparison is removed again.
func (a *Agent) observe(ctx context.Context, h how) error {
	want := *a.want
	a.attempt = want.Epoch
	a.phase, a.reason, a.code, a.tries = report.PhaseIdle, "", "", 0
	if len(a.drift) > 0 {
		a.code = CodeDrift
	}
	key := want.key() + "/" + a.content
	if want.is(a.cur) && len(a.drift) == 0 {
		a.fetches, a.observed = 0, observed{}
		a.probeAll(ctx)
		return nil
	}
	if a.observed.key != key {
		if !a.due(want, h) {
			a.reason, a.tries = a.observed.failure, a.fetches
			a.probeAll(ctx)
			return nil
		}
		staged, err := a.stage(ctx, want)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			a.notFetched(want, err)
			a.observed = observed{failure: a.reason}
			a.probeAll(ctx)
			return err
		}
		a.fetches = 0
		text := fmt.Sprintf("observes only; release %d would change %s", want.Epoch, staged.summary())
		if err := a.checkLinks(staged); err != nil {
			text = fmt.Sprintf("observes only; release %d would be refused: %v", want.Epoch, err)
		}
		a.observed = observed{key: key, text: text}
		a.log.Info(text, "epoch", want.Epoch, "content", want.Content, "changed", staged.Changed)
		a.sweep(ctx)
	}
	a.reason = a.observed.text
	a.probeAll(ctx)
	return nil
}

// observed is what the last comparison came to.
type observed struct {
	key     string // of the release, and of what lay on disk
	text    string
	failure string
}
