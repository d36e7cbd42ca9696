package sim

import "time"

// roll draws a number from the seed, the instant, and what it is about.
func (w *World) roll(about ...string) uint64 {
	h := w.seed*0x9e3779b97f4a7c15 ^ uint64(time.Now().UnixNano())
	return mix(h ^ text(about...))
}

// fixed draws a number that is the same at any time.
func (w *World) fixed(about ...string) uint64 { return mix(w.seed*0x9e3779b97f4a7c15 ^ text(about...)) }

// text hashes strings (FNV-1a).
func text(parts ...string) uint64 {
	h := uint64(14695981039346656037)
	for _, p := range parts {
		for i := range len(p) {
			h = (h ^ uint64(p[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return h
}

// mix spreads the bits of a number (splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// pace is what the pauses of agents, controllers and publishers are drawn from, in place of chance: the same instant gives the same pause.
func pace(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return int64(mix(uint64(time.Now().UnixNano())^uint64(n)) % uint64(n))
}

// draw is a stream for the script alone, which one goroutine plays.
type draw struct{ state uint64 }

func (d *draw) next() uint64 { d.state++; return mix(d.state * 0x9e3779b97f4a7c15) }

func (d *draw) n(n int) int { return int(d.next() % uint64(n)) }

// percent is true in p of 100 cases.
func (d *draw) percent(p int) bool { return d.n(100) < p }

// between is a time from a to b.
func (d *draw) between(a, b time.Duration) time.Duration {
	return a + time.Duration(d.next()%uint64(b-a))
}

func pick[T any](d *draw, list []T) T { return list[d.n(len(list))] }
