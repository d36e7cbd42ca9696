//go:build !darwin

package durable

import "golang.org/x/sys/unix"

func fsync(fd int) error { return unix.Fsync(fd) }
