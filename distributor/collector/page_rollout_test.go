package collector

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/muster-config/muster/distributor/manifest"
)

// gateSays is what the gate of underWay heard.
func gateSays(outcome manifest.Outcome, why string, values ...float64) func(r *manifest.Rollout) {
	return func(r *manifest.Rollout) {
		v := manifest.GateVerdict{Gate: "errors", Wave: r.Wave, Outcome: outcome, Why: why, From: start, To: start.Add(time.Minute)}
		for i := range values {
			control := 12.5
			v.Samples = append(v.Samples, manifest.GateSample{At: start.Add(time.Duration(i) * 30 * time.Second), Canary: &values[i], Control: &control})
		}
		r.Verdicts = []manifest.GateVerdict{v}
	}
}

func haltedAt(why string) func(r *manifest.Rollout) {
	return func(r *manifest.Rollout) {
		r.Phase, r.Why, r.Halts = manifest.PhaseHalted, why, []manifest.Stop{{By: "muster", Why: why, Since: start, Epoch: 2}}
	}
}

// What people see of a rollout under way, paused and halted: on the page without JavaScript, through the API, and in the events.
func TestPageRollout(t *testing.T) {
	r := steeredRig(t, nil, gateSays(manifest.OutcomeInconclusive, "1 of 20 looks are there", 480, 510))
	r.advance(time.Minute)
	_, body, _ := r.page(t, r.server.Client(), "/")
	for _, want := range []string{
		"9m0s left", "2026-11-30T12:10:00Z", "Wave 1", `class="wave now"`, "50%: 2 in all", "a person approves it", "1 of 3 hosts are told to run release 2, 1 confirmed", "reported probe failures: at most 500, every 30s",
		"1 of 20 looks are there", "as the last order found it", "2 samples", "<td>480</td><td>12.5</td>", "Behind it:", "change 3", `<a href="/hosts/` + canary() + `">`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("baking: the page has no %q", want)
		}
	}
	if strings.Contains(body, `role="alert"`) {
		t.Error("baking: something is shown as stopped")
	}
	r.assign("prod", 2, underWay(r.world, 2, 1, haltedAt("epoch 2: a </p><script>document.title='owned'</script> refused, at most 0 may")))
	r.read()
	_, body, _ = r.page(t, r.server.Client(), "/")
	for _, want := range []string{`<p class="stop bad" role="alert"><a href="#cohort-prod"><strong>prod</strong></a> halted by muster since 2026-11-30T12:00:00Z: epoch 2: a &lt;/p&gt;&lt;script&gt;`, "git revert and publish what failed, or `muster rollout resume prod --reason …`"} {
		if !strings.Contains(body, want) {
			t.Errorf("halted: the page has no %q", want)
		}
	}
	if strings.Contains(body, "<script>d") {
		t.Error("what a gate or a host says runs on the page")
	}
	resp, err := http.Get(r.server.URL + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var first [64 << 10]byte
	n, err := resp.Body.Read(first[:])
	for more := 0; err == nil && !bytes.Contains(first[:n], []byte(`"cohort":"prod"`)); {
		more, err = resp.Body.Read(first[n:])
		n += more
	}
	if text := string(first[:n]); !strings.Contains(text, `"halts":[{"by":"muster"`) || !strings.Contains(text, `"waits":"halted by muster`) {
		t.Errorf("event %.2000s, %v", text, err)
	}
}

// The page in a real browser, as a rollout goes on, is paused and halted; it follows by itself.
func TestPageRolloutInABrowser(t *testing.T) {
	r := steeredRig(t, nil, gateSays(manifest.OutcomePass, "48 to 51 of 1000 probes fail, at most 500 may", 48, 51, 49))
	dir := t.TempDir()
	if keep := os.Getenv("MUSTER_SCREENSHOTS"); keep != "" {
		dir = keep
	}
	ctx := browser(t)
	do := steps(t, ctx)
	text := func(selector string) string {
		t.Helper()
		got, err := chromedp.Run(ctx, chromedp.Evaluate[string](fmt.Sprintf("(document.querySelector(%q)||{textContent:''}).textContent", selector)))
		if err != nil {
			t.Fatalf("text of %s: %v", selector, err)
		}
		return strings.Join(strings.Fields(got), " ")
	}
	shot := func(name string) {
		t.Helper()
		png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err != nil || len(png) < 5000 || !bytes.HasPrefix(png, []byte("\x89PNG")) {
			t.Errorf("%s: the screenshot is %d bytes, %v", name, len(png), err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	do("baking", chromedp.Navigate(r.server.URL+"/"), chromedp.WaitReady("#cohort-prod .waves"))
	if got := text("#cohort-prod .wave.now"); !strings.Contains(got, "Wave 1 now") {
		t.Errorf("now: %q", got)
	}
	until(t, "the samples are open", func() bool {
		if strings.Contains(text("details[open] .samples"), "51") {
			return true
		}
		do("samples", chromedp.Click("#samples-prod-errors summary"))
		return false
	})
	shot("rollout-baking")
	r.assign("prod", 2, underWay(r.world, 2, 1, pausedBy("ana", "INC-7: looking", r.now()), gateSays(manifest.OutcomePass, "well", 48)))
	r.read()
	until(t, "the page shows the pause at its top", func() bool {
		return strings.HasPrefix(text("p.stop"), "prod paused at wave 1 of 3 by ana since") && text("#cohort-prod .phase") == "paused"
	})
	if got := text("details[open] .samples"); got == "" {
		t.Error("the samples that somebody opened are closed")
	}
	shot("rollout-paused")
	r.assign("prod", 2, underWay(r.world, 2, 1, haltedAt("epoch 2 failed at wave 1 of 3, back to epoch 1: gate errors: 520 of 1000 probes fail, at most 500 may"), gateSays(manifest.OutcomeFail, "520 of 1000 probes fail, at most 500 may", 480, 520, 530)))
	r.read()
	until(t, "the page shows the halt at its top", func() bool { return strings.HasPrefix(text("p.stop.bad"), "prod halted by muster since") })
	if got := text("#cohort-prod .gates"); !strings.Contains(got, "errors fail 520 of 1000 probes fail") {
		t.Errorf("gates: %q", got)
	}
	shot("rollout-halted")
	do("narrow", chromedp.EmulateViewport(390, 1400), chromedp.Navigate(r.server.URL+"/"), chromedp.WaitReady("#cohort-prod .waves"))
	if width, err := chromedp.Run(ctx, chromedp.Evaluate[int64]("document.documentElement.scrollWidth")); err != nil || width > 390 {
		t.Errorf("%d pixels wide on a screen of 390, %v", width, err)
	}
	shot("rollout-narrow")
}
