package collector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/verdict"
	"github.com/muster-config/muster/distributor/wire"
)

const (
	hostsAPage    = 100
	releasesAPage = 50
	waitingShown  = 200
)

func statusOf(err error) (int, string) {
	var re *requestError
	if errors.As(err, &re) {
		return re.status, re.Error() + orNothing(": ", re.hint)
	}
	return http.StatusInternalServerError, "something went wrong here: look at the collector's log"
}

// piece is one part of a bar, in thousandths of its width.
type piece struct {
	Class    string
	X, Width int
}

// bar is how a cohort's hosts are spread, good ones first.
type bar struct {
	Label  string
	Pieces []piece
}

func barOf(verdicts map[verdict.Code]int, expected int) bar {
	groups := map[string]int{}
	total := 0
	for code, n := range verdicts {
		if code != verdict.Retired {
			groups[classOf(code)] += n
			total += n
		}
	}
	groups["quiet"] += max(0, expected-total) // never heard of
	total = max(total, expected)
	b := bar{Label: fmt.Sprintf("%s of %s hosts run what is assigned to them", commas(verdicts[verdict.Confirmed]), commas(expected))}
	x, sum := 0, 0
	for _, class := range []string{"good", "moving", "apart", "quiet", "bad"} {
		n := groups[class]
		if n == 0 || total == 0 {
			continue
		}
		sum += n
		end := sum * 1000 / total
		b.Pieces = append(b.Pieces, piece{class, x, max(end-x, 3)})
		x = end
	}
	return b
}

// count is one verdict's number of hosts.
type count struct {
	Code verdict.Code
	N    int
	Link string
	On   bool
}

func countsOf(verdicts map[verdict.Code]int, link func(code verdict.Code) string) []count {
	var list []count
	for i := len(verdict.Codes) - 1; i >= 0; i-- {
		if code := verdict.Codes[i]; verdicts[code] > 0 {
			list = append(list, count{Code: code, N: verdicts[code], Link: link(code)})
		}
	}
	return list
}

type cohortBody struct {
	Name string
	api.Cohort
	Bar    bar
	Counts []count
	Green  *verdict.Green
	// Stopped: what stops it is said at the top of the page and once in the card.
	Stopped bool
}

// stopBody is what stops a cohort, or waits for a person.
type stopBody struct {
	Cohort, Class, Text string
}

func (c *Collector) pageCohorts(w http.ResponseWriter, r *http.Request, who caller) error {
	s := c.status(who)
	var list []cohortBody
	for _, name := range slices.Sorted(maps.Keys(s.Cohorts)) {
		co := s.Cohorts[name]
		b := cohortBody{Name: name, Cohort: co, Bar: barOf(co.Verdicts, co.Expected)}
		b.Counts = countsOf(co.Verdicts, func(code verdict.Code) string { return hostsLink(name, string(code), "", 1) })
		if co.Target > 0 {
			if wt, err := c.green(r.Context(), local, co.Target, api.WaitQuery{Cohort: name}); err == nil {
				g := wt.Cohorts[name]
				b.Green = &g
			}
		}
		list = append(list, b)
	}
	var stops []stopBody
	for i, b := range list {
		now := c.now()
		if r := b.Rollout; standing.Stopped(r) {
			list[i].Stopped = true
			class := "quiet"
			if halted(r) || r.Phase == manifest.PhaseRollingBack || r.Overdue {
				class = "bad"
			}
			stops = append(stops, stopBody{b.Name, class, r.Waits})
		}
		for _, line := range standing.Beside(b.Name, s.Cohorts[b.Name], now) {
			stops = append(stops, stopBody{b.Name, "quiet", line})
		}
	}
	releases := c.listReleases(who)
	return render(w, http.StatusOK, "cohorts.html", c.frame(who, "Cohorts", "cohorts", struct {
		Cohorts  []cohortBody
		Releases []api.Release
		Stops    []stopBody
	}{list, releases[:min(5, len(releases))], stops}))
}

func hostsLink(cohort, code, find string, page int) string {
	q := url.Values{}
	for k, v := range map[string]string{"cohort": cohort, "verdict": code, "find": find} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if page > 1 {
		q.Set("page", strconv.Itoa(page))
	}
	if len(q) == 0 {
		return "/hosts"
	}
	return "/hosts?" + q.Encode()
}

type hostsBody struct {
	Hosts                 []api.Host
	Cohort, Verdict, Find string
	Cohorts               []string
	Counts                []count
	All                   string // link without the verdict
	Total, From, To       int
	Before, After         string // links; "" for none
}

func (c *Collector) pageHosts(w http.ResponseWriter, r *http.Request, who caller) error {
	q := r.URL.Query()
	b := hostsBody{Cohort: q.Get("cohort"), Verdict: q.Get("verdict"), Find: strings.TrimSpace(q.Get("find"))}
	b.Find = b.Find[:min(len(b.Find), 253)]
	list, err := c.listHosts(who, b.Cohort, "")
	if err != nil {
		return err
	}
	if b.Verdict != "" && !slices.Contains(verdict.Codes, verdict.Code(b.Verdict)) {
		return refuse(http.StatusBadRequest, "", "verdict %.60q is not known", b.Verdict)
	}
	c.mu.RLock()
	b.Cohorts = c.cohortNames(who)
	c.mu.RUnlock()
	list = slices.DeleteFunc(list, func(h api.Host) bool { return b.Find != "" && !strings.Contains(h.Host, b.Find) })
	verdicts := map[verdict.Code]int{}
	for _, h := range list {
		verdicts[h.Verdict]++
	}
	b.Counts = countsOf(verdicts, func(code verdict.Code) string { return hostsLink(b.Cohort, string(code), b.Find, 1) })
	for i := range b.Counts {
		b.Counts[i].On = string(b.Counts[i].Code) == b.Verdict
	}
	b.All = hostsLink(b.Cohort, "", b.Find, 1)
	list = slices.DeleteFunc(list, func(h api.Host) bool { return b.Verdict != "" && string(h.Verdict) != b.Verdict })
	// What needs somebody comes first.
	rank := map[string]int{"bad": 0, "quiet": 1, "moving": 2, "apart": 3, "good": 4}
	slices.SortStableFunc(list, func(x, y api.Host) int { return cmp.Compare(rank[classOf(x.Verdict)], rank[classOf(y.Verdict)]) })
	b.Total = len(list)
	page, last := pageOf(q.Get("page"), b.Total, hostsAPage)
	from := (page - 1) * hostsAPage
	b.Hosts = list[from:min(from+hostsAPage, len(list))]
	b.From, b.To = from+1, from+len(b.Hosts)
	if page > 1 {
		b.Before = hostsLink(b.Cohort, b.Verdict, b.Find, page-1)
	}
	if page < last {
		b.After = hostsLink(b.Cohort, b.Verdict, b.Find, page+1)
	}
	return render(w, http.StatusOK, "hosts.html", c.frame(who, "Hosts", "hosts", b))
}

// pageOf is the page asked for, within what there is.
func pageOf(s string, total, size int) (page, last int) {
	last = max(1, (total+size-1)/size)
	n, err := strconv.Atoi(s)
	if err != nil {
		n = 1
	}
	return min(max(n, 1), last), last
}

type hostBody struct {
	api.Host
	Said     *report.Report
	Services []serviceBody
	Labels   []string
}

type serviceBody struct {
	Name string
	report.Service
	Health    string
	Instances []instanceBody
}

type instanceBody struct {
	Name string
	report.ServiceInstance
}

func (c *Collector) pageHost(w http.ResponseWriter, r *http.Request, who caller) error {
	h, err := c.oneHost(r.Context(), who, r.PathValue("host"), false)
	if err != nil {
		return err
	}
	b := hostBody{Host: *h}
	if len(h.Report) > 0 {
		var said report.Report
		if err := wire.Decode(h.Report, &said); err == nil {
			b.Said = &said
			for _, k := range slices.Sorted(maps.Keys(said.Labels)) {
				b.Labels = append(b.Labels, k+"="+said.Labels[k])
			}
			for _, name := range slices.Sorted(maps.Keys(said.Services)) {
				s := serviceBody{Name: name, Service: said.Services[name], Health: "not asked"}
				if s.Healthy != nil {
					s.Health = map[bool]string{true: "healthy", false: "ill"}[*s.Healthy]
				}
				for _, in := range slices.Sorted(maps.Keys(s.Service.Instances)) {
					s.Instances = append(s.Instances, instanceBody{in, s.Service.Instances[in]})
				}
				b.Services = append(b.Services, s)
			}
		}
	}
	return render(w, http.StatusOK, "host.html", c.frame(who, h.Host, "hosts", b))
}

func (c *Collector) pageReleases(w http.ResponseWriter, r *http.Request, who caller) error {
	list := c.listReleases(who)
	page, last := pageOf(r.URL.Query().Get("page"), len(list), releasesAPage)
	from := (page - 1) * releasesAPage
	body := struct {
		Releases      []api.Release
		Before, After string
	}{Releases: list[from:min(from+releasesAPage, len(list))]}
	if page > 1 {
		body.Before = fmt.Sprintf("/releases?page=%d", page-1)
	}
	if page < last {
		body.After = fmt.Sprintf("/releases?page=%d", page+1)
	}
	return render(w, http.StatusOK, "releases.html", c.frame(who, "Releases", "releases", body))
}

type releaseBody struct {
	api.Release
	Cohorts []releaseCohortBody
	More    int // hosts that are not shown
}

type releaseCohortBody struct {
	Name string
	api.ReleaseCohort
	Green   *verdict.Green
	Waiting []verdict.Waiting
}

func (c *Collector) pageRelease(w http.ResponseWriter, r *http.Request, who caller) error {
	epoch, err := epochOf(r)
	if err != nil {
		return err
	}
	rel, err := c.oneRelease(r.Context(), who, epoch)
	if err != nil {
		return err
	}
	b := releaseBody{Release: *rel}
	shown := 0
	for _, name := range slices.Sorted(maps.Keys(rel.Cohorts)) {
		co := releaseCohortBody{Name: name, ReleaseCohort: rel.Cohorts[name]}
		if g := c.greenOf(r.Context(), epoch, name); g != nil {
			co.Green = g
			co.Waiting = g.Waiting[:min(len(g.Waiting), max(0, waitingShown-shown))]
			shown += len(co.Waiting)
			b.More += len(g.Waiting) - len(co.Waiting)
		}
		b.Cohorts = append(b.Cohorts, co)
	}
	return render(w, http.StatusOK, "release.html", c.frame(who, fmt.Sprintf("Release %d", epoch), "releases", b))
}

// greenOf judges one cohort of a release for the page; nil if it cannot be judged.
func (c *Collector) greenOf(ctx context.Context, epoch uint64, cohort string) *verdict.Green {
	wt, err := c.green(ctx, local, epoch, api.WaitQuery{Cohort: cohort})
	if err != nil {
		return nil
	}
	g := wt.Cohorts[cohort]
	return &g
}
