package plan

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	diffContext = 2
	diffLines   = 60   // shown of one file
	diffWidth   = 200  // characters of a line
	diffLine    = 400  // bytes of a line that is looked into at all
	diffEdits   = 1000 // more than these are not worth a look
)

// Diff is a short unified diff of two texts, without file names. line masks what must not be shown. What is no text, or differs all over, is told in one line.
func Diff(before, after []byte, line func(string) string) string {
	if !isText(before) || !isText(after) {
		return fmt.Sprintf("(not text: %s → %s)\n", count(len(before), "byte"), count(len(after), "byte"))
	}
	a, b := splitLines(before), splitLines(after)
	keep, ok := common(a, b)
	if !ok {
		return fmt.Sprintf("(%s → %s, most of them others)\n", count(len(a), "line"), count(len(b), "line"))
	}
	if len(keep) == len(a) && len(a) == len(b) {
		return "(only the end of the last line)\n"
	}
	// Line by line: '-' of a, '+' of b, ' ' of both.
	type row struct {
		sign byte
		text string
		i, j int // how many lines of each came before
	}
	var rows []row
	i, j := 0, 0
	for _, k := range append(keep, [2]int{len(a), len(b)}) {
		for ; i < k[0]; i++ {
			rows = append(rows, row{'-', a[i], i, j})
		}
		for ; j < k[1]; j++ {
			rows = append(rows, row{'+', b[j], i, j})
		}
		if i < len(a) && j < len(b) {
			rows = append(rows, row{' ', a[i], i, j})
			i, j = i+1, j+1
		}
	}
	masked := maskBlocks(a, b)
	var out strings.Builder
	printed, left := 0, 0
	for at := 0; at < len(rows); {
		if rows[at].sign == ' ' {
			at++
			continue
		}
		// A hunk reaches to where more than twice the context is unchanged.
		from := max(0, at-diffContext)
		to, quiet := at, 0
		for end := at; end < len(rows) && quiet <= 2*diffContext; end++ {
			if rows[end].sign == ' ' {
				quiet++
			} else {
				quiet, to = 0, end+1
			}
		}
		until := min(len(rows), to+diffContext)
		if printed < diffLines {
			n, m := 0, 0
			for _, r := range rows[from:until] {
				if r.sign != '+' {
					n++
				}
				if r.sign != '-' {
					m++
				}
			}
			fmt.Fprintf(&out, "@@ -%s +%s @@\n", span(rows[from].i, n), span(rows[from].j, m))
		}
		for _, r := range rows[from:until] {
			if printed == diffLines {
				left++
				continue
			}
			text := r.text
			if masked[text] {
				text = secretText
			} else {
				text = shown(text, line)
			}
			fmt.Fprintf(&out, "%c%s\n", r.sign, text)
			printed++
		}
		at = until
	}
	if left > 0 {
		fmt.Fprintf(&out, "(%s more)\n", count(left, "line"))
	}
	return out.String()
}

// shown is a line as it is printed: masked first and cut then, for half a secret is one too.
func shown(text string, line func(string) string) string {
	if len(text) > diffLine {
		return fmt.Sprintf("(a line of %s)", count(len(text), "byte"))
	}
	return cut(line(text), diffWidth)
}

func span(before, n int) string {
	if n == 0 {
		return fmt.Sprintf("%d,0", before)
	}
	if n == 1 {
		return fmt.Sprint(before + 1)
	}
	return fmt.Sprintf("%d,%d", before+1, n)
}

func isText(data []byte) bool { return utf8.Valid(data) && !bytes.ContainsRune(data, 0) }

func splitLines(data []byte) []string {
	if len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// common gives the pairs of indexes of lines that a shortest edit keeps (Myers); ok is false when the edit is too long: then only what is equal at both ends is given.
func common(a, b []string) (keep [][2]int, ok bool) {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		keep = append(keep, [2]int{head, head})
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	middle, ok := myers(a[head:len(a)-tail], b[head:len(b)-tail])
	for _, k := range middle {
		keep = append(keep, [2]int{k[0] + head, k[1] + head})
	}
	for ; tail > 0; tail-- {
		keep = append(keep, [2]int{len(a) - tail, len(b) - tail})
	}
	return keep, ok
}

func myers(a, b []string) (keep [][2]int, ok bool) {
	n, m := len(a), len(b)
	if n == 0 || m == 0 {
		return nil, true
	}
	most := min(n+m, diffEdits)
	furthest := make([]int, 2*most+2) // by diagonal, from -most
	var trace [][]int
	for d := 0; d <= most; d++ {
		for k := -d; k <= d; k += 2 {
			x := 0
			switch {
			case d == 0:
			case k == -d || k != d && furthest[most+k-1] < furthest[most+k+1]:
				x = furthest[most+k+1]
			default:
				x = furthest[most+k-1] + 1
			}
			for x < n && x-k < m && a[x] == b[x-k] {
				x++
			}
			furthest[most+k] = x
			if x >= n && x-k >= m {
				return walk(trace, d, n, m), true
			}
		}
		trace = append(trace, slices.Clone(furthest[most-d:most+d+1]))
	}
	return nil, false
}

// walk follows the trace back from the end; trace[d] holds the diagonals -d to d.
func walk(trace [][]int, d, x, y int) [][2]int {
	var keep [][2]int
	back := func(toX, toY int) {
		for x > toX && y > toY {
			x, y = x-1, y-1
			keep = append(keep, [2]int{x, y})
		}
	}
	for ; d > 0; d-- {
		at := func(k int) int { return trace[d-1][k+d-1] }
		k := x - y
		from := k - 1
		if k == -d || k != d && at(k-1) < at(k+1) {
			from = k + 1
		}
		px := at(from)
		back(px, px-from)
		x, y = px, px-from
	}
	back(0, 0)
	slices.Reverse(keep)
	return keep
}
