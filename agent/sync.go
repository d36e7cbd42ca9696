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

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// maxKeyrings bounds how many new keyrings one sync takes: a source cannot keep the agent busy with them.
const maxKeyrings = 100

// answer is what one carrier said when it was asked for the head.
type answer struct {
	data []byte
	err  error
}

// askEach asks every carrier at once, each for at most the limit of one question. Once one has answered, the others get a little longer and no more: a source
// that hangs, or whose credentials do not come, costs seconds where another is well. One that was silent before in this re-sync is not asked again.
func (a *Agent) askEach(ctx context.Context, f func(ctx context.Context, c Carrier) ([]byte, error)) []answer {
	ctx, cancel := context.WithTimeoutCause(ctx, a.timing.ask, errLate)
	defer cancel()
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	var first sync.Once
	answers := make([]answer, len(a.opts.Carriers))
	var wg sync.WaitGroup
	for i, c := range a.opts.Carriers {
		if a.silent[c.Name()] {
			answers[i].err = fmt.Errorf("%w: %w", store.ErrUnreachable, errLate)
			continue
		}
		wg.Go(func() {
			data, err := f(ctx, c)
			if err != nil && errors.Is(context.Cause(ctx), errLate) {
				err = fmt.Errorf("%w: %w", store.ErrUnreachable, errLate)
			}
			answers[i] = answer{data, err}
			if err == nil || errors.Is(err, store.ErrNotFound) {
				first.Do(func() {
					end := time.AfterFunc(a.timing.grace, func() { cut(errLate) })
					context.AfterFunc(ctx, func() { end.Stop() })
				})
			}
		})
	}
	wg.Wait()
	for i, ans := range answers {
		if errors.Is(ans.err, errLate) {
			a.silent[a.opts.Carriers[i].Name()] = true
		}
	}
	return answers
}

// errLate is a carrier that took all the time there was.
var errLate = errors.New("no answer in time")

func (a *Agent) ask(ctx context.Context) []answer {
	return a.askEach(ctx, func(ctx context.Context, c Carrier) ([]byte, error) { return c.Head(ctx, a.cfg.Cohort) })
}

// carriers are all carriers in their order, those that were silent last.
func (a *Agent) carriers() []Carrier {
	var list, silent []Carrier
	for _, c := range a.opts.Carriers {
		if a.silent[c.Name()] {
			silent = append(silent, c)
		} else {
			list = append(list, c)
		}
	}
	return append(list, silent...)
}

// resync reads everything anew: keyrings and the head of every carrier, of which it takes the highest that is valid. It says what each carrier came to;
// without one valid head the agent goes on with what it knew, and reports the first refusal.
func (a *Agent) resync(ctx context.Context) []SourceResult {
	a.silent = map[string]bool{}
	a.followKeyrings(ctx)
	answers := a.ask(ctx)
	results := make([]SourceResult, len(answers))
	views := make([]*manifest.View, len(answers))
	best := -1
	now := a.now()
	for i, ans := range answers {
		results[i].Name = a.opts.Carriers[i].Name()
		err := ans.err
		if err == nil {
			// Each is judged against the same state: what one carrier says does not make the next one's wrong.
			_, views[i], err = a.trust().AcceptHead(a.cfg.Cohort, ans.data, now)
		}
		if err != nil {
			results[i].Err, results[i].Error, results[i].Refused = err, err.Error(), refusal(err)
			continue
		}
		results[i].Mark = views[i].Mark().String()
		if best < 0 || views[i].Mark().Compare(views[best].Mark()) > 0 {
			best = i
		}
	}
	for i, v := range views {
		// The beat is not signed, so that it cannot say which of them is the newest: the overrides of all are taken, and none of them hides the others'.
		if v == nil || i == best || v.Manifest.Era != views[best].Manifest.Era || v.Manifest.Serial != views[best].Manifest.Serial || bytes.Equal(answers[i].data, answers[best].data) {
			continue
		}
		if err := a.take(answers[i].data); err != nil {
			results[i].Err, results[i].Error, results[i].Refused = err, err.Error(), refusal(err)
		} else {
			a.saidBySource(a.view)
		}
	}
	if best >= 0 {
		if err := a.take(answers[best].data); err != nil {
			results[best].Err, results[best].Error, results[best].Refused = err, err.Error(), refusal(err)
		} else {
			a.saidBySource(a.view)
		}
	}
	a.noteSources(results, best)
	a.distrust = nil
	for _, r := range results {
		if best < 0 && r.Refused {
			a.distrust = fmt.Errorf("%s: %w", r.Name, r.Err)
			break
		}
	}
	a.sources, a.synced = results, a.now().UTC()
	return results
}

// take makes a head the newest verified one.
func (a *Agent) take(data []byte) error {
	next, view, err := a.trust().AcceptHead(a.cfg.Cohort, data, a.now())
	if err != nil {
		return err
	}
	key := a.headKey()
	if !bytes.Equal(a.st.Head[key], data) {
		// In memory only: it is written before anything is done or said because of it (persist).
		a.st.Head[key] = bytes.Clone(data)
		a.dirty = true
	}
	a.st.Trust[a.cfg.Repo] = next
	a.view = view
	return nil
}

func (a *Agent) headKey() string { return a.cfg.Repo + "/" + a.cfg.Cohort }

func (a *Agent) trust() manifest.TrustState { return a.st.Trust[a.cfg.Repo] }

// noteSources logs what changed about the carriers since the last time: one that is behind, refused, unreachable, or well again.
func (a *Agent) noteSources(results []SourceResult, best int) {
	said := map[string]string{}
	for i, r := range results {
		word := ""
		switch {
		case r.Refused && r.Err != nil && errors.Is(r.Err, manifest.ErrOrder):
			word = "behind"
		case r.Refused:
			word = "refused"
		case r.Err != nil:
			word = "no answer"
		case best >= 0 && r.Mark != results[best].Mark:
			word = "behind"
		}
		said[r.Name] = word
		if a.said[r.Name] == word {
			continue
		}
		attrs := []any{"source", r.Name}
		if r.Mark != "" {
			attrs = append(attrs, "mark", r.Mark)
		}
		if best >= 0 && i != best {
			attrs = append(attrs, "newest", results[best].Mark)
		}
		if r.Error != "" {
			attrs = append(attrs, "err", r.Error)
		}
		switch word {
		case "":
			a.log.Info("source is well again", attrs...)
		default:
			a.log.Warn("source: "+word, attrs...)
		}
	}
	a.said = said
}

// followKeyrings takes keyring n+1, n+2 … from whichever carrier has them.
func (a *Agent) followKeyrings(ctx context.Context) {
	for range maxKeyrings {
		keys, err := a.trust().Keys()
		if err != nil {
			a.log.Error("keyring in state.json", "err", err)
			return
		}
		if !a.nextKeyring(ctx, keys.Version+1) {
			return
		}
		a.log.Info("new keyring", "version", keys.Version+1)
	}
}

func (a *Agent) nextKeyring(ctx context.Context, version uint64) bool {
	answers := a.askEach(ctx, func(ctx context.Context, c Carrier) ([]byte, error) { return c.Keyring(ctx, version) })
	for i, ans := range answers {
		if errors.Is(ans.err, store.ErrNotFound) {
			continue
		}
		err := ans.err
		var next manifest.TrustState
		if err == nil {
			next, err = a.trust().AcceptKeyring(ans.data)
		}
		if err != nil {
			// An unreachable carrier says so when it is asked for the head.
			level := slog.LevelDebug
			if refusal(err) {
				level = slog.LevelWarn
			}
			a.log.Log(ctx, level, "keyring", "version", version, "source", a.opts.Carriers[i].Name(), "err", err)
			continue
		}
		a.st.Trust[a.cfg.Repo] = next
		a.dirty = true
		return true
	}
	return false
}

// resolve says what this host is to run now, by the newest verified head.
func (a *Agent) resolve(ctx context.Context) (manifest.Resolution, error) {
	host := manifest.Host{Name: a.cfg.Host, Labels: maps.Clone(a.cfg.Labels)}
	r, err := manifest.Resolve(a.acting(a.view), host, a.now())
	if err != nil || r.Variants == nil {
		return r, err
	}
	if s := a.st.standby(r); s != nil {
		return s.known(r), nil
	}
	doc, err := a.variants(ctx, *r.Variants)
	if err != nil {
		return r, fmt.Errorf("read the host variants of release %d: %w", r.Epoch(), err)
	}
	return r.WithVariants(a.cfg.Host, doc), nil
}
