// Package inventory holds who is expected to run which cohort: the lists that people and machines keep, read and compared. A leaf without I/O.
package inventory

// Host is one expected host. Labels are the list's own columns; never nil.
type Host struct {
	Name   string
	Cohort string
	Labels map[string]string
}

// Limits of one list.
const (
	MaxBytes = 64 << 20
	MaxHosts = 1_000_000
)

// ParseCSV reads the list of `inventory: {file: …}`: UTF-8, a header host,cohort,<label>…, one line a host. Hosts come sorted by cohort and name. An error names
// the line. The same host twice in one cohort, an unknown column name, an empty list are errors.
func ParseCSV(data []byte) ([]Host, error) {
	panic("inventory: to be written")
}
