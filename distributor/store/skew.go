package store

import (
	"fmt"
	"time"
)

// SkewError says that a store refused us because our clock is off: no question of rights. It is an ErrUnreachable that trying again at once does not end.
type SkewError struct {
	Skew time.Duration // ours minus the store's
}

func (e *SkewError) Error() string {
	way := "ahead of"
	skew := e.Skew
	if skew < 0 {
		way, skew = "behind", -skew
	}
	return fmt.Sprintf("clock skew of %d s: this machine's clock is %s the store's; set it right (chronyc makestep, timedatectl)", int(skew.Seconds()), way)
}

// Unwrap makes it passing.
func (e *SkewError) Unwrap() error { return ErrUnreachable }
