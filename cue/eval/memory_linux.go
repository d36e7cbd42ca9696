package eval

import (
	"fmt"
	"runtime"

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

// adviseLargePages asks the system to back the heap to come with large pages, where it leaves that to programs: a new process of some hundred MiB else
// spends a good part of its time on page faults, a virtual machine most of all. It is called while the garbage collector is off. The memory is given back
// untouched at the next collection; what the heap puts there later has the advice.
func adviseLargePages(n int64) {
	heap := make([]byte, n)
	_ = unix.Madvise(heap, unix.MADV_HUGEPAGE) // where there are none nothing is lost
	runtime.KeepAlive(heap)
}
