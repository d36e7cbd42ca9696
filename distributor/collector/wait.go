package collector

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/verdict"
)

// waitQuery is one question; who asks the same one shares its version.
type waitQuery struct {
	epoch   uint64
	cohort  string
	strict  bool
	cohorts string // of the caller
}

// waitState is the last answer to a question, by its fingerprint.
type waitState struct {
	sum     uint64
	version uint64
}

// maxWaits bounds how many questions are remembered; forgetting one costs an extra answer.
const maxWaits = 1000

// Wait judges a release: see api.Client. With After it waits until the answer is another one.
func (c *Collector) Wait(ctx context.Context, epoch uint64, q api.WaitQuery) (*api.Wait, error) {
	return c.wait(ctx, local, epoch, q)
}

func (c *Collector) wait(ctx context.Context, who caller, epoch uint64, q api.WaitQuery) (*api.Wait, error) {
	deadline := time.NewTimer(min(max(q.Wait, 0), api.MaxWait))
	defer deadline.Stop()
	c.readAgain(ctx, epoch)
	for {
		changed := c.onChange()
		start := time.Now()
		w, err := c.green(ctx, who, epoch, q)
		if err != nil || w.Version > q.After || q.After == 0 || q.Wait <= 0 {
			return w, err
		}
		// Silence and lag come with time alone, so it looks again each second. Reports of a large fleet come all the time: looking costs at most a fifth of a core.
		spare := time.NewTimer(max(5*time.Millisecond, 4*time.Since(start)))
		second := time.NewTimer(time.Second)
		over := false
		select {
		case <-changed:
		case <-second.C:
		case <-deadline.C:
			over = true
		case <-ctx.Done():
			err = ctx.Err()
		case <-c.ended:
			err = errEnding
		}
		if !over && err == nil {
			select {
			case <-spare.C:
			case <-deadline.C:
				over = true
			case <-ctx.Done():
				err = ctx.Err()
			case <-c.ended:
				err = errEnding
			}
		}
		spare.Stop()
		second.Stop()
		if err != nil {
			return nil, err
		}
		if over {
			return c.green(ctx, who, epoch, q)
		}
	}
}

// green judges a release now.
func (c *Collector) green(ctx context.Context, who caller, epoch uint64, q api.WaitQuery) (*api.Wait, error) {
	rel, err := c.oneRelease(ctx, local, epoch)
	if err != nil {
		return nil, err
	}
	all := len(rel.Cohorts)
	*rel, _ = visible(*rel, who)
	names := slices.Sorted(maps.Keys(rel.Cohorts))
	_, known := rel.Cohorts[q.Cohort]
	switch {
	case q.Cohort == "" && len(names) < all:
		return nil, refuse(http.StatusForbidden, fmt.Sprintf("name a cohort; this token may see %s", orNone(names)), "this token may not see all cohorts of release %d", epoch)
	case q.Cohort != "" && !known:
		err := refuse(http.StatusNotFound, fmt.Sprintf("it has %s", orNone(names)), "release %d has no cohort %.80q", epoch, q.Cohort)
		err.reason = api.ReasonNoCohort
		return nil, err
	case q.Cohort != "":
		names = []string{q.Cohort}
	}
	c.learn(ctx, rel, names)
	now := c.now()
	w := &api.Wait{Epoch: epoch, Green: true, Waiting: []verdict.Waiting{}, OwedHosts: []verdict.Waiting{}, Cohorts: map[string]verdict.Green{}}
	sum := fnv.New64a()
	c.mu.RLock()
	var whys []string
	for _, name := range names {
		if q.Cohort == "" && !c.inFleet(name) && c.fleet != nil {
			continue // a later release took the cohort away: nobody is left to confirm it
		}
		hosts := c.judge(name, now)
		g := verdict.IsGreen(c.greenInput(name, rel, q.Strict, hosts, now))
		if !g.Green {
			g.Rollout = standing.Line(c.rolloutOf(name, hosts, now, false))
		}
		w.Cohorts[name] = g
		w.Green, w.Never = w.Green && g.Green, w.Never || g.Never
		w.Confirmed += g.Confirmed
		w.Owed += g.Owed
		w.Waiting = append(w.Waiting, g.Waiting...)
		w.OwedHosts = append(w.OwedHosts, g.OwedHosts...)
		if !g.Green {
			whys = append(whys, name+": "+g.Why)
		}
		fmt.Fprintf(sum, "%s %t %t %d %d %d %s\n", name, g.Green, g.Never, g.Confirmed, g.Owed, len(g.Waiting), g.Rollout)
		if len(g.Waiting) > 0 {
			// The sentences hold ages; what the host last said stands for them.
			slices.SortFunc(hosts, func(a, b judged) int { return strings.Compare(a.Input.Host, b.Input.Host) })
			for _, h := range hosts {
				if h.Verdict.Code == verdict.Confirmed {
					continue
				}
				var said [32]byte
				if h.host != nil {
					said = h.host.digest
				}
				fmt.Fprintf(sum, "%s %s %d %x\n", h.Input.Host, h.Verdict.Code, h.Verdict.Desired, said)
			}
		}
	}
	c.mu.RUnlock()
	if len(w.Cohorts) == 0 {
		w.Green = false
		whys = append(whys, fmt.Sprintf("release %d has no cohort that is still there", epoch))
		w.Never = true
	}
	w.Why = strings.Join(whys, "; ")
	if w.Green {
		w.Why = fmt.Sprintf("%d confirmed", w.Confirmed)
		if w.Owed > 0 {
			w.Why += fmt.Sprintf(", %d owed", w.Owed)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := waitQuery{epoch, q.Cohort, q.Strict, strings.Join(who.cohorts, " ")}
	state, ok := c.waits[key]
	if !ok || state.sum != sum.Sum64() {
		if !ok && len(c.waits) >= maxWaits {
			clear(c.waits)
		}
		c.versions++
		state = waitState{sum.Sum64(), c.versions}
		c.waits[key] = state
	}
	w.Version = state.version
	return w, nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none of them"
	}
	return strings.Join(names, ", ")
}

// greenInput gathers what green is made of for one cohort of a release. Under c.mu.
func (c *Collector) greenInput(name string, rel *api.Release, strict bool, hosts []judged, now time.Time) verdict.GreenInput {
	rc := rel.Cohorts[name]
	in := verdict.GreenInput{
		Cohort: name, Epoch: rel.Epoch, Standing: rc.Epoch, State: rc.State, Reason: rc.Reason,
		Published: c.seen[rel.Epoch], Strict: strict, Now: now,
	}
	in.Short, in.Over = c.counted(name, hosts)
	in.Uncounted, in.Unlisted = c.uncounted(name)
	// It may have been published, and have done its work, long before this collector came to see it.
	if rel.Created.Before(in.Published) {
		in.Published = rel.Created
	}
	if co := c.cohorts[name]; co != nil {
		in.View = co.view
	}
	in.Accept = c.later(name, rel)
	in.Statements, in.Replaced = map[uint64]string{}, maps.Clone(c.replaced)
	for _, epoch := range append(slices.Collect(maps.Keys(in.Accept)), rc.Epoch) {
		if made, ok := c.statementsOf(epoch); ok {
			in.Statements[epoch] = made[name]
		}
	}
	in.Hosts = make([]verdict.HostInput, len(hosts))
	for i, h := range hosts {
		in.Hosts[i] = h.HostInput
	}
	return in
}

// later are the epochs that are as good for a cohort as a release: publishing demands descent, so every later commit contains this one. Under c.mu.
func (c *Collector) later(name string, rel *api.Release) map[uint64]bool {
	good := map[uint64]bool{}
	for i := len(c.releases) - 1; i >= 0 && c.releases[i].Epoch > rel.Epoch; i-- {
		later := c.releases[i].Cohorts[name]
		if c.releases[i].Kind == manifest.ReleaseCommit && later.State != manifest.StateBlocked && later.Epoch > rel.Cohorts[name].Epoch {
			good[later.Epoch] = true
		}
	}
	return good
}
