package collector

import (
	"crypto/sha256"
	"maps"
	"time"

	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/wire"
)

// shapes keeps one copy of what the reports of many hosts have in common: hosts of one cohort that are well say the same of themselves but for name, key, order and times, which
// their host entries hold. Under Collector.mu.
type shapes struct {
	byHash map[[sha256.Size]byte]*shape
	of     map[*report.Report]*shape
}

type shape struct {
	report *report.Report
	hash   [sha256.Size]byte
	uses   int
}

func newShapes() *shapes {
	return &shapes{byHash: map[[sha256.Size]byte]*shape{}, of: map[*report.Report]*shape{}}
}

// bare is a report without what is each host's own. What it leaves out, no verdict looks at.
func bare(r *report.Report) *report.Report {
	b := *r
	b.Host, b.Boot, b.Counter, b.Key, b.At, b.Probes, b.Ext = "", "", 0, nil, time.Time{}, nil, nil
	b.Services = maps.Clone(r.Services)
	for name, s := range b.Services {
		s.AgeS = 0
		b.Services[name] = s
	}
	return &b
}

// swap gives the shared copy of what a report says, and lets go of the host's former one (nil: none).
func (s *shapes) swap(before, r *report.Report) *report.Report {
	next := s.share(r)
	s.drop(before)
	return next
}

func (s *shapes) share(r *report.Report) *report.Report {
	b := bare(r)
	data, err := wire.Encode(b)
	if err != nil {
		return b // a report that cannot be encoded cannot be shared
	}
	hash := sha256.Sum256(data)
	sh := s.byHash[hash]
	if sh == nil {
		sh = &shape{report: b, hash: hash}
		s.byHash[hash], s.of[b] = sh, sh
	}
	sh.uses++
	return sh.report
}

// drop lets go of a shared copy.
func (s *shapes) drop(r *report.Report) {
	sh := s.of[r]
	if sh == nil {
		return
	}
	if sh.uses--; sh.uses == 0 {
		delete(s.byHash, sh.hash)
		delete(s.of, r)
	}
}
