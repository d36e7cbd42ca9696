package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// prometheus reads numbers from a Prometheus, or from what speaks its HTTP API (https://prometheus.io/docs/prometheus/latest/querying/api/): instant and range queries, always by POST, so
// that no query ends up in a log of addresses. The official client would fall back to GET, reads answers of any size into memory before it looks at them, and takes more modules than this file has lines.
type prometheus struct {
	client *http.Client
	base   *url.URL
}

// mostPoints is how many looks one range query asks for; Prometheus itself gives at most 11,000.
const mostPoints = 1000

// answer is what /api/v1/query and /api/v1/query_range answer with. It is somebody else's format and grows: unknown fields are theirs.
type answer struct {
	Status string `json:"status"`
	Data   struct {
		Type   string          `json:"resultType"`
		Result json.RawMessage `json:"result"`
	} `json:"data"`
	ErrorType string `json:"errorType"`
	Error     string `json:"error"`
}

// series is one of a vector (value) or of a matrix (values).
type series struct {
	Value      []json.RawMessage   `json:"value"`
	Values     [][]json.RawMessage `json:"values"`
	Histogram  json.RawMessage     `json:"histogram"`
	Histograms json.RawMessage     `json:"histograms"`
}

// ask evaluates a query at times from start on, n of them, a step apart, and gives one reading for each. Broken says that the query can never be evaluated.
func (p prometheus) ask(ctx context.Context, query string, start time.Time, step time.Duration, n int) (list []reading, broken string) {
	start = start.UTC().Truncate(time.Millisecond)
	form := url.Values{"query": {query}, "timeout": {duration(askFor)}}
	path := "api/v1/query"
	if n == 1 {
		form.Set("time", stamp(start))
	} else {
		path = "api/v1/query_range"
		form.Set("start", stamp(start))
		form.Set("end", stamp(start.Add(time.Duration(n-1)*step)))
		form.Set("step", strconv.FormatFloat(step.Seconds(), 'f', -1, 64))
	}
	all := func(r reading) []reading {
		list := make([]reading, n)
		for i := range list {
			list[i] = r
		}
		return list
	}
	where := "prometheus at " + masked(p.base)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base.JoinPath(path).String(), strings.NewReader(form.Encode()))
	if err != nil {
		return all(down("%s cannot be asked", where)), ""
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	status, body, reason := fetch(p.client, r, mostBytes)
	if reason != "" {
		return all(down("the source is down: %s: %s", where, reason)), ""
	}
	var a answer
	wrong := json.Unmarshal(body, &a)
	switch {
	case wrong == nil && status == http.StatusBadRequest && a.ErrorType == "bad_data":
		return nil, "the query is wrong: " + cut(a.Error, mostText)
	case wrong == nil && status == http.StatusUnprocessableEntity && a.Error != "":
		return all(down("the query cannot be executed: %s", cut(a.Error, mostText))), ""
	case status != http.StatusOK:
		return all(down("the source is down: %s answered %d %s", where, status, cut(a.Error, mostText))), ""
	case wrong != nil || a.Status != "success":
		return all(down("%s answered with what is no answer of Prometheus", where)), ""
	}
	list, err = a.readings(start, step, n)
	if err != nil {
		return all(down("%s: %v", where, err)), ""
	}
	return list, ""
}

// readings are the numbers of an answer, one for each time.
func (a *answer) readings(start time.Time, step time.Duration, n int) ([]reading, error) {
	list := make([]reading, n)
	count := make([]int, n)
	put := func(i int, r reading) {
		if i >= 0 && i < n {
			list[i] = r
			count[i]++
		}
	}
	switch a.Data.Type {
	case "scalar", "string":
		var point []json.RawMessage
		if err := json.Unmarshal(a.Data.Result, &point); err != nil {
			return nil, fmt.Errorf("a %s that cannot be read", a.Data.Type)
		}
		if a.Data.Type == "string" {
			return nil, fmt.Errorf("the query gives text, not a number")
		}
		_, r := sample(point)
		put(0, r)
	case "vector", "matrix":
		var all []series
		if err := json.Unmarshal(a.Data.Result, &all); err != nil {
			return nil, fmt.Errorf("a %s that cannot be read", a.Data.Type)
		}
		for _, s := range all {
			if len(s.Histogram) > 0 || len(s.Histograms) > 0 {
				return nil, fmt.Errorf("the query gives a histogram, not a number: take a quantile of it")
			}
			if a.Data.Type == "vector" {
				_, r := sample(s.Value)
				put(0, r)
				continue
			}
			for _, v := range s.Values {
				at, r := sample(v)
				put(int(math.Round((at-float64(start.UnixMilli())/1e3)/step.Seconds())), r)
			}
		}
	default:
		return nil, fmt.Errorf("an answer of type %q", cut(a.Data.Type, 20))
	}
	for i, k := range count {
		switch {
		case k == 0:
			list[i] = noNumber("the query found nothing")
		case k > 1:
			list[i] = down("the query gives %d series, not one: sum them, or choose one", k)
		}
	}
	return list, nil
}

// sample reads [time, "value"].
func sample(pair []json.RawMessage) (at float64, r reading) {
	var text string
	if len(pair) != 2 || json.Unmarshal(pair[0], &at) != nil {
		return 0, down("a sample that cannot be read")
	}
	if string(pair[1]) == "null" {
		return at, noNumber("null is no number")
	}
	if json.Unmarshal(pair[1], &text) != nil {
		return at, down("a sample that cannot be read")
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return at, down("the query gives a value that is no number")
	}
	return at, finite(v)
}

// stamp writes a time for Prometheus: seconds, with milliseconds.
func stamp(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMilli())/1e3, 'f', 3, 64)
}
