package install

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-config/muster/agent"
)

// A path has many spellings: through aliases of its directories, and through links that the agent itself keeps. What may stand where is decided by the place,
// which is the last name of a path in the directory that it really is in.

// maxFollowed bounds the links that are followed on a way; the kernel's own limit is 40.
const maxFollowed = 40

// way is every name that is looked up on the way to an absolute path, links and what they lead to, each in its real directory. The last one is the path's
// place; a link that stands there is not followed. What does not exist is taken as it is written.
func way(path string) []string {
	todo := strings.Split(path, "/")
	at := "/"
	var names []string
	for followed := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		at = filepath.Join(at, name)
		names = append(names, at)
		to, err := os.Readlink(at)
		if err != nil || len(todo) == 0 || followed == maxFollowed {
			continue
		}
		followed++
		if at = filepath.Dir(at); filepath.IsAbs(to) {
			at = "/"
		}
		todo = append(strings.Split(to, "/"), todo...)
	}
	return names
}

func place(way []string) string {
	if len(way) == 0 {
		return "/"
	}
	return way[len(way)-1]
}

// reserved refuses a place below the root, and one on the way to it. A link in a release would be a change by hand, and taken out again; one in place of
// `+"`current`"+`, or of a link that leads to the root, would take the root away.
func (r *Root) reserved(path string, to, current []string) error {
	at := place(to)
	switch {
	case within(filepath.Dir(at), filepath.Dir(place(current))):
		return fmt.Errorf("%s leads into %s, where all is the agent's own; choose another path for %s", filepath.Dir(path), r.path, path)
	case slices.Contains(current, at):
		return fmt.Errorf("%s is on the way to %s, where all is the agent's own; choose another path", path, r.path)
	}
	return nil
}

// Clashes implements agent.Linker.
func (r *Root) Clashes(links []agent.Link) map[string]error {
	if len(links) == 0 {
		return nil
	}
	current := way(r.join(linkCurrent))
	clashes, ways, first := map[string]error{}, map[string][]string{}, map[string]agent.Link{}
	for _, l := range links {
		to := way(l.Path)
		ways[l.Path] = to
		if err := r.reserved(l.Path, to, current); err != nil {
			clashes[l.Path] = err
			continue
		}
		if other, taken := first[place(to)]; !taken {
			first[place(to)] = l
		} else if r.linkTarget(other) != r.linkTarget(l) {
			clashes[l.Path] = fmt.Errorf("%s is the same place as %s, a link of %s; keep one of them", l.Path, other.Path, other.Service)
		}
	}
	for _, l := range links {
		to := ways[l.Path]
		for _, name := range to[:max(len(to)-1, 0)] {
			if other, is := first[name]; is && clashes[l.Path] == nil {
				clashes[l.Path] = fmt.Errorf("%s leads through %s, a link of %s; choose another path", l.Path, other.Path, other.Service)
			}
		}
	}
	return clashes
}
