package bundle

import (
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// checker takes the files of an archive in order and refuses the first that must not be there. Packing and scanning go through the same one.
type checker struct {
	tree    bool // a source tree: any names that git has, no index
	entries []Entry
	total   int64
	seen    map[string]string // folded path of each file and directory → its own; a file's ends in no slash, a directory's does
}

func newChecker(tree bool) *checker { return &checker{tree: tree, seen: map[string]string{}} }

// header checks all that is known before the data are read.
func (c *checker) header(name string, mode int64, size int64) error {
	most := MaxFiles
	if c.tree {
		most = MaxTreeFiles
	}
	switch {
	case len(c.entries) >= most:
		return refuse(CodeTooLarge, "", "more than %d files", most)
	case size > MaxFile:
		return refuse(CodeTooLarge, name, "file of %d bytes, at most %d allowed", size, MaxFile)
	case size < 0:
		return refuse(CodeMalformed, name, "file of negative size")
	case c.total+size > MaxTar:
		return refuse(CodeTooLarge, "", "more than %d bytes in all", MaxTar)
	}
	if err := c.path(name); err != nil {
		return err
	}
	if mode&^0o777 != 0 {
		return refuse(CodeMalformed, name, "mode %o has more than permission bits", mode)
	}
	if mode < 0o400 || mode&0o400 == 0 {
		return refuse(CodeMalformed, name, "mode %04o is not readable by its owner", mode)
	}
	if n := len(c.entries); n > 0 {
		switch prev := c.entries[n-1].Path; {
		case prev == name:
			return refuse(CodePath, name, "is there twice")
		case prev > name:
			return refuse(CodeMalformed, name, "is not in order: it comes after %.80q", prev)
		}
	}
	if err := c.unique(name); err != nil {
		return err
	}
	c.total += size
	return nil
}

// path refuses every name that does not mean one file below the place of unpacking, and only that, on any file system.
func (c *checker) path(name string) error {
	if len(name) > MaxPath {
		return refuse(CodePath, name, "longer than %d bytes", MaxPath)
	}
	if name == "" {
		return refuse(CodePath, name, "empty name")
	}
	if !utf8.ValidString(name) {
		return refuse(CodePath, name, "is not UTF-8")
	}
	for _, r := range name {
		if r == '\\' || r == unicode.ReplacementChar || unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return refuse(CodePath, name, "holds the character %U", r)
		}
	}
	if name[0] == '/' {
		return refuse(CodePath, name, "is absolute")
	}
	if path.Clean(name) != name || name == "." || name == ".." || strings.HasPrefix(name, "../") {
		return refuse(CodePath, name, "is not a clean relative path")
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > 255 {
			return refuse(CodePath, name, "has a part of over 255 bytes")
		}
	}
	if c.tree {
		return nil
	}
	service, _, ok := strings.Cut(name, "/")
	if !ok {
		return refuse(CodePath, name, "lies in no service's directory")
	}
	if fold(service) == ".muster" {
		return refuse(CodePath, name, "lies in the directory of the index")
	}
	return nil
}

// unique refuses a file that would share its place with another file or directory, also where a file system ignores case or the way in which an
// accent is written. A git tree may hold names that differ by case only, and is never unpacked on a host.
func (c *checker) unique(name string) error {
	key := name
	if !c.tree {
		key = fold(name)
	}
	if other, ok := c.seen[key]; ok {
		return refuse(CodePath, name, "is the same file as %.80q where case or accents do not count", other)
	}
	if other, ok := c.seen[key+"/"]; ok {
		return refuse(CodePath, name, "is also the directory %.80q", other)
	}
	// Folding never adds or removes a slash, so that both have the same parts.
	for i, j := 0, 0; ; {
		di, dj := strings.IndexByte(name[i:], '/'), strings.IndexByte(key[j:], '/')
		if di < 0 || dj < 0 {
			break
		}
		i, j = i+di, j+dj
		if other, ok := c.seen[key[:j]]; ok {
			return refuse(CodePath, name, "lies below the file %.80q", other)
		}
		i, j = i+1, j+1
		if other, ok := c.seen[key[:j]]; !ok {
			c.seen[key[:j]] = name[:i]
		} else if other != name[:i] {
			return refuse(CodePath, name, "lies in the directory %.80q, which is also %.80q where case or accents do not count", name[:i], other)
		}
	}
	c.seen[key] = name
	return nil
}

// fold gives names that some file system takes for equal the same form.
func fold(name string) string {
	plain := true
	for i := 0; i < len(name); i++ {
		if b := name[i]; b >= utf8.RuneSelf || 'A' <= b && b <= 'Z' {
			plain = false
			break
		}
	}
	if plain {
		return name
	}
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = norm.NFD.String(cases.Fold().String(norm.NFD.String(part)))
	}
	return strings.Join(parts, "/")
}

// index checks that the index says of each service what the archive holds.
func (c *checker) index(ix *Index) error {
	if err := ix.check(); err != nil {
		return err
	}
	rest := c.entries
	found := 0
	for len(rest) > 0 {
		name, _, _ := strings.Cut(rest[0].Path, "/")
		n := 1
		for n < len(rest) && strings.HasPrefix(rest[n].Path, name+"/") {
			n++
		}
		svc, ok := ix.Services[name]
		if !ok {
			return refuse(CodeMalformed, rest[0].Path, "the index knows no service %q", name)
		}
		if svc.Files != n {
			return refuse(CodeMalformed, name, "the index says %d files, there are %d", svc.Files, n)
		}
		if got := ContentOf(rest[:n]); got != svc.Digest {
			return refuse(CodeDigest, name, "the files have the digest %s, the index says %s", got, svc.Digest)
		}
		found++
		rest = rest[n:]
	}
	if found == len(ix.Services) {
		return nil
	}
	none := ContentOf(nil)
	for name, svc := range ix.Services {
		if svc.Files == 0 && svc.Digest == none {
			found++
		} else if svc.Files == 0 {
			return refuse(CodeDigest, name, "a service without files has the digest %s, the index says %s", none, svc.Digest)
		}
	}
	if found != len(ix.Services) {
		return refuse(CodeMalformed, "", "the index names services whose files are missing")
	}
	return nil
}

func (ix *Index) check() error {
	bad := func(format string, args ...any) error {
		return refuse(CodeMalformed, IndexPath, format, args...)
	}
	switch {
	case ix.V != 1:
		return bad("version %d, this release of muster reads 1", ix.V)
	case ix.Repo == "" || ix.Cohort == "":
		return bad("repo or cohort is empty")
	case ix.Epoch > maxEpoch:
		return bad("epoch %d is too large", ix.Epoch)
	}
	for name, svc := range ix.Services {
		switch {
		case name == "" || strings.ContainsAny(name, "/\\") || name[0] == '.':
			return refuse(CodePath, IndexPath, "%.80q cannot name a service", name)
		case svc.Epoch > ix.Epoch:
			return bad("service %q is of epoch %d, after the bundle's %d", name, svc.Epoch, ix.Epoch)
		case svc.Files < 0:
			return bad("service %q has %d files", name, svc.Files)
		case !isDigest(svc.Digest) || !isDigest(svc.Digest0):
			return bad("service %q has no valid digest", name)
		}
	}
	return nil
}

// maxEpoch keeps an epoch exact in every JSON reader.
const maxEpoch = 1<<53 - 1
