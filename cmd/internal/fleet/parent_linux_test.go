package fleet

import (
	"os/exec"
	"syscall"
)

// withUs ends a program with this process, also where that is killed and no test can clean up.
func withUs(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
}
