package eval

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/muster-config/muster/cue/eval/encode"
)

// secretPlace matches a text under the name of a secret that surely is where the host has it. It is stricter than secretRef, which a secret of random
// letters may match by accident.
var secretPlace = regexp.MustCompile(`^(?:%d|\$\{?CREDENTIALS_DIRECTORY\}?|/[\w.@-]+)(?:/[\w.@-]+)+$|^(?:file|systemd|vault|exec):\S+$`)

// least is how long a secret is that can be found in a text.
const least = 3

// holds reports whether a value has a secret in it: not where one is, but one itself. It remembers them. Fields that are marked are no matter here: of these
// literals are refused.
func (x *secrets) holds(v encode.Value, secret bool) bool {
	switch v := v.(type) {
	case string:
		if secret && v != "" && !secretPlace.MatchString(v) {
			x.add(v)
			return true
		}
		return withPassword.MatchString(v)
	case encode.Number:
		if secret {
			x.add(string(v))
		}
		return secret && len(v) < least
	case []any:
		found := false
		for _, e := range v {
			found = x.holds(e, secret) || found
		}
		return found
	case map[string]any:
		found := false
		for k, e := range v {
			found = x.holds(e, secret || x.secretKey(k)) || found
		}
		return found
	}
	return false
}

// cleanPaths takes the secrets out of the paths of leaves: a key may be one.
func (x *secrets) cleanPaths(units []Unit) {
	texts := slices.DeleteFunc(x.longestFirst(), func(t string) bool { return len(t) < surely || secretPlace.MatchString(t) })
	if len(texts) == 0 {
		return
	}
	for _, u := range units {
		for i := range u.Leaves {
			path := slices.Clone(u.Leaves[i].Path)
			for j, key := range path {
				path[j] = x.clean(key, texts)
			}
			u.Leaves[i].Path = path
		}
	}
}

// cover marks the files of units in which a known secret stands, however it is written.
func (x *secrets) cover(units []Unit) {
	var parts [][]byte
	var numbers []string
	for t := range x.texts {
		switch _, err := strconv.ParseFloat(t, 64); {
		case err == nil:
			numbers = append(numbers, t)
		case !secretPlace.MatchString(t):
			parts = append(parts, spellings(t)...)
		}
	}
	if len(parts)+len(numbers) == 0 {
		return
	}
	known := map[string]bool{} // most cohorts have the same files
	for _, u := range units {
		for i := range u.Files {
			f := &u.Files[i]
			shows, ok := known[string(f.Data)]
			if !ok {
				shows = containsAny(f.Data, parts) || containsNumber(string(f.Data), numbers)
				known[string(f.Data)] = shows
			}
			f.Secret = f.Secret || shows
		}
	}
}

func containsAny(data []byte, parts [][]byte) bool {
	for _, p := range parts {
		if bytes.Contains(data, p) {
			return true
		}
	}
	return false
}

// containsNumber looks for whole numbers: 128 is not in 5128.
func containsNumber(data string, numbers []string) bool {
	digit := func(s string, i int) bool { return i >= 0 && i < len(s) && '0' <= s[i] && s[i] <= '9' }
	for _, n := range numbers {
		for from := 0; ; {
			at := strings.Index(data[from:], n)
			if at < 0 {
				break
			}
			at += from
			if !digit(data, at-1) && !digit(data, at+len(n)) {
				return true
			}
			from = at + 1
		}
	}
	return false
}

// spellings are a text as formats and the functions of templates and of CUE write it, and its lines.
func spellings(text string) [][]byte {
	found := map[string]bool{}
	add := func(s string) {
		if len(s) >= least {
			found[s] = true
		}
	}
	for line := range strings.Lines(text) {
		add(strings.TrimSpace(line))
	}
	for _, t := range []string{text, strings.TrimSpace(text)} {
		if len(t) < least {
			continue
		}
		add(t)
		inner := func(quoted string) { add(quoted[1 : len(quoted)-1]) }
		inner(strconv.Quote(t))
		inner(strconv.QuoteToASCII(t))
		if j, err := json.Marshal(t); err == nil {
			inner(string(j))
		}
		add(strings.ReplaceAll(t, "'", "''")) // YAML in single quotes
		add(strings.ReplaceAll(t, "'", `'\''`))
		add(strings.ReplaceAll(t, "$", "$$"))
		add(url.QueryEscape(t))
		add(url.PathEscape(t))
		add(html.EscapeString(t))
		add(template.HTMLEscapeString(t))
		add(template.JSEscapeString(t))
		add(hex.EncodeToString([]byte(t)))
		add(strings.ToUpper(hex.EncodeToString([]byte(t))))
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			add(e.EncodeToString([]byte(t)))
			// Inside of a longer text it begins at any of three places, and what its first and last letters become depends on their neighbours.
			for shift := range 3 {
				coded := e.EncodeToString(append(make([]byte, shift), t...))
				if coded = coded[(shift*8+5)/6 : (shift+len(t))*8/6]; len(coded) > 4 {
					add(coded)
				}
			}
		}
	}
	out := make([][]byte, 0, len(found))
	for s := range found {
		out = append(out, []byte(s))
	}
	return out
}
