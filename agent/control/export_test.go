package control

import (
	"context"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/distributor/report"
)

// AnswerTo answers one connection.
var AnswerTo = answer

const MaxOpen = maxOpen

// Fake is an agent that does as it is told, and remembers what that was.
type Fake struct {
	Says  *agent.Status
	Fails error
	Order agent.HoldOrder
	From  string
}

func (f *Fake) Status() *agent.Status { return f.Says }
func (f *Fake) Head() []byte          { return []byte("head") }

func (f *Fake) Hold(o agent.HoldOrder) (report.Hold, error) {
	f.Order = o
	return report.Hold{By: o.By, Why: o.Why}, f.Fails
}

func (f *Fake) Unhold(by, why string) (report.Hold, error) {
	return report.Hold{By: by, Why: why}, f.Fails
}

func (f *Fake) ApplyFrom(_ context.Context, from string, o agent.HoldOrder) (agent.OnceResult, error) {
	f.From, f.Order = from, o
	return agent.OnceResult{Host: "web-17", Changed: []string{}, Sources: []agent.SourceResult{}, Waiting: []agent.WaitingService{}}, f.Fails
}
