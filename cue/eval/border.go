package eval

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"
)

// What crosses the border between parent and child: one job, then messages. Both are written with the codec of answers, since the types of package gob cost
// a small repository more to learn than all its answers to read.

// job is what the child is given.
type job struct {
	Request *Request
	Policy  []byte // JSON of the fleet's policy; nil: evaluate the fleet first
	Output  int64  // limit of one service's answer
	Fleet   bool   // the fleet and no service
}

// message is what the child writes, one for each thing that begins or ends; one of its fields is set.
type message struct {
	Begins, Ends []string
	Fleet        []byte // JSON of a fleetAnswer
	Answer       []byte // of encodeAnswer
	Blamed       bool   // the answer is that a limit was blown
}

// The first byte of a message.
const (
	kindBegins = 'b'
	kindEnds   = 'e'
	kindFleet  = 'f'
	kindAnswer = 'a'
	kindBlame  = 'x'
)

// writeJob writes the job: how long its first part is, that part with the names and lengths of the files, and then what is in them.
func writeJob(w io.Writer, j *job) error {
	e := &encoder{}
	e.bytes(j.Policy)
	e.uint(uint64(j.Output))
	e.bool(j.Fleet)
	list(e, j.Request.Services, putString)
	list(e, j.Request.Cohorts, putString)
	e.bool(j.Request.FilesToo)
	e.bool(j.Request.LeavesToo)
	e.bool(j.Request.SchemasToo)
	e.uint(uint64(len(j.Request.Epochs)))
	for _, target := range sorted(j.Request.Epochs) {
		e.string(target)
		e.uint(uint64(len(j.Request.Epochs[target])))
		for _, service := range sorted(j.Request.Epochs[target]) {
			e.string(service)
			e.uint(j.Request.Epochs[target][service])
		}
	}
	list(e, j.Request.Overrides, putOverride)
	list(e, j.Request.Files, func(e *encoder, f *TreeFile) {
		e.string(f.Path)
		e.uint(uint64(len(f.Data)))
	})
	out := bufio.NewWriterSize(w, 256<<10)
	_, _ = out.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(e.b)))) // the writer keeps its first error
	_, _ = out.Write(e.b)
	for _, f := range j.Request.Files {
		_, _ = out.Write(f.Data)
	}
	return out.Flush()
}

var errJob = errors.New("not a job")

func readJob(r io.Reader) (*job, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	text, err := readExactly(r, binary.LittleEndian.Uint64(head[:]))
	if err != nil {
		return nil, err
	}
	d := &decoder{b: text}
	j := &job{Policy: d.bytes(), Output: int64(d.uint()), Fleet: d.bool()}
	req := &Request{Services: unlist(d, getString), Cohorts: unlist(d, getString), FilesToo: d.bool(), LeavesToo: d.bool(), SchemasToo: d.bool()}
	if n := d.uint(); n > 0 {
		req.Epochs = map[string]map[string]uint64{}
		for ; n > 0 && !d.failed; n-- {
			target := d.string()
			of := map[string]uint64{}
			for m := d.uint(); m > 0 && !d.failed; m-- {
				service := d.string()
				of[service] = d.uint()
			}
			req.Epochs[target] = of
		}
	}
	req.Overrides = unlist(d, getOverride)
	var sizes []uint64
	var total uint64
	req.Files = unlist(d, func(d *decoder, f *TreeFile) {
		f.Path = d.string()
		n := d.uint()
		if total += n; n > math.MaxInt64 || total > math.MaxInt64 {
			d.fail()
		}
		sizes = append(sizes, n)
	})
	if d.failed || len(d.b) > 0 {
		return nil, errJob
	}
	data, err := readExactly(r, total)
	if err != nil {
		return nil, err
	}
	for i, n := range sizes {
		req.Files[i].Data, data = data[:n:n], data[n:]
	}
	j.Request = req
	return j, nil
}

// readExactly reads n bytes. It takes memory as they come, so that a wrong length costs none.
func readExactly(r io.Reader, n uint64) ([]byte, error) {
	const atOnce = 64 << 20
	var out []byte
	for n > 0 {
		from := len(out)
		out = append(out, make([]byte, min(n, atOnce))...)
		if _, err := io.ReadFull(r, out[from:]); err != nil {
			return nil, err
		}
		n -= uint64(len(out) - from)
	}
	return out, nil
}

// wire is the sink that leads to the parent. What begins is told at once, since nothing can be told once it blows a limit; what ends, and answers, go out
// with that or a moment later.
type wire struct {
	limit int64

	mu  sync.Mutex
	out io.Writer
	b   []byte // to be written
	err error  // the first; a parent that is gone ends this process anyway
}

const (
	wireFull  = 64 << 10
	wireDelay = 50 * time.Millisecond
)

// run flushes what waits, until the returned function is called, which flushes what is left and gives the first error.
func (w *wire) run() (end func() error) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(wireDelay)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.flush()
			case <-done:
				return
			}
		}
	}()
	return func() error {
		close(done)
		<-ended
		w.flush()
		return w.err
	}
}

func (w *wire) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.write()
}

func (w *wire) write() {
	if len(w.b) == 0 {
		return
	}
	if _, err := w.out.Write(w.b); err != nil && w.err == nil {
		w.err = fmt.Errorf("write the answer: %w", err)
	}
	if w.b = w.b[:0]; cap(w.b) > 16*wireFull {
		w.b = nil
	}
}

// put adds a message: how long it is, its kind, and what it says.
func (w *wire) put(kind byte, says []byte, now bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = binary.AppendUvarint(w.b, uint64(len(says))+1)
	w.b = append(append(w.b, kind), says...)
	if now || len(w.b) >= wireFull {
		w.write()
	}
}

func nameList(l []string) []byte {
	e := &encoder{}
	list(e, l, putString)
	return e.b
}

func (w *wire) begins(what ...string) { w.put(kindBegins, nameList(what), true) }
func (w *wire) ends(what ...string)   { w.put(kindEnds, nameList(what), false) }

func (w *wire) service(a *answer) {
	data, kind := encodeAnswer(a), byte(kindAnswer)
	if int64(len(data)) > w.limit {
		data, kind = encodeAnswer(blame(a.Service, gave(w.limit))), kindBlame
	}
	w.put(kind, data, false)
}

// readMessage reads the next message and tells how many bytes it took. io.EOF is the end of them all; errOutput is one that has more than limit, and took
// all of that.
func readMessage(r *bufio.Reader, limit int64) (m message, size int64, err error) {
	n, err := binary.ReadUvarint(r)
	switch {
	case err != nil:
		return m, 0, err
	case n == 0:
		return m, 0, errCodec
	case n > uint64(max(0, limit)):
		return m, max(0, limit), errOutput
	}
	says, err := readExactly(r, n)
	if err != nil {
		return m, 0, io.ErrUnexpectedEOF
	}
	kind, says := says[0], says[1:]
	switch kind {
	case kindFleet:
		m.Fleet = says
	case kindAnswer, kindBlame:
		m.Answer, m.Blamed = says, kind == kindBlame
	case kindBegins, kindEnds:
		d := &decoder{b: says}
		l := unlist(d, getString)
		if d.failed || len(d.b) > 0 {
			return m, 0, errCodec
		}
		if kind == kindBegins {
			m.Begins = l
		} else {
			m.Ends = l
		}
	default:
		return m, 0, errCodec
	}
	return m, int64(n), nil
}
