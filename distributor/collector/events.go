package collector

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/wire"
)

const (
	maxEvents     = 256 // streams at once
	eventsFor     = 10 * time.Minute
	eventsAtMost  = 500 * time.Millisecond // between two looks
	eventsAtLeast = 15 * time.Second       // between two lines, so that what lies between sees life
)

// getEvents streams one event for each change of a cohort's target, phase or counts: `event: cohort`, its data an api.Event. It begins with every cohort as it is now, so that who
// comes back missed nothing; with the id of the last event it had (Last-Event-ID), only with those that differ since. A stream ends after ten minutes, and is taken up again.
func (c *Collector) getEvents(w http.ResponseWriter, r *http.Request, who caller) error {
	if c.count.events.Add(1) > maxEvents {
		c.count.events.Add(-1)
		return errBusy
	}
	defer c.count.events.Add(-1)
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	var had uint64
	if s := r.Header.Get("Last-Event-ID"); s != "" {
		had, _ = strconv.ParseUint(s, 10, 64) // not ours: begin anew
	}
	end := time.NewTimer(eventsFor)
	defer end.Stop()
	last := map[string]string{}
	first := true
	for {
		changed := c.onChange()
		begin := time.Now()
		// The id is a fingerprint of all that was told: it stands for the same over a restart and on another collector.
		s := c.recent(who)
		text, now, err := eventText(s, last)
		if err != nil {
			return err
		}
		if first && had != 0 && had == now {
			text = ""
		}
		if text == "" {
			text = ": well\n\n"
		}
		first = false
		if err := linger(w, eventsAtLeast); err != nil {
			return err
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return nil // it went away
		}
		if err := rc.Flush(); err != nil {
			return nil
		}
		// Counts change by reports and by time; looking costs at most a fifth of a core.
		pause := time.NewTimer(max(eventsAtMost, 4*time.Since(begin)))
		beat := time.NewTimer(eventsAtLeast)
		over := false
		select {
		case <-pause.C:
		case <-r.Context().Done():
			over = true
		case <-c.ended:
			over = true
		}
		if !over {
			select {
			case <-changed:
			case <-beat.C:
			case <-end.C:
				over = true
			case <-r.Context().Done():
				over = true
			case <-c.ended:
				over = true
			}
		}
		pause.Stop()
		beat.Stop()
		if over {
			return nil
		}
	}
}

// recent is the status, shared by the streams of callers who may see the same: a large fleet is judged once for all of them.
func (c *Collector) recent(who caller) *api.Status {
	key := strings.Join(who.cohorts, " ")
	c.streamed.Lock()
	defer c.streamed.Unlock()
	version := c.bumps.Load()
	if got, ok := c.statuses[key]; ok && got.version == version && time.Since(got.at) < eventsAtMost {
		return got.status
	}
	got := shared{version, time.Now(), c.status(who)}
	if c.statuses == nil || len(c.statuses) > maxEvents {
		c.statuses = map[string]shared{}
	}
	c.statuses[key] = got
	return got.status
}

// shared is a status that was made a moment ago.
type shared struct {
	version uint64
	at      time.Time
	status  *api.Status
}

// eventText is what changed since last, which it brings up to date, and the fingerprint of all.
func eventText(s *api.Status, last map[string]string) (text string, id uint64, err error) {
	id = 14695981039346656037
	lines := map[string]string{}
	names := slices.Sorted(maps.Keys(s.Cohorts))
	for _, name := range names {
		co := s.Cohorts[name]
		data, err := wire.Encode(api.Event{Cohort: name, Target: co.Target, Phase: co.Phase, Mark: co.Mark, Expected: co.Expected, Verdicts: co.Verdicts, Rollout: withoutHosts(co.Rollout)})
		if err != nil {
			return "", 0, fmt.Errorf("encode the event: %w", err)
		}
		for _, b := range data {
			id = (id ^ uint64(b)) * 1099511628211
		}
		lines[name] = string(data)
	}
	for _, name := range names {
		if last[name] != lines[name] {
			text += fmt.Sprintf("id: %d\nevent: cohort\ndata: %s\n\n", id, lines[name])
			last[name] = lines[name]
		}
	}
	return text, id, nil
}

// withoutHosts leaves out who is in a wave: their sentences change all the time.
func withoutHosts(r *api.Rollout) *api.Rollout {
	if r == nil {
		return nil
	}
	out := *r
	out.Waves = slices.Clone(r.Waves)
	for i := range out.Waves {
		out.Waves[i].In, out.Waves[i].More = []api.WaveHost{}, 0
	}
	return &out
}
