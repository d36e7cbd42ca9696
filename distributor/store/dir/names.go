package dir

import (
	"fmt"
	"path/filepath"
	"strings"
)

// urlPath is the path of a file:// URL for a directory: on Windows it has a slash before the drive letter.
func urlPath(root string, windows bool) string {
	if !windows {
		return filepath.ToSlash(root)
	}
	root = strings.ReplaceAll(root, `\`, "/")
	if !strings.HasPrefix(root, "/") {
		root = "/" + root
	}
	return root
}

// FromURL is the directory that the path of a file:// URL names on this system. It is "" for one that names none.
func FromURL(path string) string { return fromURL(path, onWindows) }

func fromURL(path string, windows bool) string {
	if !windows {
		if !strings.HasPrefix(path, "/") {
			return ""
		}
		return path
	}
	// file:///C:/store, or file:////server/share/store.
	rest, ok := strings.CutPrefix(path, "/")
	switch {
	case !ok:
		return ""
	case len(rest) >= 3 && isLetter(rest[0]) && rest[1:3] == ":/":
		return strings.ReplaceAll(rest, "/", `\`)
	case len(rest) > 1 && rest[0] == '/' && rest[1] != '/':
		return strings.ReplaceAll(path, "/", `\`)
	}
	return ""
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// checkWindowsKey refuses a key that is another name, or none, as a path of Windows: its names do not end in a dot or a space, have no colon (behind it
// begins a stream of the same file) and are no device, whatever their ending.
func checkWindowsKey(key string) error {
	for part := range strings.SplitSeq(key, "/") {
		stem, _, _ := strings.Cut(part, ".")
		switch {
		case strings.ContainsAny(part, "\\:<>\"|?*"):
			return fmt.Errorf("key %q: part %q has a character that no file name of Windows can have", key, part)
		case strings.HasSuffix(part, ".") || strings.HasSuffix(part, " "):
			return fmt.Errorf("key %q: part %q ends in a way that Windows takes off file names", key, part)
		case isDevice(strings.ToLower(strings.TrimRight(stem, " "))):
			return fmt.Errorf("key %q: %q is a device of Windows; keep this store on another system, or give it another name", key, part)
		}
	}
	return nil
}

func isDevice(stem string) bool {
	switch stem {
	case "con", "prn", "aux", "nul", "conin$", "conout$":
		return true
	}
	for _, port := range []string{"com", "lpt"} {
		if n, ok := strings.CutPrefix(stem, port); ok {
			switch n {
			case "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "¹", "²", "³":
				return true
			}
		}
	}
	return false
}
