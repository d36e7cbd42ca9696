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
	"time"
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

// Dir is the directory of the cache, for what else is worth to be kept there: it is this user's own and private, and what is used least is removed.
func (c *Cache) Dir() string {
	if c == nil {
		return ""
	}
	return c.store.dir
}

// keeper is where answers are kept, each by its key.
type keeper interface {
	get(key cacheKey) ([]byte, bool)
	put(key cacheKey, content []byte)
	tidy()
}

// keeper is one file for all answers where these are small.
func (c *Cache) keeper(req *Request) keeper {
	if req.FilesToo || req.LeavesToo || req.SchemasToo {
		return c.store
	}
	return c.store.verdicts(c.seed, time.Now())
}

// Run answers from the cache what it can and evaluates the rest. A nil Cache is Run. When all is there, no child is started.
func (c *Cache) Run(ctx context.Context, req *Request, lim Limits) (*Result, error) {
	if c == nil {
		return Run(ctx, req, lim)
	}
	k, ok, err := newKeys(req, c.seed)
	switch {
	case err != nil:
		return nil, fmt.Errorf("evaluation: %w", err)
	case !ok:
		return Run(ctx, req, lim)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("evaluation: %w", context.Cause(ctx))
	}
	kept := c.keeper(req)
	s := newSupervisor(req, lim)
	if err := c.fleet(ctx, k, s, kept); err != nil {
		return nil, err
	}
	if s.got.policy.failed() {
		return s.got.result(req), nil
	}
	policy := &s.got.policy.Policy
	names, _ := selected(req, policy)
	found := make([]lookup, len(names))
	k.under(policy)
	inParallel(len(names), func(i int) {
		if found[i].key, found[i].need, found[i].err = k.ofService(names[i], kept); found[i].err != nil {
			return
		}
		if data, ok := kept.get(found[i].key); ok {
			if a, err := decodeAnswer(data); err == nil && a.Service == names[i] {
				found[i].answer = a
			}
		}
	})
	var missing []string
	var all need
	for i, name := range names {
		if found[i].err != nil {
			return nil, fmt.Errorf("evaluation: %w", found[i].err)
		}
		if found[i].answer != nil {
			s.got.service(found[i].answer)
			continue
		}
		missing = append(missing, name)
		all.whole, all.hosts = all.whole || found[i].need.whole, all.hosts || found[i].need.hosts
	}
	if len(missing) == 0 {
		kept.tidy()
		return s.got.result(req), nil
	}
	narrow := *req
	narrow.Files = k.filesFor(missing, all, policy)
	if err := read(narrow.Files); err != nil {
		return nil, fmt.Errorf("evaluation: %w", err)
	}
	s.req = &narrow
	if err := c.run(s, ctx, missing); err != nil {
		return nil, err
	}
	inParallel(len(names), func(i int) {
		if a := s.got.services[names[i]]; found[i].answer == nil && !s.blamed[names[i]] && !slices.ContainsFunc(a.Problems, crashed) {
			kept.put(found[i].key, encodeAnswer(a))
		}
	})
	kept.tidy()
	return s.got.result(req), nil
}

// lookup is what the cache has for one service.
type lookup struct {
	key    cacheKey
	need   need
	answer *answer // nil: it is to be evaluated
	err    error   // a file could not be read
}

// fleet finds or evaluates the fleet.
func (c *Cache) fleet(ctx context.Context, k *keys, s *supervisor, kept keeper) error {
	key := k.ofFleet()
	if data, ok := kept.get(key); ok {
		f := &fleetAnswer{}
		if json.Unmarshal(data, f) == nil {
			s.got.fleet(f)
			return nil
		}
	}
	// What the fleet reads (its packages, what they import, the list of hosts) may lie anywhere.
	if err := read(s.req.Files); err != nil {
		return fmt.Errorf("evaluation: %w", err)
	}
	if err := c.run(s, ctx, []string{}); err != nil {
		return err
	}
	// One that failed does not tell which list of hosts it read.
	if f := s.got.policy; !f.failed() && !lists(&f.Policy) {
		if data, err := json.Marshal(f); err == nil {
			kept.put(key, data)
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
