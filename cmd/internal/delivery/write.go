package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/forge"
)

// sayRefused tells, on the commit, what was not published.
func (d *Deliverer) sayRefused(ctx context.Context) error {
	for {
		d.mu.Lock()
		if len(d.refused) == 0 {
			d.mu.Unlock()
			return nil
		}
		r := d.refused[0]
		d.mu.Unlock()
		err := d.cfg.Forge.Status(ctx, r.commit, forge.Status{Context: Context, State: forge.Bad, Description: "refused: " + r.why, URL: d.cfg.URL})
		over := err == nil || errors.Is(err, forge.ErrNoCommit) // a commit that the forge does not have is not told there
		d.mu.Lock()
		if len(d.refused) > 0 && d.refused[0] == r { // else it was let go meanwhile
			d.refused = d.refused[1:]
			if !over {
				d.refused = append(d.refused, r) // behind the others, which may be taken
			}
		}
		d.mu.Unlock()
		if !over {
			return err
		}
		if err != nil {
			d.cfg.Say(fmt.Sprintf("that commit %.12s was refused is not told on GitHub: %v", r.commit, err))
		}
	}
}

// deliver says what is new of one release.
func (d *Deliverer) deliver(ctx context.Context, t *tracked) error {
	envs := t.environments(d.cfg.Per)
	of := map[string]said{}
	kept := said{state: forge.Success}
	if len(t.Cohorts) > 0 {
		w, err := d.cfg.Collector.Wait(ctx, t.Epoch, api.WaitQuery{})
		if errors.Is(err, api.ErrNotFound) {
			w, err = &api.Wait{}, nil // the collector did not see it yet
		}
		if err != nil {
			return &away{collector, fmt.Errorf("what became of epoch %d: %w", t.Epoch, err)}
		}
		d.mu.Lock()
		rollouts, ended := maps.Clone(d.rollouts), d.ends.clone()
		d.mu.Unlock()
		for env, names := range envs {
			of[env] = t.tell(names, w, rollouts, ended)
		}
		kept = t.keeps(w, rollouts, ended)
		t.unseen(of, &kept)
		t.watched = t.watchedBy(w, rollouts)
	}
	var failed error
	if d.cfg.Per != PerNone {
		for _, env := range slices.Sorted(maps.Keys(of)) {
			if failed = d.allowed(thing{t.Epoch, "deployment to " + env}, func() error { return d.sayDeployment(ctx, t, env, of[env]) }); failed != nil {
				break
			}
		}
	}
	heard := kept
	for _, s := range of {
		heard.blind, heard.later, heard.since = heard.blind || s.blind, heard.later || s.later, max(heard.since, s.since)
	}
	if err := d.allowed(thing{t.Epoch, "status"}, func() error { return d.sayStatus(ctx, t, t.whole(of, kept), heard) }); err != nil {
		return cmp.Or(failed, err)
	}
	failed = cmp.Or(failed, d.allowed(thing{t.Epoch, "revert"}, func() error { return d.revert(ctx, t, of) }))
	t.over = failed == nil && t.passed(of, kept)
	return failed
}

func (d *Deliverer) sayDeployment(ctx context.Context, t *tracked, env string, s said) error {
	dep := t.deployments[env]
	if dep == nil {
		var err error
		dep, err = d.cfg.Forge.Deploy(ctx, forge.Deployment{Commit: t.Commit, Environment: env, Description: t.mark() + t.Subject, Mark: strings.TrimSpace(t.mark()), Production: production(env)})
		if err != nil {
			return err
		}
		t.deployments[env] = dep
	}
	if d.stands(t, dep.Last.State, s) {
		return nil
	}
	last, told := t.told[env]
	// Counts change all the time; a state and a wave are told at once.
	if told && last.state == s.state && last.wave == s.wave && time.Since(t.at[env]) < d.cfg.Every && s.state == forge.InProgress {
		return nil
	}
	if err := d.cfg.Forge.Progress(ctx, dep, forge.DeploymentStatus{State: s.state, Description: s.text, URL: d.cfg.URL}); err != nil {
		return err
	}
	t.told[env], t.at[env] = s, time.Now()
	return nil
}

// stands reports whether what was said last of a deployment, by whomever, is not to be followed by s.
func (d *Deliverer) stands(t *tracked, last forge.State, s said) bool {
	switch {
	case last == forge.Inactive:
		return true // a success that was ended by a newer one
	case last == forge.Success:
		return s.state != forge.Failure // hosts come, fall silent and join all the time: that is the collector's to say
	case last == forge.Failure && d.newer(t):
		return s.state != forge.Success || s.later // what the cohorts do now is a newer one's, its revert's say
	}
	return last != "" && s.blind && s.state != forge.Failure // see begin
}

// newer reports whether a release came after t.
func (d *Deliverer) newer(t *tracked) bool { return d.active[len(d.active)-1].Epoch > t.Epoch }

// production reports whether an environment's older deployments are to be left active beside a newer one, as GitHub does for what it calls production.
func production(env string) bool { return env == "prod" || env == "production" }

// sayStatus says it of the commit, by the rules of stands.
func (d *Deliverer) sayStatus(ctx context.Context, t *tracked, s forge.Status, heard said) error {
	s.URL = d.cfg.URL
	if t.status == nil {
		had, err := d.cfg.Forge.Said(ctx, t.Commit, Context)
		if err != nil {
			return err
		}
		if of, known := epochOf(had.Description); known && of < t.Epoch {
			had = forge.Status{} // said of the same commit as it was released before
		}
		t.status = &had
	}
	switch last := t.status.State; {
	case last == s.State, last == forge.Good && s.State == forge.Pending:
		return nil
	case last == forge.Bad && d.newer(t) && (s.State != forge.Good || heard.later):
		return nil
	case last != "" && (heard.blind || t.missed && heard.since > 0) && s.State == forge.Pending:
		return nil
	}
	if err := d.cfg.Forge.Status(ctx, t.Commit, s); err != nil {
		return err
	}
	t.status = &s
	return nil
}

// mark is what all that is told of a release begins with where it does not stand by itself.
func (r Release) mark() string { return fmt.Sprintf("epoch %d: ", r.Epoch) }

// epochOf reads a mark.
func epochOf(text string) (epoch uint64, ok bool) {
	rest, ok := strings.CutPrefix(text, "epoch ")
	number, _, found := strings.Cut(rest, ":")
	epoch, err := strconv.ParseUint(number, 10, 64)
	return epoch, ok && found && err == nil
}

// revert asks once for a failed release to be taken back.
func (d *Deliverer) revert(ctx context.Context, t *tracked, of map[string]said) error {
	if !d.cfg.Revert || t.reverted {
		return nil
	}
	good, b, err := d.before(ctx, t, of)
	if err != nil || good == nil || good.Commit == t.Commit { // what failed there is not in the commit: its settings, say
		return err
	}
	p, made, err := d.cfg.Forge.Revert(ctx, revertOf(t.Release, d.cfg.Branch, good, b))
	if errors.Is(err, forge.ErrConflict) {
		t.reverted = true
		d.cfg.Say(fmt.Sprintf("epoch %d is not reverted by a pull request: %v", t.Epoch, err))
		return nil
	}
	if err != nil {
		return err
	}
	t.reverted = true
	if made {
		d.cfg.Say(fmt.Sprintf("pull request %d reverts epoch %d: %s", p.Number, t.Epoch, p.URL))
	}
	return nil
}

// maxBefore bounds how many releases are read to find the one that a revert goes back to.
const maxBefore = 50

// before is the release that a revert goes back to, and the cohort that it goes back for; nil if nothing failed. A cohort goes back to its baseline, which may be old: what came
// since without changing that cohort is other people's, and stays. Where several cohorts failed it is the one that is good for all of them.
func (d *Deliverer) before(ctx context.Context, t *tracked, of map[string]said) (good *manifest.Release, cohort back, err error) {
	for _, env := range slices.Sorted(maps.Keys(of)) {
		for _, b := range of[env].backs {
			if b.baseline == 0 || b.baseline >= t.Epoch {
				continue
			}
			rel, err := d.same(ctx, t.Epoch, b)
			if err != nil {
				return nil, back{}, &away{theStore, fmt.Errorf("what stood before epoch %d: %w", t.Epoch, err)}
			}
			if good == nil || rel.Epoch < good.Epoch {
				good, cohort = rel, b
			}
		}
	}
	return good, cohort, nil
}

// same is the newest release before an epoch that gives a cohort just what its baseline does.
func (d *Deliverer) same(ctx context.Context, epoch uint64, b back) (*manifest.Release, error) {
	for e := epoch - 1; e > b.baseline && epoch-e <= maxBefore; e-- {
		rel, err := d.cfg.Load(ctx, e)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil && rel.Kind != manifest.ReleaseOverride && rel.Cohorts[b.cohort].Epoch == b.baseline { // a number that holds no release is passed over
			return rel, nil
		}
	}
	return d.cfg.Load(ctx, b.baseline)
}
