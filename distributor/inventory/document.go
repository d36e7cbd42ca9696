package inventory

import (
	"fmt"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// Version of the inventory document.
const Version = 1

// Document is inventory.json: who the collector takes to be of which cohort, for those who read only the store. Nobody signs it, so nothing is decided by it.
type Document struct {
	V       int                       `json:"v"`
	Repo    string                    `json:"repo"`
	At      time.Time                 `json:"at"` // when it was written; every 5 minutes
	Cohorts map[string]DocumentCohort `json:"cohorts"`
}

// DocumentCohort are the hosts of a cohort that are expected and not retired, sorted by name.
type DocumentCohort struct {
	Expected int            `json:"expected"` // how many are expected, also those that nobody has heard of and no list names
	Hosts    []DocumentHost `json:"hosts"`
}

// DocumentHost is one host. Labels are those of the lists and of its own agent.yaml, which win.
type DocumentHost struct {
	Host   string            `json:"host"`
	Labels map[string]string `json:"labels"`
}

// Encode writes the document.
func (d *Document) Encode() ([]byte, error) { return wire.Encode(d) }

// ParseDocument reads inventory.json.
func ParseDocument(data []byte) (*Document, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%s: larger than %d MiB", manifest.KeyInventory, MaxBytes>>20)
	}
	d := new(Document)
	if err := wire.Decode(data, d); err != nil {
		return nil, fmt.Errorf("%s: %w", manifest.KeyInventory, err)
	}
	if d.V != Version {
		return nil, fmt.Errorf("%s: version %d is not read here (%d is)", manifest.KeyInventory, d.V, Version)
	}
	for name, co := range d.Cohorts {
		if !manifest.ValidName(name) {
			return nil, fmt.Errorf("%s: cohort %.80q is not a name", manifest.KeyInventory, name)
		}
		if co.Expected < 0 {
			return nil, fmt.Errorf("%s: cohorts.%s.expected: negative", manifest.KeyInventory, name)
		}
		for _, h := range co.Hosts {
			if !manifest.ValidHost(h.Host) {
				return nil, fmt.Errorf("%s: cohorts.%s: %.80q is not a host name", manifest.KeyInventory, name, h.Host)
			}
		}
	}
	return d, nil
}
