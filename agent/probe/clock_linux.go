package probe

import "golang.org/x/sys/unix"

// clocks are µs since the start of the machine, with sleep and without.
func clocks() (up, mono int64) { return clock(unix.CLOCK_BOOTTIME), clock(unix.CLOCK_MONOTONIC) }

func clock(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0
	}
	return ts.Nano() / 1000
}
