//go:build !race

package layer

const underRace = false
