package eval

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// verdicts are the small answers of a cache, those without files' bytes and leaves, in one file: a validation asks for all of them each time, and thousands of
// files cost more to open than to read. Every entry has a checksum; what is damaged is none.
type verdicts struct {
	store *cacheStore
	name  string
	hours uint64 // now, since 1970: what was used long ago goes first

	mu      sync.Mutex
	entries map[cacheKey]verdict
	changed bool
}

type verdict struct {
	content []byte
	sum     cacheKey
	used    uint64
	now     bool // used or made by this run
}

const (
	verdictsMagic = "muster verdicts 1\n"
	// verdictsSpare is how many bytes of what this run did not use are kept: of other branches, of what was there before.
	verdictsSpare = 4 << 20
	// touchHours is how old the time of an entry's last use may get before the file is written for that alone.
	touchHours = 24
)

// verdicts reads the file of an evaluator. What another process writes meanwhile may be lost again: that is cold, not wrong.
func (s *cacheStore) verdicts(seed cacheKey, now time.Time) *verdicts {
	v := &verdicts{store: s, name: filepath.Join(s.dir, "verdicts-"+hex.EncodeToString(seed[:8])), hours: uint64(now.Unix() / 3600), entries: map[cacheKey]verdict{}}
	f, err := os.OpenFile(v.name, os.O_RDONLY|noWait, 0)
	if err != nil {
		return v
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > s.limit {
		return v
	}
	data, err := readExactly(f, uint64(fi.Size()))
	if err != nil || len(data) < len(verdictsMagic) || string(data[:len(verdictsMagic)]) != verdictsMagic {
		return v
	}
	d := &decoder{b: data[len(verdictsMagic):]}
	for len(d.b) > 0 {
		var key, sum cacheKey
		copy(key[:], d.take(sha256.Size))
		copy(sum[:], d.take(sha256.Size))
		used, content := d.uint(), d.bytes()
		if d.failed {
			break // what comes after is lost
		}
		v.entries[key] = verdict{content: content, sum: sum, used: used}
	}
	return v
}

func (v *verdicts) get(key cacheKey) ([]byte, bool) {
	v.mu.Lock()
	e, ok := v.entries[key]
	v.mu.Unlock()
	if !ok || checksum(key, e.content) != e.sum {
		return nil, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if e.used+touchHours <= v.hours {
		v.changed = true
	}
	e.used, e.now = max(e.used, v.hours), true
	v.entries[key] = e
	return e.content, true
}

func (v *verdicts) put(key cacheKey, content []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.entries[key] = verdict{content: content, sum: checksum(key, content), used: v.hours, now: true}
	v.changed = true
}

// tidy writes the file if something is new, with what this run used and the newest of the rest.
func (v *verdicts) tidy() {
	if !v.changed {
		return
	}
	e := &encoder{b: []byte(verdictsMagic)}
	write := func(key cacheKey, x verdict) {
		e.b = append(append(e.b, key[:]...), x.sum[:]...)
		e.uint(x.used)
		e.bytes(x.content)
	}
	var old []cacheKey
	for key, x := range v.entries {
		if x.now {
			write(key, x)
		} else {
			old = append(old, key)
		}
	}
	slices.SortFunc(old, func(a, b cacheKey) int {
		return cmp.Or(cmp.Compare(v.entries[b].used, v.entries[a].used), bytes.Compare(a[:], b[:]))
	})
	spare := 0
	for _, key := range old {
		x := v.entries[key]
		if spare += len(x.content) + 2*sha256.Size; spare > verdictsSpare {
			break
		}
		write(key, x)
	}
	dir := filepath.Dir(v.name)
	tmp, err := os.CreateTemp(dir, "tmp-")
	if err != nil {
		return
	}
	_, err = tmp.Write(e.b)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), v.name)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return
	}
	v.changed = false
	v.store.wrote.Add(int64(len(e.b)))
	v.store.tidy() // other evaluators' verdicts, and other work trees, go with all else
}
