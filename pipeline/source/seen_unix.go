//go:build unix && !linux && !portable

package source

import "golang.org/x/sys/unix"

func (top) stamp(*unix.Stat_t) stamp { return stamp{} }
