// Package store says what muster needs from a place that keeps objects: immutable blobs and compare-and-swap registers. Implementations live in
// s3, dir and https below it; storetest holds the suite that all of them pass.
package store

import (
	"context"
	"errors"
	"io"
	"time"
)

// Errors of a store; test with errors.Is. Where the error is born its fate is decided: the caller's, passing, or ambiguous.
var (
	ErrNotFound    = errors.New("not found")
	ErrExists      = errors.New("exists already")    // Create: somebody was first (equal bytes are success, not this)
	ErrConflict    = errors.New("changed meanwhile") // Replace: the token is not current, or the object is gone
	ErrNotModified = errors.New("not modified")      // GetIfChanged
	ErrTooLarge    = errors.New("larger than the limit")
	ErrReadOnly    = errors.New("store is read-only")
	ErrDenied      = errors.New("access denied")
	ErrUnreachable = errors.New("not reachable")   // passing; exit code 5
	ErrAmbiguous   = errors.New("outcome unknown") // the write may or may not have happened; re-read and compare
	ErrFull        = errors.New("the disk is full")
	ErrNoCAS       = errors.New("store has no conditional writes")
)

// Token is the compare-and-swap token of one read or write: opaque, sent back as it came.
type Token string

// Object is one read object.
type Object struct {
	Data  []byte
	Token Token
}

// Info is one listed object.
type Info struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Reader reads objects. Reads see every completed write (read after write); a read is never torn. Safe for concurrent use.
type Reader interface {
	// Get reads a whole object of at most limit bytes (ErrTooLarge), or ErrNotFound.
	Get(ctx context.Context, key string, limit int64) (Object, error)
	// GetIfChanged is Get, but ErrNotModified if the object still has token (an empty token never matches).
	GetIfChanged(ctx context.Context, key string, token Token, limit int64) (Object, error)
	// Open streams an object; the size is the whole object's. A body that ends early is an error, never a short success.
	Open(ctx context.Context, key string) (io.ReadCloser, int64, error)
	// List gives at most max objects whose keys start with prefix and sort after `after`, in byte order.
	List(ctx context.Context, prefix, after string, max int) ([]Info, error)
}

// Blobs keeps immutable, content-addressed objects.
type Blobs interface {
	// Put stores data durably, over an equal older object if there is one (so that gc sees it young). Idempotent.
	Put(ctx context.Context, key string, data []byte) error
}

// Registers are small objects (at most 16 MiB) with compare-and-swap. Exactly one of many concurrent writers wins, across processes.
type Registers interface {
	// Create makes the object if there is none. If one with equal bytes is there (also our own, after a lost answer), that is success. Else ErrExists.
	Create(ctx context.Context, key string, data []byte) (Token, error)
	// Replace overwrites the object that token was read from; else ErrConflict. After a lost answer it re-reads: equal bytes are success.
	// ErrAmbiguous when even that could not be found out.
	Replace(ctx context.Context, key string, data []byte, token Token) (Token, error)
}

// Store is all of it.
type Store interface {
	Reader
	Blobs
	Registers
	// Delete removes an object; a missing one is no error.
	Delete(ctx context.Context, key string) error
	// URL is the store's address without secrets, for messages.
	URL() string
}

// ReadStore is a store that can only be read: https.
type ReadStore interface {
	Reader
	URL() string
}
