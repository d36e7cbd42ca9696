package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// contents holds what each epoch of a cohort was seen to be, so that one epoch cannot be two things: not in one head, not in two, and not to two readers of one state.
type contents struct {
	past map[string]string // of earlier heads; never changed
	now  map[string]string // of this head
}

// add refuses a second content of an epoch.
func (c *contents) add(st *VerifiedStatement) error {
	key := st.key()
	have, ok := c.now[key]
	if !ok {
		have, ok = c.past[key]
	}
	if ok && have != st.Digest {
		return fmt.Errorf("%w: epoch %s was %.19s… and is now %.19s…", ErrEquivocation, key, have, st.Digest)
	}
	c.now[key] = st.Digest
	return nil
}

// bounded is what to remember: all of this head, and of the earlier ones the highest epochs that there is room for.
func (c *contents) bounded() map[string]string {
	out := maps.Clone(c.now)
	old := slices.DeleteFunc(slices.Collect(maps.Keys(c.past)), func(k string) bool { _, ok := out[k]; return ok })
	slices.SortFunc(old, func(a, b string) int {
		return cmp.Or(cmp.Compare(epochOf(b), epochOf(a)), cmp.Compare(a, b))
	})
	for _, k := range old[:max(0, min(len(old), MaxRememberedContents-len(out)))] {
		out[k] = c.past[k]
	}
	return out
}

func epochOf(key string) uint64 {
	digits, _, _ := strings.Cut(key, "/")
	n, _ := strconv.ParseUint(digits, 10, 64)
	return n
}
