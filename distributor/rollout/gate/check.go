package gate

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// window is a range in a query that is written out.
var window = regexp.MustCompile(`\[\s*([0-9][0-9a-zµ]*)\s*[\]:]`)

// Check says what is wrong with a gate's kind and queries, so that it is found before anything is asked; nil is fine. It is for texts that a person wrote: the message says what to write.
func Check(g manifest.Gate) error {
	kinds := 0
	for _, s := range []string{g.Prometheus, g.HTTP, g.Reported} {
		if s != "" {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return errors.New("a gate asks one of prometheus, http and reported")
	case g.Reported != "" && !slices.Contains(manifest.ReportedGates, g.Reported):
		return fmt.Errorf("reported: %q is not one of %s", g.Reported, strings.Join(manifest.ReportedGates, ", "))
	case g.Of != "" && g.Prometheus == "":
		return errors.New("of counts the events of a prometheus gate: it goes with nothing else")
	case g.Min == nil && g.Max == nil && g.Compare == nil:
		return errors.New("a gate has a bound: min, max or compare")
	case g.Min != nil && g.Max != nil && *g.Max < *g.Min:
		return errors.New("max is below min")
	}
	if d, err := time.ParseDuration(g.Every); err == nil && d < time.Second {
		return fmt.Errorf("every: %s is less than a second", d)
	}
	if share := g.Of != "" || g.Reported != "" && g.Reported != "probe_latency"; share {
		if g.Min != nil && (*g.Min < 0 || *g.Min > 1) || g.Max != nil && (*g.Max < 0 || *g.Max > 1) {
			return errors.New("min and max are shares here, 0 to 1: 0.01 is 1%")
		}
	}
	for _, f := range []struct{ field, query string }{{"prometheus", g.Prometheus}, {"of", g.Of}, {"http", g.HTTP}} {
		if err := checkQuery(g, f.field, f.query); err != nil {
			return err
		}
	}
	return nil
}

func checkQuery(g manifest.Gate, field, query string) error {
	if query == "" {
		return nil
	}
	used := uses(query)
	for _, n := range used {
		if !slices.Contains(Names, n) {
			return fmt.Errorf("%s: unknown name $%s: there are $cohort, $epoch, $canary, $control and $every; $$ is a dollar sign", field, n)
		}
	}
	has := func(n string) bool { return slices.Contains(used, n) }
	switch {
	case field == "http" && (has("canary") || has("control") || has("every")):
		return errors.New("http: $canary, $control and $every are for prometheus: here there are $cohort and $epoch")
	case g.Compare != nil && field == "http" && !has("epoch"):
		return errors.New("http: a gate that compares needs $epoch in its address: it is asked a second time with the control group's")
	case g.Compare != nil && !has("canary") && !has("epoch"):
		return fmt.Errorf("%s: a gate that compares needs $canary (or $epoch): it is asked a second time with the control group in its place", field)
	}
	if g.Of == "" {
		return nil
	}
	if strings.Contains(query, "rate(") {
		return fmt.Errorf("%s: a gate with of counts events: write increase(…[$every]), not rate(…)", field)
	}
	for _, m := range window.FindAllStringSubmatch(query, -1) {
		if d, err := time.ParseDuration(m[1]); err != nil || d != every(g) {
			return fmt.Errorf("%s: a gate with of counts each event once: write [$every] in the place of [%s], and set every", field, m[1])
		}
	}
	return nil
}

// Short says why a gate has too few looks in a bake to pass in it; empty: it has enough. No bake, no looks: then the gate is judged while the rollout is watched.
func Short(g manifest.Gate, bake time.Duration) string {
	e := every(g)
	switch looks := wanted(bake, e); {
	case bake <= 0:
		return ""
	case g.Reported == "" && lookAt(time.Time{}, e, 1).After(time.Time{}.Add(bake)):
		return fmt.Sprintf("it looks every %s, and the bake is over after %s: make every shorter, or the bake longer", e, bake)
	case g.Compare != nil && g.Of == "" && (g.Reported == "" || g.Reported == probeLatency) && looks < MinLooks:
		return fmt.Sprintf("to compare values takes %d looks, and a bake of %s has %d: make every shorter, or the bake longer", MinLooks, bake, looks)
	}
	return ""
}

// Compares reports whether a gate only compares: without a control group it can say nothing.
func Compares(g manifest.Gate) bool { return g.Compare != nil && g.Min == nil && g.Max == nil }
