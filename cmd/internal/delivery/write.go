package delivery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-config/muster/distributor/api"
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
		if err != nil && !errors.Is(err, forge.ErrInvalid) && !errors.Is(err, forge.ErrNotFound) { // a commit that the forge does not have is not told there
			return err
		}
		d.mu.Lock()
		d.refused = d.refused[1:]
		d.mu.Unlock()
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
			return fmt.Errorf("what became of epoch %d: %w", t.Epoch, err)
		}
		d.mu.Lock()
		rollouts := maps.Clone(d.rollouts)
		d.mu.Unlock()
		for env, names := range envs {
			of[env] = t.tell(names, w, rollouts)
		}
		kept = t.keeps(w, rollouts)
		t.watched = false
		for name := range t.Cohorts {
			r := rollouts[name].Rollout
			t.watched = t.watched || r != nil && r.Target == t.stands(name) && r.Fallback != 0
		}
	}
	var failed error
	if d.cfg.Per != PerNone {
		for _, env := range slices.Sorted(maps.Keys(of)) {
			if err := d.sayDeployment(ctx, t, env, of[env]); err != nil {
				failed = err
				break
			}
		}
	}
	if err := d.sayStatus(ctx, t, t.whole(of, kept)); err != nil {
		return errors.Join(failed, err)
	}
	return errors.Join(failed, d.revert(ctx, t, of))
}

func (d *Deliverer) sayDeployment(ctx context.Context, t *tracked, env string, s said) error {
	dep := t.deployments[env]
	if dep == nil {
		var err error
		dep, err = d.cfg.Forge.Deploy(ctx, forge.Deployment{Commit: t.Commit, Environment: env, Description: fmt.Sprintf("epoch %d: %s", t.Epoch, t.Subject), Production: production(env)})
		if err != nil {
			return err
		}
		t.deployments[env] = dep
		// A success that was ended by a newer one stands.
		if dep.Last.State == forge.Inactive {
			t.told[env] = s
		}
	}
	if dep.Last.State == forge.Inactive || dep.Last.State == forge.Failure && s.state != forge.Success && d.newer(t) {
		return nil // over: what the cohorts do now is a newer one's
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

// newer reports whether a release came after t.
func (d *Deliverer) newer(t *tracked) bool { return d.active[len(d.active)-1].Epoch > t.Epoch }

// production reports whether an environment's older deployments are to be left active beside a newer one, as GitHub does for what it calls production.
func production(env string) bool { return env == "prod" || env == "production" }

func (d *Deliverer) sayStatus(ctx context.Context, t *tracked, s forge.Status) error {
	s.URL = d.cfg.URL
	if t.status == nil {
		had, err := d.cfg.Forge.Said(ctx, t.Commit, Context)
		if err != nil {
			return err
		}
		t.status = &had
	}
	if t.status.State == s.State || t.status.State == forge.Bad && s.State == forge.Pending && d.newer(t) {
		return nil
	}
	if err := d.cfg.Forge.Status(ctx, t.Commit, s); err != nil {
		return err
	}
	t.status = &s
	return nil
}

// revert asks once for a failed release to be taken back.
func (d *Deliverer) revert(ctx context.Context, t *tracked, of map[string]said) error {
	if !d.cfg.Revert || t.reverted {
		return nil
	}
	for _, env := range slices.Sorted(maps.Keys(of)) {
		b := of[env].back
		if b == nil || b.baseline == 0 || b.baseline >= t.Epoch {
			continue
		}
		good, err := d.cfg.Load(ctx, b.baseline)
		if err != nil {
			return fmt.Errorf("what stood before epoch %d: %w", t.Epoch, err)
		}
		p, made, err := d.cfg.Forge.Revert(ctx, revertOf(t.Release, d.cfg.Branch, good.Commit, b))
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
	return nil
}
