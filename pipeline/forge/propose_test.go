package forge_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

func proposal(parent string) forge.Proposal {
	return forge.Proposal{Branch: "main", Name: "muster/override-1", Parent: parent, Files: map[string][]byte{"b": []byte("2"), "c/d": []byte("3")}, Message: "set b", Author: "ana", Email: "a@acme.test", Title: "Set b", Body: "INC-311"}
}

// A proposal is made once, whichever answer is lost on the way, and found again.
func TestPropose(t *testing.T) {
	r := newRepo(t)
	parent := r.commit(map[string]string{"a": "1", "b": "1"})
	for lost := 0; ; lost++ {
		w := start(t)
		w.Git = r.dir
		n := 0
		w.Before = func(forgetest.Call) *forgetest.Reply {
			if n++; n-1 == lost {
				return &forgetest.Reply{Cut: true, Done: true}
			}
			return nil
		}
		p, _, err := w.client.Propose(t.Context(), proposal(parent))
		w.ok(err)
		if got := w.Pulls(); len(got) != 1 || p.Number != got[0].GetNumber() || !slices.Equal(names(r.files("muster/override-1")), []string{"a", "b", "c/d"}) || r.git("show", "muster/override-1:b") != "2" {
			t.Errorf("answer %d lost: %d pull requests, %v", lost, len(got), r.files("muster/override-1"))
		}
		again, made, err := w.client.Propose(t.Context(), proposal(parent))
		if err != nil || made || again.Number != p.Number || len(w.Pulls()) != 1 {
			t.Errorf("again: %+v %t %v", again, made, err)
		}
		r.git("update-ref", "-d", "refs/heads/muster/override-1")
		if n <= lost {
			break
		}
	}
}

func names(files []string) (out []string) {
	for _, f := range files {
		name, _, _ := strings.Cut(f, " ")
		out = append(out, name)
	}
	return out
}

// A branch of the name that holds anything else, be it the same change of an older commit, is somebody's; a commit that GitHub does not have cannot be built on. Both say what to do.
func TestProposeRefused(t *testing.T) {
	r := newRepo(t)
	parent := r.commit(map[string]string{"a": "1", "b": "1"})
	tip := r.commit(map[string]string{"a": "2"})
	w := start(t)
	w.Git = r.dir
	_, _, err := w.client.Propose(t.Context(), proposal(tip))
	w.ok(err)
	tree := r.git("rev-parse", "muster/override-1^{tree}")
	w = start(t)
	w.Git = r.dir
	r.git("update-ref", "refs/heads/muster/override-1", r.git("commit-tree", "-m", "x", "-p", parent, tree))
	for name, tt := range map[string]struct{ parent, says, next string }{
		"of an older commit": {tip, "branch muster/override-1 is there already and holds something else", "--branch"},
		"other content":      {parent, "branch muster/override-1 is there already and holds something else", "--branch"},
		"nowhere":            {other, "GitHub does not have commit 222222222222", "push it first"},
	} {
		_, _, err := w.client.Propose(t.Context(), proposal(tt.parent))
		w.want(err, forge.ErrConflict, tt.says)
		var e *forge.Error
		if !errors.As(err, &e) || !strings.Contains(e.Hint(), tt.next) {
			t.Errorf("%s: hint %q", name, e.Hint())
		}
	}
	if len(w.Pulls()) != 0 {
		t.Error("asked for all the same")
	}
}
