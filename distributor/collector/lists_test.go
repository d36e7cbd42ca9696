package collector

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/verdict"
)

func (w *world) hosts(cohort string, change func(*manifest.CohortPolicy)) {
	p := w.policy.Cohorts[cohort]
	p.Hosts = manifest.HostsPolicy{}
	change(&p)
	w.policy.Cohorts[cohort] = p
}

func csvOf(names ...string) string {
	return "host,cohort,zone\n" + strings.Join(names, ",prod,eu\n") + ",prod,eu\n"
}

func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("web-%02d", i))
	}
	return names
}

// A list is taken while it is sound. One that fails, is empty or loses much at once leaves the last good one in force and says so, also over a restart.
func TestInventoryKeepsTheLastGoodList(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod")
	w.hosts("prod", func(p *manifest.CohortPolicy) { p.Hosts.Match = map[string][]string{"zone": {"eu"}} })
	path := filepath.Join(t.TempDir(), "hosts.csv")
	r := newRig(t, w, nil)
	setup := func() { r.c.cfg.Inventory = []Source{{"prod", listCSV, path}} }
	setup()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.c.readLists(t.Context())
	}
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	r.c.readLists(t.Context())
	if g := r.wait(one, api.WaitQuery{}); g.Green || g.Never || !strings.Contains(g.Why, "cannot be read, so nobody knows which hosts cohort prod has") {
		t.Errorf("never read: %+v", g)
	}
	names := numbered(20)
	write(csvOf(names...) + "us-1,prod,us\nother,elsewhere,eu\n")
	why := func() (int, string) {
		s, err := r.client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Cohorts["prod"].Expected, s.Cohorts["prod"].Why
	}
	if n, text := why(); n != 20 || strings.Contains(text, "inventory") {
		t.Errorf("%d expected: %s", n, text)
	}
	for _, name := range names {
		r.agent("prod", name).runs(one).say()
	}
	if g := r.wait(one, api.WaitQuery{}); !g.Green || g.Confirmed != 20 {
		t.Errorf("counted by match over a list: %+v", g)
	}
	for what, text := range map[string]string{"empty": "", "no host": "host,cohort,zone\n", "torn": csvOf(names...)[:40], "half": csvOf(names[:10]...), "other cohort": "host,cohort,zone\na,b,eu\n"} {
		write(text)
		if n, say := why(); n != 20 || !strings.Contains(say, "the list of 2026-11-30T12:00:00Z with 21 hosts stays in force") {
			t.Errorf("%s: %d expected: %s", what, n, say)
		}
	}
	os.Remove(path)
	r.c.readLists(t.Context())
	r.flush()
	r.restart()
	setup()
	r.read()
	if n, _ := why(); n != 20 {
		t.Errorf("after a restart: %d expected", n)
	}
	r.c.readLists(t.Context())
	if n, say := why(); n != 20 || !strings.Contains(say, "no such file") {
		t.Errorf("after a restart: %d expected: %s", n, say)
	}
	// One that goes is retired, silence is not.
	write(csvOf(names[1:]...))
	r.is(names[0], verdict.Retired, "left the inventory")
	r.advance(time.Hour)
	r.read()
	r.is(names[1], verdict.Silent, "")
	if n, _ := why(); n != 19 {
		t.Errorf("%d expected", n)
	}
	// What a person retired may be gone from the list, however much it is.
	if _, err := r.client.ChangeHosts(t.Context(), api.HostsRetire, api.HostsChange{Hosts: names[10:], Reason: "decommissioned", By: "ana"}); err != nil {
		t.Fatal(err)
	}
	write(csvOf(names[1:10]...))
	if n, say := why(); n != 9 || strings.Contains(say, "stays in force") {
		t.Errorf("%d expected: %s", n, say)
	}
}

// Every kind of source, and the fleet's own file out of the released tree.
func TestInventorySources(t *testing.T) {
	answer := `[{"targets":["sd-1:9100","sd-2:9100"],"labels":{"cohort":"prod"}}]`
	status := http.StatusOK
	sd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	defer sd.Close()
	file := filepath.Join(t.TempDir(), "targets.json")
	if err := os.WriteFile(file, []byte(`[{"targets":["file-1:1"]}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.cohort("prod", "listed-1")
	w.policy.Inventory = &manifest.Inventory{File: "fleet/hosts.csv"}
	packed, err := bundle.PackTree([]bundle.File{{Path: "fleet/hosts.csv", Mode: 0o644, Data: []byte("host,cohort\ntree-1,prod\nx,nowhere\n")}})
	if err != nil {
		t.Fatal(err)
	}
	w.source = packed
	one := w.publish("prod")
	w.assign("prod", one)
	r := newRig(t, w, nil)
	r.c.cfg.Inventory = []Source{{"prod", listFileSD, file}, {"prod", listHTTPSD, sd.URL}}
	r.read()
	r.c.readLists(t.Context())
	expected := func() string {
		var names []string
		for _, h := range r.c.Inventory().Cohorts["prod"].Hosts {
			names = append(names, h.Host)
		}
		return strings.Join(names, " ")
	}
	if got := expected(); got != "file-1 listed-1 sd-1 sd-2 tree-1" {
		t.Errorf("expected are %s", got)
	}
	status = http.StatusBadGateway
	r.c.readLists(t.Context())
	if got := expected(); got != "file-1 listed-1 sd-1 sd-2 tree-1" {
		t.Errorf("a server that fails: expected are %s", got)
	}
	// A damaged tree keeps the last good list, and is read again.
	two := w.publish("prod")
	key := manifest.KeySource(fmt.Sprintf("%040x", two+1000))
	w.put(key, []byte("junk"))
	w.assign("prod", two)
	if err := r.c.read(t.Context()); err == nil || !strings.Contains(err.Error(), "inventory fleet/hosts.csv of release 2") {
		t.Errorf("%v", err)
	}
	if got := expected(); !strings.Contains(got, "tree-1") {
		t.Errorf("a damaged tree: expected are %s", got)
	}
	w.put(key, packed.Data)
	r.read()
	// A fleet that names no file any more has no list of it.
	w.policy.Inventory = nil
	w.publish("prod")
	r.read()
	if got := expected(); strings.Contains(got, "tree-1") {
		t.Errorf("expected are %s", got)
	}
}

// A number that is expected, with the least and the most.
func TestInventoryByNumber(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod")
	w.hosts("prod", func(p *manifest.CohortPolicy) { p.Hosts.Expect = &manifest.Expect{Min: 2, Max: 2} })
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	for i, want := range []string{"expects 1 host more", "2 confirmed", "has 1 host more than hosts.expect allows"} {
		r.agent("prod", fmt.Sprintf("a-%d", i)).runs(one).say()
		if g := r.wait(one, api.WaitQuery{}); g.Green != (i == 1) || !strings.Contains(g.Why, want) {
			t.Errorf("%d hosts: %+v", i+1, g)
		}
	}
	if _, err := r.client.ChangeHosts(t.Context(), api.HostsRetire, api.HostsChange{Hosts: []string{"a-2"}, By: "ana"}); err != nil {
		t.Fatal(err)
	}
	if g := r.wait(one, api.WaitQuery{}); !g.Green {
		t.Errorf("%+v", g)
	}
}

// B091: hosts of an ephemeral cohort may vanish; they are back as soon as they report.
func TestB091Ephemeral(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod")
	w.hosts("prod", func(p *manifest.CohortPolicy) {
		p.Hosts.Expect = &manifest.Expect{Min: 1, Max: 10}
		p.Ephemeral, p.RetireAfter = true, "15m"
	})
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	a, b, c := r.agent("prod", "a").runs(one), r.agent("prod", "b").runs(one), r.agent("prod", "c").runs(one)
	a.say()
	b.say()
	c.report.Phase = report.PhaseLeaving
	c.say()
	r.is("c", verdict.Retired, "its agent said")
	r.advance(10 * time.Minute)
	r.read()
	r.is("a", verdict.Silent, "")
	r.advance(6 * time.Minute)
	r.read()
	b.say()
	r.is("a", verdict.Retired, "ephemeral, retire_after 15m")
	if g := r.wait(one, api.WaitQuery{}); !g.Green || g.Confirmed != 1 {
		t.Errorf("%+v", g)
	}
	a.say()
	r.is("a", verdict.Confirmed, "")
	// What is retired and silent is forgotten after a while.
	r.advance(forgetAfter + time.Hour)
	r.read()
	b.say()
	doc := r.c.Inventory()
	if h := doc.Cohorts["prod"].Hosts; len(h) != 1 || h[0].Host != "b" || r.c.hosts != 1 {
		t.Errorf("%+v, %d remembered", h, r.c.hosts)
	}
	r.flush()
	r.restart()
	if r.c.hosts != 1 {
		t.Errorf("%d hosts after a restart", r.c.hosts)
	}
}

// B091: a person retires a host, and takes it back; over a restart it stays so.
func TestB091RetireAndAccept(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1", "web-2")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	r.agent("prod", "web-1").runs(one).say()
	change := func(what string, q api.HostsChange) error {
		_, err := r.client.ChangeHosts(t.Context(), what, q)
		return err
	}
	if err := change(api.HostsRetire, api.HostsChange{Hosts: []string{"web-2"}, Reason: "scrapped", By: "ana"}); err != nil {
		t.Fatal(err)
	}
	r.is("web-2", verdict.Retired, "retired by ana since 2026-11-30T12:00:00Z: scrapped; it counts no more: `muster hosts unretire web-2` takes that back")
	if g := r.wait(one, api.WaitQuery{}); !g.Green {
		t.Errorf("%+v", g)
	}
	r.flush()
	r.restart()
	r.read()
	r.is("web-2", verdict.Retired, "")
	for what, err := range map[string]error{
		"nobody":   change(api.HostsRetire, api.HostsChange{Hosts: []string{"web-1", "nobody"}, By: "ana"}),
		"unknown":  change("explode", api.HostsChange{Hosts: []string{"web-1"}, By: "ana"}),
		"no name":  change(api.HostsRetire, api.HostsChange{Hosts: []string{"web-1"}}),
		"no hosts": change(api.HostsRetire, api.HostsChange{Hosts: []string{}, By: "ana"}),
		"no other": change(api.HostsAccept, api.HostsChange{Hosts: []string{"web-1"}, By: "ana"}),
	} {
		if err == nil {
			t.Errorf("%s: done", what)
		}
	}
	r.is("web-1", verdict.Confirmed, "") // none of that did half of it
	if err := change(api.HostsUnretire, api.HostsChange{Hosts: []string{"web-2"}, By: "ana"}); err != nil {
		t.Fatal(err)
	}
	r.is("web-2", verdict.Missing, "")
	// Installed anew: the other key counts when a person says so, and only that one.
	anew := r.agent("prod", "web-1").runs(one)
	if _, err := r.client.Report(t.Context(), anew.signed()); !errors.Is(err, api.ErrDenied) {
		t.Fatalf("%v", err)
	}
	if err := change(api.HostsAccept, api.HostsChange{Hosts: []string{"web-1"}, By: "ana"}); err != nil {
		t.Fatal(err)
	}
	r.flush()
	r.restart() // the word is kept, also before the key has spoken
	r.read()
	r.is("web-1", verdict.Missing, "")
	anew.rig = r
	if _, err := r.client.Report(t.Context(), r.agent("prod", "web-1").runs(one).signed()); !errors.Is(err, api.ErrDenied) {
		t.Errorf("a third key: %v", err)
	}
	anew.say()
	r.advance(time.Hour)
	r.read()
	anew.say()
	r.is("web-1", verdict.Confirmed, "")
}

// inventory.json is written where there is a right to; else that is no trouble to anybody.
func TestInventoryDocument(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	a := r.agent("prod", "web-1").runs(one)
	a.report.Labels = map[string]string{"zone": "eu"}
	a.say()
	if err := r.c.putInventory(t.Context()); err != nil {
		t.Fatal(err)
	}
	obj, err := w.store.Get(t.Context(), manifest.KeyInventory, inventory.MaxBytes)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := inventory.ParseDocument(obj.Data)
	if err != nil || doc.Repo != repo || doc.Cohorts["prod"].Expected != 1 || doc.Cohorts["prod"].Hosts[0].Labels["zone"] != "eu" {
		t.Errorf("%+v, %v", doc, err)
	}
	r.c.store = readOnly{w.store}
	if err := r.c.putInventory(t.Context()); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("%v", err)
	}
}

type readOnly struct{ store.ReadStore }

// A list in the tree that lost too much is read once, not at every look at the store, and again when a person says that the hosts are gone.
func TestInventoryLossIsReadOnce(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	w.policy.Inventory = &manifest.Inventory{File: "fleet/hosts.csv"}
	tree := func(hosts ...string) {
		t.Helper()
		text := "host,cohort\n"
		for _, h := range hosts {
			text += h + ",prod\n"
		}
		packed, err := bundle.PackTree([]bundle.File{{Path: "fleet/hosts.csv", Data: []byte(text), Mode: 0o644}})
		if err != nil {
			t.Fatal(err)
		}
		w.source = packed
		w.assign("prod", w.publish("prod"))
	}
	tree("a", "b", "c")
	r := newRig(t, w, nil)
	counted := &countingReads{ReadStore: w.store}
	r.c.store = counted
	r.read()
	tree("a")
	for range 3 {
		r.read()
	}
	if n := counted.sources; n != 2 {
		t.Errorf("trees are read %d times, not once each", n)
	}
	expected := func() int { return len(r.c.Inventory().Cohorts["prod"].Hosts) }
	if n := expected(); n != 4 {
		t.Errorf("%d hosts", n)
	}
	if _, err := r.client.ChangeHosts(t.Context(), api.HostsRetire, api.HostsChange{Hosts: []string{"b", "c"}, By: "ana"}); err != nil {
		t.Fatal(err)
	}
	r.read()
	if n := expected(); n != 2 || counted.sources != 3 {
		t.Errorf("%d hosts, %d reads", n, counted.sources)
	}
}

type countingReads struct {
	store.ReadStore
	sources int
}

func (c *countingReads) Get(ctx context.Context, key string, limit int64) (store.Object, error) {
	if strings.HasPrefix(key, manifest.PrefixSources) {
		c.sources++
	}
	return c.ReadStore.Get(ctx, key, limit)
}

// A list over TLS is not fetched without it because a server says so, and no chain of redirects is without end.
func TestInventoryRedirects(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/loop" {
			http.Redirect(w, r, "/loop", http.StatusFound)
			return
		}
		fmt.Fprint(w, `[{"targets": ["a"]}]`)
	}))
	defer plain.Close()
	secure := httptest.NewTLSServer(http.RedirectHandler(plain.URL+"/list", http.StatusFound))
	defer secure.Close()
	before := listClient.Transport
	listClient.Transport = secure.Client().Transport
	defer func() { listClient.Transport = before }()
	if data, err := fetch(t.Context(), plain.URL+"/list"); err != nil || len(data) == 0 {
		t.Errorf("%s, %v", data, err)
	}
	for url, want := range map[string]string{secure.URL: "a redirect from https to http is not followed", plain.URL + "/loop": "more than 5 redirects"} {
		if _, err := fetch(t.Context(), url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
	secure.Client().CloseIdleConnections()
}
