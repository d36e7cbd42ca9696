package cli_test

import (
	"testing"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
)

func TestDuration(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "48h": 48 * time.Hour, "3d": 72 * time.Hour, "0d": 0, "1d12h": 36 * time.Hour, "2d30m": 48*time.Hour + 30*time.Minute, "90d": 90 * 24 * time.Hour,
	} {
		if got, err := cli.Duration(s); err != nil || got != want {
			t.Errorf("%s: %s, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "d", "3", "-1d", "+1d", "1.5d", "1d-2h", "1d+2h", "1d2d", "d3h", "3 d", "99999999999999d", "100000d2540000h"} {
		if got, err := cli.Duration(s); err == nil {
			t.Errorf("%q is read as %s", s, got)
		}
	}
}
