package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor/report"
	"github.com/muster-config/muster/distributor/wire"
)

// A host with very many services still has a report that the collector reads, and those that are not confirmed are what is left in it.
func TestReportFits(t *testing.T) {
	for _, ill := range []int{0, 3, 2000} {
		r := report.Report{Services: map[string]report.Service{}, Probes: map[string]report.Probe{}}
		for i := range 2000 {
			name := fmt.Sprintf("service-%04d", i)
			s := report.Service{State: stateConfirmed, Epoch: 9, Expected: 9, Grade: "process"}
			if i < ill {
				s.State, s.Reason = stateWaiting, strings.Repeat("x", report.MaxReason)
			}
			r.Services[name] = s
			r.Probes[name] = report.Probe{Count: 1}
		}
		if err := fit(&r); err != nil {
			t.Fatal(err)
		}
		data, err := wire.Encode(r)
		if err != nil || len(data) > report.MaxReportBytes {
			t.Errorf("%d ill: %d bytes, %v", ill, len(data), err)
		}
		if ill == 3 && r.Services["service-0002"].Reason == "" {
			t.Error("a service that is ill lost its reason")
		}
	}
}
