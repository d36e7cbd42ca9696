package rollout

import (
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// Patience is how long a wave may take to be confirmed; hosts are the labels of the eligible ones. It is the policy's timeout, and for each of the steps in which the hosts of the wave can
// be told the time over which they spread: a host that waits for its turn keeps its place of max_in_flight, and is not late. 0: for ever.
func Patience(p *manifest.RolloutPolicy, wave int, hosts []map[string]string) time.Duration {
	timeout, spread := duration(p.Timeout), duration(p.Spread)
	if timeout == 0 || spread <= 0 || wave < 1 || wave > len(p.Waves) {
		return timeout
	}
	most := InFlight(p.MaxInFlight, len(hosts))
	// Fewer than batch(most) places are left free, so that in any time of the spread at least this many hosts have had their turn.
	atOnce := most - batch(most) + 1
	steps := (waveHosts(p, wave, hosts) + atOnce - 1) / atOnce
	return timeout + spread*time.Duration(steps)
}

// batch is how many hosts get an order together: it wakes the whole fleet.
func batch(limit int) int { return max(1, limit/4) }

// waveHosts is how many hosts a wave tells at most, beside those of the waves before it.
func waveHosts(p *manifest.RolloutPolicy, wave int, hosts []map[string]string) int {
	w := p.Waves[wave-1]
	if len(w.Match) > 0 && wave < len(p.Waves) {
		n := 0
		for _, labels := range hosts {
			if has(labels, w.Match) {
				n++
			}
		}
		return n
	}
	n := sizeOf(p, wave, len(hosts))
	if wave > 1 && len(p.Waves[wave-2].Match) == 0 {
		n -= sizeOf(p, wave-1, len(hosts))
	}
	return max(0, n)
}

// sizeOf is how many of n hosts have the target when a wave by percent or count is over.
func sizeOf(p *manifest.RolloutPolicy, wave, n int) int {
	w := p.Waves[wave-1]
	k := w.Count
	switch {
	case wave >= len(p.Waves):
		return n
	case w.Percent > 0:
		k = manifest.WaveSize(w.Percent, n)
	}
	return min(n, max(k, w.Min))
}
