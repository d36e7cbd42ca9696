package manifest_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-config/muster/distributor/manifest"
)

func TestResolve(t *testing.T) {
	_, view := accept(t, newTrust(t), fullHead(t), now)
	// The points of the hosts on the ring of salt "1043" decide who is under 4ccc….
	var under, over string
	for i := 0; under == "" || over == ""; i++ {
		if h := fmt.Sprint("node-", i); manifest.Point("1043", h) < 0x4ccccccccccccccc {
			under = h
		} else {
			over = h
		}
	}
	after := issued.Add(2 * time.Hour) // the override has ended
	for name, c := range map[string]struct {
		host   manifest.Host
		at     time.Time
		source manifest.Source
		epoch  uint64
		over   string
		bundle string
	}{
		"hold":                         {manifest.Host{Name: "web-4"}, now, manifest.FromHold, 1041, "", "1041"},
		"hold without end":             {manifest.Host{Name: "web-6"}, now.AddDate(1, 0, 0), manifest.FromHold, 1041, "", "1041"},
		"hold at its last moment":      {manifest.Host{Name: "web-4"}, issued.Add(3*time.Hour - 1), manifest.FromHold, 1041, "", "1041"},
		"label":                        {manifest.Host{Name: over, Labels: map[string]string{"canary": "true", "zone": "a", "more": "x"}}, now, manifest.FromWave, 1043, "", "1043"},
		"one label of two":             {manifest.Host{Name: over, Labels: map[string]string{"canary": "true"}}, now, manifest.FromBaseline, 1042, "", "1042"},
		"another value":                {manifest.Host{Name: over, Labels: map[string]string{"canary": "yes", "zone": "a"}}, now, manifest.FromBaseline, 1042, "", "1042"},
		"under the threshold":          {manifest.Host{Name: under}, now, manifest.FromWave, 1043, "", "1043"},
		"over it":                      {manifest.Host{Name: over}, now, manifest.FromBaseline, 1042, "", "1042"},
		"override of named hosts":      {manifest.Host{Name: "web-1"}, now, manifest.FromOverride, 0, "inc-311", ""},
		"override has ended":           {manifest.Host{Name: "web-1"}, after, "", 0, "", ""},
		"variant":                      {manifest.Host{Name: "db-17", Labels: map[string]string{"canary": "true", "zone": "a"}}, now, manifest.FromWave, 1043, "", "db-17"},
		"variant only of that release": {manifest.Host{Name: "db-17"}, now, "", 0, "", ""},
	} {
		r, err := manifest.Resolve(view, c.host, c.at)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.source != "" && r.Source != c.source || c.epoch != 0 && r.Epoch() != c.epoch || r.Override != c.over || c.bundle != "" && r.Bundle != object(c.bundle) {
			t.Errorf("%s: %s, epoch %d, override %q, bundle %+v", name, r.Source, r.Epoch(), r.Override, r.Bundle)
		}
		if r.Why == "" || (r.Epoch() == 1041) != (r.Variants != nil) {
			t.Errorf("%s: why %q, variants %v", name, r.Why, r.Variants)
		}
	}

	// Under an override: the overridden statement of the assigned epoch, if the manifest has one, else the override's own.
	web := manifest.Host{Name: "web-1", Labels: map[string]string{"canary": "true", "zone": "a"}}
	r, err := manifest.Resolve(view, web, now)
	if err != nil || r.Epoch() != 1043 || r.Statement.Override != "inc-311" || r.Until == nil || !r.Until.Equal(after) || r.Why != "override inc-311 by ana@example.com: INC-311" {
		t.Errorf("overridden statement of the wave: %+v, %v", r, err)
	}
	_, without := accept(t, newTrust(t), head(t, order(t, 7), override(t, "inc-311", 1044)), now)
	for _, web := range []string{"web-1", "web-2"} {
		if r, err := manifest.Resolve(without, manifest.Host{Name: web}, now); err != nil || r.Epoch() != 1044 || r.Content != overridden(1044, "inc-311").Content {
			t.Errorf("the override's own statement: %+v, %v", r, err)
		}
	}
	if r, err := manifest.Resolve(without, manifest.Host{Name: "db-17"}, now); err != nil || r.Source != manifest.FromHold {
		t.Errorf("a hold goes before an override: %+v, %v", r, err)
	}
	_, two := accept(t, newTrust(t), head(t, order(t, 7), override(t, "inc-311", 1045), override(t, "inc-300", 1044)), now)
	if r, err := manifest.Resolve(two, manifest.Host{Name: "web-1"}, now); err != nil || r.Override != "inc-311" {
		t.Errorf("of two overrides the newer release: %+v, %v", r, err)
	}
	// Hosts that are led back to before what it was laid over do not get it, unless it was built for where they are led.
	for over, want := range map[uint64]string{1042: "inc-311", 1043: ""} {
		_, v := accept(t, newTrust(t), head(t, order(t, 7, func(m *manifest.Manifest) { m.Assign = []manifest.Assignment{{Epoch: 1042, Why: "rolled back"}} }),
			override(t, "inc-311", 1045, func(o *manifest.Override) { o.Over = over })), now)
		r, err := manifest.Resolve(v, manifest.Host{Name: "web-1"}, now)
		if err != nil || r.Override != want || want == "" && (r.Epoch() != 1042 || r.Source != manifest.FromBaseline) {
			t.Errorf("over %d: %+v, %v", over, r, err)
		}
		if o := &v.Living(now)[0].Override; v.Yields(o, now) != (want == "") {
			t.Errorf("over %d: it yields: %t", over, v.Yields(o, now))
		}
		v.Statements = append(v.Statements, manifest.VerifiedStatement{Statement: overridden(1042, "inc-311")})
		if r, err := manifest.Resolve(v, manifest.Host{Name: "web-1"}, now); err != nil || r.Override != "inc-311" || r.Epoch() != 1042 {
			t.Errorf("over %d, built for it: %+v, %v", over, r, err)
		}
	}
	if _, err := manifest.Resolve(&manifest.View{}, web, now); !errors.Is(err, manifest.ErrNoAssignment) {
		t.Errorf("empty view: %v", err)
	}

	// Strictly less: the host at the threshold is not under it.
	for shift, want := range map[uint64]uint64{0: 1042, 1: 1043} {
		_, v := accept(t, newTrust(t), head(t, order(t, 7, func(m *manifest.Manifest) {
			m.Assign[1].Below = fmt.Sprintf("%016x", manifest.Point("1043", "web-1")+shift)
		})), now)
		if r, err := manifest.Resolve(v, manifest.Host{Name: "web-1"}, now); err != nil || r.Epoch() != want {
			t.Errorf("threshold %d above the host: epoch %d, %v", shift, r.Epoch(), err)
		}
	}

	// Variants that live in an object.
	held, err := manifest.Resolve(view, manifest.Host{Name: "web-4"}, now)
	if err != nil || held.Variants == nil {
		t.Fatalf("%+v, %v", held, err)
	}
	doc := manifest.Variants{V: 1, Variants: []manifest.Variant{{Host: "web-4", Bundle: object("own"), Content: digest("own"), Content0: digest("own0"), Files: 9, Evidence: map[string]manifest.Grade{"x": manifest.GradeDisk}}}}
	own := held.WithVariants("web-4", doc)
	if own.Bundle != object("own") || own.Content != digest("own") || own.Content0 != digest("own0") || own.Files != 9 || own.Evidence["x"] != manifest.GradeDisk || own.Variants != nil {
		t.Errorf("own variant: %+v", own)
	}
	if other := held.WithVariants("web-9", doc); other.Bundle != held.Bundle || other.Variants != nil {
		t.Errorf("no variant: %+v", other)
	}
}

// Precedence is hold, override, wave, baseline, whatever a head carries.
func TestResolvePrecedence(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hosts := []string{"a", "b", "c", "d"}
		subset := rapid.SliceOfDistinct(rapid.SampledFrom(hosts), rapid.ID)
		at := issued.Add(time.Duration(rapid.IntRange(0, 200).Draw(rt, "minute")) * time.Minute)
		v := manifest.View{}
		for e := range uint64(5) {
			v.Statements = append(v.Statements, manifest.VerifiedStatement{Statement: manifest.Statement{Epoch: e + 1}})
		}
		epoch := rapid.Uint64Range(1, 5)
		for range rapid.IntRange(0, 4).Draw(rt, "assignments") {
			a := manifest.Assignment{Epoch: epoch.Draw(rt, "epoch")}
			switch rapid.IntRange(0, 2).Draw(rt, "selector") {
			case 0:
				a.Hosts = append(subset.Draw(rt, "held"), "somebody")
			case 1:
				a.Salt, a.Below = "s", fmt.Sprintf("%016x", rapid.Uint64().Draw(rt, "below"))
			case 2:
				a.Match = map[string]string{"zone": rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "zone")}
			}
			if rapid.Bool().Draw(rt, "ends") {
				a.Until = pointer(issued.Add(time.Duration(rapid.IntRange(0, 200).Draw(rt, "until")) * time.Minute))
			}
			v.Manifest.Assign = append(v.Manifest.Assign, a)
		}
		v.Manifest.Assign = append(v.Manifest.Assign, manifest.Assignment{Epoch: epoch.Draw(rt, "baseline")})
		for i := range rapid.IntRange(0, 3).Draw(rt, "overrides") {
			id := fmt.Sprint("o", i)
			o := manifest.VerifiedOverride{First: &manifest.VerifiedStatement{Statement: manifest.Statement{Epoch: uint64(10 + i), Override: id}}}
			o.ID, o.Epoch, o.Hosts = id, uint64(10+i), subset.Draw(rt, "overridden")
			o.Created, o.NotAfter = issued, issued.Add(time.Duration(rapid.IntRange(1, 200).Draw(rt, "not after"))*time.Minute)
			v.Overrides = append(v.Overrides, o)
			if rapid.Bool().Draw(rt, "ended") {
				o.First, o.Ended = nil, &manifest.OverrideEnd{}
				v.Overrides = append(v.Overrides, o)
			}
		}
		host := manifest.Host{Name: rapid.SampledFrom(hosts).Draw(rt, "host"), Labels: map[string]string{"zone": "x"}}
		r, err := manifest.Resolve(&v, host, at)
		if err != nil {
			rt.Fatal(err)
		}

		// The rules again, each by itself.
		living := slices.DeleteFunc(slices.Clone(v.Manifest.Assign), func(a manifest.Assignment) bool { return a.Until != nil && !at.Before(*a.Until) })
		first := func(match func(manifest.Assignment) bool) *manifest.Assignment {
			if i := slices.IndexFunc(living, match); i >= 0 {
				return &living[i]
			}
			return nil
		}
		hold := first(func(a manifest.Assignment) bool { return slices.Contains(a.Hosts, host.Name) })
		rest := first(func(a manifest.Assignment) bool {
			below, _ := strconv.ParseUint(a.Below, 16, 64)
			return a.Below != "" && manifest.Point(a.Salt, host.Name) < below || a.Match["zone"] == "x" || a.Hosts == nil && a.Below == "" && a.Match == nil
		})
		var over []string
		for _, o := range v.Overrides {
			ended := slices.ContainsFunc(v.Overrides, func(e manifest.VerifiedOverride) bool { return e.ID == o.ID && e.Ended != nil })
			if !ended && at.Before(o.NotAfter) && (len(o.Hosts) == 0 || slices.Contains(o.Hosts, host.Name)) {
				over = append(over, o.ID)
			}
		}
		switch {
		case hold != nil:
			if r.Source != manifest.FromHold || r.Epoch() != hold.Epoch {
				rt.Errorf("%s epoch %d, held at %d", r.Source, r.Epoch(), hold.Epoch)
			}
		case len(over) > 0:
			if r.Source != manifest.FromOverride || r.Override != slices.Max(over) {
				rt.Errorf("%s %q, overridden by %v", r.Source, r.Override, over)
			}
		default:
			want := manifest.FromWave
			if rest.Below == "" && rest.Match == nil {
				want = manifest.FromBaseline
			}
			if r.Source != want || r.Epoch() != rest.Epoch {
				rt.Errorf("%s epoch %d, want %s epoch %d", r.Source, r.Epoch(), want, rest.Epoch)
			}
		}
	})
}

// Exactly k hosts fall under a threshold, and the hosts of a smaller wave are those of a larger one too.
func TestThreshold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hosts := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9][a-z0-9.-]{0,12}`), 0, 60, rapid.ID).Draw(rt, "hosts")
		salt := rapid.StringMatching(`[0-9]{1,6}`).Draw(rt, "salt")
		under := func(k int) []string {
			below, all := manifest.Threshold(salt, hosts, k)
			if all {
				return hosts
			}
			limit, err := strconv.ParseUint(below, 16, 64)
			if err != nil || len(below) != 16 {
				rt.Fatalf("below %q", below)
			}
			return slices.DeleteFunc(slices.Clone(hosts), func(h string) bool { return manifest.Point(salt, h) >= limit })
		}
		var smaller []string
		for k := range len(hosts) + 2 {
			got := under(k)
			if len(got) != min(k, len(hosts)) {
				rt.Fatalf("%d hosts for %d of %d", len(got), k, len(hosts))
			}
			for _, h := range smaller {
				if !slices.Contains(got, h) {
					rt.Fatalf("%s is in the wave of %d and not in that of %d", h, k-1, k)
				}
			}
			smaller = got
		}
		if _, all := manifest.Threshold(salt, hosts, -1); all && len(hosts) > 0 {
			rt.Error("fewer than none are all")
		}
	})
}

func TestWaveSize(t *testing.T) {
	for _, c := range []struct {
		percent float64
		n, want int
	}{{5, 0, 0}, {5, 1, 1}, {5, 20, 1}, {5, 21, 2}, {0.1, 10, 1}, {7, 100, 7}, {14, 50, 7}, {12.1, 1000, 121}, {29, 100, 29}, {33.3, 3, 1}, {33.4, 3, 2}, {100, 7, 7}, {100, 1, 1}, {50, 3, 2}} {
		if got := manifest.WaveSize(c.percent, c.n); got != c.want {
			t.Errorf("%g%% of %d is %d, want %d", c.percent, c.n, got, c.want)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		p, n := rapid.IntRange(1, 100).Draw(rt, "percent"), rapid.IntRange(1, 100_000).Draw(rt, "n")
		if got, want := manifest.WaveSize(float64(p), n), max(1, (p*n+99)/100); got != want {
			rt.Errorf("%d%% of %d is %d, want %d", p, n, got, want)
		}
	})
}

// The order of marks is total, survives being written, and is what the floor goes by.
func TestMarkOrder(t *testing.T) {
	counter := rapid.OneOf(rapid.Uint64Range(0, 3), rapid.Uint64Range(0, manifest.MaxCounter))
	mark := rapid.Custom(func(rt *rapid.T) manifest.Mark {
		return manifest.Mark{Era: counter.Draw(rt, "era"), Serial: counter.Draw(rt, "serial"), Beat: counter.Draw(rt, "beat")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		ms := rapid.SliceOfN(mark, 3, 3).Draw(rt, "marks")
		a, b, c := ms[0], ms[1], ms[2]
		if a.Compare(b) != -b.Compare(a) || a.Compare(a) != 0 || (a.Compare(b) == 0) != (a == b) {
			rt.Error("not an order", a, b)
		}
		if a.Compare(b) <= 0 && b.Compare(c) <= 0 && a.Compare(c) > 0 {
			rt.Error("not transitive", a, b, c)
		}
		if want := cmp.Or(cmp.Compare(a.Era, b.Era), cmp.Compare(a.Serial, b.Serial), cmp.Compare(a.Beat, b.Beat)); a.Compare(b) != want {
			rt.Error(a, b)
		}
		if back, err := manifest.ParseMark(a.String()); err != nil || back != a {
			rt.Error(a, back, err)
		}
	})
	for _, bad := range []string{"", "1-2", "1-2-3-4", "1-2-x", "01-2-3", "1-2-+3", "1-2--3", " 1-2-3", "1-2-9007199254740992", "1-2-3\n"} {
		if m, err := manifest.ParseMark(bad); err == nil {
			t.Errorf("%q is read as %v", bad, m)
		}
	}
}

// Whatever sequence of heads is offered, the floor only rises, and a head under it is refused.
func TestOrderIsMonotone(t *testing.T) {
	sealed := map[uint64][]byte{}
	for serial := range uint64(6) {
		sealed[serial+1] = encode(t, head(t, order(t, serial+1)))
	}
	start := newTrust(t)
	rapid.Check(t, func(rt *rapid.T) {
		s := start
		for _, serial := range rapid.SliceOfN(rapid.Uint64Range(1, 6), 1, 6).Draw(rt, "serials") {
			floor := s.Floors[cohort].Serial
			next, view, err := s.AcceptHead(cohort, sealed[serial], now)
			if (err == nil) != (serial >= floor) || (view == nil) != (err != nil) {
				rt.Fatalf("serial %d after %d: %v", serial, floor, err)
			}
			if got := next.Floors[cohort].Serial; got != max(floor, serial) {
				rt.Fatalf("floor %d", got)
			}
			s = next
		}
	})
}

func TestKeys(t *testing.T) {
	sha := "sha256:" + fmt.Sprintf("%064x", 0xab)
	hex := fmt.Sprintf("%064x", 0xab)
	for got, want := range map[string]string{
		manifest.KeyKeyring(12):             "keyring/12.json",
		manifest.KeySource("ab"):            "sources/ab.tar.zst",
		manifest.KeyBundle(sha):             "bundles/00/" + hex + ".tar.zst",
		manifest.KeyDelta(sha, digest("x")): "deltas/" + hex + "-" + digest("x")[7:] + ".zst",
		manifest.KeyRelease(1043):           "releases/00000000000000001043.json",
		manifest.KeyCommit("ab12"):          "commits/ab12.json",
		manifest.KeyHead("prod-eu"):         "cohorts/prod-eu.json",
		manifest.KeyHistory("prod-eu", manifest.Mark{Era: 1, Serial: 88, Beat: 5}): "history/prod-eu/1-88-5.json",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, n := range []uint64{1, 1043, manifest.MaxCounter} {
		if got, ok := manifest.ParseReleaseKey(manifest.KeyRelease(n)); !ok || got != n {
			t.Errorf("%d: %d, %v", n, got, ok)
		}
	}
	for _, bad := range []string{"releases/1043.json", "releases/00000000000000001043", "releases/00000000000000000000.json", "releases/+0000000000000001043.json", "releases/99999999999999999999.json", "releases/09007199254740992000.json", "x/00000000000000001043.json", "releases/00000000000000001043.json.tmp"} {
		if n, ok := manifest.ParseReleaseKey(bad); ok {
			t.Errorf("%s is read as %d", bad, n)
		}
	}
}

func TestNames(t *testing.T) {
	long := func(n int) string { return string(slices.Repeat([]byte("a"), n)) }
	for name, c := range map[string]struct {
		valid     func(string) bool
		good, bad []string
	}{
		"name":   {manifest.ValidName, []string{"a", "0", "prod-eu", "a_b", "a--b", long(63)}, []string{"", "-a", "a-", "_a", "a_", "A", "a.b", "a/b", "ä", "a b", "a\n", long(64)}},
		"host":   {manifest.ValidHost, []string{"web-17", "Web_1.example.com", "1", long(253), "a-"}, []string{"", ".", "..", "-a", "_a", "a/b", "a b", "ä", "a\n", "a:1", long(254)}},
		"digest": {manifest.ValidDigest, []string{digest("x")}, []string{"", digest("x")[7:], "sha256:", "SHA256:" + digest("x")[7:], digest("x") + "0", digest("x")[:70], "sha256:" + long(63) + "g", "sha256:" + long(63) + "A"}},
		"commit": {manifest.ValidCommit, []string{long(40), long(64)}, []string{"", "HEAD", long(39), long(41), long(39) + "A", long(39) + "g"}},
		"repo":   {manifest.ValidRepo, []string{"config", "acme/config", "Acme.inc/sub/config_2"}, []string{"", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "-a", "a b", "a\n", long(201)}},
	} {
		for _, s := range c.good {
			if !c.valid(s) {
				t.Errorf("%s %q is refused", name, s)
			}
		}
		for _, s := range c.bad {
			if c.valid(s) {
				t.Errorf("%s %q is accepted", name, s)
			}
		}
	}
	if got := gocmp.Diff([]int{1, 2, 3, 4, 0, 0}, []int{manifest.GradeDisk.Rank(), manifest.GradeReloaded.Rank(), manifest.GradeRestarted.Rank(), manifest.GradeProcess.Rank(), manifest.Grade("").Rank(), manifest.Grade("Process").Rank()}); got != "" {
		t.Error(got)
	}
}
