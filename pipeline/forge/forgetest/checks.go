package forgetest

import (
	"fmt"
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/google/go-github/v60/github"
)

// docChecks: "The Checks API limits the number of annotations to a maximum of 50 per API request"; summary and text: "Maximum length: 65535 characters"; an annotation's message
// and raw details: 64 KB, its title 255 characters; columns "only if start_line and end_line have the same value"; conclusion "Required if you provide a status of completed".
const docChecks = "https://docs.github.com/en/rest/checks/runs#create-a-check-run"

// Check is a check run as it stands.
type Check struct {
	github.CheckRun
	Annotations []*github.CheckRunAnnotation // all that were sent, in order
}

// Checks are the check runs of a commit, the oldest first; "" is all.
func (s *Server) Checks(commit string) []Check {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Check
	for _, k := range s.checks {
		if commit == "" || k.GetHeadSHA() == commit {
			c := *k
			c.Annotations = slices.Clone(k.Annotations)
			out = append(out, c)
		}
	}
	return out
}

func (s *Server) checkRoutes() {
	s.route("POST /repos/{owner}/{repo}/check-runs", "checks", "write", func(w http.ResponseWriter, r *http.Request, who Token) {
		if !byApp(s, w, who) {
			return
		}
		var o github.CreateCheckRunOptions
		if !s.read(w, r, &o) {
			return
		}
		if o.Name == "" || o.HeadSHA == "" {
			s.refuse(w, http.StatusUnprocessableEntity, "Invalid request.\n\n\"name\", \"head_sha\" weren't supplied.", docChecks)
			return
		}
		if !s.validCheck(w, o.Status, o.Conclusion, o.Output) {
			return
		}
		id := s.id()
		k := &Check{CheckRun: github.CheckRun{
			ID: &id, Name: &o.Name, HeadSHA: &o.HeadSHA, ExternalID: o.ExternalID, DetailsURL: o.DetailsURL, Status: o.Status, Conclusion: o.Conclusion,
			Output: &github.CheckRunOutput{}, CompletedAt: o.CompletedAt, HTMLURL: github.String(fmt.Sprintf("https://github.com/%s/runs/%d", Repo, id)),
		}}
		s.checks = append(s.checks, k)
		k.take(o.Output)
		s.give(w, http.StatusCreated, k.CheckRun)
	})
	s.route("PATCH /repos/{owner}/{repo}/check-runs/{id}", "checks", "write", func(w http.ResponseWriter, r *http.Request, who Token) {
		if !byApp(s, w, who) {
			return
		}
		var o github.UpdateCheckRunOptions
		if !s.read(w, r, &o) {
			return
		}
		i := slices.IndexFunc(s.checks, func(k *Check) bool { return k.GetID() == number(r, "id") })
		if i < 0 {
			s.refuse(w, http.StatusNotFound, "Not Found", docChecks)
			return
		}
		if !s.validCheck(w, o.Status, o.Conclusion, o.Output) {
			return
		}
		k := s.checks[i]
		if o.Status != nil {
			k.Status = o.Status
		}
		if o.Conclusion != nil {
			k.Conclusion, k.CompletedAt, k.Status = o.Conclusion, o.CompletedAt, github.String("completed")
		}
		k.take(o.Output)
		s.give(w, http.StatusOK, k.CheckRun)
	})
	s.route("GET /repos/{owner}/{repo}/commits/{sha}/check-runs", "checks", "read", func(w http.ResponseWriter, r *http.Request, who Token) {
		var list []*github.CheckRun
		for _, k := range slices.Backward(s.checks) {
			if name := r.URL.Query().Get("check_name"); k.GetHeadSHA() == r.PathValue("sha") && (name == "" || name == k.GetName()) {
				list = append(list, &k.CheckRun)
			}
		}
		page(s, w, r, list, func(p []*github.CheckRun) any {
			return github.ListCheckRunsResults{Total: github.Int(len(list)), CheckRuns: p}
		})
	})
}

// byApp refuses persons: "Write permission for the REST API to interact with checks is only available to GitHub Apps" (docChecks).
func byApp(s *Server, w http.ResponseWriter, who Token) bool {
	if !who.Installation {
		s.refuse(w, http.StatusForbidden, "You must authenticate via a GitHub App.", docChecks)
	}
	return who.Installation
}

// take adds annotations to those there are: "each time you update the check run, annotations are appended" (docChecks).
func (k *Check) take(o *github.CheckRunOutput) {
	if o == nil {
		return
	}
	k.Annotations = append(k.Annotations, o.Annotations...)
	out := *o
	out.Annotations, out.AnnotationsCount = nil, github.Int(len(k.Annotations))
	k.Output = &out
}

func (s *Server) validCheck(w http.ResponseWriter, status, conclusion *string, o *github.CheckRunOutput) bool {
	bad := func(format string, args ...any) bool {
		s.refuse(w, http.StatusUnprocessableEntity, "Invalid request.\n\n"+fmt.Sprintf(format, args...), docChecks)
		return false
	}
	if status != nil && !slices.Contains([]string{"queued", "in_progress", "completed"}, *status) {
		return bad("%q is not a status.", *status)
	}
	if (status != nil && *status == "completed") != (conclusion != nil) {
		return bad("A conclusion goes with the status completed.")
	}
	if conclusion != nil && !slices.Contains([]string{"action_required", "cancelled", "failure", "neutral", "success", "skipped", "timed_out"}, *conclusion) {
		return bad("%q is not a conclusion.", *conclusion)
	}
	if o == nil {
		return true
	}
	if o.Title == nil || o.Summary == nil {
		return bad("\"title\", \"summary\" weren't supplied.")
	}
	for _, text := range []string{o.GetSummary(), o.GetText()} {
		if n := utf8.RuneCountInString(text); n > 65535 {
			return bad("Only 65535 characters are allowed; %d were supplied.", n)
		}
	}
	if n := len(o.Annotations); n > 50 {
		return bad("No more than 50 items are allowed; %d were supplied.", n)
	}
	for _, a := range o.Annotations {
		switch {
		case a.Path == nil || a.StartLine == nil || a.EndLine == nil || a.AnnotationLevel == nil || a.Message == nil || *a.Path == "":
			return bad("\"path\", \"start_line\", \"end_line\", \"annotation_level\", \"message\" weren't supplied.")
		case !slices.Contains([]string{"notice", "warning", "failure"}, *a.AnnotationLevel):
			return bad("%q is not an annotation level.", *a.AnnotationLevel)
		case *a.StartLine < 1 || *a.EndLine < *a.StartLine:
			return bad("start_line and end_line are out of range.")
		case (a.StartColumn != nil || a.EndColumn != nil) && *a.StartLine != *a.EndLine:
			return bad("Columns go with one line.")
		case len(*a.Message) > 64<<10 || len(a.GetRawDetails()) > 64<<10 || utf8.RuneCountInString(a.GetTitle()) > 255:
			return bad("An annotation is too large.")
		}
	}
	return true
}
