package collector

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/verdict"
)

// B100: forged, oversized and odd posts are refused, and nothing changes.
func TestB100OddPosts(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	r.agent("prod", "web-1").runs(one).say()
	before := get(t, r.server.URL+api.PathHosts)

	post := func(change func(*report.Report), signer *agent) []byte {
		a := r.agent("prod", "web-9")
		a.runs(one)
		change(&a.report)
		if signer != nil {
			a.key = signer.key
		}
		return w.encode(api.ReportPost{Reports: []api.ReportItem{a.signed()}})
	}
	other := r.agent("prod", "web-8")
	good := post(func(*report.Report) {}, nil)
	zipped := func() []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		chunk := make([]byte, 1<<20)
		for range 8 {
			z.Write(chunk)
		}
		z.Close()
		return b.Bytes()
	}()
	var many api.ReportPost
	for range report.MaxBatch + 1 {
		many.Reports = append(many.Reports, api.ReportItem{Heartbeat: &api.Heartbeat{}})
	}
	for name, tt := range map[string]struct {
		body   []byte
		header string
		status int
		want   string
	}{
		"another host's id":      {post(func(r *report.Report) { r.Host = "web-1" }, nil), "", 403, "another identity key"},
		"key and signature":      {post(func(*report.Report) {}, other), "", 403, "must be signed by the key that it names"},
		"another repo":           {post(func(r *report.Report) { r.Repo = "evil/config" }, nil), "", 403, "serves acme/config"},
		"another store":          {post(func(r *report.Report) { r.Store = strings.Repeat("f", 32) }, nil), "", 403, "reads store"},
		"unknown cohort":         {post(func(r *report.Report) { r.Cohort = "nowhere" }, nil), "", 400, "has no cohort nowhere"},
		"50 MB":                  {bytes.Repeat([]byte("a"), 50<<20), "", 413, "larger than"},
		"gzip":                   {zipped, "gzip", 400, "compressed"},
		"gzip without saying so": {zipped, "", 400, ""},
		"script in host":         {post(func(r *report.Report) { r.Host = "<script>alert(1)</script>" }, nil), "", 400, "is not a host name"},
		"line break in host":     {post(func(r *report.Report) { r.Host = "a\nb" }, nil), "", 400, "is not a host name"},
		"epoch 2^63":             {post(func(r *report.Report) { r.Running = 1 << 63 }, nil), "", 400, "running: not below 2^53"},
		"no report":              {[]byte(`{"reports":[]}`), "", 400, "no report"},
		"too many":               {w.encode(many), "", 413, "at most 1000"},
		"nothing":                {nil, "", 400, ""},
		"not JSON":               {[]byte("hello"), "", 400, ""},
		"unknown key":            {bytes.Replace(good, []byte(`{"reports"`), []byte(`{"admin":true,"reports"`), 1), "", 400, "admin"},
		"neither":                {[]byte(`{"reports":[{}]}`), "", 400, "exactly one of signed and heartbeat"},
		"deep":                   {[]byte(strings.Repeat(`[`, 100_000)), "", 400, ""},
		"heartbeat, bad counter": {[]byte(`{"reports":[{"heartbeat":{"repo":"acme/config","cohort":"prod","host":"web-1","boot":"b","counter":0,"digest":"x","mac":""}}]}`), "", 400, "counter"},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(http.MethodPost, r.server.URL+api.PathReports, bytes.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if tt.header != "" {
				req.Header.Set("Content-Encoding", tt.header)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var body api.Error
			if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.status || !strings.Contains(body.Error, tt.want) || body.Code == 0 {
				t.Errorf("%d %+v, want %d %q", resp.StatusCode, body, tt.status, tt.want)
			}
			if strings.ContainsAny(body.Error, "\n\r\x00") {
				t.Errorf("not one line: %q", body.Error)
			}
		})
	}
	// Nothing else changed, but that a second key for web-1 makes it no host to count on.
	r.is("web-1", verdict.Duplicate, "another identity key speaks as web-1")
	w.advance(11 * time.Minute)
	w.advance(-11 * time.Minute)
	after := get(t, r.server.URL+api.PathHosts)
	if strings.Count(before, `"host"`) != 1 || strings.Count(after, `"host"`) != 1 {
		t.Errorf("hosts before %s\nafter %s", before, after)
	}
	http.DefaultClient.CloseIdleConnections()
}

// The text of a host reaches JSON and sentences, never a control character of a terminal.
func TestB100TextIsHarmless(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	a := r.agent("prod", "web-1").runs(one)
	a.report.Phase, a.report.Reason, a.report.Confirmed = report.PhaseRefused, "\x1b]0;owned\x07<script>alert(1)</script>\nand more", false
	a.say()
	h := r.host("web-1")
	if strings.ContainsAny(h.Why, "\x1b\x07\n") || !strings.Contains(h.Why, "<script>") {
		t.Errorf("%q", h.Why)
	}
	resp, err := http.Get(r.server.URL + api.PathHosts)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("a browser may take it for a page: %v", resp.Header)
	}
}

func TestHeartbeats(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	a := r.agent("prod", "web-1").runs(one)
	ask := func(item api.ReportItem) api.ReportResult {
		t.Helper()
		res, err := r.client.Report(t.Context(), item)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	a.hbKey, a.digest = []byte("guess"), digest("x")
	if res := ask(a.heartbeat()); res.Accepted || !res.SendSigned {
		t.Errorf("before a signed report: %+v", res)
	}
	a.say()
	if len(a.hbKey) != 32 {
		t.Fatalf("heartbeat key of %d bytes", len(a.hbKey))
	}
	for range 10 {
		w.advance(60 * time.Second)
		if res := ask(a.heartbeat()); !res.Accepted || res.Counter != a.counter {
			t.Fatalf("%+v", res)
		}
	}
	r.is("web-1", verdict.Confirmed, "") // ten minutes on heartbeats alone
	seen := *r.host("web-1").SeenAt
	w.advance(60 * time.Second)
	beat := a.heartbeat()
	forged := *beat.Heartbeat
	forged.MAC = append([]byte{}, forged.MAC...)
	forged.MAC[0] ^= 1
	if res := ask(api.ReportItem{Heartbeat: &forged}); res.Accepted || !res.SendSigned {
		t.Errorf("forged: %+v", res)
	}
	otherDigest := *beat.Heartbeat
	otherDigest.Digest = digest("other")
	if res := ask(api.ReportItem{Heartbeat: &otherDigest}); res.Accepted || !res.SendSigned {
		t.Errorf("another digest under the MAC: %+v", res)
	}
	if h := r.host("web-1"); !h.SeenAt.Equal(seen) {
		t.Error("a heartbeat that is not believed was a sign of life")
	}
	if res := ask(beat); !res.Accepted {
		t.Errorf("%+v", res)
	}
	w.advance(10 * time.Second)
	if res := ask(beat); res.Accepted || res.SendSigned || res.Counter != a.counter {
		t.Errorf("doubled: %+v", res)
	}
	// Keys are derived: they outlive the collector's restart.
	r.flush()
	r.restart()
	r.read()
	if res := ask(a.heartbeat()); !res.Accepted {
		t.Errorf("after a restart: %+v", res)
	}
	// A wiped collector asks for a signature.
	if err := os.Remove(filepath.Join(r.dir, "state.db")); err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(r.dir, "state.db-wal"))
	r.restart()
	r.read()
	if res := ask(a.heartbeat()); res.Accepted || !res.SendSigned {
		t.Errorf("after the memory was lost: %+v", res)
	}
	a.say()
	r.is("web-1", verdict.Confirmed, "")
}

func tokenSum(s string) string { sum := sha256.Sum256([]byte(s)); return hex.EncodeToString(sum[:]) }

func TestTokens(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod-eu", "eu-1")
	w.cohort("prod-us", "us-1")
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	text := fmt.Sprintf("agents:\n- {sha256: %s, cohorts: [prod-eu]}\npeople:\n- {name: ana, sha256: %s, role: viewer, cohorts: [\"prod-*\"]}\n- {name: ben, sha256: %s, role: operator, cohorts: [prod-us]}\n- {name: eve, sha256: %s, role: viewer, cohorts: [\"*\"]}\n",
		tokenSum("agent-eu"), tokenSum("ana's"), tokenSum("ben's"), tokenSum("eve's"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, w, tokens)
	bundleKey := manifest.KeyBundle(digest("bundle prod-eu1")) // what the first release makes for prod-eu
	w.put(bundleKey, []byte("bundle prod-eu1"))
	one := w.publish("prod-eu", "prod-us")
	w.assign("prod-eu", one)
	w.assign("prod-us", one)
	r.read()
	ctx := t.Context()
	eu, ana, ben, nobody, liar := r.as("agent-eu"), r.as("ana's"), r.as("ben's"), r.as(""), r.as("guess")
	report := func(c *api.Client, cohort string) error {
		_, err := c.Report(ctx, r.agent(cohort, "x").runs(one).signed())
		return err
	}
	head := func(c *api.Client, cohort string) error {
		_, _, err := c.GetHead(ctx, cohort, manifest.Mark{}, 0)
		return err
	}
	put := func(c *api.Client, cohort string) error { return c.PutHead(ctx, cohort, w.head(cohort, one)) }
	list := func(c *api.Client, cohort string) error { _, err := c.Hosts(ctx, cohort, ""); return err }
	object := func(c *api.Client, key string) error {
		body, _, err := c.Object(ctx, key)
		if err == nil {
			body.Close()
		}
		return err
	}
	for name, tt := range map[string]struct {
		err  error
		want error
	}{
		"agent reports":                        {report(eu, "prod-eu"), nil},
		"agent reports elsewhere":              {report(eu, "prod-us"), api.ErrDenied},
		"agent reads its head":                 {head(eu, "prod-eu"), nil},
		"agent reads another head":             {head(eu, "prod-us"), api.ErrDenied},
		"agent reads objects":                  {object(eu, bundleKey), nil},
		"agent reads a release":                {object(eu, manifest.KeyRelease(one)), api.ErrDenied},
		"viewer reads a release":               {object(ana, manifest.KeyRelease(one)), api.ErrDenied},
		"viewer of all reads a release":        {object(r.as("eve's"), manifest.KeyRelease(one)), nil},
		"viewer waits for all":                 {second(ana.Wait(ctx, one, api.WaitQuery{})), nil},
		"operator waits for all":               {second(ben.Wait(ctx, one, api.WaitQuery{})), api.ErrDenied},
		"operator waits for a cohort":          {second(ben.Wait(ctx, one, api.WaitQuery{Cohort: "prod-us"})), nil},
		"operator waits for what is to come":   {second(ben.Wait(ctx, 99, api.WaitQuery{})), api.ErrNotFound},
		"agent hands a head over":              {put(eu, "prod-eu"), api.ErrDenied},
		"agent lists hosts":                    {list(eu, ""), api.ErrDenied},
		"agent waits":                          {second(eu.Wait(ctx, one, api.WaitQuery{})), api.ErrDenied},
		"viewer lists hosts":                   {list(ana, "prod-eu"), nil},
		"viewer reports":                       {report(ana, "prod-eu"), api.ErrDenied},
		"viewer hands a head over":             {put(ana, "prod-us"), api.ErrDenied},
		"operator hands a head over":           {put(ben, "prod-us"), nil},
		"operator hands over elsewhere":        {put(ben, "prod-eu"), api.ErrDenied},
		"operator lists a cohort of others":    {list(ben, "prod-eu"), api.ErrNotFound},
		"operator reads a host of others":      {second(ben.Host(ctx, "eu-1")), api.ErrNotFound},
		"nobody lists hosts":                   {list(nobody, ""), api.ErrDenied},
		"nobody reports":                       {report(nobody, "prod-eu"), api.ErrDenied},
		"nobody reads objects":                 {object(nobody, manifest.KeyRelease(one)), api.ErrDenied},
		"a wrong token":                        {list(liar, ""), api.ErrDenied},
		"a wrong token for a report":           {report(liar, "prod-eu"), api.ErrDenied},
		"operator asks for a cohort's release": {second(ben.Wait(ctx, one, api.WaitQuery{Cohort: "prod-eu"})), api.ErrNoCohort},
	} {
		if !errors.Is(tt.err, tt.want) || tt.want == nil && tt.err != nil {
			t.Errorf("%s: %v, want %v", name, tt.err, tt.want)
		}
		for _, secret := range []string{"agent-eu", "ana's", "ben's", "guess"} {
			if tt.err != nil && strings.Contains(tt.err.Error(), secret) {
				t.Errorf("%s: the error repeats a token: %v", name, tt.err)
			}
		}
	}
	var partly *api.StatusError
	if _, err := ben.Wait(ctx, one, api.WaitQuery{}); !errors.As(err, &partly) || !strings.Contains(partly.Next, "name a cohort; this token may see prod-us") {
		t.Errorf("%v", err)
	}
	st, err := ben.Status(ctx)
	if err != nil || len(st.Cohorts) != 1 {
		t.Errorf("ben sees %v, %v", st, err)
	}
	rels, err := ben.Releases(ctx)
	if err != nil || len(rels) != 1 || len(rels[0].Cohorts) != 1 {
		t.Errorf("ben sees %+v, %v", rels, err)
	}
	if strings.Contains(r.log.String(), "agent-eu") {
		t.Error("a token is in the log")
	}
	// Health is for anybody, and tells nothing.
	if got := get(t, r.server.URL+api.PathHealth); got != `{"status":"ok"}` {
		t.Errorf("healthz: %s", got)
	}
}

func TestTokensFileErrors(t *testing.T) {
	sum := tokenSum("x")
	for name, tt := range map[string]struct{ text, want string }{
		"empty":          {"agents: []\n", "lets nobody in"},
		"unknown key":    {"agents:\n- {sha256: " + sum + ", cohorts: [a], admin: true}\n", `:2: unknown key "agents[0].admin"`},
		"a plain token":  {"agents:\n- {sha256: hunter2, cohorts: [a]}\n", ":2: agents[0].sha256: not 64 lower-case hex digits"},
		"no cohorts":     {"agents:\n- sha256: " + sum + "\n", ":2: agents[0].cohorts: missing"},
		"unknown role":   {"people:\n- {name: a, sha256: " + sum + ", role: god, cohorts: [a]}\n", `people[0].role: "god" is not viewer or operator`},
		"no name":        {"people:\n- {sha256: " + sum + ", role: viewer, cohorts: [a]}\n", "people[0].name: missing"},
		"used twice":     {"agents:\n- {sha256: " + sum + ", cohorts: [a]}\n- {sha256: " + sum + ", cohorts: [b]}\n", ":3: agents[1].sha256: is there twice"},
		"broken pattern": {"agents:\n- {sha256: " + sum + ", cohorts: [\"[\"]}\n", "is not a name or a pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.yaml")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := LoadTokens(path)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// B097: many who come at once are answered or sent away with a time to come back, and waiting is not work.
func TestB097TooManyAtOnce(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	one := w.publish("prod")
	w.assign("prod", one)
	r.read()
	_, mark, err := r.client.GetHead(t.Context(), "prod", manifest.Mark{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	// 200 agents wait; they take none of the places of those who want an answer now.
	var polls sync.WaitGroup
	var woken atomic.Int32
	for range 200 {
		polls.Go(func() {
			if _, _, err := r.client.GetHead(context.Background(), "prod", mark, 50*time.Second); err == nil {
				woken.Add(1)
			}
		})
	}
	until(t, "all wait", func() bool { return len(r.c.longPolls) == 200 })
	if _, err := r.client.Status(t.Context()); err != nil {
		t.Errorf("while 200 wait: %v", err)
	}
	// All places are taken: 503, with a time.
	for range cap(r.c.parallel) {
		r.c.parallel <- struct{}{}
	}
	resp, err := http.Get(r.server.URL + api.PathCohorts)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if resp.StatusCode != http.StatusServiceUnavailable || err != nil || after < 1 || after > 5 {
		t.Errorf("%d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	_, err = r.client.Report(t.Context(), r.agent("prod", "web-1").runs(one).signed())
	var se *api.StatusError
	if !errors.Is(err, api.ErrBusy) || !errors.As(err, &se) || se.RetryAfter < time.Second || se.ExitCode() != 5 {
		t.Errorf("a report: %v", err)
	}
	for range cap(r.c.parallel) {
		<-r.c.parallel
	}
	// They are all woken by one head, and may fetch at once: the store is read once.
	w.assign("prod", w.publish("prod"))
	r.read()
	polls.Wait()
	if woken.Load() != 200 {
		t.Errorf("%d were woken", woken.Load())
	}
}

// counting counts reads of a store, and can hold them up.
type counting struct {
	store.Store
	gets atomic.Int32
	gate chan struct{}
}

func (c *counting) Get(ctx context.Context, key string, limit int64) (store.Object, error) {
	if strings.HasPrefix(key, "bundles/") {
		c.gets.Add(1)
		<-c.gate
	}
	return c.Store.Get(ctx, key, limit)
}

func TestObjects(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	data := bytes.Repeat([]byte("bundle"), 1000)
	sum := sha256.Sum256(data)
	key := manifest.KeyBundle("sha256:" + hex.EncodeToString(sum[:]))
	w.put(key, data)
	damaged := manifest.KeyBundle(digest("something else"))
	w.put(damaged, data)
	large := bytes.Repeat([]byte("x"), cacheMaxObject+5)
	lsum := sha256.Sum256(large)
	largeKey := manifest.KeyBundle("sha256:" + hex.EncodeToString(lsum[:]))
	w.put(largeKey, large)
	w.put("sources/"+strings.Repeat("a", 40)+".tar.zst", data)
	count := &counting{Store: w.store, gate: make(chan struct{})}
	w.store = count
	r := newRig(t, w, nil)
	w.publish("prod")
	r.read()

	fetch := func(key string) ([]byte, error) {
		body, size, err := r.client.Object(context.Background(), key)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		got, err := io.ReadAll(body)
		if err == nil && int64(len(got)) != size {
			err = fmt.Errorf("%d bytes of %d", len(got), size)
		}
		return got, err
	}
	var wg sync.WaitGroup
	var good atomic.Int32
	for range 50 {
		wg.Go(func() {
			if got, err := fetch(key); err == nil && bytes.Equal(got, data) {
				good.Add(1)
			}
		})
	}
	until(t, "the first one reads", func() bool { return count.gets.Load() > 0 })
	close(count.gate)
	wg.Wait()
	if good.Load() != 50 || count.gets.Load() > 2 {
		t.Errorf("%d of 50 got it with %d reads of the store", good.Load(), count.gets.Load())
	}
	reads := count.gets.Load()
	if got, err := fetch(key); err != nil || !bytes.Equal(got, data) || count.gets.Load() != reads {
		t.Errorf("from the cache: %v, %d reads", err, count.gets.Load()-reads)
	}
	if got, err := fetch(largeKey); err != nil || !bytes.Equal(got, large) {
		t.Errorf("large: %d bytes, %v", len(got), err)
	}
	if len(r.c.streams) != 0 {
		t.Errorf("%d streams are open", len(r.c.streams))
	}
	if got, err := fetch(manifest.KeyRelease(1)); err != nil || len(got) == 0 {
		t.Errorf("release: %v", err)
	}
	// Nobody verified a keyring or a release here, so what was wrong in the store is right as soon as the store is.
	for _, key := range []string{manifest.KeyKeyring(7), manifest.KeyRelease(7)} {
		for _, text := range []string{"wrong", "right"} {
			if err := w.store.Delete(t.Context(), key); err != nil && !errors.Is(err, store.ErrNotFound) {
				t.Fatal(err)
			}
			w.put(key, []byte(text))
			if got, err := fetch(key); err != nil || string(got) != text {
				t.Errorf("%s: %q, %v; want %q", key, got, err, text)
			}
		}
	}
	for key, want := range map[string]error{
		manifest.KeyKeyring(2):   api.ErrNotFound,
		damaged:                  api.ErrUnreachable,
		manifest.KeyHead("prod"): api.ErrNotFound, // without tokens everybody may act on everything, and read it
		"inventory.json":         api.ErrNotFound,
	} {
		if _, err := fetch(key); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", key, err, want)
		}
	}
	// The mux cleans paths; whatever it leaves must not get out of the prefix.
	for _, path := range []string{"bundles/../store.json", "bundles/%2e%2e/store.json", "bundles//x", "..%2fstore.json", "bundles/.hidden"} {
		resp, err := http.Get(r.server.URL + api.PathObjects + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestCacheIsBounded(t *testing.T) {
	c := newCache(100)
	for i := range 50 {
		c.put(fmt.Sprint(i), make([]byte, 30))
		c.get("0") // used all the time, so it stays
	}
	if _, ok := c.get("0"); !ok || c.used > 100 || len(c.byKey) != 3 || c.order.Len() != 3 {
		t.Errorf("kept %v, %d bytes, %d objects", ok, c.used, len(c.byKey))
	}
	c.put("large", make([]byte, 101))
	if _, ok := c.get("large"); ok {
		t.Error("more than the limit is kept")
	}
}

// A page in a browser on this machine must not reach a collector without tokens under a name of its own.
func TestOnlyLoopbackNames(t *testing.T) {
	w := newWorld(t)
	r := newRig(t, w, nil)
	req := httptest.NewRequest(http.MethodGet, api.PathHosts, nil)
	for host, want := range map[string]int{"127.0.0.1:7070": 200, "localhost:7070": 200, "[::1]:7070": 200, "evil.example:7070": 403, "10.1.2.3": 403} {
		req.Host = host
		rec := httptest.NewRecorder()
		r.c.Handler().ServeHTTP(rec, req)
		if rec.Code != want {
			t.Errorf("Host %s: %d, want %d", host, rec.Code, want)
		}
	}
}

// Releases under junk, a store that is away, and one that is well again.
func TestStoreTrouble(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	r := newRig(t, w, nil)
	w.put(manifest.KeyRelease(3), []byte("junk"))
	w.put(manifest.KeyRelease(manifest.MaxCounter), []byte("{}"))
	w.publish("prod")
	r.read()
	w.publish("prod")
	r.read()
	if rels, err := r.client.Releases(t.Context()); err != nil || len(rels) != 2 {
		t.Errorf("junk above hides a release: %+v, %v", rels, err)
	}
	if n := strings.Count(r.log.String(), "release is skipped"); n != 2 {
		t.Errorf("junk is told %d times:\n%s", n, r.log)
	}
	if got := get(t, r.server.URL+api.PathReady); got != `{"status":"ok"}` {
		t.Errorf("readyz: %s", got)
	}
	w.put(manifest.KeyStore, w.encode(manifest.StoreID{V: 1, ID: storeID}))
	// A head that is gone makes verdicts blind; it is never taken for "nothing assigned".
	w.assign("prod", 2)
	r.read()
	r.agent("prod", "web-1").runs(2).say()
	if err := w.store.Delete(t.Context(), manifest.KeyHead("prod")); err != nil {
		t.Fatal(err)
	}
	err := r.c.read(t.Context())
	r.c.noteRead(err)
	if err == nil || !strings.Contains(err.Error(), "is gone from the store") {
		t.Errorf("%v", err)
	}
	if got := get(t, r.server.URL+api.PathReady); !strings.Contains(got, "cannot be read") {
		t.Errorf("readyz: %s", got)
	}
	w.advance(3 * time.Hour)
	r.is("web-1", verdict.Unknown, "no good head of cohort prod since 3h0m0s: cohorts/prod.json: is gone")
	// Where nothing is left at all, nobody deleted an object: the store is not there.
	if err := w.store.Delete(t.Context(), manifest.KeyStore); err != nil {
		t.Fatal(err)
	}
	if err := r.c.tryHead(t.Context(), "prod"); !errors.Is(err, store.ErrUnreachable) || !strings.Contains(err.Error(), "the whole store is gone") || strings.Contains(err.Error(), "deletes") {
		t.Errorf("%v", err)
	}
}
