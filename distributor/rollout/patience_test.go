package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
)

func TestPatience(t *testing.T) {
	hosts := make([]map[string]string, 200)
	for i := range hosts {
		hosts[i] = map[string]string{"canary": fmt.Sprint(i < 3)}
	}
	canary := manifest.Wave{Match: map[string]string{"canary": "true"}, Bake: "1m"}
	for name, c := range map[string]struct {
		waves           []manifest.Wave
		inFlight        string
		spread, timeout string
		wave            int
		want            time.Duration
	}{
		"no spread":             {nil, "10%", "0s", "2h", 3, 2 * time.Hour},
		"for ever":              {nil, "10%", "30m", "0s", 3, 0},
		"one step":              {nil, "10%", "30m", "2h", 1, 2*time.Hour + 30*time.Minute},    // 10 hosts, 16 at once at least
		"the last wave":         {nil, "10%", "30m", "2h", 3, 2*time.Hour + 10*30*time.Minute}, // 150 of them
		"all at once":           {nil, "100%", "30m", "2h", 3, 2*time.Hour + 30*time.Minute},   //
		"one at a time":         {nil, "1", "1m", "2h", 2, 2*time.Hour + 40*time.Minute},       // 50 less 10
		"by label":              {[]manifest.Wave{canary, {Percent: 100}}, "1", "1m", "2h", 1, 2*time.Hour + 3*time.Minute},
		"after a wave by label": {[]manifest.Wave{canary, {Percent: 100}}, "100%", "1m", "2h", 2, 2*time.Hour + 2*time.Minute}, // 200, 151 at once
		"watched":               {nil, "10%", "30m", "2h", 4, 2 * time.Hour},
	} {
		p := standard(c.waves...)
		p.MaxInFlight, p.Spread, p.Timeout = c.inFlight, c.spread, c.timeout
		if got := rollout.Patience(&p, c.wave, hosts); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A wave whose hosts have all had their turn, and that is not confirmed then, is late.
func TestSpreadEnds(t *testing.T) {
	p := standard()
	p.Spread, p.Timeout, p.MaxInFlight = "30m", "1h", "100%"
	f := newFleet(t, 40, p)
	for _, h := range f.hosts {
		h.stuck = true
	}
	f.publish(8, map[string]string{"a": "a8"})
	began := f.now
	f.until("it goes back", 10*time.Hour, func() bool { return f.r().Phase == manifest.PhaseRollingBack || f.r().Phase == manifest.PhaseHalted })
	if took := f.now.Sub(began); took < 90*time.Minute || took > 95*time.Minute {
		t.Errorf("after %s: %s", took, f.r().Why)
	}
}
