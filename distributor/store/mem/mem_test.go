package mem_test

import (
	"testing"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return mem.New() })
}
