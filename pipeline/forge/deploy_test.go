package forge_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/pipeline/forge"
	"github.com/muster-config/muster/pipeline/forge/forgetest"
)

func TestDeployment(t *testing.T) {
	w := start(t)
	// A commit status that is not good yet, such as our own, must not stop a deployment of what is published.
	w.ok(w.client.Status(t.Context(), head, forge.Status{Context: "muster / delivered", State: forge.Pending, Description: "0 of 3"}))
	w.Forget()
	d, err := w.client.Deploy(t.Context(), forge.Deployment{Commit: head, Environment: "prod", Description: "epoch 7", Production: true})
	w.ok(err)
	for _, s := range []forge.DeploymentStatus{
		{State: forge.Queued, Description: "waits"}, {State: forge.Queued, Description: "waits"},
		{State: forge.InProgress, Description: "1 of 3 confirmed"}, {State: forge.Success, Description: strings.Repeat("3 confirmed ", 20), URL: "https://collector.test"},
	} {
		w.ok(w.client.Progress(t.Context(), d, s))
	}
	got := w.Deployments("prod")
	if len(got) != 1 || got[0].GetTask() != "muster" || got[0].GetSHA() != head {
		t.Fatalf("%+v", got)
	}
	states := got[0].States()
	if len(states) != 3 || states[0] != "queued: waits" || !strings.HasPrefix(states[2], "success: 3 confirmed") || !strings.HasSuffix(states[2], "…") {
		t.Errorf("%v", states)
	}
	id := fmt.Sprintf("POST /deployments/%d/statuses 201", got[0].GetID())
	w.equal(w.calls(), []string{"GET /deployments 200", "POST /deployments 201", id, id, id})
}

// Who was away finds the deployment and what was said last, and says nothing twice.
func TestDeploymentFound(t *testing.T) {
	w := start(t)
	d, err := w.client.Deploy(t.Context(), forge.Deployment{Commit: head, Environment: "prod"})
	w.ok(err)
	w.ok(w.client.Progress(t.Context(), d, forge.DeploymentStatus{State: forge.Success, Description: "3 confirmed"}))
	w.Forget()
	d, err = w.open().Deploy(t.Context(), forge.Deployment{Commit: head, Environment: "prod"})
	w.ok(err)
	w.ok(w.client.Progress(t.Context(), d, forge.DeploymentStatus{State: forge.Success, Description: "3 confirmed"}))
	if d.Last.State != forge.Success || len(w.Deployments("")) != 1 {
		t.Errorf("%+v, %d deployments", d, len(w.Deployments("")))
	}
	w.equal(w.calls(), []string{"GET /deployments 200", fmt.Sprintf("GET /deployments/%d/statuses 200", d.ID)})
}

// An answer that was lost makes no second deployment; a newer success ends the older one.
func TestDeploymentAnswerLost(t *testing.T) {
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
	for _, commit := range []string{head, other} {
		d, err := w.client.Deploy(t.Context(), forge.Deployment{Commit: commit, Environment: "prod"})
		w.ok(err)
		w.ok(w.client.Progress(t.Context(), d, forge.DeploymentStatus{State: forge.Success, Description: "3 confirmed"}))
	}
	got := w.Deployments("prod")
	if len(got) != 2 {
		t.Fatalf("%d deployments", len(got))
	}
	w.equal(got[0].States(), []string{"success: 3 confirmed", "inactive: "})
	w.equal(got[1].States(), []string{"success: 3 confirmed"})
}

func TestSaid(t *testing.T) {
	w := start(t)
	said, err := w.client.Said(t.Context(), head, "muster / delivered")
	w.ok(err)
	if said != (forge.Status{}) {
		t.Errorf("%+v", said)
	}
	want := forge.Status{Context: "muster / delivered", State: forge.Good, Description: "3 confirmed"}
	w.ok(w.client.Status(t.Context(), head, want))
	for i := range 150 {
		_ = w.clock.Sleep(t.Context(), time.Minute)
		w.ok(w.client.Status(t.Context(), head, forge.Status{Context: fmt.Sprint("ci ", i), State: forge.Good}))
	}
	if said, err = w.client.Said(t.Context(), head, "muster / delivered"); err != nil || said != want {
		t.Errorf("%+v, %v", said, err)
	}
}

// TestB119ForkCommit: the status of a commit that this repository does not have is refused by name.
func TestB119ForkCommit(t *testing.T) {
	w := start(t)
	w.Git = newRepo(t).dir
	err := w.client.Status(t.Context(), other, forge.Status{Context: "c", State: forge.Good})
	w.want(err, forge.ErrInvalid, "No commit found for SHA")
	w.want(err, forge.ErrNoCommit, "No commit found for SHA")
	// What is about something else may be taken later.
	for _, reply := range []forgetest.Reply{{Status: 422, Body: `{"message":"Validation Failed"}`}, {Status: 404, Body: `{"message":"Not Found"}`}} {
		w.Before = func(forgetest.Call) *forgetest.Reply { return &reply }
		if err := w.client.Status(t.Context(), other, forge.Status{Context: "c", State: forge.Good}); err == nil || errors.Is(err, forge.ErrNoCommit) {
			t.Errorf("%d: %v", reply.Status, err)
		}
	}
}

// Of two deployments of one commit each is found by its mark.
func TestDeployMark(t *testing.T) {
	w := start(t)
	ask := func(mark, text string) *forge.Deployment {
		t.Helper()
		d, err := w.client.Deploy(t.Context(), forge.Deployment{Commit: head, Environment: "prod", Mark: mark, Description: mark + " " + text})
		w.ok(err)
		return d
	}
	first := ask("epoch 5:", "x")
	w.ok(w.client.Progress(t.Context(), first, forge.DeploymentStatus{State: forge.Failure, Description: "why"}))
	second := ask("epoch 57:", "")
	if second.ID == first.ID || second.Last.State != "" {
		t.Errorf("the second is %+v", second)
	}
	if d := ask("epoch 5:", "y"); d.ID != first.ID || d.Last.State != forge.Failure {
		t.Errorf("the first is %+v", d)
	}
	if d := ask("epoch 57:", ""); d.ID != second.ID {
		t.Errorf("the second is made again: %+v", d)
	}
}
