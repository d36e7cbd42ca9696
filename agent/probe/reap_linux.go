package probe

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfo is siginfo_t of waitid as far as it is read.
type siginfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0)) - 4]byte // the union behind it is aligned to a pointer
	pid                int32
	_                  [112]byte
}

// peek is the process id of a child that has ended, and leaves it as it is; 0 if there is none.
func peek() (int, error) {
	var info siginfo
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(info.pid), nil
}
