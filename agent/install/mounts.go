package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A mount keeps the file or directory that it was made from. A container that mounts one installed file goes on seeing it after a swap, whatever is installed
// since; it has to mount the root as a whole and read through current. Nothing that the agent does can mend that, so it is found and said.

// Mounts are the mount points that a swap does not reach, a sentence each: those below root's releases, and those elsewhere that were made from them.
func Mounts(root string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no /proc: nothing to find it by
	}
	if err != nil {
		return nil, fmt.Errorf("look for mounts: %w", err)
	}
	real, err := filepath.EvalSymlinks(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for mounts: %w", err)
	}
	return mountsOf(real, string(data)), nil
}

// mount is a line of mountinfo: which directory or file of which file system is seen where.
type mount struct{ dev, from, at string }

func mountsOf(root, info string) []string {
	var mounts []mount
	home := mount{} // the file system in which the root lies
	for line := range strings.Lines(info) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		m := mount{dev: f[2], from: unescape(f[3]), at: unescape(f[4])}
		mounts = append(mounts, m)
		if within(root, m.at) && len(m.at) >= len(home.at) {
			home = m
		}
	}
	// Where the root lies within its file system, as `from` speaks of it.
	inside := filepath.Join(home.from, strings.TrimPrefix(root, home.at))
	var found []string
	for _, m := range mounts {
		switch releases := filepath.Join(root, dirReleases); {
		case m.at != root && m.at != releases && within(m.at, releases):
			found = append(found, fmt.Sprintf("%s is a mount point: a swap does not change what is seen there; unmount it", m.at))
		case m != home && m.dev == home.dev && strings.HasPrefix(m.from, filepath.Join(inside, dirReleases)+"/"):
			found = append(found, fmt.Sprintf("%s is a mount of %s: it keeps showing that release; mount %s as a whole and read through %s", m.at, strings.TrimSuffix(m.from, "//deleted"), root, linkCurrent))
		}
	}
	return found
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// unescape turns \040 and the like into the characters they stand for.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
