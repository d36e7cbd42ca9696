//go:build race

package layer

const underRace = true
