package standing

import (
	"fmt"
	"strings"

	"github.com/muster-config/muster/distributor/rollout"
)

// Happened is a decision in a line: "frozen by ana until …: black friday".
func Happened(d rollout.Decision) string {
	text, on := d.What, " "
	if d.What != "held" {
		on = " on " // "held web-1", and "override inc-1 of web on web-1"
	}
	switch {
	case len(d.Hosts) > 5:
		text += on + fmt.Sprintf("%s and %d more", strings.Join(d.Hosts[:5], ", "), len(d.Hosts)-5)
	case len(d.Hosts) > 0:
		text += on + strings.Join(d.Hosts, ", ")
	}
	if d.By != "" {
		text += " by " + d.By
	}
	text += until(d.Until)
	if d.Why != "" && d.Why != d.What+" at once" {
		text += reason(d.Why)
	}
	return text
}
