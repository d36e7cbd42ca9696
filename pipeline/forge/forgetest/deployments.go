package forgetest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/go-github/v60/github"
)

// docDeployments: 409 when commit statuses are not successful, unless required_contexts is an empty list. docDeployStatuses and docStatuses: a description has at most 140
// characters; a commit takes 1,000 statuses for each context.
const (
	docDeployments    = "https://docs.github.com/en/rest/deployments/deployments#create-a-deployment"
	docDeployStatuses = "https://docs.github.com/en/rest/deployments/statuses#create-a-deployment-status"
	docStatuses       = "https://docs.github.com/en/rest/commits/statuses#create-a-commit-status"
)

// Deployment is one with all that was said of it, the oldest first.
type Deployment struct {
	github.Deployment
	Statuses []*github.DeploymentStatus
}

// Deployments are those to an environment, the oldest first; "" is all.
func (s *Server) Deployments(environment string) []Deployment {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Deployment
	for _, d := range s.deployments {
		if environment == "" || d.GetEnvironment() == environment {
			c := *d
			c.Statuses = slices.Clone(d.Statuses)
			out = append(out, c)
		}
	}
	return out
}

// States are what was said of the deployment, in order: "queued: …".
func (d Deployment) States() []string {
	var out []string
	for _, s := range d.Statuses {
		out = append(out, s.GetState()+": "+s.GetDescription())
	}
	return out
}

// Statuses are those of a commit, the oldest first.
func (s *Server) Statuses(commit string) []github.RepoStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []github.RepoStatus
	for _, st := range s.statuses[commit] {
		out = append(out, *st)
	}
	return out
}

func (s *Server) deployRoutes() {
	s.route("GET /repos/{owner}/{repo}/deployments", "deployments", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		q := r.URL.Query()
		var list []*github.Deployment
		for _, d := range slices.Backward(s.deployments) {
			if (q.Get("sha") == "" || q.Get("sha") == d.GetSHA()) && (q.Get("environment") == "" || q.Get("environment") == d.GetEnvironment()) && (q.Get("task") == "" || q.Get("task") == d.GetTask()) {
				list = append(list, &d.Deployment)
			}
		}
		page(s, w, r, list, nil)
	})
	s.route("POST /repos/{owner}/{repo}/deployments", "deployments", "write", func(w http.ResponseWriter, r *http.Request, who Token) {
		var o github.DeploymentRequest
		if !s.read(w, r, &o) {
			return
		}
		if o.GetRef() == "" {
			s.invalid(w, docDeployments, github.Error{Resource: "Deployment", Field: "ref", Code: "missing_field"})
			return
		}
		if o.AutoMerge == nil || *o.AutoMerge { // "Attempts to automatically merge the default branch into the requested ref, if it's behind the default branch. Default: true"
			s.refuse(w, http.StatusConflict, "Conflict merging main into "+o.GetRef()+".", docDeployments)
			return
		}
		if o.RequiredContexts == nil || len(*o.RequiredContexts) > 0 {
			for _, st := range s.statuses[o.GetRef()] {
				if st.GetState() != "success" {
					s.refuse(w, http.StatusConflict, "Conflict: Commit status checks failed for "+o.GetRef()+".", docDeployments)
					return
				}
			}
		}
		id := s.id()
		d := &Deployment{Deployment: github.Deployment{ID: &id, SHA: o.Ref, Ref: o.Ref, Task: o.Task, Environment: o.Environment, Description: o.Description, CreatedAt: s.stamp()}}
		s.deployments = append(s.deployments, d)
		s.give(w, http.StatusCreated, d.Deployment)
	})
	s.route("GET /repos/{owner}/{repo}/deployments/{id}/statuses", "deployments", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		if d := s.deployment(number(r, "id")); d != nil {
			list := slices.Clone(d.Statuses)
			slices.Reverse(list)
			page(s, w, r, list, nil)
			return
		}
		s.refuse(w, http.StatusNotFound, "Not Found", docDeployStatuses)
	})
	s.route("POST /repos/{owner}/{repo}/deployments/{id}/statuses", "deployments", "write", s.postDeployStatus)
	s.route("POST /repos/{owner}/{repo}/statuses/{sha}", "statuses", "write", s.postStatus)
	s.route("GET /repos/{owner}/{repo}/commits/{sha}/statuses", "statuses", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		list := slices.Clone(s.statuses[r.PathValue("sha")])
		slices.Reverse(list)
		page(s, w, r, list, nil)
	})
}

func (s *Server) deployment(id int64) *Deployment {
	for _, d := range s.deployments {
		if d.GetID() == id {
			return d
		}
	}
	return nil
}

func (s *Server) postDeployStatus(w http.ResponseWriter, r *http.Request, who Token) {
	var o github.DeploymentStatusRequest
	if !s.read(w, r, &o) {
		return
	}
	d := s.deployment(number(r, "id"))
	switch {
	case d == nil:
		s.refuse(w, http.StatusNotFound, "Not Found", docDeployStatuses)
		return
	case !slices.Contains([]string{"error", "failure", "inactive", "in_progress", "queued", "pending", "success"}, o.GetState()):
		s.invalid(w, docDeployStatuses, github.Error{Resource: "DeploymentStatus", Field: "state", Code: "custom", Message: "state is not included in the list"})
		return
	case utf8.RuneCountInString(o.GetDescription()) > 140:
		s.invalid(w, docDeployStatuses, github.Error{Resource: "DeploymentStatus", Field: "description", Code: "custom", Message: "description is too long (maximum is 140 characters)"})
		return
	case o.GetLogURL() != "" && !strings.HasPrefix(o.GetLogURL(), "http"):
		s.invalid(w, docDeployStatuses, github.Error{Resource: "DeploymentStatus", Field: "log_url", Code: "custom", Message: "log_url must use http(s) scheme"})
		return
	}
	id := s.id()
	st := &github.DeploymentStatus{ID: &id, State: o.State, Description: o.Description, LogURL: o.LogURL, Environment: o.Environment, CreatedAt: s.stamp()}
	d.Statuses = append(d.Statuses, st)
	// "auto_inactive: adds a new inactive status to all prior non-transient, non-production environment deployments with the same repository and environment name".
	if o.GetState() == "success" && (o.AutoInactive == nil || *o.AutoInactive) {
		for _, prior := range s.deployments {
			if prior.GetID() < d.GetID() && prior.GetEnvironment() == d.GetEnvironment() && prior.last() == "success" {
				prior.Statuses = append(prior.Statuses, &github.DeploymentStatus{ID: github.Int64(s.id()), State: github.String("inactive"), Description: github.String("")})
			}
		}
	}
	s.give(w, http.StatusCreated, st)
}

func (d *Deployment) last() string {
	if len(d.Statuses) == 0 {
		return ""
	}
	return d.Statuses[len(d.Statuses)-1].GetState()
}

func (s *Server) postStatus(w http.ResponseWriter, r *http.Request, who Token) {
	var o github.RepoStatus
	if !s.read(w, r, &o) {
		return
	}
	sha := r.PathValue("sha")
	same := 0
	for _, st := range s.statuses[sha] {
		if st.GetContext() == o.GetContext() {
			same++
		}
	}
	switch {
	case !slices.Contains([]string{"error", "failure", "pending", "success"}, o.GetState()):
		s.invalid(w, docStatuses, github.Error{Resource: "Status", Field: "state", Code: "custom", Message: "state is not included in the list"})
		return
	case utf8.RuneCountInString(o.GetDescription()) > 140:
		s.invalid(w, docStatuses, github.Error{Resource: "Status", Field: "description", Code: "custom", Message: "description is too long (maximum is 140 characters)"})
		return
	case same >= 1000:
		s.invalid(w, docStatuses, github.Error{Resource: "Status", Field: "base", Code: "custom", Message: "This SHA and context has reached the maximum number of statuses."})
		return
	case len(sha) != 40 || s.Git != "" && !s.hasCommit(sha):
		s.refuse(w, http.StatusUnprocessableEntity, fmt.Sprintf("No commit found for SHA: %s", sha), docStatuses)
		return
	}
	id := s.id()
	o.ID, o.CreatedAt = &id, s.stamp()
	s.statuses[sha] = append(s.statuses[sha], &o)
	s.give(w, http.StatusCreated, o)
}
