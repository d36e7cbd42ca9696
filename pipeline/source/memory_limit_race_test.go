//go:build race

package source_test

// The race detector's own memory is many times the program's: under it only the answers are checked.
const memoryLimit = 8 << 30
