package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration reads how long something lasts: Go's durations, and days in front of them, as in 3d or 1d12h. A day has 24 hours.
func Duration(s string) (time.Duration, error) {
	days, rest, found := strings.Cut(s, "d")
	if !found {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseUint(days, 10, 32)
	if err != nil || n > uint64(math.MaxInt64/(24*time.Hour)/2) {
		return 0, fmt.Errorf("%q is not a duration", s)
	}
	d := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || more < 0 || rest[0] == '+' {
		return 0, fmt.Errorf("%q is not a duration", s)
	}
	if d+more < d {
		return 0, fmt.Errorf("%q is too long", s)
	}
	return d + more, nil
}
