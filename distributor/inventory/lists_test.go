package inventory_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
)

func TestParseTargets(t *testing.T) {
	got, err := inventory.ParseTargets([]byte(`[{"targets":["web-2:9100","web-1:9100","web-1:9200","10.0.0.7:80"],"labels":{"zone":"eu","__meta_x":"y","Job":"z"}},{"targets":["web-3"]}]`), "prod")
	if err != nil {
		t.Fatal(err)
	}
	zone := map[string]string{"zone": "eu"}
	want := []inventory.Host{{"10.0.0.7", "prod", zone}, {"web-1", "prod", zone}, {"web-2", "prod", zone}, {"web-3", "prod", map[string]string{}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got, err = inventory.ParseTargets([]byte("- targets: [b:1]\n  labels: {cohort: prod}\n- targets: [a:1]\n  labels: {cohort: test}\n"), "")
	if err != nil || len(got) != 2 || got[0].Cohort != "prod" || got[1].Cohort != "test" || len(got[0].Labels) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	for data, want := range map[string]string{
		"":                                       "is empty",
		"[]":                                     "lists no host",
		`[{"targets":[]}]`:                       "lists no host",
		`{"targets":["a"]}`:                      "not a list of targets",
		`[{"targets":["a"],"color":"red"}]`:      "not a list of targets",
		`[{"targets":["<script>:1"]}]`:           `target "<script>:1" does not begin with a host name`,
		`[{"targets":[":9100"]}]`:                "does not begin with a host name",
		"[{\"targets\":[\"a\"]}]\n---\n[]\n":     "more than one document",
		"[{\"targets\":[\"\xff\"]}]":             "not UTF-8",
		`<html><body>502 Bad Gateway</body></ht`: "not a list of targets",
	} {
		if hosts, err := inventory.ParseTargets([]byte(data), "prod"); err == nil || hosts != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want %q", data, hosts, err, want)
		}
	}
	if _, err := inventory.ParseTargets([]byte(`[{"targets":["a"]}]`), ""); err == nil || !strings.Contains(err.Error(), "label cohort") {
		t.Errorf("no cohort: %v", err)
	}
}

func FuzzParseTargets(f *testing.F) {
	f.Add([]byte(`[{"targets":["web-2:9100"],"labels":{"zone":"eu"}}]`))
	f.Add([]byte("- targets: [b:1]\n  labels: {cohort: prod}\n"))
	f.Add([]byte("- &a {targets: [b]}\n- *a\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		hosts, err := inventory.ParseTargets(data, "prod")
		if err != nil && (hosts != nil || strings.ContainsAny(err.Error(), "\n\x00\x1b")) || err == nil && len(hosts) == 0 {
			t.Fatalf("%+v, %q", hosts, err)
		}
		for _, h := range hosts {
			if !manifest.ValidHost(h.Name) || h.Cohort != "prod" {
				t.Fatalf("%+v", h)
			}
		}
	})
}

func TestLoss(t *testing.T) {
	list := func(names ...string) (hosts []inventory.Host) {
		for _, n := range names {
			hosts = append(hosts, inventory.Host{Name: n, Cohort: "prod"})
		}
		return hosts
	}
	many := func(n int) (hosts []inventory.Host) {
		for i := range n {
			hosts = append(hosts, list(strings.Repeat("x", i+1))...)
		}
		return hosts
	}
	nobody := func(string, string) bool { return false }
	for name, test := range map[string]struct {
		before, next []inventory.Host
		gone         func(string, string) bool
		want         string
	}{
		"one of three":       {list("a", "b", "c"), list("a", "b"), nobody, ""},
		"two of three":       {list("a", "b", "c"), list("a"), nobody, "lost 2 of 3 hosts at once (b, c)"},
		"ten of a hundred":   {many(100), many(90), nobody, ""},
		"eleven":             {many(100), many(89), nobody, "and 8 more"},
		"grows":              {list("x"), many(100), nobody, ""},
		"replaced":           {list("a", "b"), list("c", "d"), nobody, "lost 2 of 2"},
		"confirmed":          {list("a", "b", "c"), list("a"), func(cohort, host string) bool { return cohort == "prod" && host == "b" }, ""},
		"moved to another":   {list("a", "b"), []inventory.Host{{Name: "a", Cohort: "x"}, {Name: "b", Cohort: "x"}}, nobody, "lost 2 of 2"},
		"the first one ever": {nil, list("a"), nobody, ""},
	} {
		if got := inventory.Loss(test.before, test.next, test.gone); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestMatches(t *testing.T) {
	match := map[string][]string{"zone": {"a", "b"}, "role": {"web"}}
	for _, test := range []struct {
		labels map[string]string
		want   bool
	}{
		{map[string]string{"zone": "b", "role": "web", "more": "x"}, true},
		{map[string]string{"zone": "c", "role": "web"}, false},
		{map[string]string{"zone": "a"}, false},
		{nil, false},
	} {
		if got := inventory.Matches(match, test.labels); got != test.want {
			t.Errorf("%v: %t", test.labels, got)
		}
	}
	if inventory.Matches(nil, map[string]string{"a": "b"}) {
		t.Error("no match chooses everybody")
	}
}

func TestDocument(t *testing.T) {
	d := &inventory.Document{V: 1, Repo: "acme/config", At: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Cohorts: map[string]inventory.DocumentCohort{
		"prod": {Expected: 3, Hosts: []inventory.DocumentHost{{Host: "a", Labels: map[string]string{"zone": "eu"}}}},
	}}
	data, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := inventory.ParseDocument(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for old, new := range map[string]string{`"v":1`: `"v":2`, `"prod"`: `"Prod"`, `"host":"a"`: `"host":"<a>"`, `"expected":3`: `"expected":-1`, `"repo"`: `"more"`} {
		if _, err := inventory.ParseDocument([]byte(strings.Replace(string(data), old, new, 1))); err == nil {
			t.Errorf("%s is taken", new)
		}
	}
}
