package collector

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/standing"
)

// Notify is one receiver of notices, from collector.yaml.
type Notify struct {
	URL        string
	Events     []string // of api.NoticeEvents; empty: all
	SecretFile string   // absolute path; what it holds signs the notices; "": they are not signed
}

func (n Notify) validate() error {
	if err := checkURL(n.URL); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	for _, e := range n.Events {
		if !slices.Contains(api.NoticeEvents, e) {
			return fmt.Errorf("events: there is no %.40q, but %s", e, strings.Join(api.NoticeEvents, ", "))
		}
	}
	if n.SecretFile != "" && !filepath.IsAbs(n.SecretFile) {
		return errors.New("secret_file: not an absolute path")
	}
	return nil
}

// wants says whether the receiver is told of an event.
func (n Notify) wants(event string) bool {
	return len(n.Events) == 0 || slices.Contains(n.Events, event)
}

// shown is the receiver for logs: paths and queries of such URLs often are a secret.
func (n Notify) shown() string {
	u, err := url.Parse(n.URL)
	if err != nil {
		return "a receiver"
	}
	return u.Scheme + "://" + u.Host
}

// notices are what a cohort's head is worth telling of now. Each has an id of what it tells, not of who tells it: told again, by this collector or another, it has the same one.
// Under c.mu.
func (c *Collector) notices(name string, v *manifest.View, now time.Time) []api.Notice {
	r := &v.Manifest.Rollout
	var list []api.Notice
	add := func(event, id string, epoch uint64, by, why string, since time.Time) *api.Notice {
		n := api.Notice{
			V: 1, ID: strings.Join([]string{name, event, id}, "/"), Event: event, Repo: c.repo, Cohort: name, At: since.UTC(), Epoch: epoch, Baseline: r.Baseline, Phase: r.Phase,
			Step: standing.Step(r), By: by, Why: why, Queue: []api.Queued{},
		}
		if i, ok := slices.BinarySearchFunc(c.releases, epoch, func(r release, e uint64) int { return int(r.Epoch) - int(e) }); ok {
			n.Commit, n.Subject, n.Author = c.releases[i].Commit, c.releases[i].Subject, c.releases[i].Author.Name
		}
		if queue, _ := c.queue(name, r); queue != nil {
			n.Queue = queue
		}
		list = append(list, n)
		return &list[len(list)-1]
	}
	// waits tells of what a person has to end, and once a day that it still stands.
	waits := func(event, id string, by, why string, since time.Time, next string) {
		add(event, id, r.Target, by, why, since).Next = next
		if late := now.Sub(since); late >= api.OverdueAfter {
			n := add(event, fmt.Sprintf("%s/overdue-%d", id, int(late/(24*time.Hour))), r.Target, by, why, since)
			n.Overdue, n.Next = true, next
			n.Why = fmt.Sprintf("has waited at %s for %s: %s", n.Step, late.Round(time.Minute), orText(why, "no reason given"))
		}
	}
	resume, abort, approve := standing.Command("resume", name), standing.Command("abort", name), standing.Command("approve", name)
	for _, h := range r.Halts {
		n := add(api.NoticeHalted, fmt.Sprintf("%d/%s", h.Epoch, h.Since.UTC().Format(time.RFC3339)), h.Epoch, h.By, h.Why, h.Since)
		n.Next = "git revert and publish what failed, or " + resume
	}
	id := fmt.Sprintf("%d/%s", r.Target, r.Since.UTC().Format(time.RFC3339))
	switch {
	case r.Phase == manifest.PhaseRollingBack:
		add(api.NoticeRolledBack, id, r.Target, r.By, r.Why, r.Since).Next = "git revert and publish what failed, or " + resume
	case r.Phase == manifest.PhaseHalted && len(r.Halts) == 0:
		add(api.NoticeHalted, id, r.Target, r.By, r.Why, r.Since).Next = "git revert and publish what failed, or " + resume
	case r.Pause != nil && (r.Pause.Until == nil || now.Before(*r.Pause.Until)):
		p, next := r.Pause, resume+" goes on, "+abort+" goes back"
		if standing.NotBegun(r) {
			next = resume + " goes on"
		}
		waits(api.NoticePaused, fmt.Sprintf("%d/%s", r.Target, p.Since.UTC().Format(time.RFC3339)), p.By, p.Why, p.Since, next)
	case r.Phase == manifest.PhaseAwaitingApproval:
		waits(api.NoticeApproval, id, r.By, r.Why, r.Since, approve+" goes on, "+abort+" goes back")
	}
	for _, o := range v.Living(now) { // not what its earlier envelopes said, which hosts keep as well
		if left := o.NotAfter.Sub(now); left <= api.OverrideWarning {
			n := add(api.NoticeOverrideEnding, fmt.Sprintf("%s/%s", o.ID, o.NotAfter.UTC().Format(time.RFC3339)), o.Epoch, o.Author, o.Reason, o.Created)
			until := o.NotAfter.UTC()
			n.Until, n.Next = &until, "put the change into the config repo, or let it end"
		}
	}
	return list
}

func orText(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
