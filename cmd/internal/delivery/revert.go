package delivery

import (
	"fmt"
	"strings"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/pipeline/forge"
)

// revertOf is the pull request that takes a failed release back.
func revertOf(r Release, branch, good string, b *back) forge.Revert {
	title := fmt.Sprintf("Revert epoch %d: %s", r.Epoch, r.Subject)
	if len([]rune(title)) > 120 {
		title = string([]rune(title)[:119]) + "…"
	}
	body := fmt.Sprintf("Epoch %d (commit %s) failed in cohort `%s`, whose hosts went back to epoch %d (commit %s):\n\n%s\n\n"+
		"This takes back all that came between the two. Merged, it makes a release with the old content, which ends the halt. If you correct the fault in another way, close this: "+
		"it is not made again for this epoch.\n", r.Epoch, r.Commit, b.cohort, b.baseline, good, indented(b.why))
	return forge.Revert{Branch: branch, Name: fmt.Sprintf("muster/revert-%d-%.7s", r.Epoch, r.Commit), Good: good, Bad: r.Commit, Title: title, Body: body}
}

// indented is other people's text as a block that it cannot leave.
func indented(s string) string {
	return "    " + strings.ReplaceAll(cli.Printable(s), "\n", " ")
}
