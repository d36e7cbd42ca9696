//go:build !race

package source_test

// memoryLimit is what the child of TestB022Memory may have in all: less than the repository has in files.
const memoryLimit = 256 << 20
