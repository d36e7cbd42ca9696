// Package chance is where pauses get their random part, so that many who wait do not wake together. A simulation draws it from a seed: then a run can be repeated.
package chance

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

var draw atomic.Pointer[func(n int64) int64]

// N is a duration from 0 to below n, which is above 0.
func N(n time.Duration) time.Duration {
	if f := draw.Load(); f != nil {
		return time.Duration((*f)(int64(n)))
	}
	return rand.N(n)
}

// Replace draws from f instead, in the whole process: a number from 0 to below n. Simulations only. nil: at random again.
func Replace(f func(n int64) int64) {
	if f == nil {
		draw.Store(nil)
		return
	}
	draw.Store(&f)
}
