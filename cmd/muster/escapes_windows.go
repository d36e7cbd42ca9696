package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// escapes turns on the escape sequences of a console, and says whether it has them: older ones do not.
func escapes(f *os.File) bool {
	var mode uint32
	h := windows.Handle(f.Fd())
	return windows.GetConsoleMode(h, &mode) == nil && windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
