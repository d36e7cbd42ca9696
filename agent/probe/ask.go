package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-config/muster/distributor/wire"
)

// Question is where a process states the epoch it has loaded: URL, File or Command. With none of them, only when the process started is asked.
type Question struct {
	URL     string   // GET; answers JSON
	Field   string   // dotted path in JSON, "build.config_epoch" say; for File and Command "" means that the number is all there is
	File    string   // the process writes it after each load
	Command *Command // prints it
	// Unit or PIDFile name the process for which File speaks, or whose start is asked.
	Unit, PIDFile string
	// Since is when the bytes came that are to be confirmed. A file that is older proves nothing, nor does a process.
	Since Moment
}

// Answer is what is known about a process.
type Answer struct {
	Epoch   uint64 // as it states it
	Started bool   // nothing was stated, but the process started after Since
	Start   string // names this start of the process, where its start was asked: another one is a restart
}

// Ask asks once. An error means that the process is ill, not there, or not ours. One that states an old epoch, or has not started anew, is an answer.
func (p *Prober) Ask(ctx context.Context, q Question) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, AskLimit)
	defer cancel()
	var epoch uint64
	var err error
	switch {
	case q.URL != "":
		epoch, err = p.askURL(ctx, q)
	case q.File != "":
		epoch, err = askFile(ctx, q)
	case q.Command != nil:
		epoch, err = askCommand(ctx, q)
	default:
		started, err := startOf(ctx, q)
		if err != nil {
			return Answer{}, err
		}
		return Answer{Started: !started.Before(q.Since), Start: started.String()}, nil
	}
	return Answer{Epoch: epoch}, err
}

func (p *Prober) get(ctx context.Context, target string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("ask the process: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		// *url.Error repeats the method and URL, with whatever its query holds; the caller names the service.
		if ue := new(url.Error); errors.As(err, &ue) {
			err = ue.Err
		}
		return 0, nil, fmt.Errorf("the process does not answer: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxBody+1))
	if err != nil {
		return 0, nil, fmt.Errorf("the process stopped in the middle of its answer: %w", err)
	}
	return resp.StatusCode, body, nil
}

// askURL: an answer that is not 2xx, not JSON, or lacks the field is an error.
func (p *Prober) askURL(ctx context.Context, q Question) (uint64, error) {
	status, body, err := p.get(ctx, q.URL)
	switch {
	case err != nil:
		return 0, err
	case status/100 != 2:
		return 0, fmt.Errorf("the process answers %d %s", status, http.StatusText(status))
	case len(body) > MaxBody:
		return 0, fmt.Errorf("the process answers with more than %d bytes", MaxBody)
	}
	return epochAt(body, q.Field)
}

// askFile reads what a process wrote after it had loaded its files. What was there before the process, or before the files, is some other load's.
func askFile(ctx context.Context, q Question) (uint64, error) {
	// Not blocking: a named pipe that nobody writes to is no answer either.
	f, err := os.OpenFile(q.File, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("the process has not written %s yet", q.File)
	}
	if err != nil {
		return 0, fmt.Errorf("read what the process wrote: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("read what the process wrote: %w", err)
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is not a regular file", q.File)
	}
	// The clock by which files are stamped lags by up to a tick; Since is a tick ahead of the files for that.
	if q.Since.IsZero() || info.ModTime().Add(Tick).Before(q.Since.Wall) {
		return 0, &StaleError{fmt.Sprintf("%s was written before the files were installed (%s)", q.File, info.ModTime().UTC().Format(time.RFC3339))}
	}
	if q.Unit != "" || q.PIDFile != "" {
		started, err := startOf(ctx, q)
		if err != nil {
			return 0, err
		}
		// Likewise: the start is exact, the stamp lags.
		if info.ModTime().Add(Tick).Before(started.Wall) {
			return 0, &StaleError{fmt.Sprintf("%s was written before the process started", q.File)}
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxBody+1))
	switch {
	case err != nil:
		return 0, fmt.Errorf("read what the process wrote: %w", err)
	case len(data) > MaxBody:
		return 0, fmt.Errorf("%s is larger than %d bytes", q.File, MaxBody)
	}
	return epochIn(data, q.Field, q.File)
}

// StaleError is a statement that is older than what it would have to be about. The process is not known to be ill.
type StaleError struct{ text string }

func (e *StaleError) Error() string { return e.text }

func askCommand(ctx context.Context, q Question) (uint64, error) {
	c := *q.Command
	if c.Limit == 0 || c.Limit > AskLimit {
		c.Limit = AskLimit
	}
	out := &bounded{}
	if err := run(ctx, c, out, &tail{}); err != nil {
		return 0, err
	}
	if out.over {
		return 0, fmt.Errorf("%s prints more than %d bytes", c.Argv[0], MaxBody)
	}
	return epochIn(out.buf, q.Field, "the output of "+c.Argv[0])
}

// bounded keeps what is written to it, up to MaxBody.
type bounded struct {
	buf  []byte
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), MaxBody-len(b.buf))
	b.buf = append(b.buf, p[:n]...)
	b.over = b.over || n < len(p)
	return len(p), nil // a program is not to die of a closed pipe
}

// epochIn reads a plain number, or the field of a JSON document.
func epochIn(data []byte, field, what string) (uint64, error) {
	if field != "" {
		return epochAt(data, field)
	}
	n, err := parseEpoch(strings.TrimSuffix(string(data), "\n")) // as echo and printf leave it
	if err != nil {
		return 0, fmt.Errorf("%s is not an epoch: %w", what, err)
	}
	return n, nil
}

var errDecimal = errors.New("it has to be a plain decimal number, without blanks or leading zeros")

// parseEpoch takes the one spelling of a number that there is: what is spelled otherwise, "01" say, is something else, a date or a version.
func parseEpoch(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 53)
	if err != nil || strconv.FormatUint(n, 10) != text {
		return 0, errDecimal
	}
	return n, nil
}

// epochAt finds the number, or numeric string, at a dotted path of a JSON document.
func epochAt(body []byte, path string) (uint64, error) {
	// Strict, as a document with a doubled key says two things. A process may answer with anything else that is JSON.
	var v any
	if err := wire.Decode(body, &v); err != nil {
		if json.Valid(body) {
			return 0, fmt.Errorf("the process answers JSON that is not read here: %w", err)
		}
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
	n, err := parseEpoch(text)
	if err != nil {
		return 0, fmt.Errorf("field %q of the answer is not an epoch: %w", path, err)
	}
	return n, nil
}
