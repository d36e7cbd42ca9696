package collector

import (
	"container/list"
	"sync"
)

// Sizes of the cache of immutable objects.
const (
	cacheBytes     = 64 << 20
	cacheMaxObject = 16 << 20 // larger ones are streamed past it
)

// cache keeps the objects used last, up to a number of bytes. Safe for concurrent use.
type cache struct {
	mu    sync.Mutex
	limit int64
	used  int64
	order *list.List // of *entry; front: used last
	byKey map[string]*list.Element
}

type entry struct {
	key  string
	data []byte
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, order: list.New(), byKey: map[string]*list.Element{}}
}

func (c *cache) get(key string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byKey[key]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*entry).data, true
}

func (c *cache) put(key string, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byKey[key]; ok || int64(len(data)) > c.limit {
		return
	}
	c.byKey[key] = c.order.PushFront(&entry{key, data})
	c.used += int64(len(data))
	for c.used > c.limit {
		last := c.order.Back()
		e := last.Value.(*entry)
		c.order.Remove(last)
		delete(c.byKey, e.key)
		c.used -= int64(len(e.data))
	}
}
