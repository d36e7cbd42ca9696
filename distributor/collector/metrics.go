package collector

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/verdict"
)

// counts are what only ever rises.
type counts struct {
	accepted, late, refused     atomic.Uint64 // reports, by what became of them
	signed, heartbeats          atomic.Uint64
	storeErrors, databaseErrors atomic.Uint64
	heads, busy                 atomic.Uint64
	loginsFailed, loginsHeld    atomic.Uint64
	tokensUnknown               atomic.Uint64
	events                      atomic.Int64 // that are followed now
}

var phases = []manifest.Phase{
	manifest.PhaseIdle, manifest.PhaseAdvancing, manifest.PhaseBaking, manifest.PhaseDone, manifest.PhaseAwaitingApproval, manifest.PhasePaused, manifest.PhaseRollingBack, manifest.PhaseHalted,
}

// exposition writes Prometheus' text format 0.0.4. Labels are names that were checked or words of an enum: never what a host or a person wrote.
type exposition struct{ strings.Builder }

func (e *exposition) family(name, kind, help string) {
	fmt.Fprintf(e, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes one value; labels are name, value, name, value…
func (e *exposition) sample(name string, value float64, labels ...string) {
	e.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		fmt.Fprintf(e, "%s%s=%s", sep, labels[i], strconv.Quote(labels[i+1]))
	}
	if len(labels) > 0 {
		e.WriteByte('}')
	}
	e.WriteByte(' ')
	e.WriteString(strconv.FormatFloat(value, 'g', -1, 64))
	e.WriteByte('\n')
}

func (e *exposition) counter(name, help string, value uint64) {
	e.family(name, "counter", help)
	e.sample(name, float64(value))
}

// getMetrics answers Prometheus. Only cohorts that the caller may see are told of.
func (c *Collector) getMetrics(w http.ResponseWriter, _ *http.Request, who caller) error {
	var e exposition
	c.cohortMetrics(&e, who)
	c.rolloutMetrics(&e, who)
	c.ownMetrics(&e)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	send(w, []byte(e.String()))
	return nil
}

func (c *Collector) cohortMetrics(e *exposition, who caller) {
	s := c.status(who)
	names := make([]string, 0, len(s.Cohorts))
	for name := range s.Cohorts {
		names = append(names, name)
	}
	slices.Sort(names)
	e.family("muster_cohort_hosts", "gauge", "Hosts of a cohort by verdict.")
	for _, name := range names {
		for _, code := range verdict.Codes {
			e.sample("muster_cohort_hosts", float64(s.Cohorts[name].Verdicts[code]), "cohort", name, "verdict", string(code))
		}
	}
	each := func(metric, help string, value func(name string) float64) {
		e.family(metric, "gauge", help)
		for _, name := range names {
			e.sample(metric, value(name), "cohort", name)
		}
	}
	each("muster_cohort_expected_hosts", "Hosts that a cohort is expected to have.", func(n string) float64 { return float64(s.Cohorts[n].Expected) })
	each("muster_cohort_target_epoch", "Release that a cohort is taken to, or runs; 0 before the first.", func(n string) float64 { return float64(s.Cohorts[n].Target) })
	each("muster_cohort_baseline_epoch", "Last release that a cohort took in full.", func(n string) float64 { return float64(s.Cohorts[n].Baseline) })
	now := c.now()
	fresh, read := map[string]float64{}, map[string]float64{}
	c.mu.RLock()
	for _, name := range names {
		if co := c.cohorts[name]; co != nil {
			if co.view != nil {
				fresh[name] = co.view.Manifest.FreshUntil.Sub(now).Seconds()
			}
			if !co.lastRead.IsZero() {
				read[name] = now.Sub(co.lastRead).Seconds()
			}
		}
	}
	c.mu.RUnlock()
	e.family("muster_cohort_fresh_seconds", "gauge", "Time until the cohort's order should be renewed; negative: it is late.")
	for _, name := range names {
		if v, ok := fresh[name]; ok {
			e.sample("muster_cohort_fresh_seconds", v, "cohort", name)
		}
	}
	e.family("muster_cohort_head_age_seconds", "gauge", "Time since the cohort's head was last read well from the store.")
	for _, name := range names {
		if v, ok := read[name]; ok {
			e.sample("muster_cohort_head_age_seconds", v, "cohort", name)
		}
	}
}

func (c *Collector) ownMetrics(e *exposition) {
	now := c.now()
	c.mu.RLock()
	var newest uint64
	if n := len(c.releases); n > 0 {
		newest = c.releases[n-1].Epoch
	}
	hosts, retired, lastRead, lists, bad := c.hosts, len(c.retired), c.lastRead, len(c.lists), 0
	for _, l := range c.lists {
		if l.problem != "" {
			bad++
		}
	}
	c.mu.RUnlock()
	gauge := func(name, help string, v float64) {
		e.family(name, "gauge", help)
		e.sample(name, v)
	}
	gauge("muster_newest_epoch", "Newest verified release.", float64(newest))
	gauge("muster_collector_hosts", "Hosts that have reported and are remembered.", float64(hosts))
	gauge("muster_collector_retired_hosts", "Hosts that a person retired.", float64(retired))
	gauge("muster_collector_inventories", "Inventories that are read.", float64(lists))
	gauge("muster_collector_inventories_kept", "Inventories whose last good list is kept because the newest is worse.", float64(bad))
	gauge("muster_collector_long_polls", "Requests that wait now.", float64(len(c.longPolls)))
	gauge("muster_collector_event_streams", "Event streams that are followed now.", float64(c.count.events.Load()))
	if !lastRead.IsZero() {
		gauge("muster_store_read_age_seconds", "Time since the store was last read in whole.", now.Sub(lastRead).Seconds())
	}
	e.family("muster_reports_total", "counter", "Reports by what became of them.")
	e.sample("muster_reports_total", float64(c.count.accepted.Load()), "result", "accepted")
	e.sample("muster_reports_total", float64(c.count.late.Load()), "result", "late")
	e.sample("muster_reports_total", float64(c.count.refused.Load()), "result", "refused")
	e.family("muster_reports_received_total", "counter", "Reports by their kind.")
	e.sample("muster_reports_received_total", float64(c.count.signed.Load()), "kind", "signed")
	e.sample("muster_reports_received_total", float64(c.count.heartbeats.Load()), "kind", "heartbeat")
	e.counter("muster_heads_total", "New heads that were taken.", c.count.heads.Load())
	e.counter("muster_requests_busy_total", "Requests that were turned away because too many ran.", c.count.busy.Load())
	e.counter("muster_logins_failed_total", "Attempts to sign in to the page with a token that no person has.", c.count.loginsFailed.Load())
	e.counter("muster_tokens_unknown_total", "Requests with a token that is not in tokens_file.", c.count.tokensUnknown.Load())
	e.counter("muster_logins_held_total", "Attempts to sign in that were not looked at, because too many had failed.", c.count.loginsHeld.Load())
	e.counter("muster_store_errors_total", "Troubles with the store, each counted when it began.", c.count.storeErrors.Load())
	e.counter("muster_database_errors_total", "Writes to the database that failed.", c.count.databaseErrors.Load())
	gauge("process_start_time_seconds", "Start of the collector, in seconds since 1970.", float64(c.started.UnixMilli())/1000)
	gauge("go_goroutines", "Goroutines.", float64(runtime.NumGoroutine()))
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	gauge("go_memstats_heap_inuse_bytes", "Bytes of heap in use.", float64(m.HeapInuse))
}
