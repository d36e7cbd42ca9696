package source

import "context"

// Change is one file that differs between two commits. From and To are blob ids; "" where there is no file.
type Change struct {
	Path     string
	From, To string
}

// Diff gives the files that differ between two revisions, sorted by path. Equal trees are not read.
func (r *Repo) Diff(ctx context.Context, from, to string) ([]Change, error) {
	panic("source: to be written")
}
