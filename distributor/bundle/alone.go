package bundle

import "sync/atomic"

var alone atomic.Bool

// Alone has every archive be read by a decoder of its own from now on: one that is kept holds channels of the testing/synctest bubble in which it was made, and none of another bubble may
// use them.
func Alone() { alone.Store(true) }
