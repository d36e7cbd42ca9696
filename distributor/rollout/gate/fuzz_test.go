package gate

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// said is a source that answers with some bytes.
type said struct {
	status int
	body   string
}

func (s said) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: s.status, Body: io.NopCloser(strings.NewReader(s.body)), Request: r, Header: http.Header{}}, nil
}

// FuzzAnswer: whatever a source answers, there is one reading for each time, a finite number or the reason why there is none, in words that fit a head.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		`{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"0.5"]}]}}`,
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1764496800,"0.5"],[1764496830,"NaN"]]}]}}`,
		`{"status":"success","data":{"resultType":"scalar","result":[1,"+Inf"]}}`,
		`{"status":"error","errorType":"bad_data","error":"1:4: parse error"}`, `0.25`, `null`, ``, "\xff\x1b[31m",
	} {
		f.Add(200, body, uint8(2))
		f.Add(400, body, uint8(1))
	}
	f.Fuzz(func(t *testing.T, status int, body string, n uint8) {
		if status < 100 || status > 999 || status/100 == 3 {
			return
		}
		client := &http.Client{Transport: said{status, body}}
		base, err := parseAddress("http://p:9090")
		if err != nil {
			t.Fatal(err)
		}
		times := int(n%5) + 1
		list, broken := prometheus{client, base}.ask(t.Context(), "up", time.Unix(1764496800, 0), 30*time.Second, times)
		if broken == "" && len(list) != times {
			t.Fatalf("%d readings for %d times", len(list), times)
		}
		for _, r := range append(list, readNumber(t.Context(), client, "http://a/")) {
			if r.value == nil == (r.trouble == "") || r.value != nil && (math.IsNaN(*r.value) || math.IsInf(*r.value, 0)) {
				t.Fatalf("%+v", r)
			}
			if text := clean(r.trouble); len(text) > 610 || strings.ContainsAny(text, "\x1b\n\x00") {
				t.Fatalf("%q", text)
			}
			if _, err := json.Marshal(clean(broken + r.trouble)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
