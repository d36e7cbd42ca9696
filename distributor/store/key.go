package store

import (
	"fmt"
	"strings"
)

// MaxKey is the longest key in bytes.
const MaxKey = 900

// MaxRegister is the largest register; anything larger is a blob.
const MaxRegister = 16 << 20

// CheckKey refuses what must not name an object in any store: a key is slash-separated, relative and clean, and each part is 1 to 200 printable ASCII
// characters without a backslash and does not begin with a dot (dot files belong to the store itself).
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("key %.60q: must be 1 to %d bytes long", key, MaxKey)
	}
	for part := range strings.SplitSeq(key, "/") {
		switch {
		case part == "":
			return fmt.Errorf("key %q: has an empty part", key)
		case part[0] == '.':
			return fmt.Errorf("key %q: part %q begins with a dot", key, part)
		case len(part) > 200:
			return fmt.Errorf("key %q: has a part of over 200 bytes", key)
		}
	}
	for i := 0; i < len(key); i++ {
		if c := key[i]; c < 0x20 || c > 0x7e || c == '\\' {
			return fmt.Errorf("key %q: holds the byte 0x%02x", key, c)
		}
	}
	return nil
}
