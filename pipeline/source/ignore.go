package source

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ignores are the patterns in force at a directory, weakest first: the last that matches decides (gitignore(5)).
type ignores []pattern

type pattern struct {
	dir      string   // where it was written, "." is the root
	parts    []string // the pattern's elements; "**" is any number of directories
	negated  bool
	dirOnly  bool
	baseOnly bool // no slash: matches the name at any depth
}

// standardIgnores are those outside the tree: the user's core.excludesFile and the repository's info/exclude.
func (r *Repo) standardIgnores() (ignores, error) {
	var list ignores
	file, err := r.excludesFile()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{file, filepath.Join(r.common, "info", "exclude")} {
		if name == "" {
			continue
		}
		data, err := readSmallIfAny(name)
		if err != nil {
			return nil, fmt.Errorf("ignore patterns: %w", err)
		}
		list = list.with(".", data)
	}
	return list, nil
}

// excludesFile finds the setting where git finds it: system, user and repository config, the last one wins; includes are not followed.
func (r *Repo) excludesFile() (string, error) {
	home, _ := os.UserHomeDir()
	xdg := os.Getenv("XDG_CONFIG_HOME")
	if xdg == "" && home != "" {
		xdg = filepath.Join(home, ".config")
	}
	var configs []string
	if v := os.Getenv("GIT_CONFIG_NOSYSTEM"); v == "" || v == "0" || v == "false" {
		configs = append(configs, or(os.Getenv("GIT_CONFIG_SYSTEM"), "/etc/gitconfig"))
	}
	if v, set := os.LookupEnv("GIT_CONFIG_GLOBAL"); set {
		configs = append(configs, v)
	} else {
		if xdg != "" {
			configs = append(configs, filepath.Join(xdg, "git", "config"))
		}
		if home != "" {
			configs = append(configs, filepath.Join(home, ".gitconfig"))
		}
	}
	configs = append(configs, filepath.Join(r.common, "config"))
	file := ""
	if xdg != "" {
		file = filepath.Join(xdg, "git", "ignore")
	}
	for _, name := range configs {
		if name == "" || name == os.DevNull {
			continue
		}
		cfg, err := readConfig(name)
		if err != nil {
			return "", err
		}
		if core := cfg.Section("core"); core.HasOption("excludesfile") {
			file = core.Option("excludesfile")
		}
	}
	if rest, ok := strings.CutPrefix(file, "~/"); ok {
		file = filepath.Join(home, rest)
	}
	if file == "" {
		return "", nil
	}
	return under(r.workTree, file), nil
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// with adds the patterns of one file. The receiver is not changed: sibling directories share it.
func (list ignores) with(dir string, data []byte) ignores {
	out := list[:len(list):len(list)]
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	for line := range strings.SplitSeq(string(data), "\n") {
		if p, ok := parsePattern(dir, strings.TrimSuffix(line, "\r")); ok {
			out = append(out, p)
		}
	}
	return out
}

func parsePattern(dir, line string) (pattern, bool) {
	p := pattern{dir: dir}
	if strings.HasPrefix(line, "#") {
		return p, false
	}
	line = trimSpaces(line)
	if rest, ok := strings.CutPrefix(line, "!"); ok {
		p.negated, line = true, rest
	}
	if rest, ok := strings.CutSuffix(line, "/"); ok {
		p.dirOnly, line = true, rest
	}
	if line == "" {
		return p, false
	}
	p.baseOnly = !strings.Contains(line, "/")
	p.parts = strings.Split(strings.TrimPrefix(line, "/"), "/")
	if n := len(p.parts); n > 1 && p.parts[n-1] == "**" {
		p.parts = append(p.parts[:n-1], "*", "**") // everything inside, not the directory itself
	}
	return p, true
}

// trimSpaces removes trailing spaces that no backslash keeps.
func trimSpaces(s string) string {
	end := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			end = i + 1
		case s[i] != ' ':
			end = i + 1
		}
	}
	return s[:end]
}

// match reports whether git ignores p, whose directories are not ignored.
func (list ignores) match(p string, isDir bool) bool {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].match(p, isDir) {
			return !list[i].negated
		}
	}
	return false
}

func (pt *pattern) match(p string, isDir bool) bool {
	if pt.dirOnly && !isDir {
		return false
	}
	if pt.dir != "." {
		rest, ok := strings.CutPrefix(p, pt.dir+"/")
		if !ok {
			return false
		}
		p = rest
	}
	if pt.baseOnly {
		return glob(pt.parts[0], p[strings.LastIndexByte(p, '/')+1:])
	}
	return globParts(pt.parts, strings.Split(p, "/"))
}

// globParts matches element by element; of several "**" only the last one need give way, so the time is bounded by the product of the lengths.
func globParts(pattern, name []string) bool {
	star, mark := -1, 0
	i, j := 0, 0
	for {
		switch {
		case i < len(pattern) && pattern[i] == "**":
			star, mark = i, j
			i++
			continue
		case j == len(name):
			return i == len(pattern)
		case i < len(pattern) && glob(pattern[i], name[j]):
			i, j = i+1, j+1
			continue
		case star < 0:
			return false
		}
		mark++
		i, j = star+1, mark
	}
}

// glob is git's wildmatch within one path element, byte by byte: * ? [class] and backslash.
func glob(pat, s string) bool {
	star, mark := -1, 0
	i, j := 0, 0
	for {
		if i < len(pat) && pat[i] == '*' {
			star, mark = i, j
			i++
			continue
		}
		if j == len(s) {
			return i == len(pat)
		}
		if i < len(pat) {
			ok, next := globByte(pat, i, s[j])
			if ok {
				i, j = next, j+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		mark++ // the last star takes one byte more
		i, j = star+1, mark
	}
}

// globByte matches one byte and gives where the pattern goes on.
func globByte(pat string, i int, c byte) (bool, int) {
	switch pat[i] {
	case '?':
		return true, i + 1
	case '\\':
		if i+1 == len(pat) {
			return false, i
		}
		return pat[i+1] == c, i + 2
	case '[':
		return globClass(pat, i+1, c)
	}
	return pat[i] == c, i + 1
}

func globClass(pat string, i int, c byte) (bool, int) {
	negated := i < len(pat) && (pat[i] == '!' || pat[i] == '^')
	if negated {
		i++
	}
	hit := false
	for first := true; ; first = false {
		if i >= len(pat) {
			return false, i // never closed: matches nothing
		}
		if pat[i] == ']' && !first {
			return hit != negated, i + 1
		}
		if strings.HasPrefix(pat[i:], "[:") {
			if end := strings.Index(pat[i:], ":]"); end > 0 {
				is, known := posix[pat[i+2:i+end]]
				if !known {
					return false, i
				}
				hit = hit || is(c)
				i += end + 2
				continue
			}
		}
		lo, next, ok := classByte(pat, i)
		if !ok {
			return false, i
		}
		hi := lo
		if next+1 < len(pat) && pat[next] == '-' && pat[next+1] != ']' {
			if hi, next, ok = classByte(pat, next+1); !ok {
				return false, i
			}
		}
		hit = hit || c == lo || lo <= c && c <= hi // git takes the first byte of [b-a] for itself
		i = next
	}
}

func classByte(pat string, i int) (byte, int, bool) {
	if pat[i] == '\\' {
		if i++; i == len(pat) {
			return 0, i, false
		}
	}
	return pat[i], i + 1, true
}

var posix = map[string]func(byte) bool{
	"alpha":  func(c byte) bool { return lower(c) || upper(c) },
	"digit":  digitByte,
	"alnum":  func(c byte) bool { return lower(c) || upper(c) || digitByte(c) },
	"lower":  lower,
	"upper":  upper,
	"space":  func(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' },
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"xdigit": func(c byte) bool { return digitByte(c) || 'a' <= c|0x20 && c|0x20 <= 'f' },
	"punct":  func(c byte) bool { return 0x20 < c && c < 0x7f && !lower(c) && !upper(c) && !digitByte(c) },
	"print":  func(c byte) bool { return 0x20 <= c && c < 0x7f },
	"graph":  func(c byte) bool { return 0x20 < c && c < 0x7f },
	"cntrl":  func(c byte) bool { return c < 0x20 || c == 0x7f },
}

func lower(c byte) bool     { return 'a' <= c && c <= 'z' }
func upper(c byte) bool     { return 'A' <= c && c <= 'Z' }
func digitByte(c byte) bool { return '0' <= c && c <= '9' }
