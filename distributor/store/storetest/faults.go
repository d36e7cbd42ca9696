package storetest

import (
	"context"
	"fmt"
	"io"

	"github.com/muster-config/muster/distributor/store"
)

// The operations that a Hook sees.
const (
	OpGet     = "get" // also GetIfChanged
	OpOpen    = "open"
	OpList    = "list" // key is the prefix
	OpPut     = "put"
	OpCreate  = "create"
	OpReplace = "replace"
	OpDelete  = "delete"
)

// Hook decides the fate of one call, before it is made: whether it reaches the store, and the error that the caller sees instead of the answer.
//
//	true, nil    nothing special
//	false, err   lost: nothing happened
//	true, err    applied but lost: it happened, and the caller sees err
//
// To be slow, a hook waits.
type Hook func(op, key string) (apply bool, err error)

// Faults is a store whose calls go through a hook. It is the caller's store that resolves lost answers (s3 does, by reading again), so what Faults
// lets through is what a store could not resolve: use store.ErrAmbiguous or store.ErrUnreachable.
type Faults struct {
	Store store.Store
	Hook  Hook
}

var _ store.Store = (*Faults)(nil)

// through makes a call if the hook says so.
func through[T any](f *Faults, op, key string, call func() (T, error)) (T, error) {
	var none T
	apply, fault := true, error(nil)
	if f.Hook != nil {
		apply, fault = f.Hook(op, key)
	}
	switch {
	case !apply && fault == nil:
		panic("storetest: a hook that does not apply a call must say which error the caller sees")
	case !apply:
		return none, fmt.Errorf("%s %s: %w", op, key, fault)
	}
	v, err := call()
	if fault != nil {
		return none, fmt.Errorf("%s %s: %w", op, key, fault)
	}
	return v, err
}

// URL is the store's.
func (f *Faults) URL() string { return f.Store.URL() }

// Get implements store.Reader.
func (f *Faults) Get(ctx context.Context, key string, limit int64) (store.Object, error) {
	return through(f, OpGet, key, func() (store.Object, error) { return f.Store.Get(ctx, key, limit) })
}

// GetIfChanged implements store.Reader.
func (f *Faults) GetIfChanged(ctx context.Context, key string, token store.Token, limit int64) (store.Object, error) {
	return through(f, OpGet, key, func() (store.Object, error) { return f.Store.GetIfChanged(ctx, key, token, limit) })
}

// Open implements store.Reader.
func (f *Faults) Open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	type stream struct {
		io.ReadCloser
		size int64
	}
	s, err := through(f, OpOpen, key, func() (stream, error) {
		r, size, err := f.Store.Open(ctx, key)
		return stream{r, size}, err
	})
	return s.ReadCloser, s.size, err
}

// List implements store.Reader.
func (f *Faults) List(ctx context.Context, prefix, after string, limit int) ([]store.Info, error) {
	return through(f, OpList, prefix, func() ([]store.Info, error) { return f.Store.List(ctx, prefix, after, limit) })
}

// Put implements store.Blobs.
func (f *Faults) Put(ctx context.Context, key string, data []byte) error {
	_, err := through(f, OpPut, key, func() (struct{}, error) { return struct{}{}, f.Store.Put(ctx, key, data) })
	return err
}

// Create implements store.Registers.
func (f *Faults) Create(ctx context.Context, key string, data []byte) (store.Token, error) {
	return through(f, OpCreate, key, func() (store.Token, error) { return f.Store.Create(ctx, key, data) })
}

// Replace implements store.Registers.
func (f *Faults) Replace(ctx context.Context, key string, data []byte, token store.Token) (store.Token, error) {
	return through(f, OpReplace, key, func() (store.Token, error) { return f.Store.Replace(ctx, key, data, token) })
}

// Delete implements store.Store.
func (f *Faults) Delete(ctx context.Context, key string) error {
	_, err := through(f, OpDelete, key, func() (struct{}, error) { return struct{}{}, f.Store.Delete(ctx, key) })
	return err
}
