package eval

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/muster-config/muster/distributor/manifest"
)

// An answer as bytes: what the child hands over, and what the cache keeps. It is compact, since a repository has thousands of them and they are read
// on each run; package gob takes longer to learn the types than to read the values. TestCodecHoldsEveryField fails when a field is forgotten here.

var errCodec = errors.New("not an answer")

type encoder struct{ b []byte }

func (e *encoder) uint(n uint64)   { e.b = binary.AppendUvarint(e.b, n) }
func (e *encoder) int(n int)       { e.b = binary.AppendVarint(e.b, int64(n)) }
func (e *encoder) string(s string) { e.uint(uint64(len(s))); e.b = append(e.b, s...) }

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}

// bytes tells nil from empty: a file without content is none that was not asked for.
func (e *encoder) bytes(b []byte) {
	if b == nil {
		e.uint(0)
		return
	}
	e.uint(uint64(len(b)) + 1)
	e.b = append(e.b, b...)
}

// list tells nil from empty too.
func list[T any](e *encoder, l []T, each func(*encoder, *T)) {
	if l == nil {
		e.uint(0)
		return
	}
	e.uint(uint64(len(l)) + 1)
	for i := range l {
		each(e, &l[i])
	}
}

type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) fail() {
	d.failed, d.b = true, nil
}

func (d *decoder) uint() uint64 {
	n, size := binary.Uvarint(d.b)
	if size <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) int() int {
	n, size := binary.Varint(d.b)
	if size <= 0 || n > math.MaxInt || n < math.MinInt {
		d.fail()
		return 0
	}
	d.b = d.b[size:]
	return int(n)
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) string() string { return string(d.take(d.uint())) }

func (d *decoder) bool() bool {
	b := d.take(1)
	return len(b) == 1 && b[0] != 0
}

// bytes shares the decoder's memory.
func (d *decoder) bytes() []byte {
	n := d.uint()
	if n == 0 {
		return nil
	}
	return d.take(n - 1)
}

func unlist[T any](d *decoder, each func(*decoder, *T)) []T {
	n := d.uint()
	if n == 0 || d.failed {
		return nil
	}
	n--
	if n > uint64(len(d.b)) { // every element takes a byte at least
		d.fail()
		return nil
	}
	out := make([]T, n)
	for i := range out {
		if each(d, &out[i]); d.failed {
			return nil
		}
	}
	return out
}

func encodeAnswer(a *answer) []byte {
	e := &encoder{}
	e.string(a.Service)
	list(e, a.Units, putUnit)
	putProblems(e, a.Problems)
	e.bytes(a.Schema)
	return e.b
}

// decodeAnswer shares the memory of b, which belongs to the answer from then on.
func decodeAnswer(b []byte) (*answer, error) {
	d := &decoder{b: b}
	a := &answer{Service: d.string(), Units: unlist(d, getUnit), Problems: getProblems(d), Schema: d.bytes()}
	if d.failed || len(d.b) > 0 {
		return nil, errCodec
	}
	return a, nil
}

func putUnit(e *encoder, u *Unit) {
	e.string(u.Service)
	e.string(u.Cohort)
	e.string(u.Host)
	list(e, u.Files, func(e *encoder, f *File) {
		e.string(f.Name)
		e.uint(uint64(f.Mode))
		e.string(f.Format)
		e.bool(f.Secret)
		e.bytes(f.Data)
	})
	e.string(string(u.Evidence))
	e.bool(u.UsesEpoch)
	list(e, u.Leaves, func(e *encoder, l *Leaf) {
		list(e, l.Path, putString)
		putSetting(e, &l.Setting)
		e.string(string(l.Origin))
		list(e, l.Shadows, putSetting)
	})
	list(e, u.Secrets, putString)
}

func getUnit(d *decoder, u *Unit) {
	u.Service, u.Cohort, u.Host = d.string(), d.string(), d.string()
	u.Files = unlist(d, func(d *decoder, f *File) {
		f.Name = d.string()
		mode := d.uint()
		if mode > math.MaxUint32 {
			d.fail()
		}
		f.Mode, f.Format, f.Secret = uint32(mode), d.string(), d.bool()
		f.Data = d.bytes()
	})
	u.Evidence, u.UsesEpoch = manifest.Grade(d.string()), d.bool()
	u.Leaves = unlist(d, func(d *decoder, l *Leaf) {
		l.Path = unlist(d, getString)
		getSetting(d, &l.Setting)
		l.Origin = Origin(d.string())
		l.Shadows = unlist(d, getSetting)
	})
	u.Secrets = unlist(d, getString)
}

func putString(e *encoder, s *string) { e.string(*s) }
func getString(d *decoder, s *string) { *s = d.string() }

func putSetting(e *encoder, s *Setting) {
	e.string(s.Layer)
	e.string(s.Value)
	e.bool(s.Secret)
	e.string(s.Sum)
	putPos(e, &s.At)
}

func getSetting(d *decoder, s *Setting) {
	s.Layer, s.Value, s.Secret, s.Sum = d.string(), d.string(), d.bool(), d.string()
	getPos(d, &s.At)
}

func putPos(e *encoder, p *Pos) {
	e.string(p.File)
	e.int(p.Line)
	e.int(p.Col)
}

func getPos(d *decoder, p *Pos) {
	p.File, p.Line, p.Col = d.string(), d.int(), d.int()
}

func putProblems(e *encoder, problems []Problem) {
	list(e, problems, func(e *encoder, p *Problem) {
		e.string(string(p.Severity))
		e.string(p.Service)
		list(e, p.Cohorts, putString)
		e.string(p.Path)
		e.string(p.Message)
		list(e, p.SetAt, putPos)
		list(e, p.SchemaAt, putPos)
	})
}

func getProblems(d *decoder) []Problem {
	return unlist(d, func(d *decoder, p *Problem) {
		p.Severity, p.Service = Severity(d.string()), d.string()
		p.Cohorts = unlist(d, getString)
		p.Path, p.Message = d.string(), d.string()
		p.SetAt, p.SchemaAt = unlist(d, getPos), unlist(d, getPos)
	})
}
