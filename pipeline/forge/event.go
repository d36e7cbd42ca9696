package forge

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/go-github/v60/github"
)

// Event is what a workflow was started for. Its commits are ids, checked; what changed is asked of git, never of the payload.
type Event struct {
	Name   string // pull_request, pull_request_target, push, merge_group
	Action string
	Repo   string // owner/name, that the workflow runs in
	Pull   int    // 0: not about a pull request
	Head   string // what is to be judged; "" when there is nothing to
	Base   string // what it is compared with: the base branch's commit, or what the branch was before; "" if not known
	Branch string // of the base, or pushed to
	Main   string // of a push that made a branch: the repository's default branch, "" if it is that one
	Fork   bool   // the head is in another repository: its workflow's token can only read
	Merge  string // the would-be merge, as the payload has it; "" if GitHub does not know it
	Why    string // Head is "": why there is nothing to judge
}

var commitID = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

const maxEvent = 32 << 20

// ErrEvent is an event that cannot be judged.
var ErrEvent = errors.New("not an event of a pull request or a push")

// ParseEvent reads the payload of GITHUB_EVENT_PATH. Sizes and lists in it are not believed.
func ParseEvent(name string, payload []byte) (*Event, error) {
	if len(payload) > maxEvent {
		return nil, fmt.Errorf("the event is larger than %d MiB", maxEvent>>20)
	}
	read := func(into any) error {
		if err := json.Unmarshal(payload, into); err != nil {
			return fmt.Errorf("the event %.40q does not read: %s", name, oneLine(err.Error()))
		}
		return nil
	}
	e := &Event{Name: name}
	switch name {
	case "pull_request", "pull_request_target":
		var p github.PullRequestEvent
		if err := read(&p); err != nil {
			return nil, err
		}
		pr := p.GetPullRequest()
		e.Action, e.Repo, e.Pull = p.GetAction(), p.GetRepo().GetFullName(), p.GetNumber()
		if e.Pull == 0 {
			e.Pull = pr.GetNumber()
		}
		e.Head, e.Base, e.Branch, e.Merge = pr.GetHead().GetSHA(), pr.GetBase().GetSHA(), pr.GetBase().GetRef(), pr.GetMergeCommitSHA()
		// A repository that is gone is somebody else's.
		e.Fork = !strings.EqualFold(pr.GetHead().GetRepo().GetFullName(), pr.GetBase().GetRepo().GetFullName()) || pr.GetHead().GetRepo() == nil
		if e.Pull <= 0 || e.Head == "" || e.Base == "" {
			return nil, fmt.Errorf("the event %s names no pull request: %w", name, ErrEvent)
		}
	case "push":
		var p github.PushEvent
		if err := read(&p); err != nil {
			return nil, err
		}
		e.Repo, e.Head, e.Base = p.GetRepo().GetFullName(), p.GetAfter(), p.GetBefore()
		branch, ok := strings.CutPrefix(p.GetRef(), "refs/heads/")
		e.Branch = branch
		switch {
		case p.GetRef() == "":
			return nil, fmt.Errorf("the push names no ref: %w", ErrEvent)
		case p.GetDeleted() || zero(e.Head):
			e.Head, e.Base, e.Why = "", "", "the branch was deleted"
		case !ok:
			e.Head, e.Base, e.Why = "", "", "a tag was pushed: what is published are commits of a branch"
		}
		if zero(e.Base) {
			e.Base = "" // the branch is new
			if def := p.GetRepo().GetDefaultBranch(); ok && def != branch {
				e.Main = def
			}
		}
	case "merge_group":
		var p github.MergeGroupEvent
		if err := read(&p); err != nil {
			return nil, err
		}
		g := p.GetMergeGroup()
		e.Action, e.Repo, e.Head, e.Base = p.GetAction(), p.GetRepo().GetFullName(), g.GetHeadSHA(), g.GetBaseSHA()
		e.Branch = strings.TrimPrefix(g.GetBaseRef(), "refs/heads/")
	default:
		return nil, fmt.Errorf("the event is %.40q: %w", name, ErrEvent)
	}
	for _, id := range []string{e.Head, e.Base, e.Merge} {
		if id != "" && !commitID.MatchString(id) {
			return nil, fmt.Errorf("the event %s holds %.80q where a commit id belongs", name, id)
		}
	}
	if e.Head == "" && e.Why == "" {
		return nil, fmt.Errorf("the event %s names no commit: %w", name, ErrEvent)
	}
	if e.Repo != "" && !repoName.MatchString(e.Repo) {
		return nil, fmt.Errorf("the event %s holds %.80q where a repository belongs", name, e.Repo)
	}
	return e, nil
}

// zero reports whether an id stands for no commit.
func zero(id string) bool { return strings.Trim(id, "0") == "" }
