package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// streaming answers with a body that it is given.
type streaming struct{ body io.ReadCloser }

func (s streaming) RoundTrip(req *http.Request) (*http.Response, error) {
	context.AfterFunc(req.Context(), func() { s.body.Close() })
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: s.body, Request: req}, nil
}

// Events come one by one; a stream that falls silent is given up after a minute, one that says that all is well is not, and its end is no error.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		c, err := NewClient("http://127.0.0.1:7070", ClientOptions{HTTP: &http.Client{Transport: streaming{r}}})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		done := make(chan error, 1)
		go func() {
			done <- c.Events(t.Context(), func(e Event) { got = append(got, fmt.Sprint(e.Cohort, " ", e.Target)) })
		}()
		fmt.Fprint(w, "id: 1\nevent: cohort\ndata: {\"cohort\":\"eu\",\"target\":7,\"new\":true}\n\n")
		for range 20 {
			time.Sleep(15 * time.Second)
			fmt.Fprint(w, ": well\n\n")
		}
		fmt.Fprint(w, "data: {\"cohort\":\"us\",\"target\":8}\n\n")
		synctest.Wait()
		if strings.Join(got, ", ") != "eu 7, us 8" {
			t.Errorf("got %v", got)
		}
		begin := time.Now()
		if err := <-done; !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "nothing was heard") || time.Since(begin) != silence {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
	})
	for body, want := range map[string]error{"data: {}\n\n": nil, "data: nonsense\n": ErrUnreachable} {
		c, err := NewClient("http://127.0.0.1:7070", ClientOptions{HTTP: &http.Client{Transport: streaming{io.NopCloser(strings.NewReader(body))}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Events(t.Context(), func(Event) {}); !errors.Is(err, want) {
			t.Errorf("%q: %v", body, err)
		}
	}
}
