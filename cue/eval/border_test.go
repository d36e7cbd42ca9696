package eval

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestJobCrossesTheBorder(t *testing.T) {
	full, n := &job{}, 0
	fill(t, reflect.ValueOf(full).Elem(), &n)
	full.Request.Files = append(full.Request.Files, TreeFile{Path: "empty", Data: []byte{}})
	for name, want := range map[string]*job{
		"full":  full,
		"empty": {Request: &Request{}, Output: 1},
		"bare":  {Request: &Request{Files: []TreeFile{{Path: "a", Data: []byte("x")}}}, Policy: []byte{}, Output: 1 << 40},
	} {
		var b bytes.Buffer
		if err := writeJob(&b, want); err != nil {
			t.Fatal(err)
		}
		data := b.Bytes()
		got, err := readJob(bytes.NewReader(data))
		if err != nil {
			t.Fatal(name, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: a field does not come back (-want +got):\n%s", name, d)
		}
		for n := range data {
			if _, err := readJob(bytes.NewReader(data[:n])); err == nil {
				t.Errorf("%s: %d of %d bytes are a job", name, n, len(data))
			}
		}
	}
}

// messagesIn are the messages of a stream.
func messagesIn(t *testing.T, b []byte, limit int64) ([]message, error) {
	t.Helper()
	in := bufio.NewReader(bytes.NewReader(b))
	var out []message
	for {
		m, _, err := readMessage(in, limit)
		if errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return out, err
		}
		out = append(out, m)
	}
}

func TestWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		w := &wire{out: &b, limit: 200}
		end := w.run()
		w.begins("a", "b")
		if got, err := messagesIn(t, b.Bytes(), 1000); err != nil || len(got) != 1 {
			t.Errorf("what begins is not told at once: %v %v", got, err)
		}
		small, large := &answer{Service: "a"}, &answer{Service: "b", Schema: make([]byte, 300)}
		w.fleet(&fleetAnswer{})
		w.service(small)
		w.service(large)
		w.ends("a", "b")
		time.Sleep(2 * wireDelay)
		synctest.Wait()
		got, err := messagesIn(t, b.Bytes(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 5 {
			t.Fatalf("%d messages, want 5 after a moment: %v", len(got), got)
		}
		want := []message{
			{Begins: []string{"a", "b"}}, {Fleet: got[1].Fleet}, {Answer: encodeAnswer(small)}, {Answer: encodeAnswer(blame("b", gave(200))), Blamed: true}, {Ends: []string{"a", "b"}},
		}
		if d := cmp.Diff(want, got); d != "" || len(got[1].Fleet) == 0 {
			t.Errorf("messages (-want +got):\n%s", d)
		}
		w.ends("c")
		if err := end(); err != nil {
			t.Error(err)
		}
		if got, err := messagesIn(t, b.Bytes(), 1000); err != nil || len(got) != 6 {
			t.Errorf("what was left at the end is not told: %v %v", got, err)
		}
		if _, err := messagesIn(t, b.Bytes(), 10); !errors.Is(err, errOutput) {
			t.Errorf("a message above the limit: %v", err)
		}
		for n := 1; n < b.Len(); n++ {
			if got, err := messagesIn(t, b.Bytes()[:n], 1000); err == nil && len(got) == 6 {
				t.Errorf("%d of %d bytes are all messages", n, b.Len())
			}
		}
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWireTellsABrokenPipe(t *testing.T) {
	w := &wire{out: brokenPipe{}, limit: 1}
	end := w.run()
	w.ends("a")
	if err := end(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

// Whatever bytes come, reading them neither crashes nor takes much memory.
func TestBorderTakesAnyBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		_, _ = readJob(bytes.NewReader(b))
		in := bufio.NewReader(bytes.NewReader(b))
		for {
			m, size, err := readMessage(in, 1<<20)
			if err != nil {
				return
			}
			if size > 1<<20 {
				t.Errorf("%d bytes", size)
			}
			_, _ = decodeAnswer(m.Answer)
		}
	})
}
