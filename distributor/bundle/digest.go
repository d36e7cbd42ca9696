package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strings"
)

// ContentDigest is SHA-256 over the sorted file list: "<octal mode> SP <hex sha256> SP <path> LF" each. "sha256:<hex>".
func ContentDigest(files []File) string {
	entries := make([]Entry, len(files))
	for i, f := range files {
		entries[i] = entryOf(f)
	}
	return ContentOf(entries)
}

// ContentOf is ContentDigest from already hashed files.
func ContentOf(entries []Entry) string {
	if !slices.IsSortedFunc(entries, byPath) {
		entries = slices.Clone(entries)
		slices.SortFunc(entries, byPath)
	}
	h := sha256.New()
	for _, e := range entries {
		fmt.Fprintf(h, "%04o %s %s\n", e.Mode, e.SHA256, e.Path)
	}
	return digest(h)
}

func entryOf(f File) Entry {
	sum := sha256.Sum256(f.Data)
	return Entry{Path: f.Path, Mode: f.Mode, Size: int64(len(f.Data)), SHA256: hex.EncodeToString(sum[:])}
}

func byPath(a, b Entry) int { return strings.Compare(a.Path, b.Path) }

func digest(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

func isDigest(s string) bool {
	hexed, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(hexed) == 64 && strings.Trim(hexed, "0123456789abcdef") == ""
}
