// Package standing says where a cohort's rollout stands, as people look at it: waves and who is in, gates with what they heard, what it waits for and what ends that.
// It decides nothing, and is pure: the same head, hosts and time give the same answer.
package standing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/verdict"
)

// Host is one host as somebody judged it.
type Host struct {
	Name    string
	Labels  map[string]string
	Verdict verdict.Code
	Why     string
	Running uint64
}

// Input is what is known.
type Input struct {
	Cohort  string
	View    *manifest.View // the newest verified head
	Hosts   []Host         // expected ones, not retired; nil: nobody judged them
	Gates   []manifest.GateVerdict
	Live    bool         // Gates were heard now; else the head's own count
	Queue   []api.Queued // releases above the target that carry something for the cohort
	Blocked string       // why the newest release has nothing for the cohort, if it has not
	Said    string       // what a controller last said that it waits for; "" if it said nothing
	Now     time.Time
}

// Of says where the rollout stands.
func Of(in Input) *api.Rollout {
	m := &in.View.Manifest
	r := &m.Rollout
	out := &api.Rollout{
		Cohort: in.Cohort, Target: r.Target, Baseline: r.Baseline, Fallback: r.Fallback, Phase: r.Phase, Was: r.Was, Wave: r.Wave, Since: r.Since, By: r.By, Why: r.Why,
		Policy: r.PolicyName, PolicyEpoch: r.PolicyEpoch, Told: r.Told, Waves: []api.RolloutWave{}, Gates: []api.RolloutGate{}, Queue: in.Queue,
		Pause: r.Pause, Halts: append([]manifest.Stop{}, r.Halts...), Freezes: living(r.Freezes, in.Now), Skipped: append([]string{}, r.Skipped...),
	}
	if out.Queue == nil {
		out.Queue = []api.Queued{}
	}
	told := in.count(out)
	in.waves(out, told)
	in.gates(out)
	out.Until = in.until()
	out.Waits, out.Overdue = in.waits(out, told)
	return out
}

// count counts the hosts, and gives those that were told to run the target.
func (in Input) count(out *api.Rollout) (told []Host) {
	if in.Hosts == nil {
		return nil
	}
	out.Told = 0
	for _, h := range in.Hosts {
		switch h.Verdict {
		case verdict.Retired, verdict.Unexpected, verdict.Duplicate, verdict.Missing, verdict.Held:
			continue
		}
		res, err := manifest.Resolve(in.View, manifest.Host{Name: h.Name, Labels: h.Labels}, in.Now)
		has := err == nil && res.Epoch() == out.Target
		if !has && h.Verdict == verdict.Silent {
			continue // it takes the release when it comes back
		}
		out.Eligible++
		if !has {
			continue
		}
		out.Told++
		if h.Verdict == verdict.Confirmed && h.Running == out.Target {
			out.Confirmed++
		}
		told = append(told, h)
	}
	slices.SortFunc(told, func(a, b Host) int {
		return cmp.Or(cmp.Compare(rank(a.Verdict), rank(b.Verdict)), cmp.Compare(a.Name, b.Name))
	})
	return told
}

// rank puts what needs somebody first.
func rank(code verdict.Code) int {
	switch code {
	case verdict.Confirmed:
		return 2
	case verdict.Applying:
		return 1
	}
	return 0
}

// Takes is a wave in words: "5%", "3 hosts", "canary=true".
func Takes(w manifest.Wave) string {
	switch {
	case w.Percent > 0:
		return strconv.FormatFloat(w.Percent, 'g', -1, 64) + "%"
	case w.Count == 1:
		return "1 host"
	case w.Count > 0:
		return fmt.Sprintf("%d hosts", w.Count)
	}
	var parts []string
	for k, v := range w.Match {
		parts = append(parts, k+"="+v)
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// Sizes says how many of the eligible hosts have the target when each wave is over. Waves nest: none is smaller than the one before it.
func Sizes(waves []manifest.Wave, hosts []map[string]string) []int {
	n := len(hosts)
	in := make([]bool, n) // by label
	sizes, last := make([]int, len(waves)), 0
	for i, w := range waves {
		size := 0
		switch {
		case w.Percent > 0:
			size = manifest.WaveSize(w.Percent, n)
		case w.Count > 0:
			size = w.Count
		default:
			for j, labels := range hosts {
				in[j] = in[j] || matches(w.Match, labels)
				if in[j] {
					size++
				}
			}
		}
		if i == len(waves)-1 {
			size = n // the last wave is everybody
		}
		last = min(n, max(last, size, w.Min))
		sizes[i] = last
	}
	return sizes
}

func matches(want, have map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func (in Input) waves(out *api.Rollout, told []Host) {
	r := &in.View.Manifest.Rollout
	sizes := Sizes(r.Policy.Waves, in.eligible())
	for i, w := range r.Policy.Waves {
		n := i + 1
		wave := api.RolloutWave{
			Wave: n, Takes: Takes(w), Hosts: sizes[i], Bake: w.Bake, Approval: slices.Contains(r.Policy.ApproveBefore, n), Approved: slices.Contains(r.Approved, n),
			State: stateOf(r, n), In: []api.WaveHost{},
		}
		if wave.State == api.WaveNow || wave.State == api.WaveFailed {
			for _, h := range told[:min(len(told), api.MaxWaveHosts)] {
				wave.In = append(wave.In, api.WaveHost{Host: h.Name, Verdict: h.Verdict, Why: h.Why})
			}
			wave.More = len(told) - len(wave.In)
		}
		out.Waves = append(out.Waves, wave)
	}
}

// eligible are the labels of the hosts that the waves count.
func (in Input) eligible() (labels []map[string]string) {
	for _, h := range in.Hosts {
		switch h.Verdict {
		case verdict.Retired, verdict.Unexpected, verdict.Duplicate, verdict.Missing, verdict.Held, verdict.Silent:
		default:
			labels = append(labels, h.Labels)
		}
	}
	return labels
}

// stateOf says what wave n is to the rollout.
func stateOf(r *manifest.Rollout, n int) string {
	phase := r.Phase
	if phase == manifest.PhasePaused {
		phase = r.Was
	}
	switch phase {
	case manifest.PhaseDone:
		return api.WaveDone
	case manifest.PhaseIdle:
		return api.WaveNext
	case manifest.PhaseAwaitingApproval:
		if n < r.Wave {
			return api.WaveDone
		}
		return api.WaveNext // it has not begun
	}
	switch {
	case n < r.Wave:
		return api.WaveDone
	case n == r.Wave && (phase == manifest.PhaseHalted || phase == manifest.PhaseRollingBack):
		return api.WaveFailed
	case n == r.Wave:
		return api.WaveNow
	}
	return api.WaveNext
}

func (in Input) gates(out *api.Rollout) {
	r := &in.View.Manifest.Rollout
	list, live := in.Gates, in.Live
	if !live {
		list = r.Verdicts
	}
	names := make([]string, 0, len(r.Policy.Gates))
	for name := range r.Policy.Gates {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		g := api.RolloutGate{Gate: name, Asks: Asks(r.Policy.Gates[name])}
		for i := range list {
			if list[i].Gate == name {
				v := list[i]
				g.Verdict, g.Live = &v, live
			}
		}
		out.Gates = append(out.Gates, g)
	}
}

// Asks says what a gate compares with what.
func Asks(g manifest.Gate) string {
	what := "prometheus"
	switch {
	case g.Reported != "":
		what = "reported " + strings.ReplaceAll(g.Reported, "_", " ")
	case g.HTTP != "":
		what = "http"
	case g.Of != "":
		what = "bad events of all"
	}
	var bounds []string
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	if g.Min != nil {
		bounds = append(bounds, "at least "+number(*g.Min))
	}
	if g.Max != nil {
		bounds = append(bounds, "at most "+number(*g.Max))
	}
	if g.Compare != nil {
		most := "at most"
		if g.Compare.Ratio < 1 {
			most = "at least"
		}
		bounds = append(bounds, fmt.Sprintf("%s %s times the control's", most, number(g.Compare.Ratio)))
	}
	return fmt.Sprintf("%s: %s, every %s", what, strings.Join(bounds, ", "), g.Every)
}

// until is when the time of the phase is over.
func (in Input) until() *time.Time {
	r := &in.View.Manifest.Rollout
	end := func(text string, times int) *time.Time {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return nil
		}
		t := r.Since.Add(time.Duration(times) * d)
		return &t
	}
	switch {
	case r.Phase == manifest.PhaseAdvancing:
		return end(rollout.Patience(&r.Policy, r.Wave, in.eligible()).String(), 1)
	case r.Phase == manifest.PhaseBaking && r.Wave >= 1 && r.Wave <= len(r.Policy.Waves):
		return end(rollout.Bake(&r.Policy, r.Wave).String(), 1+r.Extended)
	case r.Phase == manifest.PhaseDone && r.Fallback != 0:
		return end(r.Policy.Watch, 1+r.Extended)
	}
	return nil
}

func living(stops []manifest.Stop, now time.Time) []manifest.Stop {
	return slices.DeleteFunc(append([]manifest.Stop{}, stops...), func(s manifest.Stop) bool { return s.Until != nil && !now.Before(*s.Until) })
}
