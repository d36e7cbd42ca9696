//go:build !linux

package eval

// limitMemory: elsewhere the collector's soft limit is all there is.
func limitMemory(int64) error { return nil }

func adviseLargePages(int64) {}
