package collector

import "github.com/muster-config/muster/distributor/report"

// probed sums up what a host's last word told of its probes. Each host has its own; the rest of a report is shared with hosts that say the same (see shapes). A sign of life tells of none.
type probed struct {
	count, failures uint32
	ms              float32 // of several probes the mean of their medians, by how often they were answered; 0: none was
}

func probedOf(r *report.Report) (p probed) {
	ms, answered := 0.0, 0.0
	for _, one := range r.Probes {
		p.count += uint32(one.Count)
		p.failures += uint32(one.Failures)
		if ok := float64(one.Count - one.Failures); ok > 0 {
			ms += ok * one.P50MS
			answered += ok
		}
	}
	if answered > 0 {
		p.ms = float32(ms / answered)
	}
	return p
}
