package collector

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/wire"
)

const (
	letterTime   = 10 * time.Second // for one try
	letterFirst  = time.Second      // before the second try; doubled each time
	letterMost   = 5 * time.Minute  // between two tries
	letterGiveUp = 24 * time.Hour
	letterKeep   = 30 * 24 * time.Hour // how long one is remembered as sent
	maxLetters   = 1000                // that are open at once; the oldest gives way
	maxSecret    = 4 << 10
	lookAfter    = 15 * time.Second // time alone makes notices too
)

// letter is a notice with the receivers who have not got it. It is kept in the database until every receiver has it, and for a month after: so a notice survives the end of
// the collector, and is not sent anew when one starts while what it tells of still stands. What comes and goes while no collector runs is told by nobody.
type letter struct {
	Made time.Time `json:"made"`
	Body []byte    `json:"body"`
	Open []string  `json:"open"` // Notify.id of each

	event string
	tries map[string]int       // by Notify.id
	next  map[string]time.Time // when to try again
}

// outbox sends notices. Its lock comes after Collector.mu.
type outbox struct {
	client *http.Client
	first  time.Duration

	mu      sync.Mutex
	letters map[string]*letter // by id
	wakes   []chan struct{}    // one a receiver

	sent, failed, dropped atomic.Uint64
}

func newOutbox(receivers int) *outbox {
	o := &outbox{first: letterFirst, letters: map[string]*letter{}}
	for range receivers {
		o.wakes = append(o.wakes, make(chan struct{}, 1))
	}
	// A redirect would carry the notice to a place that nobody configured. A connection is not kept: notices are rare.
	o.client = &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: letterTime, ResponseHeaderTimeout: letterTime, MaxResponseHeaderBytes: maxHeader},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       letterTime,
	}
	return o
}

// noteNotices puts what a head is worth telling of into the outbox, what is there already excepted. Under c.mu.
func (c *Collector) noteNotices(name string, co *cohort, now time.Time) {
	if len(c.cfg.Notify) == 0 || co.view == nil {
		return
	}
	o := c.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range c.notices(name, co.view, now) {
		if o.letters[n.ID] != nil {
			continue
		}
		body, err := wire.Encode(n)
		if err != nil {
			c.log.Error("encode a notice", "id", n.ID, "err", err)
			continue
		}
		l := &letter{Made: now.UTC(), Body: body, Open: []string{}, event: n.Event}
		for _, to := range c.cfg.Notify {
			if to.wants(n.Event) {
				l.Open = append(l.Open, to.id())
			}
		}
		if len(l.Open) == 0 {
			continue
		}
		o.letters[n.ID] = l
		c.keepLetter(n.ID, l)
	}
	for _, w := range o.wakes {
		wake(w)
	}
}

// keepLetter has a letter written. Under c.mu and o.mu.
func (c *Collector) keepLetter(id string, l *letter) {
	data, err := json.Marshal(l)
	if err != nil {
		c.log.Error("encode a notice", "id", id, "err", err)
		return
	}
	c.dirty.notices[id] = data
	wake(c.flushNow)
}

// id stands for a receiver in what is kept. Its URL is often a secret, and finding it by its digest takes the configuration.
func (n Notify) id() string {
	sum := sha256.Sum256([]byte(n.URL))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// loadLetters brings back what was remembered. Receivers that are configured no more are not sent to. Letters of before named the URLs themselves: they are written anew.
func (c *Collector) loadLetters(kept map[string][]byte) {
	for id, data := range kept {
		var l letter
		var n api.Notice
		if err := json.Unmarshal(data, &l); err != nil || json.Unmarshal(l.Body, &n) != nil {
			c.log.Warn("a remembered notice is dropped", "id", id, "err", err)
			continue
		}
		l.event = n.Event
		open, plain := []string{}, false
		for _, known := range l.Open {
			plain = plain || !strings.HasPrefix(known, "sha256:")
			for _, to := range c.cfg.Notify {
				if (known == to.id() || known == to.URL) && !slices.Contains(open, to.id()) {
					open = append(open, to.id())
				}
			}
		}
		l.Open = open
		c.outbox.letters[id] = &l
		if plain {
			c.keepLetter(id, &l)
		}
	}
}

// sendNotices sends until ctx ends: each receiver by itself, so that one that hangs holds up no other.
func (c *Collector) sendNotices(ctx context.Context) {
	if len(c.cfg.Notify) == 0 {
		return
	}
	var work sync.WaitGroup
	for i, to := range c.cfg.Notify {
		work.Go(func() { c.sendTo(ctx, to, c.outbox.wakes[i]) })
	}
	for {
		now := c.now()
		c.mu.Lock()
		for name, co := range c.cohorts {
			c.noteNotices(name, co, now)
		}
		c.forgetLetters(now)
		c.mu.Unlock()
		t := time.NewTimer(lookAfter)
		select {
		case <-ctx.Done():
			t.Stop()
			work.Wait()
			return
		case <-t.C:
		}
	}
}

// forgetLetters lets go of those that are long sent, and of the oldest when there are too many. Under c.mu.
func (c *Collector) forgetLetters(now time.Time) {
	standing := map[string]bool{}
	for name, co := range c.cohorts {
		if co.view != nil {
			for _, n := range c.notices(name, co.view, now) {
				standing[n.ID] = true
			}
		}
	}
	o := c.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	var open []string
	for id, l := range o.letters {
		switch {
		case len(l.Open) > 0:
			open = append(open, id)
		case now.Sub(l.Made) > letterKeep && !standing[id]:
			delete(o.letters, id)
			c.dirty.notices[id] = nil
		}
	}
	if over := len(open) - maxLetters; over > 0 {
		slices.SortFunc(open, func(a, b string) int { return o.letters[a].Made.Compare(o.letters[b].Made) })
		for _, id := range open[:over] {
			o.letters[id].Open = []string{}
			c.keepLetter(id, o.letters[id])
			o.dropped.Add(1)
		}
		c.log.Error("too many notices wait to be sent; the oldest are dropped", "count", over)
	}
}

// sendTo sends to one receiver.
func (c *Collector) sendTo(ctx context.Context, to Notify, woken <-chan struct{}) {
	trouble := ""
	for {
		id, l, pause := c.outbox.due(to.id(), time.Now())
		if l == nil {
			t := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				t.Stop()
				return
			case <-woken:
			case <-t.C:
			}
			t.Stop()
			continue
		}
		err := c.post(ctx, to, id, l)
		if err != nil && ctx.Err() != nil {
			return // it stays open, and is sent when a collector runs again
		}
		switch text := errText(err); {
		case text != "" && trouble == "":
			c.log.Warn("a notice cannot be sent; it is tried on", "to", to.shown(), "id", id, "err", err)
		case text == "" && trouble != "":
			c.log.Info("notices are sent again", "to", to.shown())
		}
		trouble = errText(err)
		c.posted(to, id, l, err)
	}
}

// due is the oldest letter that is to be sent to a receiver now, or how long there is none.
func (o *outbox) due(to string, now time.Time) (id string, l *letter, pause time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	pause = time.Minute
	for k, c := range o.letters {
		if !slices.Contains(c.Open, to) {
			continue
		}
		if wait := c.next[to].Sub(now); wait > 0 {
			pause = min(pause, wait)
			continue
		}
		if l == nil || cmp.Or(c.Made.Compare(l.Made), cmp.Compare(k, id)) < 0 {
			id, l = k, c
		}
	}
	return id, l, pause
}

// post tries once.
func (c *Collector) post(ctx context.Context, to Notify, id string, l *letter) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(l.Body))
	if err != nil {
		return errors.New("make the request") // the error itself would hold the URL
	}
	stamp := strconv.FormatInt(c.now().Unix(), 10)
	h := req.Header
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "muster-collector")
	h.Set(api.HeaderNoticeID, id)
	h.Set(api.HeaderNoticeEvent, l.event)
	h.Set(api.HeaderNoticeTimestamp, stamp)
	if to.SecretFile != "" {
		secret, err := readSecret(to.SecretFile)
		if err != nil {
			return err
		}
		h.Set(api.HeaderNoticeSignature, api.NoticeSignature(secret, stamp, l.Body))
	}
	resp, err := c.outbox.client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return nil
}

// readSecret reads the key of the signature: the file's text without the white space around it.
func readSecret(path string) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, fmt.Errorf("secret_file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	secret := bytes.TrimSpace(data)
	switch {
	case err != nil:
		return nil, fmt.Errorf("secret_file: %w", err)
	case len(data) > maxSecret || len(secret) == 0:
		return nil, fmt.Errorf("secret_file: %s is empty, or larger than %d bytes", path, maxSecret)
	}
	return secret, nil
}

// posted takes down what became of a try.
func (c *Collector) posted(to Notify, id string, l *letter, err error) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	closed := err == nil
	switch {
	case closed:
		o.sent.Add(1)
		c.log.Info("notice sent", "to", to.shown(), "id", id)
	case now.Sub(l.Made) >= letterGiveUp:
		closed = true
		o.dropped.Add(1)
		c.log.Error("a notice is given up", "to", to.shown(), "id", id, "err", err)
	default:
		o.failed.Add(1)
		if l.tries == nil {
			l.tries, l.next = map[string]int{}, map[string]time.Time{}
		}
		pause := min(o.first<<min(l.tries[to.id()], 16), letterMost)
		l.tries[to.id()]++
		l.next[to.id()] = time.Now().Add(pause/2 + rand.N(pause/2+1))
	}
	if closed {
		l.Open = slices.DeleteFunc(slices.Clone(l.Open), func(u string) bool { return u == to.id() })
		c.keepLetter(id, l)
	}
}

// waiting is how many letters are open.
func (o *outbox) waiting() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.letters {
		if len(l.Open) > 0 {
			n++
		}
	}
	return n
}

// withoutURL is a request's error without its address, which may hold a secret.
func withoutURL(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}
