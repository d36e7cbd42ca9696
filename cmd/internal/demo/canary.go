package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/collector"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
)

// What the act is about. The first wave of the cohort that comes first (fleet.cue, order) is one host.
const (
	canaryCohort = "staging"
	upstreams    = "services/checkout/base.yaml"
	before       = "upstreams: [pay.internal, stock.internal]\n"
	typo         = "upstreams: [pay.internal, stock.internal, tax.intrnal]\n"
	meant        = "upstreams: [pay.internal, stock.internal, tax.internal]\n"
)

// reachable are the upstreams that there are: what a checkout process is told to call beside them fails its checkouts.
var reachable = []string{"pay.internal", "stock.internal", "tax.internal", "pay.us.internal", "stock.us.internal"}

// policy is how the demo's cohorts take a release, with times for people who watch: bakes of minutes are for the real thing.
func policy(monitor string) string {
	return fmt.Sprintf(`package fleet

// One host first. It must do well for two seconds, as the shop's own monitoring sees it; then all the others.
rollouts: standard: {
	waves: [{count: 1, bake: "2s"}, {percent: 100}]
	gates: checkouts: {
		http:  "%s/failing?cohort=$cohort&epoch=$epoch" // share of the checkouts that fail on hosts that run the release
		max:   0.01
		every: "1s"
		fails: 2
	}
	max_in_flight: "100%%"
	watch:         "0s"
}
`, monitor)
}

// writePolicy puts the policy into the demo's config repo, and takes the address that its gate asks.
func (s *story) writePolicy(ctx context.Context) (err error) {
	if s.monitor, s.monitorURL, err = listen(ctx); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.repo.dir, "fleet", "rollout.cue"), []byte(policy(s.monitorURL)), 0o644)
}

// watchShop is the shop's own monitoring: it buys something on each host that runs a release, and says which share of that failed.
func (s *story) watchShop(ctx context.Context, ln net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /failing", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		epoch, err := strconv.ParseUint(r.URL.Query().Get("epoch"), 10, 64)
		if err != nil {
			http.Error(w, "epoch: not a number", http.StatusBadRequest)
			return
		}
		hosts, err := s.client.Hosts(ctx, r.URL.Query().Get("cohort"), "")
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		tried, failed := 0, 0
		for _, h := range hosts {
			machine, err := s.at(h.Host)
			if err != nil || h.Running != epoch {
				continue
			}
			tried++
			if buy(ctx, machine.processes[deafService].url) != nil {
				failed++
			}
		}
		if tried == 0 {
			w.WriteHeader(http.StatusNoContent) // nobody runs it: there is nothing to say
			return
		}
		fmt.Fprintf(w, "%g\n", float64(failed)/float64(tried))
	})
	return serve(ctx, ln, mux)
}

// buy is one checkout.
func buy(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/checkout", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	return nil
}

// checkout is what the process serves: it calls each upstream that its file names.
func (p *process) checkout(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	text := string(p.files["upstreams.conf"])
	p.mu.Unlock()
	for line := range strings.Lines(text) {
		name, ok := strings.CutPrefix(strings.TrimSuffix(strings.TrimSpace(line), ":443;"), "upstream ")
		if ok && !slices.Contains(reachable, name) {
			http.Error(w, "no such host: "+name, http.StatusBadGateway)
			return
		}
	}
	fmt.Fprintln(w, "sold")
}

// steer lets a controller take the cohorts to new releases, as a collector with a rollout_key does; until then every release went to all hosts at once.
func (s *story) steer(ctx context.Context, group *errgroup.Group, c *collector.Collector, by collector.Steering) error {
	keeper, err := gate.NewKeeper(gate.Config{})
	if err != nil {
		return err
	}
	controller := &rollout.Controller{Store: by.Store, Signer: by.Signer, Seen: c, Gates: c.Overhear(keeper), Waits: c.Waits, By: "muster demo", Log: slog.New(slog.DiscardHandler)}
	s.inWaves = func() {
		group.Go(func() error { return keeper.Run(ctx) })
		group.Go(func() error { return controller.Run(ctx) })
	}
	return nil
}

// oneGoesFirst is the fourth act: a value that every schema takes, and that does harm, goes to one host and comes back; the value that was meant goes everywhere.
func (s *story) oneGoesFirst(ctx context.Context) error {
	deaf, err := s.at(deafHost)
	if err != nil {
		return err
	}
	if err := deaf.processes[deafService].hear(); err != nil {
		return err
	}
	g, err := s.until(ctx, 2, func(g *api.Wait) bool { return g.Green })
	if err != nil {
		return err
	}
	if !g.Green {
		return differs("epoch 2 is not confirmed although the deaf process was started anew: %s", who(g))
	}
	s.say("that process is started anew: %d/%d hosts confirm epoch 2. From now on a release goes to one host of a cohort first, to %s before the others", g.Confirmed, len(s.hosts), canaryCohort)
	s.releaseInWaves(ctx)
	loads, err := s.reloads(ctx)
	if err != nil {
		return err
	}

	value, subject := typo, "checkout: reserve at the tax service"
	if s.opts.Sabotage == NoCanary {
		value = meant
	}
	bad, err := s.commitEdit(ctx, before, value, subject)
	if err != nil {
		return err
	}
	canary, err := s.oneIsTold(ctx, bad)
	if err != nil {
		return err
	}
	machine, err := s.at(canary)
	if err != nil {
		return err
	}
	s.say("%s of %s takes it and confirms, and no other host has it", canary, canaryCohort)
	if sold := buy(ctx, machine.processes[deafService].url); sold != nil {
		s.say("nothing is wrong that %s could see; but its checkouts fail: %s", canary, sold)
	}
	if err := s.comesBack(ctx, bad, canary, loads); err != nil {
		return err
	}

	good, err := s.commitEdit(ctx, value, meant, "checkout: it is called tax.internal")
	if err != nil {
		return err
	}
	if _, err := s.client.Act(ctx, canaryCohort, "resume", api.Act{Reason: "corrected in the next commit", By: "ana"}); err != nil {
		return err
	}
	s.say("muster rollout resume %s --reason 'corrected in the next commit': epoch %d is not what failed", canaryCohort, good)
	return s.goesEverywhere(ctx, good)
}

// commitEdit commits a change of the upstreams, and waits until it is a release.
func (s *story) commitEdit(ctx context.Context, from, to, subject string) (uint64, error) {
	if err := s.repo.edit(upstreams, from, to); err != nil {
		return 0, err
	}
	commit, err := s.repo.commit(ctx, subject)
	if err != nil {
		return 0, err
	}
	epoch, err := s.released(ctx, commit)
	if err != nil {
		return 0, err
	}
	s.say("git commit %s: %s (%s); released as epoch %d", cli.Short(commit), subject, strings.TrimSpace(to), epoch)
	return epoch, nil
}

// rolling looks at the cohort's rollout until it is as wanted; stop ends it with what is wrong.
func (s *story) rolling(ctx context.Context, cohort, what string, as func(*api.Rollout) (bool, error)) (*api.Rollout, error) {
	for deadline := time.Now().Add(patience); ; {
		c, err := s.client.Cohort(ctx, cohort)
		if err != nil {
			return nil, err
		}
		if r := c.Rollout; r != nil {
			if ok, err := as(r); ok || err != nil {
				return r, err
			}
		}
		if time.Now().After(deadline) {
			return nil, differs("%s: not after %s: %s", what, patience, c.Why)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// oneIsTold waits until the first wave has the release, and says which host that is.
func (s *story) oneIsTold(ctx context.Context, epoch uint64) (string, error) {
	_, err := s.rolling(ctx, canaryCohort, fmt.Sprintf("one host of %s confirms epoch %d", canaryCohort, epoch), func(r *api.Rollout) (bool, error) {
		if r.Target == epoch && (r.Phase != manifest.PhaseAdvancing || r.Wave > 1) {
			return r.Phase == manifest.PhaseBaking && r.Wave == 1 || r.Phase == manifest.PhaseRollingBack || r.Phase == manifest.PhaseHalted || r.Phase == manifest.PhaseDone, nil
		}
		return false, nil
	})
	if err != nil {
		return "", err
	}
	hosts, err := s.client.Hosts(ctx, "", "")
	if err != nil {
		return "", err
	}
	var took []string
	for _, h := range hosts {
		if h.Running >= epoch {
			took = append(took, h.Host)
		}
	}
	if len(took) != 1 {
		return "", differs("epoch %d was to go to one host first, and went to %d: %s", epoch, len(took), strings.Join(took, ", "))
	}
	return took[0], nil
}

// comesBack waits until the release is taken back, and looks whether any other host had it.
func (s *story) comesBack(ctx context.Context, epoch uint64, canary string, loads map[string]int) error {
	r, err := s.rolling(ctx, canaryCohort, fmt.Sprintf("epoch %d is taken back", epoch), func(r *api.Rollout) (bool, error) {
		if r.Phase == manifest.PhaseDone || r.Wave > 1 {
			return false, differs("epoch %d was to do harm on %s, and to be stopped: %s is %s with it", epoch, canary, canaryCohort, r.Phase)
		}
		return r.Phase == manifest.PhaseHalted, nil
	})
	if err != nil {
		return err
	}
	s.say("%s: %s", canaryCohort, r.Why)
	h, err := s.sees(ctx, canary, patience, 50*time.Millisecond, func(h *api.Host) bool { return h.Verdict == "confirmed" && h.Running < epoch })
	if err != nil {
		return err
	}
	machine, err := s.at(canary)
	if err != nil {
		return err
	}
	if sold := buy(ctx, machine.processes[deafService].url); h.Running >= epoch || sold != nil {
		return differs("%s was to be back and to sell again: it runs epoch %d, %v", canary, h.Running, sold)
	}
	after, err := s.reloads(ctx)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		want := 0
		if key == canary+"/"+deafService {
			want = 2 // there and back
		}
		if n := after[key] - loads[key]; n != want {
			return differs("%s was reloaded %d times because of epoch %d, not %d times", key, n, epoch, want)
		}
	}
	s.say("%s is back at epoch %d and sells again; the other %d hosts never had it: no reload there", canary, h.Running, len(s.hosts)-1)
	return nil
}

// goesEverywhere waits until a release is confirmed by all.
func (s *story) goesEverywhere(ctx context.Context, epoch uint64) error {
	began := time.Now()
	g, err := s.until(ctx, epoch, func(g *api.Wait) bool { return g.Green })
	if err != nil {
		return err
	}
	if !g.Green {
		return differs("epoch %d was to go everywhere: %s", epoch, who(g))
	}
	s.say("one host first, then the others, cohort by cohort: %d/%d hosts confirm what epoch %d says for them (%s later)", g.Confirmed, len(s.hosts), epoch, cli.Elapsed(time.Since(began)))
	return nil
}
