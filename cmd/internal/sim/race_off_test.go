//go:build !race

package sim

// inTests is how many seeds fit in a run of all tests: some twenty seconds on two cores.
const inTests = 24
