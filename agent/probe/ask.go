package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Field is where a process states its epoch: a GET of URL answers JSON, and Path leads to the number, "build.config_epoch" say.
type Field struct {
	URL  string
	Path string
}

// Ask reads the epoch that a process states. An answer that is not 2xx, not JSON, or lacks the field is an error: the process is ill or not ours.
func (p *Prober) Ask(ctx context.Context, f Field) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, AskLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL, nil)
	if err != nil {
		return 0, fmt.Errorf("ask the process: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		// *url.Error repeats the method and URL, with whatever its query holds; the caller names the service.
		if ue := new(url.Error); errors.As(err, &ue) {
			err = ue.Err
		}
		return 0, fmt.Errorf("the process does not answer: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxBody+1))
	switch {
	case err != nil:
		return 0, fmt.Errorf("the process stopped in the middle of its answer: %w", err)
	case resp.StatusCode/100 != 2:
		return 0, fmt.Errorf("the process answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	case len(body) > MaxBody:
		return 0, fmt.Errorf("the process answers with more than %d bytes", MaxBody)
	}
	return epochAt(body, f.Path)
}

// epochAt finds the number, or numeric string, at a dotted path of a JSON document.
func epochAt(body []byte, path string) (uint64, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return 0, errors.New("the process answers something that is not JSON")
	}
	for key := range strings.SplitSeq(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return 0, fmt.Errorf("the answer has no field %q", path)
		}
		if v, ok = m[key]; !ok {
			return 0, fmt.Errorf("the answer has no field %q", path)
		}
	}
	var text string
	switch x := v.(type) {
	case json.Number:
		text = x.String()
	case string:
		text = x
	default:
		return 0, fmt.Errorf("field %q of the answer is not a number", path)
	}
	n, err := strconv.ParseUint(text, 10, 53)
	if err != nil {
		return 0, fmt.Errorf("field %q of the answer is not an epoch", path)
	}
	return n, nil
}
