package collector

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
)

// The kinds of a source of host names.
const (
	listCSV    = "csv"     // a file: host,cohort,<label>…
	listFileSD = "file_sd" // a file in Prometheus' format
	listHTTPSD = "http_sd" // the same from a URL
	listFleet  = "fleet"   // the fleet's own inventory file, out of the released tree
)

const (
	listsEvery  = 30 * time.Second
	httpTimeout = 20 * time.Second
	maxSource   = 256 << 20 // a stored tree

	maxRedirects = 5
)

// Source is one entry of `inventory` in collector.yaml: where the names of a cohort's hosts come from.
type Source struct {
	Cohort string
	Kind   string // csv, file_sd, http_sd
	At     string // a path, or a URL
}

func (s Source) name() string { return s.Kind + " " + s.At + orNothing(" of ", s.Cohort) }

// hostList is the last good list of a source.
type hostList struct {
	cohort  string // "": of several
	hosts   []inventory.Host
	at      time.Time // when it was last read well; zero: never
	problem string    // why the newest is not taken
	version string    // what it was read from, for a source that says so
}

// storedList is a list as it is remembered.
type storedList struct {
	At    time.Time    `json:"at"`
	Hosts []storedHost `json:"hosts"`
}

type storedHost struct {
	Host   string            `json:"host"`
	Cohort string            `json:"cohort"`
	Labels map[string]string `json:"labels,omitempty"`
}

// followLists reads the sources of collector.yaml, and the fleet's own http one, until ctx ends.
func (c *Collector) followLists(ctx context.Context) {
	for {
		c.readLists(ctx)
		t := time.NewTimer(listsEvery)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-c.relist:
			t.Stop()
		case <-t.C:
		}
	}
}

// sources are those that are read again and again. Under c.mu.
func (c *Collector) sources() []Source {
	all := slices.Clone(c.cfg.Inventory)
	if c.fleet != nil && c.fleet.Inventory != nil && c.fleet.Inventory.HTTP != "" {
		all = append(all, Source{Kind: listHTTPSD, At: c.fleet.Inventory.HTTP})
	}
	return all
}

func (c *Collector) readLists(ctx context.Context) {
	c.mu.RLock()
	sources := c.sources()
	c.mu.RUnlock()
	some(len(sources), func(i int) {
		hosts, err := c.fetchList(ctx, sources[i])
		if ctx.Err() == nil {
			c.takeList(sources[i], hosts, "", err)
		}
	})
}

// fetchList reads a source once.
func (c *Collector) fetchList(ctx context.Context, s Source) ([]inventory.Host, error) {
	var data []byte
	var err error
	if s.Kind == listHTTPSD {
		data, err = fetch(ctx, s.At)
	} else {
		data, err = readFile(s.At, inventory.MaxBytes)
	}
	if err != nil {
		return nil, err
	}
	if s.Kind != listCSV {
		return inventory.ParseTargets(data, s.Cohort)
	}
	hosts, err := inventory.ParseCSV(data)
	if err != nil {
		return nil, err
	}
	hosts = slices.DeleteFunc(hosts, func(h inventory.Host) bool { return s.Cohort != "" && h.Cohort != s.Cohort })
	if len(hosts) == 0 {
		return nil, fmt.Errorf("lists no host of cohort %s", s.Cohort)
	}
	return hosts, nil
}

func readFile(path string, limit int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f, limit)
}

func readBounded(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("larger than %d MiB", limit>>20)
	}
	return data, err
}

// listClient asks http_sd servers. It follows a few redirects, none of them out of TLS.
var listClient = &http.Client{Timeout: httpTimeout, CheckRedirect: func(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) >= maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	case req.URL.Scheme != "https" && req.URL.Scheme != via[len(via)-1].URL.Scheme:
		return fmt.Errorf("a redirect from %s to %s is not followed", via[len(via)-1].URL.Scheme, req.URL.Scheme)
	}
	return nil
}}

func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := listClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %s", resp.Status)
	}
	return readBounded(resp.Body, inventory.MaxBytes)
}

// takeList makes a list the one in force, unless it is worse than none: then the last good one stays, and says so once in the log and wherever the cohort is shown.
func (c *Collector) takeList(s Source, hosts []inventory.Host, version string, err error) {
	name := s.name()
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lists[name]
	if l == nil {
		l = &hostList{cohort: s.Cohort}
		c.lists[name] = l
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	} else if why := inventory.Loss(l.hosts, hosts, func(cohort, host string) bool { _, ok := c.retired[hostKey{cohort, host}]; return ok }); why != "" {
		problem = why + ": more than a tenth; if that is right, say so with `muster hosts retire` for them"
	}
	if problem != "" {
		if problem != l.problem {
			c.log.Warn("inventory: the last good list stays in force", "source", name, "err", problem, "hosts", len(l.hosts))
			l.problem = problem
			c.bump()
		}
		if err == nil {
			l.version = version // it was read well, and reading it again gives the same
		}
		return
	}
	if l.problem != "" {
		c.log.Info("inventory is read again", "source", name, "hosts", len(hosts))
	}
	same := l.problem == "" && !l.at.IsZero() && slices.EqualFunc(l.hosts, hosts, sameHost)
	l.at, l.problem, l.version = c.now(), "", version
	if same {
		return
	}
	l.hosts = hosts
	c.dirty.lists[name] = true
	c.setRoster()
	wake(c.flushNow)
}

func sameHost(a, b inventory.Host) bool {
	if a.Name != b.Name || a.Cohort != b.Cohort || len(a.Labels) != len(b.Labels) {
		return false
	}
	for k, v := range a.Labels {
		if w, ok := b.Labels[k]; !ok || w != v {
			return false
		}
	}
	return true
}

// fleetSource is the source that the fleet's own inventory file is. ok is false without one. Under c.mu.
func (c *Collector) fleetSource() (Source, bool) {
	if c.fleet == nil || c.fleet.Inventory == nil || c.fleet.Inventory.File == "" {
		return Source{}, false
	}
	return Source{Kind: listFleet, At: c.fleet.Inventory.File}, true
}

// readFleetList reads the fleet's inventory file out of the newest release's tree, once for each tree. Lists of a fleet that says something else by now are forgotten.
func (c *Collector) readFleetList(ctx context.Context) error {
	c.mu.Lock()
	s, ok := c.fleetSource()
	want := map[string]bool{s.name(): ok}
	for _, other := range c.sources() {
		want[other.name()] = true
	}
	dropped := false
	for name := range c.lists {
		if !want[name] && c.fleet != nil {
			delete(c.lists, name)
			dropped = true
		}
	}
	if dropped {
		c.setRoster()
	}
	var rel release
	if n := len(c.releases); n > 0 {
		rel = c.releases[n-1]
	}
	l := c.lists[s.name()]
	known := l != nil && l.version != "" && l.version == rel.source.Object+rel.tree
	c.mu.Unlock()
	if !ok || known || rel.tree == "" {
		return nil
	}
	hosts, err := c.fleetList(ctx, rel, s.At)
	version := rel.source.Object + rel.tree
	c.takeList(s, hosts, version, err)
	if err != nil {
		return fmt.Errorf("inventory %s of release %d: %w", s.At, rel.Epoch, err)
	}
	return nil
}

func (c *Collector) fleetList(ctx context.Context, rel release, path string) ([]inventory.Host, error) {
	key := manifest.KeySource(rel.tree)
	obj, err := c.store.Get(ctx, key, min(rel.source.Size, maxSource))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if sum := sha256.Sum256(obj.Data); "sha256:"+hex.EncodeToString(sum[:]) != rel.source.Object {
		return nil, fmt.Errorf("%s: %w", key, errDamaged)
	}
	files, err := bundle.ReadTree(bytes.NewReader(obj.Data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	i := slices.IndexFunc(files, func(f bundle.File) bool { return f.Path == strings.TrimPrefix(path, "/") })
	if i < 0 {
		return nil, fmt.Errorf("%s has no such file", key)
	}
	return inventory.ParseCSV(files[i].Data)
}

// unlisted says which source that names a cohort's hosts was never read well, or "". Under c.mu.
func (c *Collector) unlisted(cohort string) string {
	sources := c.sources()
	if s, ok := c.fleetSource(); ok {
		sources = append(sources, s)
	}
	for _, s := range sources {
		if s.Cohort != "" && s.Cohort != cohort {
			continue
		}
		if l := c.lists[s.name()]; l == nil || l.at.IsZero() {
			why := "it was not read yet"
			if l != nil && l.problem != "" {
				why = l.problem
			}
			return fmt.Sprintf("the inventory %s cannot be read, so nobody knows which hosts cohort %s has: %s", s.name(), cohort, why)
		}
	}
	return ""
}

// listProblems are the sentences about sources that touch a cohort. Under c.mu.
func (c *Collector) listProblems(cohort string) []string {
	var out []string
	if why := c.unlisted(cohort); why != "" {
		out = append(out, why)
	}
	for name, l := range c.lists {
		if l.problem != "" && !l.at.IsZero() && (l.cohort == "" || l.cohort == cohort) {
			out = append(out, fmt.Sprintf("inventory %s: %s; the list of %s with %d hosts stays in force", name, l.problem, l.at.UTC().Format(time.RFC3339), len(l.hosts)))
		}
	}
	slices.Sort(out)
	return out
}

// encodeList is a list as it is remembered.
func encodeList(l *hostList) ([]byte, error) {
	out := storedList{At: l.at, Hosts: make([]storedHost, len(l.hosts))}
	for i, h := range l.hosts {
		out.Hosts[i] = storedHost{h.Name, h.Cohort, h.Labels}
	}
	return json.Marshal(out)
}

// loadLists brings back the last good lists of the sources that there still are.
func (c *Collector) loadLists(stored map[string][]byte) {
	for name, data := range stored {
		var in storedList
		if err := json.Unmarshal(data, &in); err != nil || in.At.IsZero() {
			c.log.Warn("a remembered inventory is dropped", "source", name, "err", errors.Join(err, errors.New("not readable")))
			continue
		}
		l := &hostList{at: in.At}
		for _, s := range c.cfg.Inventory {
			if s.name() == name {
				l.cohort = s.Cohort
			}
		}
		for _, h := range in.Hosts {
			if h.Labels == nil {
				h.Labels = map[string]string{}
			}
			l.hosts = append(l.hosts, inventory.Host{Name: h.Host, Cohort: h.Cohort, Labels: h.Labels})
		}
		c.lists[name] = l
	}
}
