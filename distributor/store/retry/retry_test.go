package retry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/retry"
)

func TestDo(t *testing.T) {
	away := fmt.Errorf("get x: %w", store.ErrUnreachable)
	for name, tc := range map[string]struct {
		errs  []error // the last one repeats
		tries int
		want  error
	}{
		"at once":      {[]error{nil}, 1, nil},
		"after two":    {[]error{away, away, nil}, 3, nil},
		"never":        {[]error{away}, 4, store.ErrUnreachable},
		"for good":     {[]error{store.ErrDenied}, 1, store.ErrDenied},
		"then denied":  {[]error{away, store.ErrDenied}, 2, store.ErrDenied},
		"wrong clock":  {[]error{&store.SkewError{Skew: time.Hour}}, 1, store.ErrUnreachable},
		"ambiguous":    {[]error{store.ErrAmbiguous}, 1, store.ErrAmbiguous},
		"not modified": {[]error{store.ErrNotModified}, 1, store.ErrNotModified},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			began := time.Now()
			err := retry.Do(t.Context(), retry.Policy{}, func() error {
				n++
				return tc.errs[min(n, len(tc.errs))-1]
			})
			if n != tc.tries || !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("%s: %v after %d tries, want %v after %d", name, err, n, tc.want, tc.tries)
			}
			// 100 + 200 + 400 ms at most, half of it at least.
			if took := time.Since(began); took > 700*time.Millisecond || tc.tries == 4 && took < 350*time.Millisecond {
				t.Errorf("%s: took %v", name, took)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n := 0
		err := retry.Do(ctx, retry.Policy{Tries: 1000, Most: time.Hour}, func() error { n++; return away })
		if !errors.Is(err, store.ErrUnreachable) || n > 6 {
			t.Errorf("%v after %d tries; the end of the context ends it", err, n)
		}
	})
}
