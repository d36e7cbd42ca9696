package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/muster-config/muster/distributor/bundle"
)

// render evaluates again, at their service epochs, the services that refer to release.epoch. One that kept its epoch and nevertheless renders other bytes
// than those that stand under it (it branched on release.epoch, or stopped doing so) has changed after all: it gets the new epoch and is rendered once more,
// since one service epoch never names two contents.
func (a *assembly) render(ctx context.Context) error {
	for {
		missing := map[part]bool{}
		for _, t := range a.targets {
			for name := range t.now {
				if _, p, ok := a.files(t, name); !ok {
					missing[p] = true
				}
			}
		}
		if len(missing) > 0 {
			if err := a.again(ctx, missing); err != nil {
				return err
			}
			a.drop()
			continue
		}
		if !a.settle() {
			return nil
		}
	}
}

// settle takes over what was rendered, and reports whether a service must be rendered once more.
func (a *assembly) settle() (more bool) {
	for _, t := range a.targets {
		for name, s := range t.services {
			if !t.now[name].usesEpoch {
				continue
			}
			files, _, _ := a.files(t, name)
			s.Digest, s.Files = bundle.ContentDigest(files), len(files)
			if s.Epoch != a.epoch && s.Digest != t.stood.Services[name].Digest {
				s.Epoch, more = a.epoch, true
			}
			t.services[name] = s
		}
	}
	return more
}

// drop leaves out the targets of cohorts that turned out to be blocked.
func (a *assembly) drop() {
	blocked := a.blockedBy(a.late)
	a.targets = slices.DeleteFunc(a.targets, func(t *target) bool { return blocked[t.cohort] != "" })
}

// again evaluates what is missing. One request gives a unit one epoch: a service that stands under two (the cohort's, and that of a host which had files of
// its own before) takes two.
func (a *assembly) again(ctx context.Context, missing map[part]bool) error {
	req := a.request
	req.FilesToo, req.LeavesToo, req.SchemasToo = true, false, false
	req.Epochs, req.Services, req.Cohorts = map[string]map[string]uint64{}, nil, nil
	asked := map[part]bool{}
	for p := range missing {
		key := p.cohort
		if p.host != "" {
			key += "/" + p.host
		}
		if req.Epochs[key] == nil {
			req.Epochs[key] = map[string]uint64{}
		}
		if _, taken := req.Epochs[key][p.service]; taken {
			continue // next time
		}
		req.Epochs[key][p.service] = p.epoch
		asked[p] = true
		req.Services, req.Cohorts = append(req.Services, p.service), append(req.Cohorts, p.cohort)
	}
	for _, list := range []*[]string{&req.Services, &req.Cohorts} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	result, err := a.opts.Evaluate(ctx, &req, a.opts.Limits)
	if err != nil {
		return fmt.Errorf("evaluate %s again at its epochs: %w", a.name(), err)
	}
	if err := unevaluated(result.Problems); err != nil {
		return err
	}
	for _, p := range result.Problems {
		if isError(p) {
			a.late = append(a.late, p)
			if p.Service == "" {
				return &RefusedError{Problems: a.Found()}
			}
		}
	}
	for _, u := range result.Units {
		p := part{u.Cohort, u.Host, u.Service, 0}
		key := u.Cohort
		if u.Host != "" {
			key += "/" + u.Host
		}
		p.epoch = req.Epochs[key][u.Service]
		if asked[p] && len(u.Files) > 0 {
			a.rendered[p] = bundleFiles(u)
			delete(asked, p)
		}
	}
	blocked := a.blockedBy(a.late)
	for _, p := range slices.SortedFunc(maps.Keys(asked), comparePart) {
		if blocked[p.cohort] != "" {
			continue
		}
		return fmt.Errorf("evaluate %s again at epoch %d: no result for service %s of cohort %s: this is a bug", a.name(), p.epoch, p.service, p.cohort)
	}
	return nil
}

func comparePart(a, b part) int {
	return cmp.Or(cmp.Compare(a.cohort, b.cohort), cmp.Compare(a.host, b.host), cmp.Compare(a.service, b.service), cmp.Compare(a.epoch, b.epoch))
}
