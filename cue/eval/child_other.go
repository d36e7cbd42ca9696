//go:build !unix

package eval

import "os/exec"

// Without process groups the child alone is killed, which is all there is of it: it starts nothing.
func isolate(cmd *exec.Cmd) {}

func kill(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
