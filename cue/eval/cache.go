package eval

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Cache keeps what services evaluated to, on disk. It is never wrong, only cold: an entry is found by a digest of everything that decides it, and one
// that is damaged is none. It holds rendered files, and so it is for its owner alone.
type Cache struct {
	store *cacheStore
	seed  cacheKey
	run   func(s *supervisor, ctx context.Context, names []string) error
}

// OpenCache opens, or makes, a cache in dir. Many processes may share it. What cannot be written later is no failure: the cache is colder then.
func OpenCache(dir string) (*Cache, error) {
	exe, err := executable()
	if err != nil {
		return nil, fmt.Errorf("open the cache of evaluations: %w", err)
	}
	id, err := identify(exe)
	if err != nil {
		return nil, fmt.Errorf("open the cache of evaluations: %w", err)
	}
	store, err := openCacheStore(dir)
	if err != nil {
		return nil, fmt.Errorf("open the cache of evaluations: %w", err)
	}
	return &Cache{store: store, seed: evaluatorSeed(id), run: (*supervisor).run}, nil
}

// Run answers from the cache what it can and evaluates the rest. A nil Cache is Run. When all is there, no child is started.
func (c *Cache) Run(ctx context.Context, req *Request, lim Limits) (*Result, error) {
	if c == nil {
		return Run(ctx, req, lim)
	}
	k, ok := newKeys(req, c.seed)
	if !ok {
		return Run(ctx, req, lim)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("evaluation: %w", context.Cause(ctx))
	}
	s := newSupervisor(req, lim)
	if err := c.fleet(ctx, k, s); err != nil {
		return nil, err
	}
	if s.got.policy.failed() {
		return s.got.result(req), nil
	}
	policy := &s.got.policy.Policy
	names, _ := selected(req, policy)
	found := make([]lookup, len(names))
	inParallel(len(names), func(i int) {
		found[i].key, found[i].need = k.ofService(names[i], policy)
		if data, ok := c.store.get(found[i].key); ok {
			if a, err := decodeAnswer(data); err == nil && a.Service == names[i] {
				found[i].answer = a
			}
		}
	})
	var missing []string
	var all need
	for i, name := range names {
		if found[i].answer != nil {
			s.got.service(found[i].answer)
			continue
		}
		missing = append(missing, name)
		all.whole, all.hosts = all.whole || found[i].need.whole, all.hosts || found[i].need.hosts
	}
	if len(missing) == 0 {
		return s.got.result(req), nil
	}
	narrow := *req
	narrow.Files = k.filesFor(missing, all, policy)
	s.req = &narrow
	if err := c.run(s, ctx, missing); err != nil {
		return nil, err
	}
	inParallel(len(names), func(i int) {
		if a := s.got.services[names[i]]; found[i].answer == nil && !s.blamed[names[i]] && !slices.ContainsFunc(a.Problems, crashed) {
			c.store.put(found[i].key, encodeAnswer(a))
		}
	})
	c.store.tidy()
	return s.got.result(req), nil
}

// lookup is what the cache has for one service.
type lookup struct {
	key    cacheKey
	need   need
	answer *answer // nil: it is to be evaluated
}

// fleet finds or evaluates the fleet.
func (c *Cache) fleet(ctx context.Context, k *keys, s *supervisor) error {
	key := k.ofFleet()
	if data, ok := c.store.get(key); ok {
		f := &fleetAnswer{}
		if json.Unmarshal(data, f) == nil {
			s.got.fleet(f)
			return nil
		}
	}
	if err := c.run(s, ctx, []string{}); err != nil {
		return err
	}
	// One that failed does not tell which list of hosts it read.
	if f := s.got.policy; !f.failed() && !lists(&f.Policy) {
		if data, err := json.Marshal(f); err == nil {
			c.store.put(key, data)
		}
	}
	return nil
}

// crashed tells the problem of a panic, which may have been one of the machine.
func crashed(p Problem) bool { return strings.HasPrefix(p.Message, crashMessage) }

// inParallel calls f for 0 to n-1 on all processors.
func inParallel(n int, f func(int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}
