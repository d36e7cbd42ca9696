package control

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/muster-config/muster/agent"
)

// A connection that cannot be taken for now does not end the socket for the life of the agent.
func TestPassingTrouble(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := Listen(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ln.SetDeadline(time.Unix(1, 0)); err != nil { // stands for what accept may fail of
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, &Fake{Says: &agent.Status{V: 1, PID: 42}}) }()
	select {
	case err := <-done:
		t.Fatalf("it ended: %v", err)
	case <-time.After(acceptPause / 2): // it has failed by then
	}
	if err := s.ln.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if got, err := Status(ctx, root); err != nil || got.PID != 42 {
		t.Errorf("%+v, %v", got, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
