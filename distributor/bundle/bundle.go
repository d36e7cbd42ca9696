// Package bundle is the archive that hosts fetch: a deterministic tar of regular files in one zstd stream, its content digest, its limits and the plan by
// which it is unpacked safely. Readers and writers only: it opens no file and no connection.
package bundle

import "fmt"

// The limits of a bundle (DESIGN.md section 5). Publisher and agent check the same ones.
const (
	MaxTar    = 256 << 20
	MaxFile   = 64 << 20
	MaxFiles  = 20_000
	MaxPath   = 512
	MaxIndex  = 8 << 20
	IndexPath = ".muster/release.json"
	// MaxCompressed bounds the stored bytes of a bundle.
	MaxCompressed = MaxTar + 1<<20
	// MaxTreeFiles is MaxFiles for PackTree: a whole config repo.
	MaxTreeFiles = 200_000
	// MaxWindow bounds what a decoder must remember.
	MaxWindow = 8 << 20
)

// The codes of an Error, for reports.
const (
	CodePath      = "unsafe path"
	CodeDigest    = "digest mismatch"
	CodeTooLarge  = "too large"
	CodeMalformed = "malformed"
)

// File is one file of a bundle. Path is "<service>/<name>", slash-separated, clean and relative. Mode is permission bits only, 0400 to 0777; no setuid.
type File struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
	Data []byte `json:"data"`
}

// Index is the bundle's first entry. It is not part of the content digest.
type Index struct {
	V        int                `json:"v"`
	Repo     string             `json:"repo"`
	Cohort   string             `json:"cohort"`
	Host     string             `json:"host,omitempty"` // a variant's host
	Epoch    uint64             `json:"epoch"`
	Commit   string             `json:"commit"`
	Services map[string]Service `json:"services"`
}

// Service is a service's entry in the index.
type Service struct {
	Epoch   uint64 `json:"epoch"`   // service epoch: the release in which its files last changed here
	Digest  string `json:"digest"`  // content digest of its files, paths as in the bundle
	Digest0 string `json:"digest0"` // the same of the epoch-0 render: what "changed" is decided by
	Files   int    `json:"files"`
}

// Entry is a file's line in the content digest.
type Entry struct {
	Path   string `json:"path"`
	Mode   uint32 `json:"mode"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // 64 hex digits
}

// Packed is a written bundle.
type Packed struct {
	Data    []byte // as stored
	Object  string // "sha256:…" of Data
	Tar     string // "sha256:…" of the uncompressed tar
	TarSize int64
	Content string // content digest
	Files   int
}

// Plan is what Scan found: everything that unpacking needs to know before one byte is written.
type Plan struct {
	Index   Index
	Entries []Entry // sorted by path, without the index
	Content string
	Tar     string
	TarSize int64
	Object  string // digest of the compressed bytes read
	Size    int64
}

// Error is a refused bundle; Code is for reports.
type Error struct {
	Code string // "unsafe path", "digest mismatch", "too large", "malformed"
	Path string
	Err  error
}

func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("bundle refused: %s: %v", e.Code, e.Err)
	}
	return fmt.Sprintf("bundle refused: %s: %.80q: %v", e.Code, e.Path, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

func refuse(code, path, format string, args ...any) error {
	return &Error{Code: code, Path: path, Err: fmt.Errorf(format, args...)}
}
