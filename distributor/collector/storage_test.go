package collector

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// onEach runs a test on every storage. open opens the same one again.
func onEach(t *testing.T, test func(t *testing.T, open func() storage)) {
	t.Run("sqlite", func(t *testing.T) {
		raw := "sqlite://" + filepath.Join(t.TempDir(), "state.db")
		test(t, func() storage { return opened(t, raw) })
	})
	t.Run("postgres", func(t *testing.T) {
		raw := pgDatabase(t)
		test(t, func() storage { return opened(t, raw) })
	})
}

func opened(t *testing.T, raw string) storage {
	t.Helper()
	st, err := openStorage(t.Context(), raw, slog.New(slog.DiscardHandler), start)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.close() })
	return st
}

func loaded(t *testing.T, st storage) (*remembered, map[hostKey]hostRecord) {
	t.Helper()
	hosts := map[hostKey]hostRecord{}
	m, err := st.load(t.Context(), func(r hostRecord) error { hosts[r.hostKey] = r; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return m, hosts
}

func saved(t *testing.T, st storage, b *batch) {
	t.Helper()
	if err := st.save(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// What every storage does alike.
func TestStorage(t *testing.T) {
	onEach(t, func(t *testing.T, open func() storage) {
		st := open()
		if m, hosts := loaded(t, st); len(hosts) != 0 || m.secret != nil || m.trust != nil || !m.alive.IsZero() || m.seen == nil || m.retired == nil {
			t.Errorf("a new one: %+v, %v", m, hosts)
		}
		a, b := hostKey{"prod", "a"}, hostKey{"prod", "b"}
		word := retirement{By: "ana", Why: "gone", At: start}
		saved(t, st, &batch{
			secret: []byte("s"), trust: []byte("t"), alive: start,
			hosts: []hostRecord{{a, []byte(`{"n":1}`), []byte("A"), start}, {b, []byte(`{"n":1}`), []byte("B"), start}},
			seen:  map[uint64]time.Time{1: start, 2: start.Add(time.Second)}, digests: map[uint64]string{1: "one"},
			assigned: map[assignKey]time.Time{{"prod", 1}: start}, retired: map[hostKey]*retirement{a: &word, b: &word}, lists: map[string][]byte{"csv /x": []byte("[]")}, notices: map[string][]byte{"prod/halted/1": []byte("{}"), "prod/paused/1": []byte("{}")},
		})
		// Later ones: a report as before, a host that is gone, a first word that stands, one that is replaced.
		saved(t, st, &batch{
			hosts: []hostRecord{{a, []byte(`{"n":2}`), nil, start.Add(time.Minute)}, {hostKey{"prod", "nobody"}, []byte(`{}`), nil, start}}, gone: []hostKey{b, {"prod", "c"}},
			seen: map[uint64]time.Time{1: start.Add(time.Hour)}, digests: map[uint64]string{1: "another", 2: "two"},
			assigned: map[assignKey]time.Time{{"prod", 1}: start.Add(time.Hour)}, retired: map[hostKey]*retirement{b: nil}, lists: map[string][]byte{"csv /x": []byte("[1]")}, notices: map[string][]byte{"prod/halted/1": []byte(`{"open":[]}`), "prod/paused/1": nil},
		})
		for _, again := range []bool{false, true} {
			if again {
				if err := st.close(); err != nil {
					t.Fatal(err)
				}
				st = open()
			}
			m, hosts := loaded(t, st)
			if len(hosts) != 1 || string(hosts[a].state) != `{"n":2}` || string(hosts[a].signed) != "A" {
				t.Errorf("again %t: hosts %v", again, hosts)
			}
			if string(m.secret) != "s" || string(m.trust) != "t" || !m.alive.Equal(start) || string(m.lists["csv /x"]) != "[1]" {
				t.Errorf("again %t: %+v", again, m)
			}
			if diff := cmp.Diff(map[uint64]time.Time{1: start, 2: start.Add(time.Second)}, m.seen); diff != "" {
				t.Errorf("seen: the first word stands:\n%s", diff)
			}
			if diff := cmp.Diff(map[uint64]string{1: "one", 2: "two"}, m.digests); diff != "" {
				t.Errorf("digests: the first word stands:\n%s", diff)
			}
			if at := m.assigned[assignKey{"prod", 1}]; len(m.assigned) != 1 || !at.Equal(start.Add(time.Hour)) {
				t.Errorf("assigned: %v", m.assigned)
			}
			if diff := cmp.Diff(map[hostKey]retirement{a: word}, m.retired, cmp.AllowUnexported(hostKey{})); diff != "" {
				t.Errorf("retired:\n%s", diff)
			}
			if len(m.notices) != 1 || string(m.notices["prod/halted/1"]) != `{"open":[]}` {
				t.Errorf("notices: %q", m.notices)
			}
		}
		if data, err := st.signed(t.Context(), a); string(data) != "A" || err != nil {
			t.Errorf("signed: %q, %v", data, err)
		}
		if data, err := st.signed(t.Context(), b); data != nil || err != nil {
			t.Errorf("signed of nobody: %q, %v", data, err)
		}
		saved(t, st, &batch{hosts: []hostRecord{{hostKey{"other", "a"}, []byte("{}"), []byte("x"), start}}})
		for _, want := range []int64{2, 0} {
			if n, err := st.forget(t.Context(), "a"); n != want || err != nil {
				t.Errorf("forget: %d, %v", n, err)
			}
		}
	})
}

// History is bounded.
func TestB099StorageIsBounded(t *testing.T) {
	onEach(t, func(t *testing.T, open func() storage) {
		st := open()
		b := &batch{seen: map[uint64]time.Time{}, digests: map[uint64]string{}, assigned: map[assignKey]time.Time{}}
		for e := uint64(1); e <= maxReleases+50; e++ {
			b.seen[e], b.digests[e] = start, "x"
			if e <= maxAssigned+50 {
				b.assigned[assignKey{"prod", e}] = start.Add(time.Duration(e) * time.Second)
			}
		}
		saved(t, st, b)
		m, _ := loaded(t, st)
		if len(m.seen) != maxReleases || len(m.digests) != maxReleases || len(m.assigned) != maxAssigned {
			t.Errorf("%d seen, %d digests, %d assigned", len(m.seen), len(m.digests), len(m.assigned))
		}
		if _, ok := m.assigned[assignKey{"prod", maxAssigned + 50}]; !ok {
			t.Error("the newest is gone")
		}
	})
}

// All of a batch is written, or nothing of it.
func TestStorageIsAtomic(t *testing.T) {
	onEach(t, func(t *testing.T, open func() storage) {
		st := open()
		ended, cancel := cancelled(t)
		defer cancel()
		var hosts []hostRecord
		for i := range 200 {
			hosts = append(hosts, hostRecord{hostKey{"prod", fmt.Sprint("h", i)}, []byte("{}"), []byte("x"), start})
		}
		if err := st.save(ended, &batch{trust: []byte("t"), hosts: hosts}); err == nil {
			t.Fatal("it is said to be written")
		}
		if m, got := loaded(t, st); m.trust != nil || len(got) != 0 {
			t.Errorf("%q and %d hosts are written", m.trust, len(got))
		}
		stop := errors.New("stop")
		saved(t, st, &batch{hosts: hosts})
		if _, err := st.load(t.Context(), func(hostRecord) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("the reader's own error: %v", err)
		}
		if _, got := loaded(t, st); len(got) != len(hosts) {
			t.Errorf("%d hosts", len(got))
		}
	})
}

// What others wrote comes once, and an older word never stands over a newer one.
func TestStorageShared(t *testing.T) {
	raw := pgDatabase(t)
	one, two := opened(t, raw), opened(t, raw)
	if !one.shared() {
		t.Fatal("it is not shared")
	}
	a := hostKey{"prod", "a"}
	news := func(st storage, mark uint64) (uint64, []string) {
		t.Helper()
		var got []string
		n, err := st.since(t.Context(), mark, func(r hostRecord) error { got = append(got, r.host+string(r.state)); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return n.mark, got
	}
	saved(t, one, &batch{secret: []byte("first"), hosts: []hostRecord{{a, []byte("1"), []byte("x"), start.Add(time.Minute)}}})
	saved(t, two, &batch{secret: []byte("second")})
	if m, _ := loaded(t, two); string(m.secret) != "first" {
		t.Errorf("two secrets: %q", m.secret)
	}
	mark, got := news(two, 0)
	if diff := cmp.Diff([]string{"a1"}, got); diff != "" {
		t.Error(diff)
	}
	if again, got := news(two, mark); again != mark || got != nil {
		t.Errorf("%d, %v", again, got)
	}
	saved(t, two, &batch{hosts: []hostRecord{{a, []byte("0"), []byte("old"), start}}})
	saved(t, two, &batch{hosts: []hostRecord{{a, []byte("0"), nil, start}}})
	if _, got := news(one, mark); got != nil {
		t.Errorf("an older word was taken: %v", got)
	}
	saved(t, two, &batch{hosts: []hostRecord{{a, []byte("2"), nil, start.Add(2 * time.Minute)}}})
	if _, got := news(one, mark); len(got) != 1 || got[0] != "a2" {
		t.Errorf("%v", got)
	}
}
