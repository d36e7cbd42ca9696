package collector

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/wire"
)

// Steering lets a collector do what persons ask of a rollout: it signs orders and writes them.
type Steering struct {
	Store  store.Store
	Signer manifest.Signer
}

const (
	maxReason = 500
	maxBy     = 200
	maxFreeze = 90 * 24 * time.Hour // a freeze that nobody remembers the end of is none
	actTime   = 25 * time.Second
)

// Act does what a person asks of a cohort's rollout: see api.Client.
func (c *Collector) Act(ctx context.Context, cohort, act string, q api.Act) (*api.Acted, error) {
	return c.act(ctx, local, cohort, act, q)
}

func (c *Collector) postAct(w http.ResponseWriter, r *http.Request, who caller) error {
	data, err := body(w, r, maxChange)
	if err != nil {
		return err
	}
	var q api.Act
	if err := wire.Decode(data, &q); err != nil {
		return refuse(http.StatusBadRequest, "", "%w", err)
	}
	got, err := c.act(r.Context(), who, r.PathValue("cohort"), r.PathValue("act"), q)
	if err != nil {
		return err
	}
	return answer(w, got)
}

func (c *Collector) act(ctx context.Context, who caller, cohort, act string, q api.Act) (*api.Acted, error) {
	switch {
	case !slices.Contains(api.Acts, act):
		return nil, refuse(http.StatusNotFound, "there are "+strings.Join(api.Acts, ", "), "%.60q is nothing that can be done with a cohort", act)
	case !manifest.ValidName(cohort):
		return nil, refuse(http.StatusBadRequest, "", "%.80q is not a cohort name", cohort)
	case !who.may(cohort):
		return nil, refuse(http.StatusForbidden, "", "this token is not for cohort %s", cohort)
	}
	a, err := c.action(who, act, q)
	if err != nil {
		return nil, err
	}
	if c.steering == nil {
		return nil, conflict(1, "give the command --store and --keys, so that it writes the order itself, or name the rollout key in the collector's rollout_key",
			"this collector has no rollout key, so that it can change no order: %s of cohort %s was not done", act, cohort)
	}
	ctx, cancel := context.WithTimeout(ctx, actTime)
	defer cancel()
	if err := c.readKeyrings(ctx); err != nil {
		return nil, err
	}
	if err := c.readReleases(ctx); err != nil { // what was published a moment ago counts, for supersede above all
		return nil, err
	}
	newest, err := c.newestRead(true) // another cohort's head that cannot be read, or this one's that is to be restored, does not matter
	if err != nil {
		return nil, refuse(http.StatusServiceUnavailable, "run the command again in a moment", "%w", err)
	}
	in, err := c.actInput(ctx, newest, cohort)
	if err != nil {
		return nil, err
	}
	in.By = a.By
	if err := c.lookBack(ctx, &in, &a); err != nil {
		return nil, err
	}
	done, err := rollout.Perform(ctx, c.steering.Store, newest.Trust, c.steering.Signer, in, a, c.now())
	if err != nil {
		return nil, refusal(err)
	}
	r := done.View.Manifest.Rollout
	out := &api.Acted{Cohort: cohort, Changed: done.Changed, Said: done.Said, Mark: done.View.Mark().String(), Target: r.Target, Phase: r.Phase}
	c.log.Info("rollout changed by hand", "act", act, "cohort", cohort, "by", a.By, "reason", a.Why, "epoch", r.Target, "mark", out.Mark, "changed", done.Changed)
	if done.History != nil {
		out.Warning = "the copy of the order could not be written; the order is in force"
		c.log.Warn("the copy of the order could not be written; the order is in force", "cohort", cohort, "err", done.History)
	}
	if done.Changed {
		if err := c.readHead(ctx, cohort); err != nil {
			c.log.Debug("read the new head", "cohort", cohort, "err", err) // the next poll does
		}
		c.Wrote(cohort)
	}
	return out, nil
}

// action checks what a person asks.
func (c *Collector) action(who caller, act string, q api.Act) (rollout.Action, error) {
	a := rollout.Action{
		Kind: rollout.ActionKind(act), By: cmp.Or(who.name, q.By), Why: q.Reason, Wave: q.Wave, Epoch: q.Epoch, Until: q.Until,
		Hosts: q.Hosts, To: q.To, Now: q.Now, DropOverrides: q.DropOverrides, Aborted: q.Aborted,
	}
	bad := func(format string, args ...any) (rollout.Action, error) {
		return rollout.Action{}, refuse(http.StatusBadRequest, "", format, args...)
	}
	control := func(s string) bool { return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) }
	freezes := a.Kind == rollout.Freeze || a.Kind == rollout.Hold
	names := a.Kind == rollout.Hold || a.Kind == rollout.Unhold
	switch {
	case a.By == "" || len(a.By) > maxBy || control(a.By):
		return bad("by: say who does it, in at most %d bytes", maxBy)
	case strings.TrimSpace(a.Why) == "" && a.Kind != rollout.Refresh:
		return bad("reason: say why: it is kept, and shown to those who ask later")
	case len(a.Why) > maxReason || control(a.Why):
		return bad("reason: longer than %d bytes, or with a control character", maxReason)
	case a.Wave != 0 && a.Kind != rollout.Approve:
		return bad("wave: goes with approve")
	case a.Wave < 0 || a.Epoch > manifest.MaxCounter || a.To > manifest.MaxCounter:
		return bad("wave, epoch, to: out of range")
	case names && len(a.Hosts) == 0 || len(a.Hosts) > rollout.MaxHeldHosts:
		return bad("hosts: name 1 to %d", rollout.MaxHeldHosts)
	case !names && len(a.Hosts) > 0:
		return bad("hosts: goes with hold and unhold")
	case a.To != 0 && a.Kind != rollout.Rollback && a.Kind != rollout.Hold:
		return bad("to: goes with rollback and hold")
	case (a.Now || a.DropOverrides) && a.Kind != rollout.Rollback:
		return bad("now, drop_overrides: go with rollback")
	case a.Aborted && a.Kind != rollout.Resume:
		return bad("aborted: goes with resume")
	case a.Until != nil && !freezes:
		return bad("until: goes with freeze and hold")
	case freezes && a.Until == nil:
		return bad("until: a %s has an end: say which", a.Kind)
	case freezes && (!a.Until.After(c.now()) || a.Until.Sub(c.now()) > maxFreeze):
		return bad("until: %s is past, or more than %s away", a.Until.UTC().Format(time.RFC3339), maxFreeze)
	}
	return a, nil
}

// lookBack adds what a hold or a rollback looks at: what the hosts run, and the statements of the epochs that it may lead to.
func (c *Collector) lookBack(ctx context.Context, in *rollout.Input, a *rollout.Action) error {
	if a.Kind != rollout.Hold && a.Kind != rollout.Rollback {
		return nil
	}
	if a.Kind == rollout.Hold {
		runs, err := c.runs(in.Cohort, a.Hosts)
		if err != nil {
			return err
		}
		a.Runs = runs
	}
	in.Named = map[uint64]manifest.Envelope{}
	if a.To != 0 {
		rel, err := c.Released(ctx, a.To)
		if err != nil || rel.Cohorts[in.Cohort].Epoch == 0 {
			return refuse(http.StatusNotFound, "`muster log "+in.Cohort+"` lists its releases", "there is no epoch %d of cohort %s that can be read and verifies", a.To, in.Cohort)
		}
		a.To = rel.Cohorts[in.Cohort].Epoch // the one that the release left as it was
		st, err := c.Statement(ctx, in.Cohort, a.To)
		if err != nil {
			return refuse(http.StatusNotFound, "check the store with muster fsck", "the statement of epoch %d cannot be used: %w", a.To, err)
		}
		in.Named[a.To] = *st
		return nil
	}
	for _, epoch := range a.Runs {
		if st, err := c.Statement(ctx, in.Cohort, epoch); err == nil {
			in.Named[epoch] = *st
		}
	}
	return nil
}

// runs is what hosts of a cohort run, as they reported it.
func (c *Collector) runs(cohort string, hosts []string) (map[string]uint64, error) {
	now := c.now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	known := map[string]uint64{}
	judged := c.judge(cohort, now)
	for i := range judged {
		known[judged[i].Input.Host] = judged[i].Verdict.Running
	}
	runs := map[string]uint64{}
	for _, h := range hosts {
		epoch, ok := known[h]
		if !ok {
			return nil, refuse(http.StatusNotFound, "`muster hosts` lists them", "no host %.80q of cohort %s is known here", h, cohort)
		}
		runs[h] = epoch
	}
	return runs, nil
}

// actInput is what an action looks at beside the head.
func (c *Collector) actInput(ctx context.Context, newest rollout.Newest, cohort string) (rollout.Input, error) {
	keys, err := newest.Trust.Keys()
	if err != nil {
		return rollout.Input{}, err
	}
	rel := newest.Release
	part, ok := rel.Cohorts[cohort]
	if !ok || part.Epoch == 0 {
		return rollout.Input{}, refuse(http.StatusNotFound, "`muster status` lists what there is", "nothing is released for cohort %s", cohort)
	}
	st := part.Statement
	if part.Epoch != rel.Epoch || st == nil {
		if st, err = c.Statement(ctx, cohort, part.Epoch); err != nil {
			return rollout.Input{}, err
		}
	}
	return rollout.Input{Store: rel.Store, Repo: rel.Repo, Cohort: cohort, Era: keys.Era, Release: rel, Statement: *st}, nil
}

// refusal is the answer to an action that was not done.
func refusal(err error) error {
	switch {
	case errors.Is(err, rollout.ErrUnfit), errors.Is(err, rollout.ErrStopped), errors.Is(err, rollout.ErrNothing):
		return conflict(1, "`muster rollout status` shows where it stands", "%w", err)
	case errors.Is(err, store.ErrConflict), errors.Is(err, rollout.ErrVanished):
		return conflict(3, "run the command again", "%w", err)
	case errors.Is(err, rollout.ErrBehind), errors.Is(err, manifest.ErrSignature), errors.Is(err, manifest.ErrOrder), errors.Is(err, manifest.ErrEquivocation):
		return conflict(4, "check the store with muster fsck, and the collector's rollout_key", "%w", err)
	}
	return err
}

// conflict is an answer of 409 with its exit code.
func conflict(code int, hint, format string, args ...any) *requestError {
	e := refuse(http.StatusConflict, hint, format, args...)
	e.code = code
	return e
}

// getObserved tells a controller elsewhere what this collector knows of a cohort's hosts.
func (c *Collector) getObserved(w http.ResponseWriter, r *http.Request, who caller) error {
	name := r.PathValue("cohort")
	if !manifest.ValidName(name) || !who.may(name) {
		return refuse(http.StatusNotFound, "`muster status` lists them", "no cohort %.80q", name)
	}
	view, seen, err := c.Cohort(r.Context(), name)
	if err != nil {
		return refuse(http.StatusServiceUnavailable, "", "%w", err)
	}
	out := api.Observed{Hosts: []api.ObservedHost{}}
	if view != nil {
		out.Mark, out.Unseen, out.Settling = seen.Mark.String(), seen.Unseen, seen.Settling
	}
	for _, h := range seen.Hosts {
		o := api.ObservedHost{Name: h.Name, Labels: h.Labels, Verdict: h.Verdict, Running: h.Running, Attempted: h.Attempted, Silent: h.Silent.UTC(), Left: h.Left, Told: h.Told.UTC()}
		if !h.Waits.IsZero() {
			at := h.Waits.UTC()
			o.Waits = &at
		}
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		p := h.Reported
		o.At, o.Refused, o.RolledBack, o.Drifted, o.Restarts, o.Probes, o.Failures, o.LatencyMS = p.At.UTC(), p.Refused, p.RolledBack, p.Drifted, p.Restarts, p.Probes, p.Failures, p.LatencyMS
		out.Hosts = append(out.Hosts, o)
	}
	return answer(w, out)
}
