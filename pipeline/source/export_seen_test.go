package source

import "time"

// Portable tells that the tests run with the reader for other systems.
const Portable = stampless

// SetClock lets time pass; the returned function sets the clock back.
func SetClock(now func() time.Time) (back func()) {
	was := clock
	clock = now
	return func() { clock = was }
}

// Unread reports whether a file of a tree is one that is read when it is opened.
func Unread(t Tree, name string) bool { return t.(*tree).index[name].read != nil }
