package inventory

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/muster-config/muster/distributor/manifest"
)

const (
	maxLabels     = 100 // of one host, as everywhere
	maxLabelBytes = 200 // of a label's value
)

// ParseCSV reads the list of `inventory: {file: …}`: UTF-8, a header host,cohort,<label>…, one line a host. Hosts come sorted by cohort and name. An error names
// the line. The same host twice in one cohort, an unknown column name, an empty list are errors. An empty cell is a label that the host does not have.
func ParseCSV(data []byte) ([]Host, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("larger than %d MiB", MaxBytes>>20)
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if i := invalid(data); i >= 0 {
		return nil, fmt.Errorf("line %d: not UTF-8", 1+bytes.Count(data[:i], []byte("\n")))
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.ReuseRecord = true
	header, err := r.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("is empty: begin it with the line host,cohort and one line a host below")
	case err != nil:
		return nil, place(err)
	}
	first, _ := r.FieldPos(0)
	cols, err := columns(header)
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", first, err)
	}
	var hosts []Host
	lines := map[[2]string]int{}
	words := map[string]string{} // one copy of what many lines repeat
	word := func(s string) string {
		kept, ok := words[s]
		if !ok {
			kept = strings.Clone(s) // a record's cells share one text
			words[kept] = kept
		}
		return kept
	}
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, place(err)
		}
		line, _ := r.FieldPos(0)
		h, err := cols.read(record, word)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		key := [2]string{h.Cohort, h.Name}
		if before, twice := lines[key]; twice {
			return nil, fmt.Errorf("line %d: host %s is in cohort %s already, in line %d", line, h.Name, h.Cohort, before)
		}
		if len(hosts) == MaxHosts {
			return nil, fmt.Errorf("line %d: more than %d hosts", line, MaxHosts)
		}
		lines[key] = line
		hosts = append(hosts, h)
	}
	if len(hosts) == 0 {
		return nil, errors.New("lists no host: an empty list is taken for a mistake; add one line a host below the header")
	}
	order(hosts)
	return hosts, nil
}

// invalid is where text that is not UTF-8 begins, or -1.
func invalid(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// place is an error of the CSV reader that names the line first.
func place(err error) error {
	var p *csv.ParseError
	switch {
	case !errors.As(err, &p):
		return err
	case errors.Is(p.Err, csv.ErrFieldCount):
		return fmt.Errorf("line %d: has another number of cells than the header", p.Line)
	}
	return fmt.Errorf("line %d: column %d: %w", p.Line, p.Column, p.Err)
}

// table is what the columns of a list mean.
type table struct {
	host, cohort int
	labels       []string // by column; "" for host and cohort
}

func columns(header []string) (*table, error) {
	t := &table{host: -1, cohort: -1, labels: make([]string, len(header))}
	if len(header) == 1 && strings.ContainsAny(header[0], ";\t") {
		return nil, fmt.Errorf("columns are parted by commas, and %.80q has none", header[0])
	}
	if len(header) > maxLabels+2 {
		return nil, fmt.Errorf("more than %d labels", maxLabels)
	}
	seen := map[string]bool{}
	for i, name := range header {
		name = strings.Clone(name) // the reader uses its memory again
		switch {
		case seen[name]:
			return nil, fmt.Errorf("column %q is there twice", name)
		case name == "host":
			t.host = i
		case name == "cohort":
			t.cohort = i
		case !manifest.ValidName(name):
			return nil, fmt.Errorf("column %.80q is not host, cohort or a label: a label is lower-case letters, digits, - and _", name)
		default:
			t.labels[i] = name
		}
		seen[name] = true
	}
	if t.host < 0 || t.cohort < 0 {
		return nil, errors.New("the header needs the columns host and cohort, such as host,cohort,zone")
	}
	return t, nil
}

// read makes a host of one line. word keeps a text beyond it.
func (t *table) read(record []string, word func(string) string) (Host, error) {
	name, cohort := record[t.host], record[t.cohort]
	switch {
	case !manifest.ValidHost(name):
		return Host{}, fmt.Errorf("host %.80q is not a host name: letters, digits, dots, - and _", name)
	case !manifest.ValidName(cohort):
		return Host{}, fmt.Errorf("cohort %.80q is not a name: lower-case letters, digits, - and _", cohort)
	}
	h := Host{Name: strings.Clone(name), Cohort: word(cohort), Labels: map[string]string{}}
	for i, label := range t.labels {
		value := record[i]
		switch {
		case label == "" || value == "":
		case len(value) > maxLabelBytes:
			return Host{}, fmt.Errorf("label %s is longer than %d bytes", label, maxLabelBytes)
		case strings.ContainsFunc(value, unicode.IsControl):
			return Host{}, fmt.Errorf("label %s holds a control character", label)
		default:
			h.Labels[label] = word(value)
		}
	}
	return h, nil
}
