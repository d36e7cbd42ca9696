package forge

import (
	"fmt"

	"github.com/google/go-github/v60/github"
)

// maxPages bounds a list. None that is read here is nearly as long: a hundred entries a page, and GitHub keeps at most 1,000 statuses of a context and 2,500 comments.
const maxPages = 100

// turn turns to the next page of a list, if there is one. It only goes forward: a server whose pages lead in a circle is left.
// https://docs.github.com/en/rest/using-the-rest-api/using-pagination-in-the-rest-api
func turn(op string, opts *github.ListOptions, resp *github.Response) (more bool, err error) {
	switch next := resp.NextPage; {
	case next == 0:
		return false, nil
	case next <= max(opts.Page, 1) || next > maxPages:
		return false, &Error{Op: op, Message: fmt.Sprintf("its list goes on at page %d after page %d", next, max(opts.Page, 1)), Next: "look at the server behind --github-api", kind: ErrUnreachable}
	default:
		opts.Page = next
		return true, nil
	}
}
