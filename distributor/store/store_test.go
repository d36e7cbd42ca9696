package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/mem"
	"github.com/muster-config/muster/distributor/store/storetest"
)

// Every key that manifest makes must pass, and nothing that leaves the store.
func TestCheckKey(t *testing.T) {
	for _, key := range []string{
		"store.json", "keyring/1.json", "releases/00000000000000000007.json", "cohorts/prod-eu.json", "history/prod-eu/1-2-3.json",
		"bundles/ab/" + strings.Repeat("a", 64) + ".tar.zst", "deltas/" + strings.Repeat("a", 64) + "-" + strings.Repeat("b", 64) + ".zst",
	} {
		if err := store.CheckKey(key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, key := range []string{"", "/", "a/", "/a", "a//b", ".", "..", "a/..", "a/.b", "a\nb", "a\\b", "\x7f", "é", strings.Repeat("a", 201)} {
		if store.CheckKey(key) == nil {
			t.Errorf("%q is allowed", key)
		}
	}
}

func TestCheckCAS(t *testing.T) {
	s := mem.New()
	if err := store.CheckCAS(t.Context(), s); err != nil {
		t.Error(err)
	}
	if left, _ := s.List(t.Context(), "", "", 1); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	// A store that cannot be reached is no store without conditional writes.
	f := &storetest.Faults{Store: s, Hook: func(op, _ string) (bool, error) { return op != storetest.OpReplace, away(op) }}
	if err := store.CheckCAS(t.Context(), f); !errors.Is(err, store.ErrUnreachable) || errors.Is(err, store.ErrNoCAS) {
		t.Errorf("%v, want ErrUnreachable", err)
	}
}

func away(op string) error {
	if op == storetest.OpReplace {
		return store.ErrUnreachable
	}
	return nil
}
