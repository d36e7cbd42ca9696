package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/distributor/report"
)

// A check that writes to the files it is to check gets nothing installed, and refused releases do not pile up.
func TestCheckThatWrites(t *testing.T) {
	for name, script := range map[string]string{"writes": "echo evil >> {dir}/checkout.yaml", "deletes": "rm -rf {dir}", "fails": "exit 1"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "checkout")
			r.world.Release(files{"checkout/checkout.yaml": "1"})
			r.world.Assign(1)
			r.confirmed(1)
			r.edit("checkout", func(s *agent.ServiceConfig) { s.Check = []string{"/bin/sh", "-c", script} })
			for epoch := uint64(2); epoch < 8; epoch++ {
				r.world.Release(files{"checkout/checkout.yaml": fmt.Sprint(epoch)})
				r.world.Assign(epoch)
				res, err := r.once()
				if err == nil || res.Confirmed || res.Code != agent.CodeCheck || res.Phase != string(report.PhaseRefused) || res.Running != 1 {
					t.Fatalf("%+v, %v", res, err)
				}
				r.sound(1)
			}
			r.edit("checkout", func(s *agent.ServiceConfig) { s.Check = nil })
			r.confirmed(7)
		})
	}
}

// A reload that changes what it is to load is not a confirmation: what counts is what lies on the disk afterwards.
func TestReloadThatWrites(t *testing.T) {
	r := newRig(t, "checkout")
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
	hook := r.procs["checkout"].Hook[2]
	r.edit("checkout", func(s *agent.ServiceConfig) {
		s.Reload = []string{"/bin/sh", "-c", hook + "; echo evil >> {dir}/checkout.yaml"}
	})
	r.world.Release(files{"checkout/checkout.yaml": "2"})
	r.world.Assign(2)
	res, err := r.once()
	if res.Confirmed || res.Code != agent.CodeDrift || !strings.Contains(res.Reason, "changed while services were reloaded") {
		t.Fatalf("%+v, %v", res, err)
	}
	r.edit("checkout", func(s *agent.ServiceConfig) { s.Reload = r.procs["checkout"].Hook })
	r.confirmed(2)
}

// oddCarrier has the head, and something that it cannot read where the bundle is to be.
type oddCarrier struct{ agent.Carrier }

func (oddCarrier) Object(context.Context, string) (io.ReadCloser, int64, error) {
	return nil, 0, errors.New("is a link, not an object")
}

// Whatever is wrong with one carrier's object, the next carrier is asked.
func TestOddObjectInTheFirstSource(t *testing.T) {
	r := newRig(t, "checkout")
	r.carriers = append([]agent.Carrier{oddCarrier{r.carriers[0]}}, r.carriers...)
	r.world.Release(files{"checkout/checkout.yaml": "1"})
	r.world.Assign(1)
	r.confirmed(1)
}
