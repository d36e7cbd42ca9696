package forge_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

// merged is what an attribution says: "17 ana [ben eve]".
func (w *world) merged(commit string) string {
	w.Helper()
	a, err := w.client.Attribution(w.Context(), commit, "main")
	w.ok(err)
	return fmt.Sprint(a.Number, " ", a.Author, " ", a.Approvers)
}

// Approvals count that are somebody's last word on exactly what was merged, of people who may write, and who did not write it.
func TestAttribution(t *testing.T) {
	const old = "3333333333333333333333333333333333333333"
	type review struct{ who, state, commit string }
	for _, tt := range []struct {
		name    string
		reviews []review
		want    string
	}{
		{"nobody", nil, "17 ana []"},
		{"one", []review{{"ben", "APPROVED", head}}, "17 ana [ben]"},
		{"two, and a comment after", []review{{"eve", "APPROVED", head}, {"ben", "APPROVED", head}, {"ben", "COMMENTED", head}}, "17 ana [ben eve]"},
		{"of an older head", []review{{"ben", "APPROVED", old}}, "17 ana []"},
		{"of an older head, and again", []review{{"ben", "APPROVED", old}, {"ben", "APPROVED", head}}, "17 ana [ben]"},
		{"then changes asked for", []review{{"ben", "APPROVED", head}, {"ben", "CHANGES_REQUESTED", head}}, "17 ana []"},
		{"then dismissed", []review{{"ben", "APPROVED", head}, {"ben", "DISMISSED", head}}, "17 ana []"},
		{"the author's own", []review{{"ana", "APPROVED", head}, {"ANA", "APPROVED", head}}, "17 ana []"},
		{"of one who may only read", []review{{"mallory", "APPROVED", head}}, "17 ana []"},
		{"of a stranger", []review{{"nobody", "APPROVED", head}}, "17 ana []"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := start(t)
			for who, level := range map[string]string{"ana": "admin", "ANA": "admin", "ben": "write", "eve": "admin", "mallory": "read"} {
				w.Permit(who, level)
			}
			w.Open(forgetest.Pull{Number: 17, Author: "ana", Head: head, Commit: other})
			for _, r := range tt.reviews {
				w.Review(17, r.who, r.state, r.commit)
			}
			if got := w.merged(other); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// The pull request that a commit was merged by, not one that is open, goes to another branch, or merely contains it.
func TestAttributionChoice(t *testing.T) {
	w := start(t)
	if got := w.merged(other); got != "0  []" {
		t.Errorf("a direct push: %s", got)
	}
	w.Open(forgetest.Pull{Number: 1, Author: "eve", Head: head, Commits: []string{other}})
	w.Open(forgetest.Pull{Number: 2, Author: "eve", Head: head, Commit: head, Base: "release", Commits: []string{other}})
	w.Open(forgetest.Pull{Number: 3, Author: "ben", Head: head, Commit: head, Commits: []string{other}})
	if got := w.merged(other); got != "3 ben []" {
		t.Errorf("contained: %s", got)
	}
	w.Open(forgetest.Pull{Number: 4, Author: "ana", Head: head, Commit: other})
	if got := w.merged(other); got != "4 ana []" {
		t.Errorf("merged as: %s", got)
	}
	w.Forget()
	for range 150 { // the last word is on the second page
		w.Review(4, "ben", "COMMENTED", head)
	}
	w.Permit("ben", "write")
	w.Review(4, "ben", "APPROVED", head)
	if got := w.merged(other); got != "4 ana [ben]" {
		t.Errorf("second page: %s", got)
	}
	w.equal(w.calls(), []string{"GET /commits/" + other + "/pulls 304", "GET /commits/" + other + " 304", "GET /pulls/4/reviews 200", "GET /pulls/4/reviews 200", "GET /collaborators/ben/permission 200"})
}

// Approvals are of a head: what somebody made of it by hand may hold anything, also when GitHub takes the pull request for merged.
func TestAttributionByHand(t *testing.T) {
	const base = "4444444444444444444444444444444444444444"
	for _, tt := range []struct {
		name  string
		as    string
		made  forgetest.Made
		count bool
	}{
		{"the very head", head, forgetest.Made{By: "ana", Unsigned: true, Compared: "identical"}, true},
		{"merged by GitHub", other, forgetest.Made{Parents: []string{base, head}, Compared: "ahead"}, true},
		{"squashed by GitHub", other, forgetest.Made{Parents: []string{base}, Compared: "diverged"}, true},
		{"rebased by GitHub", other, forgetest.Made{By: "eve", Unsigned: true, Parents: []string{base}, Compared: "diverged"}, true},
		{"merged by hand", other, forgetest.Made{By: "eve", Parents: []string{base, head}, Compared: "ahead"}, false},
		{"merged by hand, as GitHub", other, forgetest.Made{Unsigned: true, Parents: []string{base, head}, Compared: "ahead"}, false},
		{"merged by GitHub, of something else", other, forgetest.Made{Parents: []string{base, base}, Compared: "ahead"}, false},
		{"something on top of the head", other, forgetest.Made{By: "eve", Unsigned: true, Parents: []string{head}, Compared: "ahead"}, false},
		{"merged by hand without the head", other, forgetest.Made{By: "eve", Unsigned: true, Parents: []string{base, base}, Compared: "diverged"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := start(t)
			w.Permit("ben", "write")
			w.Open(forgetest.Pull{Number: 17, Author: "ana", Head: head, Commit: tt.as})
			w.Review(17, "ben", "APPROVED", head)
			w.Make(tt.as, tt.made)
			a, err := w.client.Attribution(t.Context(), tt.as, "main")
			w.ok(err)
			if a.Number != 17 || (a.ByHand == "") != tt.count || (len(a.Approvers) == 1) != tt.count {
				t.Errorf("%+v", a)
			}
		})
	}
	// A commit of the head's history is in what was approved.
	w := start(t)
	w.Permit("ben", "write")
	w.Open(forgetest.Pull{Number: 17, Author: "ana", Head: head, Commit: head, Commits: []string{other}})
	w.Review(17, "ben", "APPROVED", head)
	w.Make(other, forgetest.Made{By: "ana", Unsigned: true, Parents: []string{base}, Compared: "behind"})
	if got := w.merged(other); got != "17 ana [ben]" {
		t.Error(got)
	}
}

// TestSigner: who signed a commit is named only if GitHub vouches for the signature, and with who verified it.
func TestSigner(t *testing.T) {
	for _, tt := range []struct {
		name string
		made forgetest.Made
		want string
	}{
		{"merged by GitHub", forgetest.Made{}, "web-flow (verified by 127.0.0.1)"},
		{"signed by a person", forgetest.Made{By: "ana"}, "ana (verified by 127.0.0.1)"},
		{"signed by an app", forgetest.Made{By: "renovate[bot]"}, "renovate[bot] (verified by 127.0.0.1)"},
		{"not signed", forgetest.Made{By: "ana", Unsigned: true}, ""},
		{"key not known", forgetest.Made{By: "ana", Reason: "unknown_key"}, ""},
		{"address of somebody else", forgetest.Made{By: "ana", Reason: "bad_email"}, ""},
		{"expired", forgetest.Made{By: "ana", Reason: "expired_key"}, ""},
		{"could not be verified now", forgetest.Made{By: "ana", Reason: "gpgverify_unavailable"}, ""},
		{"a name that is none", forgetest.Made{By: "ana (verified by github.com)\n"}, ""},
	} {
		w := start(t)
		w.Make(other, tt.made)
		for _, number := range []int{0, 17} { // without a pull request, and by one
			if number > 0 {
				w.Open(forgetest.Pull{Number: number, Author: "ana", Head: head, Commit: other})
			}
			a, err := w.client.Attribution(t.Context(), other, "main")
			w.ok(err)
			if a.Signer != tt.want || a.Number != number || a.Made != (tt.made.By == "") {
				t.Errorf("%s: %+v, want %q", tt.name, a, tt.want)
			}
		}
	}
	// A complaint of GitHub beside a "verified", and an answer about another commit, are nobody's word.
	w := start(t)
	for answer, want := range map[string]string{
		`{"sha":"` + other + `","committer":{"login":"ana"},"commit":{"verification":{"verified":true,"reason":"unknown_key","signature":"x"}}}`: "",
		`{"sha":"` + other + `","committer":{"login":"ana"},"commit":{"verification":{"verified":false,"reason":"valid","signature":"x"}}}`:      "",
		`{"sha":"` + other + `","committer":null,"commit":{"verification":{"verified":true,"reason":"valid","signature":"x"}}}`:                  "",
		`{"sha":"` + other + `","committer":{"login":"ana"},"commit":{"verification":{"verified":true,"reason":"valid"}}}`:                       "",
		`{"sha":"` + head + `","committer":{"login":"ana"},"commit":{"verification":{"verified":true,"reason":"valid","signature":"x"}}}`:        "another commit",
	} {
		w.Before = func(c forgetest.Call) *forgetest.Reply {
			if strings.HasSuffix(c.Path, "/commits/"+other) {
				return &forgetest.Reply{Status: 200, Body: answer}
			}
			return nil
		}
		a, err := w.client.Attribution(t.Context(), other, "main")
		if want == "" {
			w.ok(err)
			if a.Signer != "" {
				t.Errorf("%s: %q", answer, a.Signer)
			}
			continue
		}
		w.want(err, forge.ErrUnreachable, want)
	}
}

// Who left a team is asked about again, in a process that runs on.
func TestMemberLeaves(t *testing.T) {
	w := start(t)
	w.Team("acme/payments", "ben")
	in := func() bool {
		is, err := w.client.Member(t.Context(), "acme/payments", "ben")
		w.ok(err)
		return is
	}
	if !in() {
		t.Error("ben is not in")
	}
	w.Team("acme/payments")
	w.ok(w.clock.Sleep(t.Context(), time.Minute))
	if !in() || len(w.Calls()) != 1 {
		t.Errorf("asked again within a minute: %v", w.calls())
	}
	w.ok(w.clock.Sleep(t.Context(), 2*time.Minute))
	if in() {
		t.Error("ben is still in")
	}
}

func TestMember(t *testing.T) {
	w := start(t)
	w.Team("acme/payments", "ben")
	for who, want := range map[string]bool{"ben": true, "eve": false} {
		for range 2 {
			in, err := w.client.Member(t.Context(), "acme/payments", who)
			w.ok(err)
			if in != want {
				t.Errorf("%s: %t", who, in)
			}
		}
	}
	if len(w.Calls()) != 3 { // and whether the team is there at all
		t.Errorf("%v", w.calls())
	}
	_, err := w.client.Member(t.Context(), "payments", "ben")
	w.want(err, forge.ErrInvalid, "org/team")
	// A team that is not there, or is hidden, is no team without ben in it.
	_, err = w.client.Member(t.Context(), "acme/paymnets", "ben")
	w.want(err, forge.ErrNotFound, "look at team acme/paymnets")
	w.Allow(token, forgetest.Token{Login: bot, Installation: true, May: map[string]string{"contents": "read", "pull_requests": "read", "statuses": "write", "metadata": "read"}}) // a workflow's own
	_, err = w.open().Member(t.Context(), "acme/payments", "ben")
	w.want(err, forge.ErrDenied, "not accessible")
}

// repo is a bare repository with a history to write.
type repo struct {
	testing.TB
	dir string
}

func newRepo(t testing.TB) *repo {
	r := &repo{t, filepath.Join(t.TempDir(), "config.git")}
	if out, err := exec.Command("git", "init", "-q", "--bare", "-b", "main", r.dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v %s", err, out)
	}
	return r
}

func (r *repo) git(args ...string) string {
	r.Helper()
	cmd := exec.Command("git", append([]string{"-C", r.dir}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=ana", "GIT_AUTHOR_EMAIL=a@acme.test", "GIT_COMMITTER_NAME=ana", "GIT_COMMITTER_EMAIL=a@acme.test")
	cmd.Stdin = nil
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit puts files onto main; "" deletes. It is one process: there are many commits.
func (r *repo) commit(files map[string]string) string {
	r.Helper()
	var in strings.Builder
	in.WriteString("commit refs/heads/main\ncommitter ana <a@acme.test> 1790000000 +0000\ndata 6\nchange\n")
	if r.has("refs/heads/main") {
		in.WriteString("from refs/heads/main^0\n")
	}
	for name, text := range files {
		if text == "" {
			fmt.Fprintf(&in, "D %s\n", name)
			continue
		}
		fmt.Fprintf(&in, "M 100644 inline %s\ndata %d\n%s\n", name, len(text), text)
	}
	cmd := exec.Command("git", "-C", r.dir, "fast-import", "--quiet", "--force")
	cmd.Stdin = strings.NewReader(in.String() + "\ndone\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("git fast-import: %v\n%s", err, out)
	}
	return r.git("rev-parse", "main")
}

func (r *repo) has(ref string) bool {
	return exec.Command("git", "-C", r.dir, "rev-parse", "-q", "--verify", ref).Run() == nil
}

func (r *repo) files(rev string) []string {
	return strings.Split(r.git("ls-tree", "-r", "--format=%(path) %(objectname)", rev), "\n")
}

func revert(good, bad string) forge.Revert {
	return forge.Revert{Branch: "main", Name: "muster/revert-2", Good: good, Bad: bad, Title: "Revert epoch 2", Body: "It failed."}
}

// A revert is asked for once, whatever becomes of the request.
func TestRevertOnce(t *testing.T) {
	w := start(t)
	r := newRepo(t)
	w.Git = r.dir
	good := r.commit(map[string]string{"a": "1", "b": "1", "c/d": "1"})
	bad := r.commit(map[string]string{"a": "2", "b": "", "new": "1"})
	p, made, err := w.client.Revert(t.Context(), revert(good, bad))
	w.ok(err)
	if !made || p.Number != 1 || p.BaseBranch != "main" || !slices.Equal(r.files("refs/heads/muster/revert-2"), r.files(good)) {
		t.Errorf("%+v %t: %v", p, made, r.files("refs/heads/muster/revert-2"))
	}
	if n := len(w.Calls()); n > 11 {
		t.Errorf("%d requests: %v", n, w.calls())
	}
	w.Forget()
	again, made, err := w.client.Revert(t.Context(), revert(good, bad))
	w.ok(err)
	if made || again.Number != 1 || len(w.Calls()) != 1 {
		t.Errorf("%+v %t %v", again, made, w.calls())
	}
	merged := w.Merge(1)
	if !slices.Equal(r.files(merged), r.files(good)) {
		t.Error("merged, it is not what was good")
	}
	if again, made, err = w.client.Revert(t.Context(), revert(good, bad)); err != nil || made || !again.Merged || len(w.Pulls()) != 1 {
		t.Errorf("%+v %t %v", again, made, err)
	}
}

// A branch of that name is adopted only if it holds what the revert would.
func TestRevertAdopts(t *testing.T) {
	r := newRepo(t)
	good := r.commit(map[string]string{"a": "1"})
	bad := r.commit(map[string]string{"a": "2"})
	tree := r.git("rev-parse", good+"^{tree}")
	evil := r.git("rev-parse", bad+"^{tree}")
	for name, tt := range map[string]struct {
		args  []string
		adopt bool
	}{
		"ours":          {[]string{tree, "-p", bad}, true},
		"other content": {[]string{evil, "-p", bad}, false},
		"other parent":  {[]string{tree, "-p", good}, false},
		"two parents":   {[]string{tree, "-p", bad, "-p", good}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.Git = r.dir
			r.git("update-ref", "refs/heads/muster/revert-2", r.git(append([]string{"commit-tree", "-m", "x"}, tt.args...)...))
			_, made, err := w.client.Revert(t.Context(), revert(good, bad))
			if tt.adopt {
				w.ok(err)
			} else {
				w.want(err, forge.ErrConflict, "branch muster/revert-2 is there already and holds something else")
			}
			if made != tt.adopt || len(w.Pulls()) == 1 != tt.adopt {
				t.Errorf("made %t, %d pull requests", made, len(w.Pulls()))
			}
		})
	}
}

// What others changed since stays; what was changed again is a conflict for people.
func TestRevertLater(t *testing.T) {
	w := start(t)
	r := newRepo(t)
	w.Git = r.dir
	good := r.commit(map[string]string{"a": "1", "b": "1", "gone": "1", "keep": "1"})
	bad := r.commit(map[string]string{"a": "2", "new": "1", "gone": ""})
	r.commit(map[string]string{"keep": "2"})
	p, _, err := w.client.Revert(t.Context(), revert(good, bad))
	w.ok(err)
	want := r.commit(map[string]string{"a": "1", "new": "", "gone": "1"}) // by hand
	if got := r.files("refs/heads/" + p.HeadBranch); !slices.Equal(got, r.files(want)) {
		t.Errorf("%v\nwant %v", got, r.files(want))
	}

	x := start(t)
	x.Git = r.dir
	worse := r.commit(map[string]string{"a": "3"})
	r.commit(map[string]string{"a": "4"})
	v := revert(want, worse)
	v.Name = "muster/revert-3"
	_, _, err = x.client.Revert(t.Context(), v)
	x.want(err, forge.ErrConflict, "a: changed again since")
	r.commit(map[string]string{"a": "1"})
	_, _, err = x.client.Revert(t.Context(), v)
	x.want(err, forge.ErrConflict, "holds none of it any more")
	if len(x.Pulls()) != 0 {
		t.Error("asked for all the same")
	}
}

// Each request of a revert may lose its answer; there is one pull request in the end.
func TestRevertAnswersLost(t *testing.T) {
	r := newRepo(t)
	good := r.commit(map[string]string{"a": "1", "b": "1"})
	bad := r.commit(map[string]string{"a": "2"})
	r.commit(map[string]string{"b": "2"})
	for lost := 0; ; lost++ {
		w := start(t)
		w.Git = r.dir
		n := 0
		w.Before = func(c forgetest.Call) *forgetest.Reply {
			if n++; n-1 == lost {
				return &forgetest.Reply{Cut: true, Done: true}
			}
			return nil
		}
		_, _, err := w.client.Revert(t.Context(), revert(good, bad))
		w.ok(err)
		if got := w.Pulls(); len(got) != 1 {
			t.Errorf("answer %d lost: %d pull requests", lost, len(got))
		}
		r.git("update-ref", "-d", "refs/heads/muster/revert-2")
		if n <= lost { // none was lost: that were all
			break
		}
	}
}

// Two publishers that find the same failure at once ask for one pull request, whoever is first at whatever point.
func TestRevertByTwo(t *testing.T) {
	for range 2 {
		r := newRepo(t)
		good := r.commit(map[string]string{"a": "1", "b": "1"})
		bad := r.commit(map[string]string{"a": "2", "b": ""})
		w := start(t)
		w.Git = r.dir
		type answer struct {
			p    *forge.Pull
			made bool
			err  error
		}
		answers := make(chan answer)
		for range 3 {
			go func(c *forge.Client) {
				p, made, err := c.Revert(t.Context(), revert(good, bad))
				answers <- answer{p, made, err}
			}(w.open())
		}
		made := 0
		for range 3 {
			a := <-answers
			if a.err != nil {
				t.Error(a.err)
				continue
			}
			if a.p.Number != 1 {
				t.Errorf("pull request %d", a.p.Number)
			}
			if a.made {
				made++
			}
		}
		if got := w.Pulls(); made != 1 || len(got) != 1 || r.git("rev-parse", "muster/revert-2^{tree}") != r.git("rev-parse", good+"^{tree}") {
			t.Errorf("made %d times, %d pull requests", made, len(got))
		}
	}
}

// Who stopped between the branch and the pull request, while others merged, takes the branch up again; a branch with anything else in it is nobody's to take up.
func TestRevertTakenUp(t *testing.T) {
	for name, evil := range map[string]bool{"ours": false, "somebody's": true} {
		r := newRepo(t)
		good := r.commit(map[string]string{"a": "1"})
		bad := r.commit(map[string]string{"a": "2"})
		w := start(t)
		w.Git = r.dir
		w.Before = func(c forgetest.Call) *forgetest.Reply {
			if c.Method == "POST" && strings.HasSuffix(c.Path, "/pulls") {
				return &forgetest.Reply{Status: 403, Body: `{"message":"stopped here"}`}
			}
			return nil
		}
		if _, _, err := w.client.Revert(t.Context(), revert(good, bad)); err == nil {
			t.Fatal("not stopped")
		}
		w.Before = nil
		r.commit(map[string]string{"b": "others"})
		if evil {
			main := r.git("rev-parse", "main")
			tree := r.git("rev-parse", r.commit(map[string]string{"a": "1"})+"^{tree}") // just what the revert is
			r.git("update-ref", "refs/heads/main", main)
			stray := r.git("commit-tree", "-m", "not of the branch", "-p", bad, r.git("rev-parse", "main^{tree}"))
			r.git("update-ref", "refs/heads/muster/revert-2", r.git("commit-tree", "-m", "revert", "-p", stray, tree))
		}
		p, made, err := w.open().Revert(t.Context(), revert(good, bad))
		if evil {
			w.want(err, forge.ErrConflict, "holds something else")
			continue
		}
		if err != nil || !made || p.Number != 1 {
			t.Errorf("%s: %+v %t %v", name, p, made, err)
		}
	}
}
