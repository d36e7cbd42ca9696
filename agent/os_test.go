package agent_test

import (
	"context"
	"crypto/ed25519"
	"syscall"
	"time"
)

func setUmask(mask int) int { return syscall.Umask(mask) }

func timeoutContext(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

type publicKey = ed25519.PublicKey
