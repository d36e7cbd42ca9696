package forgetest

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-github/v60/github"
)

const (
	docTrees   = "https://docs.github.com/en/rest/git/trees" // a recursive tree has at most 100,000 entries and 7 MB; else truncated is true
	docCommits = "https://docs.github.com/en/rest/git/commits"
	docRefs    = "https://docs.github.com/en/rest/git/refs#create-a-reference"
	maxEntries = 100_000
)

// git runs the real thing in the repository behind.
func (s *Server) git(args ...string) string {
	out, err := s.run(nil, args...)
	if err != nil {
		s.t.Errorf("git %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// try is git, "" for what is not there.
func (s *Server) try(args ...string) string {
	out, err := s.run(nil, args...)
	if err != nil {
		return ""
	}
	return out
}

func (s *Server) run(env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), "git", append([]string{"-C", s.Git}, args...)...)
	cmd.Env = append(os.Environ(), append(env, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=web", "GIT_AUTHOR_EMAIL=web@acme.test", "GIT_COMMITTER_NAME=GitHub", "GIT_COMMITTER_EMAIL=noreply@github.com")...)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

func (s *Server) hasCommit(sha string) bool { return s.try("cat-file", "-t", sha) == "commit" }

func (s *Server) gitRoutes() {
	missing := func(w http.ResponseWriter, doc string) { s.refuse(w, http.StatusNotFound, "Not Found", doc) }
	s.route("GET /repos/{owner}/{repo}/git/ref/{ref...}", "contents", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		name := "refs/" + r.PathValue("ref")
		id := s.try("rev-parse", "--verify", "-q", name)
		if id == "" {
			missing(w, docRefs)
			return
		}
		s.give(w, http.StatusOK, github.Reference{Ref: &name, Object: &github.GitObject{SHA: &id, Type: github.String("commit")}})
	})
	s.route("POST /repos/{owner}/{repo}/git/refs", "contents", "write", func(w http.ResponseWriter, r *http.Request, who Token) {
		var o struct {
			Ref *string `json:"ref"`
			SHA *string `json:"sha"`
		}
		if !s.read(w, r, &o) {
			return
		}
		switch {
		case s.try("rev-parse", "--verify", "-q", *o.Ref) != "":
			s.refuse(w, http.StatusUnprocessableEntity, "Reference already exists", docRefs)
		case !s.hasCommit(*o.SHA):
			s.refuse(w, http.StatusUnprocessableEntity, "Object does not exist", docRefs)
		default:
			s.git("update-ref", *o.Ref, *o.SHA)
			s.give(w, http.StatusCreated, github.Reference{Ref: o.Ref, Object: &github.GitObject{SHA: o.SHA}})
		}
	})
	s.route("GET /repos/{owner}/{repo}/git/commits/{sha}", "contents", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		sha := r.PathValue("sha")
		if !s.hasCommit(sha) {
			missing(w, docCommits)
			return
		}
		s.give(w, http.StatusOK, github.Commit{SHA: &sha, Tree: &github.Tree{SHA: github.String(s.git("rev-parse", sha+"^{tree}"))}, Parents: parents(strings.Fields(s.git("rev-list", "--parents", "-n1", sha))[1:])})
	})
	s.route("POST /repos/{owner}/{repo}/git/commits", "contents", "write", func(w http.ResponseWriter, r *http.Request, who Token) {
		var o struct { // go-github's own type for it is not exported
			Author    *github.CommitAuthor `json:"author,omitempty"`
			Committer *github.CommitAuthor `json:"committer,omitempty"`
			Message   *string              `json:"message,omitempty"`
			Tree      *string              `json:"tree,omitempty"`
			Parents   []string             `json:"parents,omitempty"`
			Signature *string              `json:"signature,omitempty"`
		}
		if !s.read(w, r, &o) {
			return
		}
		if o.Message == nil || o.Tree == nil || s.try("cat-file", "-t", *o.Tree) != "tree" {
			s.invalid(w, docCommits, github.Error{Resource: "Commit", Field: "tree", Code: "invalid"})
			return
		}
		args := []string{"commit-tree", *o.Tree, "-m", *o.Message}
		for _, p := range o.Parents {
			args = append(args, "-p", p)
		}
		s.give(w, http.StatusCreated, github.Commit{SHA: github.String(s.git(args...)), Tree: &github.Tree{SHA: o.Tree}})
	})
	s.route("GET /repos/{owner}/{repo}/git/trees/{sha}", "contents", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		sha := r.PathValue("sha")
		if s.try("cat-file", "-t", sha) != "tree" {
			missing(w, docTrees)
			return
		}
		args := []string{"ls-tree", "-z", "--full-tree", sha}
		if r.URL.Query().Get("recursive") != "" {
			args = []string{"ls-tree", "-z", "-r", "-t", "--full-tree", sha}
		}
		tree := github.Tree{SHA: &sha, Truncated: github.Bool(false)}
		for rec := range strings.SplitSeq(strings.TrimRight(s.git(args...), "\x00"), "\x00") {
			meta, path, ok := strings.Cut(rec, "\t")
			f := strings.Fields(meta)
			if !ok || len(f) != 3 {
				continue
			}
			if len(tree.Entries) == maxEntries {
				tree.Truncated = github.Bool(true)
				break
			}
			tree.Entries = append(tree.Entries, &github.TreeEntry{Mode: &f[0], Type: &f[1], SHA: &f[2], Path: &path})
		}
		s.give(w, http.StatusOK, tree)
	})
	s.route("POST /repos/{owner}/{repo}/git/trees", "contents", "write", s.postTree)
}

func (s *Server) postTree(w http.ResponseWriter, r *http.Request, who Token) {
	var o struct {
		BaseTree string              `json:"base_tree,omitempty"`
		Entries  []*github.TreeEntry `json:"tree"`
	}
	if !s.read(w, r, &o) {
		return
	}
	dir := s.t.TempDir()
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(dir, "index"), "GIT_DIR=" + s.Git, "GIT_WORK_TREE=" + dir}
	if _, err := s.run(index, "read-tree", o.BaseTree); err != nil {
		s.invalid(w, docTrees, github.Error{Resource: "Tree", Field: "base_tree", Code: "invalid"})
		return
	}
	for _, e := range o.Entries {
		args := []string{"update-index", "--force-remove", e.GetPath()} // sha null deletes: docTrees
		if e.Content != nil {                                           // GitHub makes the blob: docTrees
			file := filepath.Join(dir, "content")
			if err := os.WriteFile(file, []byte(e.GetContent()), 0o600); err != nil {
				s.t.Error(err)
			}
			e.SHA = github.String(s.git("hash-object", "-w", "--no-filters", file))
		}
		if e.SHA != nil {
			args = []string{"update-index", "--add", "--cacheinfo", e.GetMode() + "," + e.GetSHA() + "," + e.GetPath()}
		}
		if _, err := s.run(index, args...); err != nil {
			s.invalid(w, docTrees, github.Error{Resource: "Tree", Field: "tree", Code: "invalid"})
			return
		}
	}
	sha, err := s.run(index, "write-tree")
	if err != nil {
		s.invalid(w, docTrees, github.Error{Resource: "Tree", Field: "tree", Code: "invalid"})
		return
	}
	s.give(w, http.StatusCreated, github.Tree{SHA: &sha})
}
