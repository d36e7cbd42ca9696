package storetest_test

import (
	"errors"
	"testing"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/store/storetest"
)

func TestFaultsWithoutHookConform(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return &storetest.Faults{Store: mem.New()} })
}

func TestFaults(t *testing.T) {
	lost := errors.New("lost")
	for _, apply := range []bool{false, true} {
		s := mem.New()
		f := &storetest.Faults{Store: s, Hook: func(op, key string) (bool, error) {
			if op == storetest.OpCreate && key == "a" {
				return apply, lost
			}
			return true, nil
		}}
		if _, err := f.Create(t.Context(), "a", []byte("x")); !errors.Is(err, lost) {
			t.Errorf("apply %v: %v, want lost", apply, err)
		}
		if _, err := s.Get(t.Context(), "a", 10); (err == nil) != apply {
			t.Errorf("apply %v: then Get gives %v", apply, err)
		}
		if _, err := f.Create(t.Context(), "b", []byte("x")); err != nil {
			t.Errorf("another key: %v", err)
		}
	}
}
