package inventory

import (
	"fmt"
	"strings"
)

// maxLoss is the share of its hosts that a list may lose at once: more is taken for a fault of whoever makes the list.
const maxLoss = 0.10

// Loss says why a list must not take the place of the one before it, or "": it lost over 10% of its hosts (one host may always go). gone are hosts whose leaving a person has confirmed.
func Loss(before, next []Host, gone func(cohort, host string) bool) string {
	there := make(map[[2]string]bool, len(next))
	for _, h := range next {
		there[[2]string{h.Cohort, h.Name}] = true
	}
	var lost []string
	for _, h := range before {
		if !there[[2]string{h.Cohort, h.Name}] && !gone(h.Cohort, h.Name) {
			lost = append(lost, h.Name)
		}
	}
	if len(lost) <= 1 || float64(len(lost)) <= maxLoss*float64(len(before)) {
		return ""
	}
	names := strings.Join(lost[:min(3, len(lost))], ", ")
	if len(lost) > 3 {
		names += fmt.Sprintf(" and %d more", len(lost)-3)
	}
	return fmt.Sprintf("lost %d of %d hosts at once (%s)", len(lost), len(before), names)
}
