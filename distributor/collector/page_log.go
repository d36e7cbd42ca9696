package collector

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout/standing"
	"github.com/muster-config/muster/distributor/wire"
)

const (
	logAPage = 100
	maxLog   = 1000 // entries that the page goes back
)

// logBody is the line of time: releases and decisions, the newest first.
type logBody struct {
	Cohort  string
	Cohorts []string
	Lines   []logLine
	More    string // link to more of it
	Left    string // what could not be believed, and was left out
}

type logLine struct {
	At    time.Time
	Where string // a cohort, a release, or "refused"
	Link  string
	Text  string
}

// pageLog tells what happened. It is read from the store anew, by as many who look at once as one: nothing is remembered that is not in it.
func (c *Collector) pageLog(w http.ResponseWriter, r *http.Request, who caller) error {
	q := r.URL.Query()
	b := logBody{Cohort: q.Get("cohort")}
	c.mu.RLock()
	b.Cohorts = c.cohortNames(who)
	c.mu.RUnlock()
	if b.Cohort != "" && !slices.Contains(b.Cohorts, b.Cohort) {
		return refuse(http.StatusNotFound, "", "no cohort %.80q", b.Cohort)
	}
	n := logAPage
	if s := q.Get("n"); s != "" {
		given, err := strconv.Atoi(s)
		if err != nil || given < 1 {
			return refuse(http.StatusBadRequest, "", "n: %.20q is not a number of lines", s)
		}
		n = min(given, maxLog)
	}
	past, err := c.past(r.Context(), b.Cohort)
	if err != nil {
		return refuse(http.StatusServiceUnavailable, "`muster log` reads it too", "the store's history cannot be read: %w", err)
	}
	for _, e := range past.entries {
		if line, ok := lineOf(e, who); ok {
			if len(b.Lines) == n {
				b.More = fmt.Sprintf("/log?cohort=%s&n=%d", b.Cohort, min(n+logAPage, maxLog))
				break
			}
			b.Lines = append(b.Lines, line)
		}
	}
	if n == maxLog {
		b.More = ""
	}
	if who.all() && len(past.skipped) > 0 {
		b.Left = fmt.Sprintf("%d objects are not what they must be, and were left out: muster fsck says more", len(past.skipped))
	}
	return render(w, http.StatusOK, "log.html", c.frame(who, "Log", "log", b))
}

type past struct {
	entries []distributor.Entry
	skipped []string
}

// past reads the store's history, once for all who ask at the same time.
func (c *Collector) past(ctx context.Context, cohort string) (*past, error) {
	got, err, _ := c.loads.Do("log/"+cohort, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		c.mu.RLock()
		ring := c.trust.Keyring
		c.mu.RUnlock()
		keyring, err := wire.Encode(ring)
		if err != nil {
			return nil, fmt.Errorf("encode the keyring: %w", err)
		}
		h, err := distributor.OpenHistory(ctx, c.store, keyring, c.now())
		if err != nil {
			return nil, err
		}
		entries, err := h.Log(ctx, cohort, maxLog)
		return &past{entries, h.Skipped}, err
	})
	if err != nil {
		return nil, err
	}
	return got.(*past), nil
}

// lineOf is an entry for a caller, if it is for it.
func lineOf(e distributor.Entry, who caller) (logLine, bool) {
	line := logLine{At: e.At}
	switch {
	case e.Refused != nil:
		line.Where, line.Text = "refused", fmt.Sprintf("commit %s: %s", short(e.Refused.Commit), e.Refused.Why)
		return line, who.all()
	case e.Decision != nil:
		line.Where, line.Link, line.Text = e.Decision.Cohort, "/log?cohort="+e.Decision.Cohort, standing.Happened(*e.Decision)
		return line, who.may(e.Decision.Cohort)
	}
	rel := e.Release
	shown := api.Release{Epoch: rel.Epoch, Commit: rel.Commit, Kind: rel.Kind, Author: rel.Author, Subject: rel.Subject, Created: rel.Created, Cohorts: map[string]api.ReleaseCohort{}}
	for name, part := range rel.Cohorts {
		shown.Cohorts[name] = api.ReleaseCohort{State: part.State, Epoch: part.Epoch, Reason: part.Reason}
	}
	shown, ok := visible(shown, who)
	line.Where, line.Link = fmt.Sprintf("release %d", rel.Epoch), fmt.Sprintf("/releases/%d", rel.Epoch)
	if rel.Kind == manifest.ReleaseOverride {
		line.Text = "override " + rel.OverrideID
		if rel.NotAfter != nil {
			line.Text += " until " + pageTime(*rel.NotAfter)
		}
		return line, ok
	}
	line.Text = strings.TrimSpace(fmt.Sprintf("%s %s", short(shown.Commit), shown.Subject))
	if shown.Author.Name != "" {
		line.Text += ", by " + shown.Author.Name
	}
	if rel.PullRequest > 0 && shown.Subject != "" {
		line.Text += fmt.Sprintf(", pull request #%d", rel.PullRequest)
	}
	return line, ok
}
