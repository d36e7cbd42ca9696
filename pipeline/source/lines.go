package source

import (
	"bytes"
	"context"
)

// splitLines cuts a text after each newline: a last line without one differs from the same line with one, as it does for git.
func splitLines(data []byte) [][]byte {
	if len(data) == 0 {
		return nil
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// sameLines gives, for each line of b, the line of a that it is, or -1 if it is new: a longest common subsequence (Myers, "An O(ND)
// difference algorithm", 1986, in its linear-space form). It stops when ctx ends.
func sameLines(ctx context.Context, a, b [][]byte) ([]int, error) {
	out := make([]int, len(b))
	for i := range out {
		out[i] = -1
	}
	ids := make(map[string]int32, len(a))
	as := make([]int32, len(a))
	for i, line := range a {
		id, ok := ids[string(line)]
		if !ok {
			id = int32(len(ids))
			ids[string(line)] = id
		}
		as[i] = id
	}
	bs := make([]int32, len(b))
	inB := make([]bool, len(ids))
	for i, line := range b {
		if id, ok := ids[string(line)]; ok {
			bs[i] = id
			inB[id] = true
		} else {
			bs[i] = -1
		}
	}
	lo, ahi, bhi := 0, len(as), len(bs)
	for lo < ahi && lo < bhi && as[lo] == bs[lo] {
		out[lo] = lo
		lo++
	}
	for ahi > lo && bhi > lo && as[ahi-1] == bs[bhi-1] {
		ahi--
		bhi--
		out[bhi] = ahi
	}
	// Lines that only one side has cannot match: without them the search is short in the usual case.
	d := lineDiff{ctx: ctx, out: out}
	for i := lo; i < ahi; i++ {
		if inB[as[i]] {
			d.a, d.aAt = append(d.a, as[i]), append(d.aAt, i)
		}
	}
	for i := lo; i < bhi; i++ {
		if bs[i] >= 0 {
			d.b, d.bAt = append(d.b, bs[i]), append(d.bAt, i)
		}
	}
	size := 2*(len(d.a)+len(d.b)) + 4
	d.forth, d.back = make([]int, size), make([]int, size)
	if err := d.run(0, len(d.a), 0, len(d.b)); err != nil {
		return nil, err
	}
	return out, nil
}

type lineDiff struct {
	ctx         context.Context
	a, b        []int32
	aAt, bAt    []int // their places in the texts
	out         []int
	forth, back []int // the furthest x on each diagonal, from either end
}

func (d *lineDiff) same(x, y int) { d.out[d.bAt[y]] = d.aAt[x] }

// run matches a[alo:ahi] with b[blo:bhi]: equal ends first, then either side of the point where two searches from the ends meet.
func (d *lineDiff) run(alo, ahi, blo, bhi int) error {
	for {
		for alo < ahi && blo < bhi && d.a[alo] == d.b[blo] {
			d.same(alo, blo)
			alo++
			blo++
		}
		for alo < ahi && blo < bhi && d.a[ahi-1] == d.b[bhi-1] {
			ahi--
			bhi--
			d.same(ahi, bhi)
		}
		if alo == ahi || blo == bhi {
			return nil
		}
		x, y, err := d.middle(alo, ahi, blo, bhi)
		if err != nil {
			return err
		}
		if err := d.run(alo, x, blo, y); err != nil {
			return err
		}
		alo, blo = x, y
	}
}

// middle gives a point on a shortest path that is neither corner: where the furthest ways from both corners meet. Both are kept by
// diagonal, x-y; diagonals just outside hold what is never taken.
func (d *lineDiff) middle(alo, ahi, blo, bhi int) (int, int, error) {
	a, b := d.a[alo:ahi], d.b[blo:bhi]
	n, m := len(a), len(b)
	const never = int(^uint(0) >> 1)
	off := m + 1 // of diagonal 0; they run from -m to n
	delta := n - m
	odd := delta&1 != 0
	fmin, fmax, bmin, bmax := 0, 0, delta, delta
	forth, back := d.forth[:n+m+3], d.back[:n+m+3]
	forth[off], back[off+delta] = 0, n
	for step := 0; ; step++ {
		if step&63 == 0 && d.ctx.Err() != nil {
			return 0, 0, d.ctx.Err()
		}
		if fmin > -m {
			fmin--
			forth[off+fmin-1] = -1
		} else {
			fmin++
		}
		if fmax < n {
			fmax++
			forth[off+fmax+1] = -1
		} else {
			fmax--
		}
		for k := fmax; k >= fmin; k -= 2 {
			x := max(forth[off+k-1]+1, forth[off+k+1])
			y := x - k
			for x < n && y < m && a[x] == b[y] {
				x, y = x+1, y+1
			}
			forth[off+k] = x
			if odd && bmin <= k && k <= bmax && back[off+k] <= x {
				return alo + x, blo + y, nil
			}
		}
		if bmin > -m {
			bmin--
			back[off+bmin-1] = never
		} else {
			bmin++
		}
		if bmax < n {
			bmax++
			back[off+bmax+1] = never
		} else {
			bmax--
		}
		for k := bmax; k >= bmin; k -= 2 {
			x := min(back[off+k-1], back[off+k+1]-1)
			y := x - k
			for x > 0 && y > 0 && a[x-1] == b[y-1] {
				x, y = x-1, y-1
			}
			back[off+k] = x
			if !odd && fmin <= k && k <= fmax && x <= forth[off+k] {
				return alo + x, blo + y, nil
			}
		}
	}
}
