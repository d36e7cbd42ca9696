package probe

import (
	"context"
	"fmt"
	"net/http"
)

// Health is a GET that answers with Status while a service is well.
type Health struct {
	URL    string
	Status int
}

// Well asks once whether a service is well. The body does not matter.
func (p *Prober) Well(ctx context.Context, h Health) error {
	ctx, cancel := context.WithTimeout(ctx, AskLimit)
	defer cancel()
	status, _, err := p.get(ctx, h.URL)
	switch {
	case err != nil:
		return err
	case status != h.Status:
		return fmt.Errorf("the process answers %d %s, not %d", status, http.StatusText(status), h.Status)
	}
	return nil
}
