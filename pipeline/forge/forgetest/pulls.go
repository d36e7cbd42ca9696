package forgetest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-github/v60/github"
)

const (
	docPulls   = "https://docs.github.com/en/rest/pulls/pulls"
	docReviews = "https://docs.github.com/en/rest/pulls/reviews#list-reviews-for-a-pull-request"
	docCommit  = "https://docs.github.com/en/rest/commits/commits#list-pull-requests-associated-with-a-commit"
	docCollabs = "https://docs.github.com/en/rest/collaborators/collaborators#get-repository-permissions-for-a-user"
	docTeams   = "https://docs.github.com/en/rest/teams/members#get-team-membership-for-a-user"
)

// Pull is a pull request to put there. Commit is what it was merged as; "" leaves it open.
type Pull struct {
	Number             int
	Author, Title      string
	Head, Commit, Base string   // Base is a branch, "main" if empty
	HeadRepo           string   // Repo if empty
	Commits            []string // that belong to it, beside Head and Commit
}

// Open puts a pull request there.
func (s *Server) Open(p Pull) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Base == "" {
		p.Base = "main"
	}
	if p.HeadRepo == "" {
		p.HeadRepo = Repo
	}
	pr := s.newPull(p.Number, p.Author, p.Title, "topic", p.Base)
	pr.Head.SHA, pr.Head.Repo = &p.Head, &github.Repository{FullName: github.String(p.HeadRepo)}
	if p.Commit != "" {
		s.merged(pr, p.Commit)
	}
	for _, c := range append(p.Commits, p.Head, p.Commit) {
		if c != "" && !slices.Contains(s.commits[c], p.Number) {
			s.commits[c] = append(s.commits[c], p.Number)
		}
	}
}

// Push moves the head of a pull request.
func (s *Server) Push(pull int, head string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pull(pull).Head.SHA = &head
}

// PullBranch names the head's branch of a pull request.
func (s *Server) PullBranch(pull int, branch string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pull(pull).Head.Ref = &branch
}

// Made is who made a commit, and what of.
type Made struct {
	By       string   // login of the committer; "" is GitHub itself, web-flow
	Unsigned bool     // it has no signature
	Reason   string   // why GitHub does not vouch for its signature, of those that the page lists; default "valid"
	Parents  []string // default: some commit, and the head of the pull request that was merged as it
	Compared string   // to any head: ahead, behind, diverged, identical
}

// Make says how a commit was made. One that nothing is said of GitHub made, as the button does.
func (s *Server) Make(commit string, m Made) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made[commit] = m
}

func parents(ids []string) []*github.Commit {
	out := []*github.Commit{}
	for _, id := range ids {
		out = append(out, &github.Commit{SHA: &id})
	}
	return out
}

func (s *Server) commitRoutes() {
	// https://docs.github.com/en/rest/commits/commits#get-a-commit
	s.route("GET /repos/{owner}/{repo}/commits/{sha}", "contents", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		sha := r.PathValue("sha")
		m := s.made[sha]
		if m.By == "" {
			m.By = "web-flow"
		}
		if m.Parents == nil {
			m.Parents = []string{strings.Repeat("0", 40)}
			for _, p := range s.pulls {
				if p.GetMergeCommitSHA() == sha {
					m.Parents = append(m.Parents, p.GetHead().GetSHA())
				}
			}
		}
		v := github.SignatureVerification{Verified: github.Bool(false), Reason: github.String("unsigned")}
		if !m.Unsigned {
			if m.Reason == "" {
				m.Reason = "valid"
			}
			v = github.SignatureVerification{Verified: github.Bool(m.Reason == "valid"), Reason: &m.Reason, Signature: github.String("-----BEGIN PGP SIGNATURE-----\n"), Payload: github.String("tree …")}
		}
		s.give(w, http.StatusOK, github.RepositoryCommit{SHA: &sha, Committer: &github.User{Login: &m.By}, Parents: parents(m.Parents), Commit: &github.Commit{Verification: &v}})
	})
	// https://docs.github.com/en/rest/commits/commits#compare-two-commits
	s.route("GET /repos/{owner}/{repo}/compare/{both}", "contents", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		base, sha, _ := strings.Cut(r.PathValue("both"), "...")
		status := s.made[sha].Compared
		if s.Git != "" && status == "" && s.hasCommit(base) && s.hasCommit(sha) {
			switch s.try("merge-base", base, sha) {
			case sha:
				status = "behind"
			case base:
				status = "ahead"
			default:
				status = "diverged"
			}
			if base == sha {
				status = "identical"
			}
		}
		if status == "" {
			status = "behind"
		}
		s.give(w, http.StatusOK, github.CommitsComparison{Status: &status})
	})
}

func (s *Server) newPull(n int, author, title, branch, base string) *github.PullRequest {
	pr := &github.PullRequest{
		Number: &n, ID: github.Int64(s.id()), State: github.String("open"), Title: &title, User: &github.User{Login: &author}, Merged: github.Bool(false),
		Head:    &github.PullRequestBranch{Ref: &branch, Repo: &github.Repository{FullName: github.String(Repo)}},
		Base:    &github.PullRequestBranch{Ref: &base, Repo: &github.Repository{FullName: github.String(Repo)}},
		HTMLURL: github.String(fmt.Sprintf("https://github.com/%s/pull/%d", Repo, n)),
	}
	s.pulls = append(s.pulls, pr)
	return pr
}

func (s *Server) merged(pr *github.PullRequest, commit string) {
	pr.State, pr.Merged, pr.MergeCommitSHA, pr.MergedAt = github.String("closed"), github.Bool(true), &commit, &github.Timestamp{Time: s.Now()}
	if !slices.Contains(s.commits[commit], pr.GetNumber()) {
		s.commits[commit] = append(s.commits[commit], pr.GetNumber())
	}
}

// Review adds a review: APPROVED, CHANGES_REQUESTED, COMMENTED, DISMISSED; of a commit of the head.
func (s *Server) Review(pull int, login, state, commit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reviews[pull] = append(s.reviews[pull], &github.PullRequestReview{ID: github.Int64(s.id()), User: &github.User{Login: &login}, State: &state, CommitID: &commit, SubmittedAt: &github.Timestamp{Time: s.Now()}})
}

// Permit says what somebody may do in the repository: admin, write, read.
func (s *Server) Permit(login, level string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.permissions[login] = level
}

// Team fills "org/slug".
func (s *Server) Team(team string, logins ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.teams[team] = logins
}

// Pulls are all pull requests, the oldest first.
func (s *Server) Pulls() []github.PullRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []github.PullRequest
	for _, p := range s.pulls {
		out = append(out, *p)
	}
	return out
}

// Merge merges an open pull request of the git repository behind, as the button does, and gives the commit.
func (s *Server) Merge(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	pr := s.pull(n)
	base := "refs/heads/" + pr.GetBase().GetRef()
	tip, head := s.git("rev-parse", base), s.git("rev-parse", "refs/heads/"+pr.GetHead().GetRef())
	tree := s.git("merge-tree", "--write-tree", tip, head)
	commit := s.git("commit-tree", tree, "-p", tip, "-p", head, "-m", fmt.Sprintf("Merge pull request #%d\n\n%s", n, pr.GetTitle()))
	s.git("update-ref", base, commit, tip)
	pr.Head.SHA = &head
	s.merged(pr, commit)
	return commit
}

func (s *Server) pull(n int) *github.PullRequest {
	for _, p := range s.pulls {
		if p.GetNumber() == n {
			return p
		}
	}
	return nil
}

func (s *Server) pullRoutes() {
	s.route("GET /repos/{owner}/{repo}/pulls/{n}", "pull_requests", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		if p := s.pull(int(number(r, "n"))); p != nil {
			s.give(w, http.StatusOK, p)
			return
		}
		s.refuse(w, http.StatusNotFound, "Not Found", docPulls)
	})
	s.route("GET /repos/{owner}/{repo}/pulls", "pull_requests", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		q := r.URL.Query()
		state := q.Get("state")
		if state == "" {
			state = "open" // docPulls
		}
		var list []*github.PullRequest
		for _, p := range slices.Backward(s.pulls) {
			from := strings.Split(p.GetHead().GetRepo().GetFullName(), "/")[0] + ":" + p.GetHead().GetRef()
			if (state == "all" || state == p.GetState()) && (q.Get("head") == "" || q.Get("head") == from) {
				list = append(list, p)
			}
		}
		page(s, w, r, list, nil)
	})
	s.route("POST /repos/{owner}/{repo}/pulls", "pull_requests", "write", s.postPull)
	s.route("GET /repos/{owner}/{repo}/commits/{sha}/pulls", "pull_requests", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		if s.Git != "" && !s.hasCommit(r.PathValue("sha")) {
			s.refuse(w, http.StatusUnprocessableEntity, "No commit found for SHA: "+r.PathValue("sha"), docCommit)
			return
		}
		var list []*github.PullRequest
		for _, n := range s.commits[r.PathValue("sha")] {
			p := *s.pull(n)
			p.Merged = nil // a list does not say; only merged_at does
			list = append(list, &p)
		}
		page(s, w, r, list, nil)
	})
	s.route("GET /repos/{owner}/{repo}/pulls/{n}/reviews", "pull_requests", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		page(s, w, r, s.reviews[int(number(r, "n"))], nil) // in chronological order: docReviews
	})
	s.route("GET /repos/{owner}/{repo}/collaborators/{login}/permission", "metadata", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		level := s.permissions[r.PathValue("login")]
		if level == "" {
			level = "none"
		}
		s.give(w, http.StatusOK, github.RepositoryPermissionLevel{Permission: &level}) // docCollabs
	})
	// https://docs.github.com/en/rest/teams/teams#get-a-team-by-name
	s.route("GET /orgs/{org}/teams/{slug}", "members", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		if _, there := s.teams[r.PathValue("org")+"/"+r.PathValue("slug")]; there {
			slug := r.PathValue("slug")
			s.give(w, http.StatusOK, github.Team{Slug: &slug})
			return
		}
		s.refuse(w, http.StatusNotFound, "Not Found", docTeams)
	})
	s.route("GET /orgs/{org}/teams/{slug}/memberships/{login}", "members", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		if slices.Contains(s.teams[r.PathValue("org")+"/"+r.PathValue("slug")], r.PathValue("login")) {
			s.give(w, http.StatusOK, github.Membership{State: github.String("active"), Role: github.String("member")})
			return
		}
		s.refuse(w, http.StatusNotFound, "Not Found", docTeams)
	})
}

func (s *Server) postPull(w http.ResponseWriter, r *http.Request, who Token) {
	var o github.NewPullRequest
	if !s.read(w, r, &o) {
		return
	}
	bad := func(message string) {
		s.invalid(w, docPulls+"#create-a-pull-request", github.Error{Resource: "PullRequest", Code: "custom", Message: message})
	}
	head, tip := "refs/heads/"+o.GetHead(), "refs/heads/"+o.GetBase()
	if s.try("rev-parse", "--verify", "-q", head) == "" {
		s.invalid(w, docPulls, github.Error{Resource: "PullRequest", Field: "head", Code: "invalid"})
		return
	}
	for _, p := range s.pulls {
		if p.GetState() == "open" && p.GetHead().GetRef() == o.GetHead() && p.GetBase().GetRef() == o.GetBase() {
			bad("A pull request already exists for acme:" + o.GetHead() + ".")
			return
		}
	}
	if s.git("rev-list", "--count", tip+".."+head) == "0" {
		bad("No commits between " + o.GetBase() + " and " + o.GetHead())
		return
	}
	if n := len([]rune(o.GetTitle())); n == 0 || n > 256 {
		bad("title is too long (maximum is 256 characters)")
		return
	}
	most := 0
	for _, p := range s.pulls {
		most = max(most, p.GetNumber())
	}
	pr := s.newPull(most+1, who.Login, o.GetTitle(), o.GetHead(), o.GetBase())
	pr.Body = o.Body
	pr.Head.SHA = github.String(s.git("rev-parse", head))
	pr.Base.SHA = github.String(s.git("rev-parse", tip))
	pr.CreatedAt = &github.Timestamp{Time: s.Now().Truncate(time.Second)}
	s.give(w, http.StatusCreated, pr)
}
