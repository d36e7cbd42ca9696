package delivery

import (
	"fmt"
	"strings"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/forge"
)

// revertOf is the pull request that takes a failed release back.
func revertOf(r Release, branch string, good *manifest.Release, b back) forge.Revert {
	title := fmt.Sprintf("Revert epoch %d: %s", r.Epoch, plainWords.Replace(cli.Printable(r.Subject)))
	if len([]rune(title)) > 120 {
		title = string([]rune(title)[:119]) + "…"
	}
	body := fmt.Sprintf("Epoch %d (commit %s) failed in cohort `%s`, whose hosts went back to epoch %d:\n\n%s\n\n"+
		"This takes back all that came after epoch %d (commit %s), the last one that holds the same for them. Merged, it makes a release with the old content, which ends the halt. "+
		"If you correct the fault in another way, close this: it is not made again for this epoch.\n", r.Epoch, r.Commit, b.cohort, b.baseline, indented(b.why), good.Epoch, good.Commit)
	return forge.Revert{Branch: branch, Name: fmt.Sprintf("muster/revert-%d-%.7s", r.Epoch, r.Commit), Good: good.Commit, Bad: r.Commit, Title: title, Body: body}
}

// plainWords takes from a subject what would act once more as the title of a pull request and as a message of a commit: "[skip ci]" keeps the checks that the branch asks for from
// running, "fixes #12" closes an issue, "@name" calls somebody.
// https://docs.github.com/en/actions/managing-workflow-runs/skipping-workflow-runs
var plainWords = strings.NewReplacer("[", "(", "]", ")", "***", "*", "#", "no. ", "@", "at ", "://", ": ")

// indented is other people's text as a block that it cannot leave.
func indented(s string) string {
	return "    " + strings.ReplaceAll(cli.Printable(s), "\n", " ")
}
