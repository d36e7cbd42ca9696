package gate

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/muster-config/muster/distributor/manifest"
	"pgregory.net/rapid"
)

// TestExpand: what a query becomes, for the canary and for the control group.
func TestExpand(t *testing.T) {
	info := func(epoch string) string {
		return `on (host) group_left () (max by (host) (muster_host_info{cohort="prod-eu",epoch="` + epoch + `"}))`
	}
	q := Question{Cohort: "prod-eu", Epoch: 1043, Baseline: 1042}
	for query, want := range map[string][2]string{
		`up`:                                     {`up`, `up`},
		`sum(rate(errors_total[1m]) * $canary)`:  {`sum(rate(errors_total[1m]) * ` + info("1043") + `)`, `sum(rate(errors_total[1m]) * ` + info("1042") + `)`},
		`sum(x * ${canary}) / sum(x * $control)`: {`sum(x * ` + info("1043") + `) / sum(x * ` + info("1042") + `)`, `sum(x * ` + info("1042") + `) / sum(x * ` + info("1042") + `)`},
		`errors{cohort="$cohort",epoch="$epoch",code=~"^5..$"}`: {`errors{cohort="prod-eu",epoch="1043",code=~"^5..$"}`, `errors{cohort="prod-eu",epoch="1042",code=~"^5..$"}`},
		`increase(x_total[$every])`:                             {`increase(x_total[90s])`, `increase(x_total[90s])`},
		`x{path="$$epoch"} + $other`:                            {`x{path="$epoch"} + $other`, `x{path="$epoch"} + $other`},
	} {
		g := manifest.Gate{Every: "1m30s"}
		if d := cmp.Diff(want, [2]string{q.promQL(g, query, canary), q.promQL(g, query, control)}); d != "" {
			t.Errorf("%s: %s", query, d)
		}
	}
	got := q.address("http://app/${cohort}?e=$epoch&p=$$1", control)
	if got != "http://app/prod-eu?e=1042&p=$1" {
		t.Error(got)
	}
	odd := Question{Cohort: "a\"}) or vector(0) #\\\n$epoch", Epoch: 1}
	if got := odd.promQL(manifest.Gate{}, `x{c="$cohort"} * $canary`, canary); strings.Count(got, `c="a\"}) or vector(0) #\\\n$epoch"`) != 1 || strings.Contains(got, "\n") || strings.Count(got, `cohort="a\"}`) != 1 {
		t.Errorf("not escaped: %s", got)
	}
	if got := odd.address("http://app/?c=$cohort", canary); got != "http://app/?c=a%22%7D%29+or+vector%280%29+%23%5C%0A%24epoch" {
		t.Error(got)
	}
}

// TestExpandEnds: whatever stands in a query, and in a name, no value of a name is expanded again.
func TestExpandEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := Question{Cohort: rapid.SampledFrom([]string{"$cohort", "$canary", "$$", "a$"}).Draw(t, "cohort"), Epoch: rapid.Uint64().Draw(t, "epoch")}
		query := strings.Join(rapid.SliceOf(rapid.SampledFrom([]string{"$cohort", "${epoch}", "$canary", "$$", "$", "{", "x", " "})).Draw(t, "query"), " ")
		got := q.promQL(manifest.Gate{Every: "30s"}, query, canary)
		if n := strings.Count(query, "$canary") + strings.Count(query, "$cohort"); strings.Count(got, label(q.Cohort)) < n {
			t.Fatalf("%q: %q", query, got)
		}
	})
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{time.Second: "1s", 90 * time.Second: "90s", 1500 * time.Millisecond: "1500ms", time.Nanosecond: "1ms", 24 * time.Hour: "86400s"} {
		if got := duration(d); got != want {
			t.Errorf("%s: %s", d, got)
		}
	}
}

// TestCheck: what is wrong with a gate is said with what to write.
func TestCheck(t *testing.T) {
	max := num(0.01)
	ratio := &manifest.GateCompare{Ratio: 1.5}
	for name, c := range map[string]struct {
		gate manifest.Gate
		says string // empty: nothing is wrong
	}{
		"a bound":               {manifest.Gate{Prometheus: "up", Max: max}, ""},
		"counts":                {manifest.Gate{Prometheus: "sum(increase(a[$every]))", Of: "sum(increase(b[$every]))", Max: max}, ""},
		"counts, every written": {manifest.Gate{Prometheus: "sum(increase(a[1m]))", Of: "sum(increase(b[ 1m ]))", Max: max, Every: "60s"}, ""},
		"compares":              {manifest.Gate{Prometheus: "sum(a * $canary)", Compare: ratio}, ""},
		"compares by epoch":     {manifest.Gate{Prometheus: `a{epoch="$epoch"}`, Compare: ratio}, ""},
		"compares by address":   {manifest.Gate{HTTP: "http://a/?e=$epoch", Compare: ratio}, ""},
		"reported":              {manifest.Gate{Reported: "restarts", Compare: ratio}, ""},
		"reported latency":      {manifest.Gate{Reported: "probe_latency", Max: num(250)}, ""},
		"regular expression":    {manifest.Gate{Prometheus: `up{job=~"^a$"}`, Max: max}, ""},
		"nothing":               {manifest.Gate{Max: max}, "one of prometheus, http and reported"},
		"two kinds":             {manifest.Gate{Prometheus: "up", HTTP: "http://a", Max: max}, "one of prometheus, http and reported"},
		"two kinds, reported":   {manifest.Gate{Prometheus: "up", Reported: "drift", Max: max}, "one of prometheus, http and reported"},
		"unknown report":        {manifest.Gate{Reported: "mood", Max: max}, `"mood" is not one of refused`},
		"no bound":              {manifest.Gate{Prometheus: "up"}, "min, max or compare"},
		"crossed":               {manifest.Gate{Prometheus: "up", Min: num(2), Max: num(1)}, "max is below min"},
		"of with http":          {manifest.Gate{HTTP: "http://a", Of: "b", Max: max}, "of counts the events of a prometheus gate"},
		"of with reported":      {manifest.Gate{Reported: "drift", Of: "b", Max: max}, "of counts the events of a prometheus gate"},
		"percent":               {manifest.Gate{Prometheus: "a", Of: "b", Max: num(5)}, "0.01 is 1%"},
		"percent of hosts":      {manifest.Gate{Reported: "drift", Max: num(5)}, "0.01 is 1%"},
		"unknown name":          {manifest.Gate{Prometheus: "a * $canaries", Max: max}, "prometheus: unknown name $canaries: there are $cohort, $epoch, $canary, $control and $every"},
		"unknown name in of":    {manifest.Gate{Prometheus: "a", Of: "b * ${x}", Max: max}, "of: unknown name $x"},
		"compares nothing":      {manifest.Gate{Prometheus: "sum(a)", Compare: ratio}, "prometheus: a gate that compares needs $canary (or $epoch)"},
		"compares half":         {manifest.Gate{Prometheus: "sum(a * $canary)", Of: "sum(b)", Compare: ratio}, "of: a gate that compares needs $canary"},
		"address":               {manifest.Gate{HTTP: "http://a/$canary", Max: max}, "are for prometheus"},
		"address compares":      {manifest.Gate{HTTP: "http://a/", Compare: ratio}, "needs $epoch in its address"},
		"rate":                  {manifest.Gate{Prometheus: "sum(rate(a[$every]))", Of: "sum(increase(b[$every]))", Max: max}, "write increase(…[$every])"},
		"too often":             {manifest.Gate{Prometheus: "up", Max: max, Every: "500ms"}, "every: 500ms is less than a second"},
		"counted twice":         {manifest.Gate{Prometheus: "sum(increase(a[$every]))", Of: "sum(increase(b[5m]))", Max: max, Every: "30s"}, "of: a gate with of counts each event once: write [$every] in the place of [5m]"},
	} {
		err := Check(c.gate)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// TestShort: a bake that a gate cannot pass is said before it is tried.
func TestShort(t *testing.T) {
	values := manifest.Gate{Prometheus: "x * $canary", Compare: &manifest.GateCompare{Ratio: 2}, Every: "30s"}
	counts := values
	counts.Of = "y * $canary"
	for name, c := range map[string]struct {
		gate manifest.Gate
		bake time.Duration
		says string
	}{
		"long enough":            {values, 6 * time.Minute, ""},
		"too short":              {values, 5 * time.Minute, "takes 12 looks, and a bake of 5m0s has 10"},
		"counts":                 {counts, 5 * time.Minute, ""},
		"none":                   {values, 0, ""},
		"shorter than a look":    {counts, 20 * time.Second, "it looks every 30s, and the bake is over after 20s"},
		"one look":               {counts, 25 * time.Second, ""},
		"reported":               {manifest.Gate{Reported: "refused", Max: num(0), Every: "30s"}, time.Second, ""},
		"reported, in no time":   {manifest.Gate{Reported: "restarts", Compare: values.Compare, Every: "30s"}, time.Second, ""},
		"latencies, as reported": {manifest.Gate{Reported: "probe_latency", Compare: values.Compare, Every: "30s"}, time.Minute, "takes 12 looks"},
	} {
		if got := Short(c.gate, c.bake); c.says == "" && got != "" || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
