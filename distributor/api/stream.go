package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

const (
	maxEvent = 4 << 20     // one line of a stream
	silence  = time.Minute // without a line: the collector sends one every 15 seconds
)

// Events follows GET /v1/events and calls got with each event, in order, until the stream ends, which it does every few minutes, or ctx does. It begins with every cohort as it is, so
// that who calls it again missed nothing. A stream that falls silent is given up.
func (c *Client) Events(ctx context.Context, got func(Event)) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := time.AfterFunc(silence, cancel)
	defer watch.Stop()
	resp, err := c.do(inner, http.MethodGet, PathEvents, nil, nil, 0)
	if err != nil {
		return c.silent(ctx, inner, err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxEvent)
	for lines.Scan() {
		watch.Reset(silence)
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var e Event
		if err := json.Unmarshal(data, &e); err != nil {
			return &connError{base: c.base, err: fmt.Errorf("the stream of events is not the API's: %w", err)}
		}
		got(e)
	}
	if err := lines.Err(); err != nil {
		return c.silent(ctx, inner, c.lost(err))
	}
	return ctx.Err()
}

// silent tells a stream that was given up from one that its caller ended.
func (c *Client) silent(ctx, inner context.Context, err error) error {
	if ctx.Err() == nil && inner.Err() != nil {
		return &connError{base: c.base, err: errors.New("nothing was heard of its events for a minute")}
	}
	return err
}
