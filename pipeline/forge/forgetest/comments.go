package forgetest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/go-github/v60/github"
)

// docComments; a body is refused by 422 "body is too long (maximum is 65536 characters)", a blank one by 422 "missing_field".
const docComments = "https://docs.github.com/en/rest/issues/comments"

// Comment puts somebody's comment onto a pull request.
func (s *Server) Comment(pull int, login, body string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.comment(pull, login, body).GetID()
}

func (s *Server) comment(pull int, login, body string) *github.IssueComment {
	id := s.id()
	k := &github.IssueComment{ID: &id, Body: &body, User: &github.User{Login: &login, ID: github.Int64(userID(login))}, CreatedAt: s.stamp(), HTMLURL: github.String(fmt.Sprintf("https://github.com/%s/pull/%d#issuecomment-%d", Repo, pull, id))}
	s.comments[pull] = append(s.comments[pull], k)
	return k
}

// Comments are those of a pull request by a login, "" is all.
func (s *Server) Comments(pull int, login string) []github.IssueComment {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []github.IssueComment
	for _, k := range s.comments[pull] {
		if login == "" || k.GetUser().GetLogin() == login {
			out = append(out, *k)
		}
	}
	return out
}

// Edit changes a comment as somebody with the right to would; "" deletes it.
func (s *Server) Edit(id int64, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pull, i := s.commentAt(id); i >= 0 {
		if body == "" {
			s.comments[pull] = slices.Delete(s.comments[pull], i, i+1)
			return
		}
		s.comments[pull][i].Body = &body
	}
}

func (s *Server) commentAt(id int64) (pull, at int) {
	for pull, list := range s.comments {
		if i := slices.IndexFunc(list, func(k *github.IssueComment) bool { return k.GetID() == id }); i >= 0 {
			return pull, i
		}
	}
	return 0, -1
}

func (s *Server) validBody(w http.ResponseWriter, body string) bool {
	switch n := utf8.RuneCountInString(body); {
	case strings.TrimSpace(body) == "":
		s.invalid(w, docComments, github.Error{Resource: "IssueComment", Field: "body", Code: "missing_field"})
	case n > 65536:
		s.invalid(w, docComments, github.Error{Resource: "IssueComment", Field: "body", Code: "custom", Message: "body is too long (maximum is 65536 characters)"})
	default:
		return true
	}
	return false
}

func (s *Server) commentRoutes() {
	s.route("GET /repos/{owner}/{repo}/issues/{n}/comments", "issues|pull_requests", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		page(s, w, r, s.comments[int(number(r, "n"))], nil)
	})
	s.route("POST /repos/{owner}/{repo}/issues/{n}/comments", "issues|pull_requests", "write", func(w http.ResponseWriter, r *http.Request, who Token) {
		var k github.IssueComment
		if !s.read(w, r, &k) || !s.validBody(w, k.GetBody()) {
			return
		}
		s.give(w, http.StatusCreated, s.comment(int(number(r, "n")), who.Login, k.GetBody()))
	})
	s.route("PATCH /repos/{owner}/{repo}/issues/comments/{id}", "issues|pull_requests", "write", func(w http.ResponseWriter, r *http.Request, who Token) {
		var k github.IssueComment
		if !s.read(w, r, &k) || !s.validBody(w, k.GetBody()) {
			return
		}
		pull, i := s.commentAt(number(r, "id"))
		if i < 0 {
			s.refuse(w, http.StatusNotFound, "Not Found", docComments)
			return
		}
		s.comments[pull][i].Body = k.Body
		s.give(w, http.StatusOK, s.comments[pull][i])
	})
	s.route("DELETE /repos/{owner}/{repo}/issues/comments/{id}", "issues|pull_requests", "write", func(w http.ResponseWriter, r *http.Request, who Token) {
		pull, i := s.commentAt(number(r, "id"))
		if i < 0 {
			s.refuse(w, http.StatusNotFound, "Not Found", docComments)
			return
		}
		s.comments[pull] = slices.Delete(s.comments[pull], i, i+1)
		w.WriteHeader(http.StatusNoContent)
	})
}
