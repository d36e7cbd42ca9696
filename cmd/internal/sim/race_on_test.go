//go:build race

package sim

// inTests is less here: the race detector makes a seed cost seven times as much.
const inTests = 4
