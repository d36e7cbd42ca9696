package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// count is "1 host", "1,200 hosts".
func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return number(n) + " " + noun
}

func number(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// keys are sorted, and never nil: an empty list prints as [].
func keys[V any](m map[string]V) []string {
	return append([]string{}, slices.Sorted(maps.Keys(m))...)
}

// names joins sorted names, and cuts a long list.
func names(list []string, most int) string {
	list = slices.Sorted(slices.Values(list))
	if len(list) <= most+1 { // "and 1 more" is no shorter than a name
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

// printable replaces what could steer a terminal or turn text around: values, file names and messages are other people's.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < 0x20 && r != '\t', r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r >= 0x200b && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2060 && r <= 0x2069, r == 0xfeff:
			return '?'
		}
		return r
	}, s)
}

// cut shortens s to n characters.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
