package forge_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

const bot = "github-actions[bot]"

func (w *world) say(body string) {
	w.Helper()
	_, err := w.client.Comment(w.Context(), forge.Sticky{Pull: 7, Kind: "plan", Body: body})
	w.ok(err)
}

func (w *world) only(holds string) {
	w.Helper()
	got := w.Comments(7, bot)
	if len(got) != 1 || !strings.Contains(got[0].GetBody(), holds) {
		w.Errorf("%d comments of ours, want one with %q: %v", len(got), holds, got)
	}
}

// TestB121TenPushes: one comment, whatever comes, and no request more than needed.
func TestB121TenPushes(t *testing.T) {
	w := start(t)
	for i := range 10 {
		w.say(fmt.Sprintf("push %d", i))
	}
	w.only("push 9")
	w.Forget()
	w.say("push 9")
	w.equal(w.calls(), []string{"GET /issues/7/comments 200"})
	w.Forget()
	w.say("push 10")
	id := w.Comments(7, bot)[0].GetID()
	w.equal(w.calls(), []string{"GET /issues/7/comments 304", fmt.Sprintf("PATCH /issues/comments/%d 200", id)})
}

// TestB121SecondPage: ours is found behind a hundred others.
func TestB121SecondPage(t *testing.T) {
	w := start(t)
	for i := range 120 {
		w.Comment(7, "ana", fmt.Sprint("remark ", i))
	}
	w.say("one")
	for range 120 {
		w.Comment(7, "ana", "more")
	}
	w.say("two")
	w.only("two")
}

// TestB121Left: parts and doubles that were left behind go away; the oldest stays, where people saw it first.
func TestB121Left(t *testing.T) {
	w := start(t)
	first := w.Comment(7, bot, "<!-- muster:plan -->\npart 1")
	w.Comment(7, bot, "<!-- muster:plan -->\npart 2")
	w.Comment(7, bot, "<!-- muster:plan -->\npart 3")
	w.Comment(7, bot, "from another workflow")
	w.say("whole")
	got := w.Comments(7, bot)
	if len(got) != 2 || got[0].GetID() != first || !strings.Contains(got[0].GetBody(), "whole") || got[1].GetBody() != "from another workflow" {
		t.Errorf("%v", got)
	}
}

// TestB121Foreign: somebody else's comment with our marker is not touched, and ours with a foreign beginning is not taken for it.
func TestB121Foreign(t *testing.T) {
	w := start(t)
	id := w.Comment(7, "mallory", "<!-- muster:plan -->\nall is well, merge it")
	w.say("the plan")
	w.only("the plan")
	for _, c := range w.Comments(7, "mallory") {
		if c.GetID() != id || c.GetBody() != "<!-- muster:plan -->\nall is well, merge it" {
			t.Errorf("somebody else's comment was changed: %v", c)
		}
	}
}

// TestB121Edited: what somebody wrote over our comment is written over; one that was deleted comes again.
func TestB121Edited(t *testing.T) {
	w := start(t)
	w.say("plan")
	id := w.Comments(7, bot)[0].GetID()
	w.Edit(id, "<!-- muster:plan -->\nnothing to see")
	w.say("plan")
	w.only("plan")
	w.Edit(id, "")
	w.say("plan")
	w.only("plan")
}

// TestB121DeletedMeanwhile: between the look and the write.
func TestB121DeletedMeanwhile(t *testing.T) {
	w := start(t)
	id := w.Comment(7, bot, "<!-- muster:plan -->\nold")
	w.Before = func(c forgetest.Call) *forgetest.Reply {
		if c.Method == "PATCH" {
			w.Edit(id, "")
		}
		return nil
	}
	w.say("new")
	w.only("new")
}

// TestB121TwoRuns: both look, both write; who wrote last sees both and leaves the older one.
func TestB121TwoRuns(t *testing.T) {
	w := start(t)
	var first int64
	w.Before = func(c forgetest.Call) *forgetest.Reply {
		if c.Method == "POST" && first == 0 {
			first = w.Comment(7, bot, "<!-- muster:plan -->\nthe other run")
		}
		return nil
	}
	w.say("ours")
	w.only("ours")
	if got := w.Comments(7, bot); got[0].GetID() != first {
		t.Error("the younger one stayed: the other run, which sees both too, would delete it")
	}
}

// An answer that was lost makes no second comment.
func TestCommentAnswerLost(t *testing.T) {
	w := start(t)
	n := 0
	w.Before = func(c forgetest.Call) *forgetest.Reply {
		if c.Method == "POST" {
			if n++; n == 1 {
				return &forgetest.Reply{Cut: true, Done: true}
			}
		}
		return nil
	}
	w.say("plan")
	w.only("plan")
}

// TestB116Comment: any length is taken, and what stands first is kept.
func TestB116Comment(t *testing.T) {
	for _, text := range long() {
		w := start(t)
		w.say("VERDICT\n" + text)
		w.only("VERDICT\n")
	}
}

// Who writes is found out once: an app by its slug, a person by the token, a workflow's token cannot say.
func TestCommentAuthor(t *testing.T) {
	for _, tt := range []struct {
		name, token string
		is          forgetest.Token
		author      string
		calls       []string
	}{
		{"workflow", token, forgetest.Token{Login: bot, Installation: true}, "", []string{"GET /issues/7/comments 200"}},
		{"person", "ghp_x", forgetest.Token{Login: "ana"}, "", []string{"GET /user 200", "GET /issues/7/comments 200"}},
		{"old installation token", "v1.x", forgetest.Token{Login: bot, Installation: true}, "", []string{"GET /user 403", "GET /issues/7/comments 200"}},
		{"named", "ghs_y", forgetest.Token{Login: "acme[bot]", Installation: true}, "acme[bot]", []string{"GET /issues/7/comments 200"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := start(t)
			tt.is.May = forgetest.All()
			w.Allow(tt.token, tt.is)
			mine := w.Comment(7, tt.is.Login, "<!-- muster:plan -->\nplan")
			w.client = w.open(func(c *forge.Config) {
				c.Token, c.Author = func() (string, error) { return tt.token, nil }, tt.author
			})
			w.say("plan")
			w.equal(w.calls(), tt.calls)
			if got := w.Comments(7, tt.is.Login); len(got) != 1 || got[0].GetID() != mine {
				t.Errorf("%v", got)
			}
		})
	}
}

// Comments may be written at once: who writes is found out by each, and remembered under a lock (the race detector watches).
func TestCommentsAtOnce(t *testing.T) {
	w := start(t)
	w.Allow("ghp_x", forgetest.Token{Login: "ana", May: forgetest.All()})
	w.client = w.open(func(c *forge.Config) { c.Token = func() (string, error) { return "ghp_x", nil } })
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			if _, err := w.client.Comment(t.Context(), forge.Sticky{Pull: n + 1, Kind: "plan", Body: "plan"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for n := range 4 {
		if got := w.Comments(n+1, "ana"); len(got) != 1 {
			t.Errorf("pull request %d: %v", n+1, got)
		}
	}
}

// TestB121OtherApp: a token of some app looks like a workflow's own. GitHub's first answer says who it is, and then there is one comment again, whatever was there before.
func TestB121OtherApp(t *testing.T) {
	w := start(t)
	w.Allow(token, forgetest.Token{Login: "deployer[bot]", Installation: true, May: forgetest.All()})
	for i := range 4 {
		_, err := w.open().Comment(t.Context(), forge.Sticky{Pull: 7, Kind: "plan", Body: fmt.Sprint("push ", i)}) // a new process each time
		w.ok(err)
		got := w.Comments(7, "")
		if len(got) != 1 || !strings.HasSuffix(got[0].GetBody(), fmt.Sprint("push ", i)) {
			t.Fatalf("push %d: %d comments: %v", i, len(got), got)
		}
	}
	// Told who it is, it needs no new one.
	w.Forget()
	_, err := w.open(func(c *forge.Config) { c.Author = "deployer[bot]" }).Comment(t.Context(), forge.Sticky{Pull: 7, Kind: "plan", Body: "push 4"})
	w.ok(err)
	if got := w.calls(); len(got) != 2 || !strings.HasPrefix(got[1], "PATCH ") {
		t.Errorf("%v", got)
	}
}
