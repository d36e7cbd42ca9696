package collector

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
)

var operatorKey = keys.FromSeed(4)

// overriding is an override of cohort prod over what stands, as an operator's command makes it.
type overriding struct {
	*rig
	bundle []byte
	rel    manifest.Release
	st     manifest.Statement
	o      manifest.Override
	by     *keys.Key
}

func newOverriding(t *testing.T) *overriding {
	w := newWorld(t)
	w.cohort("prod", "web-1", "web-2")
	w.cohort("other", "x-1")
	w.publish("prod", "other")
	w.assign("prod", 1)
	w.assign("other", 1)
	r := newRig(t, w, &Tokens{
		Agents: []AgentToken{{digestOf("agent"), []string{"*"}}},
		People: []PersonToken{
			{"ben", digestOf("ben"), RoleViewer, []string{"*"}}, {"cleo", digestOf("cleo"), RoleOperator, []string{"other"}},
			{"ana", digestOf("ana"), RoleOperator, []string{"*"}}, {"pat", digestOf("pat"), RoleOperator, []string{"prod"}},
		},
	})
	r.read()
	x := &overriding{rig: r, bundle: []byte("a bundle"), by: operatorKey}
	obj, err := w.store.Get(t.Context(), manifest.KeyRelease(1), manifest.MaxReleaseBytes)
	if err != nil {
		t.Fatal(err)
	}
	env, err := manifest.ParseEnvelope(obj.Data)
	if err != nil {
		t.Fatal(err)
	}
	rel, err := manifest.DecodeRelease(env.Payload)
	if err != nil {
		t.Fatal(err)
	}
	end := w.now().Add(time.Hour)
	x.rel = *rel
	x.rel.Epoch, x.rel.Kind, x.rel.Prev, x.rel.OverrideID, x.rel.NotAfter, x.rel.Created = 2, manifest.ReleaseOverride, env.Digest(), "inc-1", &end, w.now()
	x.rel.Cohorts = map[string]manifest.ReleaseCohort{"prod": {State: manifest.StateHolds, Epoch: 1}, "other": {State: manifest.StateHolds, Epoch: 1}}
	plain, err := manifest.DecodeStatement(rel.Cohorts["prod"].Statement.Payload)
	if err != nil {
		t.Fatal(err)
	}
	x.st = *plain
	x.st.Epoch, x.st.Override, x.st.Content = 2, "inc-1", digest("overridden")
	x.st.Bundle.Object, x.st.Bundle.Size = digest(string(x.bundle)), int64(len(x.bundle))
	x.o = manifest.Override{
		V: 1, Store: storeID, Repo: repo, Cohort: "prod", ID: "inc-1", Author: "ana@desk", Reason: "INC-1", Created: w.now(), NotAfter: end, Epoch: 2, Patches: []manifest.Patch{{Service: "checkout", Values: `{"x":1}`}},
	}
	return x
}

// sealed is the release with its statement.
func (x *overriding) sealed() *manifest.Envelope {
	x.t.Helper()
	part := x.rel.Cohorts["prod"]
	part.Overridden = []manifest.Envelope{x.seal(manifest.KindStatement, x.st, x.by)}
	rel := x.rel
	rel.Cohorts = map[string]manifest.ReleaseCohort{"prod": part, "other": x.rel.Cohorts["other"]}
	e := x.seal(manifest.KindRelease, rel, x.by)
	return &e
}

// envelope is what the head gets.
func (x *overriding) envelope() *manifest.Envelope {
	x.t.Helper()
	o := x.o
	if o.Ended == nil {
		st := x.seal(manifest.KindStatement, x.st, x.by)
		o.Statement = &st
	} else {
		o.Patches = nil
	}
	e := x.seal(manifest.KindOverride, o, x.by)
	return &e
}

func (x *overriding) post(post api.OverridePost) error {
	_, err := x.as("ana").PostOverride(x.t.Context(), post)
	return err
}

// stored says that the bundle is there.
func (x *overriding) stored() {
	x.t.Helper()
	if err := x.as("ana").PutObject(x.t.Context(), manifest.KeyBundle(digest(string(x.bundle))), x.bundle); err != nil {
		x.t.Fatal(err)
	}
}

// An override goes the whole way through the collector: bundle, release, head; made to last longer; ended. An answer that got lost is asked for again.
func TestPostOverride(t *testing.T) {
	x := newOverriding(t)
	x.stored()
	for range 2 {
		if err := x.post(api.OverridePost{Release: x.sealed()}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		got, err := x.as("pat").PostOverride(t.Context(), api.OverridePost{Override: x.envelope()}) // pat may act on prod alone
		if err != nil || got.ID != "inc-1" || got.Cohort != "prod" || got.Epoch != 2 || got.Mark != "1-1-1" {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	st, err := x.as("ben").Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if o := st.Cohorts["prod"].Overrides; len(o) != 1 || o[0].Author != "ana@desk" {
		t.Errorf("%+v", o)
	}
	x.advance(30 * time.Minute)
	x.o.Created, x.o.NotAfter, x.o.Author = x.now(), x.now().Add(2*time.Hour), "bo@desk"
	if err := x.post(api.OverridePost{Override: x.envelope()}); err != nil {
		t.Fatal(err)
	}
	if st, err = x.as("ben").Status(t.Context()); err != nil || st.Cohorts["prod"].Overrides[0].Author != "bo@desk" {
		t.Errorf("%+v, %v", st, err)
	}
	if a := st.Cohorts["prod"].Active; len(a) != 1 || !a[0].Since.Equal(start) { // it is as old as its release
		t.Errorf("%+v", a)
	}
	x.o.Ended = &manifest.OverrideEnd{By: "ana@desk", Reason: "over", At: x.now()}
	for range 2 {
		if err := x.post(api.OverridePost{Override: x.envelope()}); err != nil {
			t.Fatal(err)
		}
	}
	if st, err = x.as("ben").Status(t.Context()); err != nil || len(st.Cohorts["prod"].Overrides) != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

// The collector signs nothing and evaluates nothing; all else it holds to the rules.
func TestPostOverrideRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(x *overriding)
		code   int
		says   string
	}{
		"no bundle":        {func(x *overriding) { x.st.Bundle.Object = digest("nowhere") }, 1, "is not stored"},
		"another size":     {func(x *overriding) { x.st.Bundle.Size++ }, 1, "bytes, and the statement"},
		"a stranger's key": {func(x *overriding) { x.by = strangerKey }, 4, "not signed by a trusted key"},
		"a release key":    {func(x *overriding) { x.by = releaseKey }, 4, "may not sign releases of kind override"},
		"a commit's": {func(x *overriding) {
			x.by, x.rel.Kind, x.rel.OverrideID, x.rel.NotAfter = releaseKey, manifest.ReleaseCommit, "", nil
		}, 4, ""},
		"too long":         {func(x *overriding) { end := x.now().Add(100 * time.Hour); x.rel.NotAfter = &end }, 4, ""},
		"a gap":            {func(x *overriding) { x.rel.Epoch, x.st.Epoch = 9, 9 }, 3, "leaves out 2"},
		"behind":           {func(x *overriding) { x.rel.Epoch, x.st.Epoch = 1, 1 }, 4, "malformed"},
		"built on another": {func(x *overriding) { x.rel.Prev = digest("another") }, 3, "changes more than an override may"},
		"a policy":         {func(x *overriding) { x.rel.Settings = digest("others") }, 3, "changes more than an override may"},
		"over already": {func(x *overriding) {
			end := x.now().Add(-time.Second)
			x.rel.Created, x.rel.NotAfter = x.now().Add(-time.Minute), &end
		}, 1, "ended at"},
		"from a wrong clock": {func(x *overriding) {
			end := x.now().Add(5 * time.Hour)
			x.rel.Created, x.rel.NotAfter = x.now().Add(4*time.Hour), &end
		}, 1, "set the clock"},
		"nobody's statement":    {func(x *overriding) { x.rel.OverrideID = "inc-2" }, 1, "carries an override inc-1"},
		"another store's":       {func(x *overriding) { x.rel.Store, x.st.Store = strings.Repeat("9", 32), strings.Repeat("9", 32) }, 4, ""},
		"what nobody may write": {func(x *overriding) { x.st.Commit = strings.Repeat("z", 40) }, 4, ""},
	} {
		t.Run(name, func(t *testing.T) {
			x := newOverriding(t)
			x.stored()
			tt.change(x)
			err := x.post(api.OverridePost{Release: x.sealed()})
			var se *api.StatusError
			if !errors.As(err, &se) || se.Code != tt.code || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want code %d and %q", err, tt.code, tt.says)
			}
			for epoch := uint64(2); epoch < 10; epoch++ {
				if _, err := x.store.Get(t.Context(), manifest.KeyRelease(epoch), manifest.MaxReleaseBytes); err == nil {
					t.Errorf("release %d was written", epoch)
				}
			}
		})
	}
	for name, tt := range map[string]struct {
		change func(x *overriding)
		code   int
		says   string
	}{
		"another statement than released": {func(x *overriding) { x.st.Content = digest("else") }, 1, "another statement than its release"},
		"longer than released":            {func(x *overriding) { x.o.NotAfter = x.now().Add(2 * time.Hour) }, 1, "lasts longer than its release"},
		"another release":                 {func(x *overriding) { x.o.Epoch, x.st.Epoch = 1, 1 }, 1, "not its own"},
		"no release":                      {func(x *overriding) { x.o.Epoch, x.st.Epoch = 7, 7 }, 1, "which is not there"},
		"another cohort":                  {func(x *overriding) { x.o.Cohort, x.st.Cohort = "other", "other" }, 1, "another statement than its release"},
		"a stranger's key":                {func(x *overriding) { x.by = strangerKey }, 4, ""},
		"an end of nothing":               {func(x *overriding) { x.o.Ended = &manifest.OverrideEnd{By: "ana", Reason: "over", At: x.now()} }, 1, "no override inc-1 acts"},
	} {
		t.Run("head "+name, func(t *testing.T) {
			x := newOverriding(t)
			x.stored()
			if err := x.post(api.OverridePost{Release: x.sealed()}); err != nil {
				t.Fatal(err)
			}
			tt.change(x)
			err := x.post(api.OverridePost{Override: x.envelope()})
			var se *api.StatusError
			if !errors.As(err, &se) || se.Code != tt.code || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want code %d and %q", err, tt.code, tt.says)
			}
			for _, cohort := range []string{"prod", "other"} {
				if co := x.c.cohorts[cohort]; len(co.view.Head.Overrides) > 0 {
					t.Errorf("the head of %s has %d overrides", cohort, len(co.view.Head.Overrides))
				}
			}
		})
	}
}

// What ends an override lasts no longer than what it ends: hosts and heads keep it for so long, and there is room for few. The id is taken as long.
func TestPostOverrideEnds(t *testing.T) {
	x := newOverriding(t)
	x.stored()
	if err := x.post(api.OverridePost{Release: x.sealed()}); err != nil {
		t.Fatal(err)
	}
	if err := x.post(api.OverridePost{Override: x.envelope()}); err != nil {
		t.Fatal(err)
	}
	refused := func(what, says string, post api.OverridePost) {
		t.Helper()
		var se *api.StatusError
		if err := x.post(post); !errors.As(err, &se) || se.Code != 1 || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	end := x.o.NotAfter
	x.o.Ended = &manifest.OverrideEnd{By: "ana@desk", Reason: "over", At: x.now()}
	x.o.NotAfter = end.AddDate(50, 0, 0)
	refused("an end for fifty years", "lasts longer than", api.OverridePost{Override: x.envelope()})
	x.o.NotAfter = end
	if err := x.post(api.OverridePost{Override: x.envelope()}); err != nil {
		t.Fatal(err)
	}
	// The same id again would act nowhere.
	x.o.Ended = nil
	refused("put once more", "was ended", api.OverridePost{Override: x.envelope()})
	x.rel.Prev, x.rel.Epoch, x.st.Epoch = x.sealed().Digest(), 3, 3
	refused("released once more", "was ended", api.OverridePost{Release: x.sealed()})

	// One that hosts got by hand is in no head: its end is taken all the same, for as long as a key may act.
	x.o.ID, x.o.Epoch, x.o.Ended = "by-hand", 1<<52+1, &manifest.OverrideEnd{By: "ana@desk", Reason: "over", At: x.now()}
	x.o.NotAfter = x.o.Created.AddDate(50, 0, 0)
	refused("an end of nothing for fifty years", "longer than any key may", api.OverridePost{Override: x.envelope()})
	x.o.NotAfter = x.o.Created.Add(time.Hour)
	if err := x.post(api.OverridePost{Override: x.envelope()}); err != nil {
		t.Errorf("the end of one that hosts got by hand: %v", err)
	}
}

// One that was made to last longer, or was ended, is not warned of at its first end: hosts keep what it said before, but nobody goes by that.
func TestPostOverrideWarned(t *testing.T) {
	x := newOverriding(t)
	x.stored()
	if err := x.post(api.OverridePost{Release: x.sealed()}); err != nil {
		t.Fatal(err)
	}
	if err := x.post(api.OverridePost{Override: x.envelope()}); err != nil {
		t.Fatal(err)
	}
	warned := func() (n int) {
		x.c.mu.Lock()
		defer x.c.mu.Unlock()
		for _, notice := range x.c.notices("prod", x.c.cohorts["prod"].view, x.now()) {
			if notice.Event == api.NoticeOverrideEnding {
				n++
			}
		}
		return n
	}
	x.advance(40 * time.Minute)
	x.read()
	if n := warned(); n != 1 {
		t.Errorf("20 minutes before its end: %d warnings", n)
	}
	x.o.Created, x.o.NotAfter = x.now(), x.now().Add(2*time.Hour)
	if err := x.post(api.OverridePost{Override: x.envelope()}); err != nil {
		t.Fatal(err)
	}
	if n := warned(); n != 0 {
		t.Errorf("made to last two hours: %d warnings", n)
	}
	x.advance(100 * time.Minute)
	x.read()
	if n := warned(); n != 1 {
		t.Errorf("20 minutes before its new end: %d warnings", n)
	}
	x.o.Ended = &manifest.OverrideEnd{By: "ana@desk", Reason: "over", At: x.now()}
	if err := x.post(api.OverridePost{Override: x.envelope()}); err != nil {
		t.Fatal(err)
	}
	if n := warned(); n != 0 {
		t.Errorf("ended: %d warnings", n)
	}
}

// Bundles are held in memory on their way to the store: two at a time, beside what hosts read.
func TestPutObjectBounded(t *testing.T) {
	x := newOverriding(t)
	for range cap(x.c.puts) {
		x.c.puts <- struct{}{}
	}
	done := make(chan error)
	key := manifest.KeyBundle(digest(string(x.bundle)))
	ana := x.as("ana")
	go func() { done <- ana.PutObject(t.Context(), key, x.bundle) }()
	if n := cap(x.c.puts) * api.MaxPutObject; n > 256<<20 {
		t.Errorf("%d bytes are held at most", n)
	}
	for range cap(x.c.streams) { // what hosts read is not in the way of it
		x.c.streams <- struct{}{}
	}
	select {
	case err := <-done:
		t.Fatalf("it did not wait for its turn: %v", err)
	default:
	}
	<-x.c.puts
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What each token may: reading the store whole, and writing, are for operators; the whole of it for those of all cohorts.
func TestPostOverrideRights(t *testing.T) {
	x := newOverriding(t)
	x.stored()
	key := manifest.KeyBundle(digest(string(x.bundle)))
	status := func(err error) int {
		var se *api.StatusError
		if errors.As(err, &se) {
			return se.Status
		}
		return 200
	}
	want := map[string][4]int{ // list, read sources or heads, put a bundle, post
		"": {401, 401, 401, 401}, "agent": {403, 403, 403, 403}, "ben": {403, 403, 403, 403}, "cleo": {403, 403, 200, 403}, "ana": {200, 200, 200, 200},
	}
	for _, token := range []string{"", "agent", "ben", "cleo", "ana", "cleo"} { // also for what is there already
		want := want[token]
		c := x.as(token)
		_, list := c.ListObjects(t.Context(), manifest.PrefixCohorts, "", 10)
		body, _, read := c.Object(t.Context(), manifest.KeyHead("prod"))
		if read == nil {
			body.Close()
		}
		put := c.PutObject(t.Context(), key, x.bundle)
		_, post := c.PostOverride(t.Context(), api.OverridePost{Release: x.sealed()})
		if got := [4]int{status(list), status(read), status(put), status(post)}; got != want {
			t.Errorf("token %q: %v, want %v", token, got, want)
		}
	}
	// A bundle has the name of its bytes, and nothing else is put.
	for _, bad := range []string{manifest.KeyBundle(digest("other")), manifest.KeyHead("prod"), manifest.KeyRelease(5), "store.json"} {
		if err := x.as("ana").PutObject(t.Context(), bad, x.bundle); err == nil {
			t.Errorf("%s was put", bad)
		}
	}
	if err := x.post(api.OverridePost{}); status(err) != 400 {
		t.Errorf("%v", err)
	}
	if err := x.post(api.OverridePost{Release: x.sealed(), Override: x.envelope()}); status(err) != 400 {
		t.Errorf("%v", err)
	}
}

// What acts stands at the top of the page and in the metrics with its age, and the log tells how it came.
func TestD005PageAndMetrics(t *testing.T) {
	w := newWorld(t)
	w.cohort("prod", "web-1")
	w.publish("prod")
	made := w.now()
	until := made.Add(72 * time.Hour)
	w.assign("prod", 1, func(m *manifest.Manifest) {
		m.Rollout.Freezes = []manifest.Stop{{By: "ana", Why: "black <friday>", Since: made, Until: &until}}
		m.Rollout.Holds = []manifest.Stop{{By: "bo", Why: "INC-9", Since: made, Until: &until, Hosts: []string{"web-1"}}}
		m.Assign = append([]manifest.Assignment{{Hosts: []string{"web-1"}, Epoch: 1, Why: "hold by bo: INC-9", Until: &until}}, m.Assign...)
	})
	w.put(manifest.KeyStore, w.encode(manifest.StoreID{V: 1, ID: storeID}))
	w.advance(25 * time.Hour)
	r := newRig(t, w, nil)
	r.read()
	_, text, _ := r.page(t, r.server.Client(), "/")
	for _, want := range []string{"By hand:", "1 freeze, 1 hold are over a day old", "prod: this freeze is over a day old", "web-1 of prod held by bo since"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	_, text, _ = r.page(t, r.server.Client(), "/log")
	for _, want := range []string{"frozen by ana until", "black &lt;friday&gt;", "held web-1 by bo", `<a href="/releases/1">release 1</a>`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has no %q in\n%s", want, text)
		}
	}
	if code, _, _ := r.page(t, r.server.Client(), "/log?cohort=nope"); code != 404 {
		t.Errorf("status %d", code)
	}
	_, text, _ = r.page(t, r.server.Client(), "/metrics")
	for _, want := range []string{
		`muster_freezes{cohort="prod"} 1`, `muster_freeze_age_seconds{cohort="prod"} 90000`, `muster_holds{cohort="prod"} 1`, `muster_hold_age_seconds{cohort="prod"} 90000`, `muster_halts{cohort="prod"} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("metrics have no %s", want)
		}
	}
}
