package distributor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/store/storetest"
)

// faulty lets call number `at` (from 1) of a store fail: lost, or applied with the answer lost. The `down` calls after it fail too.
type faulty struct {
	mu      sync.Mutex
	calls   int
	at      int
	down    int
	applied bool
	hit     string
}

func (f *faulty) hook(op, key string) (apply bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.at == 0 || f.calls < f.at || f.calls > f.at+f.down {
		return true, nil
	}
	if f.calls == f.at {
		f.hit = op + " " + key
	}
	switch op {
	case storetest.OpPut, storetest.OpCreate, storetest.OpReplace:
		return f.applied && f.calls == f.at, store.ErrAmbiguous
	}
	return false, store.ErrUnreachable
}

// Every store call of a first and of a second publishing is lost, or applied with its answer lost, alone or with the ten calls after it. Whatever the publisher
// says then, the store is whole, no commit has two releases, and publishing once more ends the same way as if nothing had happened.
func TestEveryStoreCallFails(t *testing.T) {
	for _, down := range []int{0, 10} {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("down=%d/applied=%t", down, applied), func(t *testing.T) {
				at := 1
				for ; ; at++ {
					done := false
					synctest.Test(t, func(t *testing.T) { done = faultAt(t, at, down, applied) })
					if done || t.Failed() {
						break
					}
				}
				if at < 30 {
					t.Errorf("only %d calls: the sweep did not reach the end of both publishings", at)
				}
			})
		}
	}
}

// faultAt reports whether both publishings took fewer calls than at.
func faultAt(t *testing.T, at, down int, applied bool) (done bool) {
	var h history
	c1 := h.commit("", "prod/checkout=a", "prod/search=a", "staging/checkout=a", "prod/search@web-1=own")
	c2 := h.commit(c1, "prod/search=b", "staging/checkout=!does not validate")
	m := mem.New()
	f := &faulty{at: at, down: down, applied: applied}
	broken := newPlace(t, &storetest.Faults{Store: m, Hook: f.hook})
	told := map[string]uint64{}
	for _, c := range []string{c1, c2} {
		res, err := broken.publish(h.job(c), true)
		if res != nil {
			told[c] = res.Epoch
		} else if errors.Is(err, distributor.ErrMaybePublished) != (strings.HasPrefix(f.hit, "create releases/") && down > 0) {
			t.Errorf("%s: error %v", f.hit, err)
		}
		if err != nil {
			break
		}
	}
	if f.hit == "" {
		return true
	}
	p := newPlace(t, m)
	if _, err := m.Get(t.Context(), manifest.KeyStore, 1<<20); err == nil {
		if report, err := distributor.Fsck(t.Context(), m, nil, p.now); err != nil || !report.OK() {
			if !errors.Is(err, manifest.ErrKeyring) { // an empty store has none yet
				t.Errorf("after %s: %v, %+v", f.hit, err, report)
			}
		}
	}
	for i, c := range []string{c1, c2} {
		if i == 0 && told[c2] != 0 {
			continue // a newer one is released
		}
		res, err := p.publish(h.job(c), true)
		if i == 0 && errors.Is(err, distributor.ErrRewritten) {
			continue // the second one was published although the answer was lost
		}
		if err != nil {
			t.Fatalf("after %s: %v", f.hit, err)
		}
		if told[c] != 0 && res.Epoch != told[c] {
			t.Errorf("after %s: commit %d is epoch %d, and was %d", f.hit, i+1, res.Epoch, told[c])
		}
	}
	report := p.fsck(m)
	if report.Newest != 2 || report.Checked.Releases != 2 || report.Checked.Commits != 2 || p.release(1).Commit != c1 || p.release(2).Commit != c2 {
		t.Errorf("after %s: %+v", f.hit, report.Checked)
	}
	if down == 0 && len(report.Notices) > 0 { // one lost answer leaves nothing undone
		t.Errorf("after %s: notices %v", f.hit, report.Notices)
	}
	for cohort, want := range map[string]uint64{"prod": 2, "staging": 1} {
		if _, epoch := p.head(cohort); epoch != want {
			t.Errorf("after %s: cohort %s runs %d", f.hit, cohort, epoch)
		}
	}
	if t.Failed() {
		t.Logf("fault at call %d: %s", at, f.hit)
	}
	return false
}

// garbling is a store that keeps other bytes than it is given.
type garbling struct {
	*mem.Store
	prefix string
	garble func([]byte) []byte
}

func (g garbling) Put(ctx context.Context, key string, data []byte) error {
	if strings.HasPrefix(key, g.prefix) {
		data = g.garble(bytes.Clone(data))
	}
	return g.Store.Put(ctx, key, data)
}

// damages are the ways in which an object is not what was stored.
var damages = map[string]func([]byte) []byte{
	"flipped byte":  func(d []byte) []byte { d[len(d)/2] ^= 0x01; return d },
	"cut":           func(d []byte) []byte { return d[:max(0, len(d)-10)] },
	"empty":         func([]byte) []byte { return nil },
	"junk appended": func(d []byte) []byte { return append(d, "junk"...) },
	"chunk framing": func(d []byte) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n0\r\n\r\n", len(d), d) },
}

// B057: a store that keeps other bytes than it was given is found out before the release is written.
func TestB057ReadBack(t *testing.T) {
	for name, garble := range damages {
		for _, prefix := range []string{manifest.PrefixBundles, manifest.PrefixSources} {
			t.Run(name+" "+prefix, func(t *testing.T) {
				var h history
				m := mem.New()
				p := newPlace(t, garbling{m, prefix, garble})
				_, err := p.publish(h.job(h.commit("", "prod/checkout=a")), true)
				if !errors.Is(err, distributor.ErrDamaged) || !strings.Contains(err.Error(), "read back "+prefix) {
					t.Fatalf("%v", err)
				}
				all := dump(t, m)
				if keys := append(keysUnder(all, "releases/"), keysUnder(all, "cohorts/")...); len(keys) > 0 {
					t.Errorf("written: %v", keys)
				}
			})
		}
	}
}

// B063: whatever object is damaged in whatever way, fsck names it.
func TestB063EveryObjectDamaged(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	p.mustPublish(h.job(h.commit(c1, "prod/checkout=b")), true)
	p.fsck(p.store)
	for key, data := range dump(t, p.store) {
		for name, damage := range damages {
			m := mem.New()
			for k, d := range dump(t, p.store) {
				if k == key {
					d = string(damage([]byte(data)))
				}
				if err := m.Put(t.Context(), k, []byte(d)); err != nil {
					t.Fatal(err)
				}
			}
			report, err := distributor.Fsck(t.Context(), m, keyring(t, repoName), p.now)
			if key == manifest.KeyStore {
				// A store id with a flipped digit is one nobody signed for: all else is foreign.
				if err == nil && report.OK() {
					t.Errorf("%s %s: not found", key, name)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s %s: %v", key, name, err)
				continue
			}
			found := false
			for _, problem := range report.Problems {
				found = found || problem.Key == key
				if problem.Next == "" || problem.What == "" {
					t.Errorf("%s %s: no next step in %+v", key, name, problem)
				}
			}
			if !found {
				t.Errorf("%s %s: not found; problems %v", key, name, report.Problems)
			}
		}
	}
}

// Every object that is deleted is missed: by a problem, or where nothing hangs on it by a notice.
func TestFsckDeleted(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "staging/checkout=a")
	p.mustPublish(h.job(c1), true)
	p.mustPublish(h.job(h.commit(c1, "prod/checkout=b")), true)
	all := dump(t, p.store)
	for key := range all {
		if key == manifest.KeyStore {
			continue
		}
		m := mem.New()
		for k, d := range all {
			if k != key {
				if err := m.Put(t.Context(), k, []byte(d)); err != nil {
					t.Fatal(err)
				}
			}
		}
		report, err := distributor.Fsck(t.Context(), m, keyring(t, repoName), p.now)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		minor := strings.HasPrefix(key, manifest.PrefixCommits) || strings.HasPrefix(key, manifest.PrefixHistory)
		if report.OK() != minor || minor && len(report.Notices) == 0 && !strings.Contains(key, "/1-1-") {
			t.Errorf("%s deleted: problems %v, notices %v", key, report.Problems, report.Notices)
		}
	}
}

func TestFsckOrphansAndStrangers(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	p.mustPublish(h.job(h.commit("", "prod/checkout=a")), true)
	orphan := manifest.KeyBundle("sha256:" + strings.Repeat("ab", 32))
	for _, key := range []string{orphan, manifest.KeySource(strings.Repeat("c", 40)), "notes.txt"} {
		if err := p.store.Put(t.Context(), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	before := dump(t, p.store)
	report := p.fsck(p.store)
	if len(report.Notices) != 3 {
		t.Errorf("notices %v", report.Notices)
	}
	if after := dump(t, p.store); len(after) != len(before) {
		t.Error("fsck wrote")
	}
}

// A standing bundle that is damaged is never built on.
func TestStandingBundleDamaged(t *testing.T) {
	var h history
	p := newPlace(t, nil)
	c1 := h.commit("", "prod/checkout=a", "prod/search=a")
	res := p.mustPublish(h.job(c1), true)
	if err := p.store.Put(t.Context(), manifest.KeyBundle(res.Cohorts["prod"].Bundle), []byte("junk")); err != nil {
		t.Fatal(err)
	}
	_, err := p.publish(h.job(h.commit(c1, "prod/search=b")), true)
	if !errors.Is(err, distributor.ErrDamaged) || !strings.Contains(err.Error(), "bundles/") {
		t.Errorf("%v", err)
	}
	if keys := keysUnder(dump(t, p.store), "releases/"); len(keys) != 1 {
		t.Errorf("releases %v", keys)
	}
}
