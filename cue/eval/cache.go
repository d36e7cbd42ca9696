package eval

import "context"

// Cache keeps what services evaluated to, on disk. It is never wrong, only cold: an entry is found by a digest of everything that decides it, and one
// that is damaged is none.
type Cache struct{}

// OpenCache opens, or makes, a cache in dir. Many processes may share it.
func OpenCache(dir string) (*Cache, error) {
	panic("eval: to be written")
}

// Run answers from the cache what it can and evaluates the rest. A nil Cache is Run.
func (c *Cache) Run(ctx context.Context, req *Request, lim Limits) (*Result, error) {
	return Run(ctx, req, lim)
}
