package source

import "context"

// Line says which commit last changed a line. An empty Commit: history did not tell, in the time that ctx gave or because the clone is shallow.
type Line struct {
	Commit  string
	Author  Person
	Subject string
}

// Blame gives who last changed the given lines (from 1) of path as of rev.
func (r *Repo) Blame(ctx context.Context, rev, path string, lines []int) (map[int]Line, error) {
	panic("source: to be written")
}
