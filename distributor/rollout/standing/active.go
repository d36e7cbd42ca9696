package standing

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
)

// Active is what was decided by hand, or by a halt, and acts on a cohort now: what stops most first, of one kind the oldest first. made tells when a release was made, zero if that is
// not known: an override that was made to last longer is as old as its release.
func Active(v *manifest.View, now time.Time, made func(epoch uint64) time.Time) []api.Active {
	list := []api.Active{}
	r := &v.Manifest.Rollout
	stops := func(kind string, stops []manifest.Stop) {
		for _, s := range living(stops, now) {
			list = append(list, api.Active{Kind: kind, Hosts: append([]string{}, s.Hosts...), Epoch: s.Epoch, By: s.By, Why: s.Why, Since: s.Since.UTC(), Until: utc(s.Until)})
		}
	}
	stops(api.ActiveHalt, r.Halts)
	if r.Pause != nil {
		stops(api.ActivePause, []manifest.Stop{*r.Pause})
	}
	stops(api.ActiveFreeze, r.Freezes)
	stops(api.ActiveHold, r.Holds)
	for _, o := range v.Living(now) {
		if slices.ContainsFunc(r.Endings, func(e manifest.Ending) bool { return e.Override == o.ID && e.Below == "" }) {
			continue // it is off all its hosts already
		}
		services := make([]string, 0, len(o.Patches))
		for _, p := range o.Patches {
			services = append(services, p.Service)
		}
		slices.Sort(services)
		end, since := o.NotAfter.UTC(), o.Created
		if first := made(o.Epoch); !first.IsZero() && first.Before(since) {
			since = first
		}
		list = append(list, api.Active{
			Kind: api.ActiveOverride, ID: o.ID, Hosts: append([]string{}, o.Hosts...), Services: slices.Compact(services), Epoch: o.Epoch, By: o.Author, Why: o.Reason, Since: since.UTC(), Until: &end,
			Yields: v.Yields(&o.Override, now),
			Ending: slices.ContainsFunc(r.Endings, func(e manifest.Ending) bool { return e.Override == o.ID }),
		})
	}
	return list
}

// Sentence tells people of one of them: who, why, since when and until when, and what to do about it when that is due.
func Sentence(cohort string, a api.Active, now time.Time) string {
	age := now.Sub(a.Since)
	by := " by " + orSomebody(a.By)
	where := cohort
	if len(a.Hosts) > 0 {
		where = some(a.Hosts) + " of " + cohort
	}
	var text, end string
	switch a.Kind {
	case api.ActiveOverride:
		text = fmt.Sprintf("override %s acts on %s since %s%s,%s%s", a.ID, where, Age(age), until(a.Until), by, reason(a.Why))
		end = fmt.Sprintf("`muster override pr %s` brings it into the config repo, `muster override end %s --reason …` ends it", a.ID, a.ID)
		if a.Yields {
			text = fmt.Sprintf("override %s acts on no host of %s now, since what it was laid over was taken back, and acts again with the next release%s,%s%s", a.ID, cohort, until(a.Until), by, reason(a.Why))
		}
		switch {
		case a.Ending:
			return text + "; it is taken from its hosts in steps"
		case a.Until != nil && a.Until.Sub(now) <= api.OverrideWarning && age <= api.OldAfter:
			return text + fmt.Sprintf("; it ends by itself in %s: `muster override pr %s` brings it into the config repo, `muster override extend %s --ttl … --reason …` lets it last", Age(a.Until.Sub(now)), a.ID, a.ID)
		}
	case api.ActiveHold:
		text = fmt.Sprintf("%s held%s since %s%s%s", where, by, Age(age), until(a.Until), reason(a.Why))
		end = fmt.Sprintf("`muster unhold %s %s --reason …` ends it", cohort, strings.Join(a.Hosts[:min(3, len(a.Hosts))], " "))
	case api.ActiveFreeze:
		text = fmt.Sprintf("%s: frozen%s since %s%s%s", cohort, by, point(a.Since), until(a.Until), reason(a.Why))
		end = Command("unfreeze", cohort)
		if age <= api.OldAfter {
			return text + "; " + end
		}
		end += " ends it"
	case api.ActiveHalt:
		text = fmt.Sprintf("%s: halted%s since %s%s", cohort, by, point(a.Since), reason(a.Why))
		end = "git revert and publish what failed, or " + Command("resume", cohort)
		if age <= api.OldAfter {
			return text + "; " + end
		}
	case api.ActivePause:
		text = fmt.Sprintf("%s: paused%s since %s%s%s", cohort, by, point(a.Since), until(a.Until), reason(a.Why))
		end = Command("resume", cohort) + " goes on"
		if age <= api.OldAfter {
			return text + "; " + end
		}
	}
	if age > api.OldAfter {
		return text + "; it is over a day old: " + end
	}
	return text
}

// Old says how much of what was done by hand is over a day old, in one line; "" for nothing.
func Old(all map[string][]api.Active, now time.Time) string {
	n := map[string]int{}
	total := 0
	for _, list := range all {
		for _, a := range list {
			if now.Sub(a.Since) > api.OldAfter {
				n[a.Kind]++
				total++
			}
		}
	}
	var parts []string
	for _, kind := range api.ActiveKinds {
		switch {
		case n[kind] == 1:
			parts = append(parts, "1 "+kind)
		case n[kind] > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", n[kind], kind))
		}
	}
	if parts == nil {
		return ""
	}
	what := "is"
	if total > 1 {
		what = "are"
	}
	return strings.Join(parts, ", ") + " " + what + " over a day old: bring what stays into the config repo, and end the rest"
}

// Age is a span as people read it: seconds while it is short, days when it is long.
func Age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return max(0, d).Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func orSomebody(by string) string {
	if by == "" {
		return "somebody"
	}
	return by
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// Lines are what stands at the top of everything that tells of a cohort: what stops its rollout, with what ends that, and what else acts on it.
func Lines(cohort string, c api.Cohort, now time.Time) (lines []string) {
	if Stopped(c.Rollout) {
		lines = append(lines, cohort+": "+c.Rollout.Waits)
	}
	return append(lines, Beside(cohort, c, now)...)
}

// Beside is what acts on a cohort beside the stop of which its rollout tells already.
func Beside(cohort string, c api.Cohort, now time.Time) (lines []string) {
	told := ""
	if Stopped(c.Rollout) {
		for kind, begin := range map[string]string{api.ActiveHalt: "halted", api.ActivePause: "paused", api.ActiveFreeze: "frozen"} {
			if strings.HasPrefix(c.Rollout.Waits, begin) {
				told = kind
			}
		}
	}
	for _, a := range c.Active {
		switch {
		case a.Kind != told:
			lines = append(lines, Sentence(cohort, a, now))
		case now.Sub(a.Since) > api.OldAfter:
			lines = append(lines, fmt.Sprintf("%s: this %s is over a day old", cohort, a.Kind))
		}
		if a.Kind == told {
			told = "" // a second one is another
		}
	}
	return lines
}
