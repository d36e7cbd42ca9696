package collector

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// TestToldAtTheEndOfAnOverride: who leaves an override was told then, however long the epoch that it comes to is assigned. A controller counts it as on its way for so long.
func TestToldAtTheEndOfAnOverride(t *testing.T) {
	begin := time.Date(2026, 12, 1, 3, 0, 0, 0, time.UTC)
	head := func(serial uint64, endings []manifest.Ending, overrides ...manifest.VerifiedOverride) *manifest.View {
		v := &manifest.View{Overrides: overrides}
		v.Manifest.Serial, v.Manifest.Assign, v.Manifest.Rollout.Endings = serial, []manifest.Assignment{{Epoch: 7}}, endings
		return v
	}
	a, b := manifest.VerifiedOverride{Override: manifest.Override{ID: "a"}}, manifest.VerifiedOverride{Override: manifest.Override{ID: "b", Hosts: []string{"web-2"}}}
	half := manifest.Ending{Override: "a", Salt: "a", Below: fmt.Sprintf("%016x", manifest.Point("a", "web-1")+1)}
	if manifest.Point("a", "web-2") <= manifest.Point("a", "web-1") {
		t.Fatal("the hosts of this test are to be web-1 first")
	}
	over := b
	over.Ended = &manifest.OverrideEnd{By: "ana"}
	co := &cohort{assigned: map[uint64]time.Time{7: begin}}
	for i, v := range []*manifest.View{head(1, nil, a, b), head(2, []manifest.Ending{half}, a, b), head(2, []manifest.Ending{half}, a, b, over)} {
		co.note(v, begin.Add(time.Duration(i)*time.Hour))
		co.view = v
	}
	for host, want := range map[string]time.Time{"web-1": begin.Add(time.Hour), "web-2": begin.Add(2 * time.Hour), "web-3": begin} {
		if host == "web-3" && manifest.Point("a", host) < manifest.Point("a", "web-1")+1 {
			want = begin.Add(time.Hour)
		}
		if got := co.toldAt(7, manifest.Host{Name: host}); !got.Equal(want) {
			t.Errorf("%s was told %s after the beginning, not %s", host, got.Sub(begin), want.Sub(begin))
		}
	}
}

// TestToldOnTheWayBackFromALabel: who is taken back from a wave by label was told then, however long the baseline is assigned. A controller counts it as on its way for so long.
func TestToldOnTheWayBackFromALabel(t *testing.T) {
	begin := time.Date(2026, 12, 1, 3, 0, 0, 0, time.UTC)
	canary := manifest.Assignment{Match: map[string]string{"canary": "true"}, Epoch: 8}
	some := manifest.Assignment{Below: fmt.Sprintf("%016x", manifest.Point("8", "web-1")+1), Salt: "8", Epoch: 7}
	co := &cohort{assigned: map[uint64]time.Time{7: begin}}
	for i, assign := range [][]manifest.Assignment{{{Epoch: 7}}, {canary, {Epoch: 7}}, {some, canary, {Epoch: 7}}, {{Epoch: 7}}} {
		v := &manifest.View{}
		v.Manifest.Serial, v.Manifest.Assign = uint64(i), assign
		co.note(v, begin.Add(time.Duration(i)*time.Hour))
		co.view = v
	}
	labels := map[string]string{"canary": "true"}
	for _, c := range []struct {
		host manifest.Host
		want time.Duration
	}{{manifest.Host{Name: "web-1", Labels: labels}, 2 * time.Hour}, {manifest.Host{Name: above(t, "8", "web-1"), Labels: labels}, 3 * time.Hour}, {manifest.Host{Name: "web-1"}, 0}} {
		if got := co.toldAt(7, c.host); !got.Equal(begin.Add(c.want)) {
			t.Errorf("%+v was told %s after the beginning, not %s", c.host, got.Sub(begin), c.want)
		}
	}
}

// above is a host with a higher place on a ring than another.
func above(t *testing.T, salt, than string) string {
	for i := range 1000 {
		if name := fmt.Sprint("other-", i); manifest.Point(salt, name) > manifest.Point(salt, than) {
			return name
		}
	}
	t.Fatal("there is no higher place")
	return ""
}

// TestToldAnOverride: who gets an override is told when it comes to that host.
func TestToldAnOverride(t *testing.T) {
	begin := time.Date(2026, 12, 1, 3, 0, 0, 0, time.UTC)
	on := func(hosts ...string) manifest.VerifiedOverride {
		return manifest.VerifiedOverride{Override: manifest.Override{ID: "a", Hosts: hosts}}
	}
	co := &cohort{assigned: map[uint64]time.Time{7: begin}}
	for i, list := range [][]manifest.VerifiedOverride{{}, {on("web-1")}, {on("web-1"), on("web-1", "web-2")}, {on("web-1", "web-2"), on()}, {on()}} {
		v := &manifest.View{Overrides: list}
		v.Manifest.Serial, v.Manifest.Assign = 1, []manifest.Assignment{{Epoch: 7}}
		co.note(v, begin.Add(time.Duration(i)*time.Hour))
		co.view = v
	}
	for i, host := range []string{"web-1", "web-2", "web-3"} {
		if got, want := co.toldAt(8, manifest.Host{Name: host}), begin.Add(time.Duration(i+1)*time.Hour); !got.Equal(want) {
			t.Errorf("%s was told %s after the beginning, not %s", host, got.Sub(begin), want.Sub(begin))
		}
	}
}
