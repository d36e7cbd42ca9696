package agent

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ReadFile reads a file that the host's configuration is in or names, of at most limit bytes; one that is longer comes with a byte more. A named pipe nobody
// writes to does not hold it up, and what is no regular file is refused.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &irregularError{path}
	}
	return io.ReadAll(io.LimitReader(f, limit+1))
}

type irregularError struct{ path string }

func (e *irregularError) Error() string { return fmt.Sprintf("%s is not a regular file", e.path) }

// Hint is the next step.
func (e *irregularError) Hint() string { return "put a plain file, or a link to one, at " + e.path }

// ExitCode is that of a wrong configuration.
func (e *irregularError) ExitCode() int { return 2 }
