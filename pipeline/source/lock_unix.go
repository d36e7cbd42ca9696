//go:build unix

package source

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes a file's lock, across processes, until the file is closed. It is false when another one has it.
func lockFile(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
