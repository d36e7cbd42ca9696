package eval

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// limitMemory bounds the data segment. (A limit of address space would keep Go from starting.)
func limitMemory(n int64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_DATA, &now); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	want := min(uint64(n), now.Max)
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: want, Max: want}); err != nil {
		return fmt.Errorf("limit memory to %d bytes: %w", want, err)
	}
	return nil
}
