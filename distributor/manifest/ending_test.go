package manifest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// D005: an override ends in steps: hosts under a threshold of the ring are out of it, and run what the rollout says now.
func TestD005Ending(t *testing.T) {
	ending := func(list ...manifest.Ending) *manifest.View {
		_, v := accept(t, newTrust(t), head(t, order(t, 7, func(m *manifest.Manifest) { m.Rollout.Endings = list }), override(t, "inc-311", 1045), override(t, "inc-300", 1044)), now)
		return v
	}
	point := manifest.Point("end", "web-1")
	for name, test := range map[string]struct {
		endings []manifest.Ending
		want    string // the override of web-1; "" if none acts
	}{
		"none":                  {nil, "inc-311"},
		"another one's":         {[]manifest.Ending{{Override: "inc-1", Why: "x"}}, "inc-311"},
		"for all":               {[]manifest.Ending{{Override: "inc-311", Why: "x"}}, "inc-300"},
		"not yet for this host": {[]manifest.Ending{{Override: "inc-311", Below: fmt.Sprintf("%016x", point), Salt: "end", Why: "x"}}, "inc-311"},
		"for this host":         {[]manifest.Ending{{Override: "inc-311", Below: fmt.Sprintf("%016x", point+1), Salt: "end", Why: "x"}}, "inc-300"},
		"both":                  {[]manifest.Ending{{Override: "inc-311", Why: "x"}, {Override: "inc-300", Why: "x"}}, ""},
	} {
		r, err := manifest.Resolve(ending(test.endings...), manifest.Host{Name: "web-1"}, now)
		if err != nil || r.Override != test.want || test.want == "" && r.Epoch() != 1042 && r.Epoch() != 1043 {
			t.Errorf("%s: override %q, epoch %d, %v", name, r.Override, r.Epoch(), err)
		}
	}
	for _, bad := range []manifest.Ending{{Override: "INC"}, {Override: "a", Below: "8000000000000000"}, {Override: "a", Salt: "s"}, {Override: "a", Below: "8", Salt: "s"}, {Override: "a", Why: strings.Repeat("x", 5000)}} {
		m := order(t, 7, func(m *manifest.Manifest) { m.Rollout.Endings = []manifest.Ending{bad} })
		if m.Validate() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// One that goes to one host first leaves an envelope at each step: they are one override, and a host need not keep them all.
func TestGrowingOverride(t *testing.T) {
	at := func(hosts ...string) manifest.Override {
		return override(t, "inc-311", 1045, func(o *manifest.Override) { o.Hosts = hosts })
	}
	state := newTrust(t)
	var v *manifest.View
	steps := []manifest.Override{at("web-1"), at("web-1", "web-2"), at()}
	for i := range steps {
		state, v = accept(t, state, head(t, order(t, 7), steps[i]), now)
		if n := len(state.Overrides[cohort]); n != 1 {
			t.Errorf("step %d: %d envelopes are kept", i+1, n)
		}
		living := v.Living(now)
		if len(living) != 1 || len(living[0].Hosts) != len(steps[i].Hosts) || living[0].ID != "inc-311" {
			t.Errorf("step %d: living %+v", i+1, living)
		}
	}
	if r, err := manifest.Resolve(v, manifest.Host{Name: "web-9"}, now); err != nil || r.Override != "inc-311" {
		t.Errorf("%+v, %v", r, err)
	}
	// A head that goes back to fewer hosts takes it from nobody.
	state, v = accept(t, state, head(t, order(t, 7), steps[0]), now)
	if r, err := manifest.Resolve(v, manifest.Host{Name: "web-9"}, now); err != nil || r.Override != "inc-311" {
		t.Errorf("shrunk: %+v, %v", r, err)
	}
	// Longer: both are kept, since the longer one was made later.
	longer := override(t, "inc-311", 1045, func(o *manifest.Override) { o.Created, o.NotAfter = now, now.Add(3*time.Hour) })
	state, v = accept(t, state, head(t, order(t, 7), longer), now)
	if l := v.Living(now.Add(2 * time.Hour)); len(l) != 1 || !l[0].NotAfter.Equal(longer.NotAfter) || len(state.Overrides[cohort]) != 2 {
		t.Errorf("longer: %+v", l)
	}
	_, v = accept(t, state, head(t, order(t, 7), ended(t, "inc-311", 1045)), now)
	if l := v.Living(now); len(l) != 0 {
		t.Errorf("ended: %+v", l)
	}
}
