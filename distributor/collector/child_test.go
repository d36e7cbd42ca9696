package collector

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/dir"
	"github.com/muster-config/muster/distributor/verdict"
)

// childMain makes this test binary a collector, when it is started as one: to be killed.
func childMain() {
	at := os.Getenv("MUSTER_TEST_COLLECTOR")
	if at == "" {
		return
	}
	err := func() error {
		st, err := dir.Open(filepath.Join(at, "store"))
		if err != nil {
			return err
		}
		keyring, err := os.ReadFile(filepath.Join(at, "keyring.json"))
		if err != nil {
			return err
		}
		c, err := New(Config{Poll: 50 * time.Millisecond, Database: "sqlite://" + filepath.Join(at, "state.db")}, Deps{Store: st, Keyring: keyring, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err != nil {
			return err
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		fmt.Printf("http://%s\n", ln.Addr())
		go c.Run(context.Background())
		return c.Serve(context.Background(), ln)
	}()
	fmt.Fprintln(os.Stderr, "child:", err)
	os.Exit(1)
}

// child is a collector in a process of its own.
type child struct {
	cmd *exec.Cmd
	url string
	log *logged
}

func startChild(t *testing.T, at string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0]), log: &logged{}}
	c.cmd.Env = append(os.Environ(), "MUSTER_TEST_COLLECTOR="+at)
	c.cmd.Stderr = c.log
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	withUs(c.cmd)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.cmd.Process.Kill(); c.cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the child does not come up: %v\n%s", err, c.log)
	}
	c.url = strings.TrimSpace(line)
	return c
}

func (c *child) kill(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.cmd.Wait()
}

// until looks until done is true.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("not after a minute: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// B099: killed in the middle of writing, started again, the file cut to half, started again.
func TestB099KilledAndCut(t *testing.T) {
	at := t.TempDir()
	w := newWorld(t)
	w.clock = time.Now().UTC()
	st, err := dir.Open(filepath.Join(at, "store"))
	if err != nil {
		t.Fatal(err)
	}
	w.store = st
	const n = 200
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("h-%03d", i))
	}
	w.cohort("prod", names...)
	one := w.publish("prod")
	w.assign("prod", one)
	if err := os.WriteFile(filepath.Join(at, "keyring.json"), w.keyring, 0o644); err != nil {
		t.Fatal(err)
	}
	r := &rig{world: w}
	connect := func(c *child) {
		client, err := api.NewClient(c.url, api.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		r.client = client
	}
	confirmed := func() int {
		st, err := r.client.Status(t.Context())
		if err != nil {
			return -1
		}
		return st.Cohorts["prod"].Verdicts[verdict.Confirmed]
	}
	c := startChild(t, at)
	connect(c)
	var agents []*agent
	for _, name := range names {
		agents = append(agents, r.agent("prod", name).runs(one))
	}
	post := func(list []*agent) {
		var p api.ReportPost
		for _, a := range list {
			p.Reports = append(p.Reports, a.signed())
		}
		if _, err := r.client.PostReports(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	post(agents)
	until(t, "all are confirmed", func() bool { return confirmed() == n })
	// Reports go on while it is killed: what was durable before stays.
	until(t, "the first reports are written", func() bool {
		info, err := os.Stat(filepath.Join(at, "state.db-wal"))
		return err == nil && info.Size() > 100_000
	})
	for i := 0; i < n; i += 20 {
		post(agents[i : i+20])
	}
	c.kill(t)

	c = startChild(t, at)
	connect(c)
	// Without one new report: what was known is known, and nobody is silent for the time that nobody listened.
	until(t, "the store is read", func() bool { return confirmed() >= 0 && confirmed() == n })
	hosts, err := r.client.Hosts(t.Context(), "prod", "")
	if err != nil || len(hosts) != n {
		t.Fatalf("%d hosts, %v", len(hosts), err)
	}
	if strings.Contains(c.log.String(), "set aside") {
		t.Errorf("a sound database was set aside:\n%s", c.log)
	}
	// The order is kept too: a report from before the kill is late.
	old := r.agent("prod", names[0]).runs(one)
	old.key, old.report.Key = agents[0].key, agents[0].report.Key
	if res, err := r.client.Report(t.Context(), old.signed()); err != nil || res.Accepted || res.Counter == 0 {
		t.Errorf("a late report after the kill: %+v, %v", res, err)
	}
	c.kill(t)

	// Cut to half: set aside with a message, never "all is well"; right again with the next reports.
	for _, f := range []string{"state.db", "state.db-wal"} {
		path := filepath.Join(at, f)
		if info, err := os.Stat(path); err == nil {
			size := info.Size() / 2
			if f == "state.db-wal" {
				size = 0 // else it would hold the pages that the file has lost
			}
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	broken, err := os.ReadFile(filepath.Join(at, "state.db"))
	if err != nil || len(broken) < 1000 {
		t.Fatalf("the test cut nothing: %d bytes, %v", len(broken), err)
	}
	c = startChild(t, at)
	connect(c)
	if !strings.Contains(c.log.String(), "set aside and made anew") {
		t.Errorf("nothing is said of the broken file:\n%s", c.log)
	}
	if aside, err := filepath.Glob(filepath.Join(at, "state.db.broken-*")); err != nil || len(aside) == 0 {
		t.Errorf("the broken file is gone: %v, %v", aside, err)
	}
	until(t, "the store is read", func() bool {
		st, err := r.client.Status(t.Context())
		return err == nil && st.Cohorts["prod"].Verdicts[verdict.Missing] == n
	})
	if g := r.wait(one, api.WaitQuery{}); g.Green || g.Confirmed != 0 || g.Owed != 0 {
		t.Errorf("an empty memory is no confirmation: %+v", g)
	}
	post(agents)
	until(t, "all are confirmed again", func() bool { return confirmed() == n })
	// A look that the store did not answer in time makes hosts unknown until the next one.
	until(t, "it is green", func() bool { return r.wait(one, api.WaitQuery{}).Green })
}

// A second collector on the same file would undo the first one's work.
func TestOneCollectorPerDatabase(t *testing.T) {
	w := newWorld(t)
	r := newRig(t, w, nil)
	_, err := New(r.c.cfg, Deps{Store: w.store, Keyring: w.keyring})
	if err == nil || !strings.Contains(err.Error(), "another collector has it open") {
		t.Errorf("%v", err)
	}
}

// B099: a full disk costs memory, not truth; what could not be written is written later.
func TestB099DiskFull(t *testing.T) {
	w := newWorld(t)
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprintf("h-%d", i))
	}
	w.cohort("prod", names...)
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	r.flush()
	limit := func(pages int) {
		if _, err := r.sqlite().db.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", pages)); err != nil {
			t.Fatal(err)
		}
	}
	limit(1)
	for _, name := range names {
		if _, err := r.c.Report(t.Context(), r.agent("prod", name).runs(one).signed()); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.c.flush(t.Context(), w.now()); err == nil || !strings.Contains(err.Error(), "full") {
		t.Fatalf("the disk is not full: %v", err)
	}
	if g := r.wait(one, api.WaitQuery{}); !g.Green || g.Confirmed != 300 {
		t.Errorf("%+v", g)
	}
	limit(1 << 20)
	r.flush()
	r.restart()
	r.read()
	if g := r.wait(one, api.WaitQuery{}); !g.Green || g.Confirmed != 300 {
		t.Errorf("after a restart: %+v", g)
	}
}

// What is remembered does not grow with time.
func TestB099BoundedHistory(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	r.c.mu.Lock()
	for e := uint64(1); e <= maxReleases+200; e++ {
		r.c.dirty.seen[e] = w.now()
		r.c.dirty.assigned("prod", e, w.now().Add(time.Duration(e)*time.Second))
	}
	r.c.mu.Unlock()
	r.flush()
	for table, most := range map[string]int{"seen": maxReleases, "assigned": 100} {
		var n int
		if err := r.sqlite().db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil || n != most {
			t.Errorf("%s: %d rows, want %d, %v", table, n, most, err)
		}
	}
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	a := r.agent("prod", "web-1")
	for i := range 3 * maxBoots {
		a.report.Boot, a.counter = fmt.Sprintf("boot-%d", i), 0
		w.advance(time.Second)
		a.runs(one).say()
	}
	if n := len(r.c.cohorts["prod"].hosts["web-1"].boots); n != maxBoots {
		t.Errorf("%d boots are remembered", n)
	}
	r.is("web-1", verdict.Confirmed, "")
}

// While nobody listened, nobody was silent; and who had been silent before that still is, and is owed.
func TestSilenceOverARestart(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "dead", "well")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	dead, well := r.agent("prod", "dead").runs(one), r.agent("prod", "well").runs(one)
	dead.say()
	w.advance(10 * time.Minute)
	well.say()
	r.flush()
	w.advance(time.Hour) // down
	r.restart()
	r.read()
	r.is("dead", verdict.Silent, "last heard 1h10m0s ago")
	r.is("well", verdict.Unknown, "the collector was not listening all that time")
	two := w.publish("prod")
	w.assign("prod", two)
	r.read()
	if g := r.wait(two, api.WaitQuery{}); g.Green || g.Owed != 1 || len(g.Waiting) != 1 || g.Waiting[0].Host != "well" {
		t.Errorf("%+v", g)
	}
	// Twice in a row.
	r.flush()
	w.advance(time.Minute)
	r.restart()
	r.read()
	r.is("well", verdict.Unknown, "")
	w.advance(4 * time.Minute)
	r.is("well", verdict.Silent, "last heard 1h5m0s ago")
	if g := r.wait(two, api.WaitQuery{}); g.Green || g.Owed != 1 {
		t.Errorf("fell silent after the release, so it is not owed: %+v", g)
	}
	well.runs(two).say()
	if g := r.wait(two, api.WaitQuery{}); !g.Green || g.Owed != 1 || g.Confirmed != 1 {
		t.Errorf("%+v", g)
	}
}

// Serve ends at once although many wait, and a report in the last moment is written.
func TestServeEndsCleanly(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	one := w.publish("prod")
	w.assign("prod", one)
	cfg := Config{Poll: 10 * time.Millisecond, Database: "sqlite://" + filepath.Join(t.TempDir(), "state.db")}
	c, err := New(cfg, Deps{Store: w.store, Keyring: w.keyring})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	work, stop := context.WithCancel(t.Context())
	served, ran := make(chan error, 1), make(chan error, 1)
	go func() { served <- c.Serve(ctx, ln) }()
	go func() { ran <- c.Run(work) }()
	client, err := api.NewClient("http://"+ln.Addr().String(), api.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r := &rig{world: w, client: client, c: c}
	until(t, "ready", func() bool { return strings.Contains(get(t, "http://"+ln.Addr().String()+api.PathReady), "ok") })
	_, mark, err := client.GetHead(t.Context(), "prod", manifest.Mark{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	polls := make(chan error, 20)
	for range cap(polls) {
		go func() {
			_, _, err := client.GetHead(context.Background(), "prod", mark, 50*time.Second)
			polls <- err
		}()
	}
	until(t, "all wait", func() bool { return len(c.longPolls) == cap(polls) })
	r.agent("prod", "web-1").runs(one).say()
	begin := time.Now()
	cancel()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	for range cap(polls) {
		if err := <-polls; err == nil {
			t.Error("a long poll was answered as if there were news")
		}
	}
	stop()
	if err := <-ran; err != nil {
		t.Errorf("Run: %v", err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("it took %s", d)
	}
	again, err := New(cfg, Deps{Store: w.store, Keyring: w.keyring})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.hosts != 1 {
		t.Errorf("%d hosts are remembered", again.hosts)
	}
}

// B099: wherever the file is cut, the collector comes up, and what is lost is told.
func TestB099CutAnywhere(t *testing.T) {
	w := newWorld(t)
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("h-%d", i))
	}
	w.cohort("prod", names...)
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	for _, name := range names {
		r.agent("prod", name).runs(one).say()
	}
	r.flush()
	r.server.Close()
	if err := r.c.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(r.dir, "state.db"))
	if err != nil || len(whole) < 20*4096 {
		t.Fatalf("%d bytes, %v", len(whole), err)
	}
	for _, size := range []int{1, 100, 4095, 4096, 4097, 2 * 4096, len(whole) / 2, len(whole)/2/4096*4096 + 4096, len(whole) - 4096, len(whole) - 1, len(whole)} {
		at := t.TempDir()
		path := filepath.Join(at, "state.db")
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		log := &logged{}
		c, err := New(Config{Poll: time.Hour, Database: "sqlite://" + path}, Deps{Store: w.store, Keyring: w.keyring, Now: w.now, Log: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Errorf("cut to %d: %v", size, err)
			continue
		}
		told := strings.Contains(log.String(), "set aside")
		if lost := c.hosts != len(names); lost != told || size == len(whole) && lost || size <= len(whole)/2 && !lost {
			t.Errorf("cut to %d of %d: %d hosts, told %t\n%s", size, len(whole), c.hosts, told, log)
		}
		if err := c.flush(t.Context(), w.now()); err != nil {
			t.Errorf("cut to %d: the new one cannot be written: %v", size, err)
		}
		c.Close()
	}
}
