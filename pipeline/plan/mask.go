package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/muster-config/muster/cue/eval"
)

const secretText = "(secret)"

// A rendered file is text, and what in it is secret must be found again: by the name before the value, as a user and password of a URL, and by the digests of the
// secret values that the unit knows.
var (
	secretName = regexp.MustCompile(`(?i)` + eval.SecretWords)
	secretKey  = regexp.MustCompile(`(?i)(?:` + eval.SecretWords + `)[\w.-]*["']?(?:\s*[:=]>?\s*|\s+)(.+)$`)
	secretURL  = regexp.MustCompile(`://[^/\s@]+@`)
	blockBegin = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*-----`)
	blockEnd   = regexp.MustCompile(`-----END [A-Z0-9 ]*-----`)
)

// secretWords are in every match of secretKey: looking for them is cheap.
var secretWords = []string{"passw", "secret", "token", "private", "dsn", "credential"}

// mask hides the secrets of one service in lines of its files.
type mask struct{ sums map[string]bool }

func newMask(units ...*eval.Unit) *mask {
	m := &mask{sums: map[string]bool{}}
	for _, u := range units {
		if u == nil {
			continue
		}
		for _, sum := range u.Secrets { // what leaves do not tell: an item of a list, a line of a text
			m.sums[sum] = true
		}
		for _, l := range u.Leaves {
			for _, s := range append([]eval.Setting{l.Setting}, l.Shadows...) {
				if s.Secret && s.Sum != "" {
					m.sums[s.Sum] = true
				}
			}
		}
	}
	return m
}

func (m *mask) line(s string) string {
	if lower := strings.ToLower(s); slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(lower, w) }) {
		if at := secretKey.FindStringSubmatchIndex(s); at != nil {
			s = s[:at[2]] + secretText
		}
	}
	if strings.Contains(s, "://") {
		s = secretURL.ReplaceAllString(s, "://"+secretText+"@")
	}
	return m.known(s)
}

// known replaces every part of a line that is the text of a secret value.
func (m *mask) known(s string) string {
	if len(m.sums) == 0 {
		return s
	}
	for from := 0; from < len(s); from++ {
		for to := len(s); to >= from+3; to-- {
			if m.is(s[from:to]) {
				s = s[:from] + secretText + s[to:]
				from += len(secretText) - 1
				break
			}
		}
	}
	return s
}

// is reports whether text is a secret's, as a string or as it stands (a number).
func (m *mask) is(text string) bool {
	var quoted strings.Builder
	enc := json.NewEncoder(&quoted)
	enc.SetEscapeHTML(false)
	if enc.Encode(text) != nil {
		return false
	}
	for _, canonical := range []string{strings.TrimSuffix(quoted.String(), "\n"), text} {
		sum := sha256.Sum256([]byte(canonical))
		if m.sums[hex.EncodeToString(sum[:])] {
			return true
		}
	}
	return false
}

// maskBlocks are the lines of keys and certificates in texts: none of them is worth showing.
func maskBlocks(texts ...[]string) map[string]bool {
	masked := map[string]bool{}
	for _, lines := range texts {
		for i := 0; i < len(lines); i++ {
			if !blockBegin.MatchString(lines[i]) {
				continue
			}
			end := slices.IndexFunc(lines[i:], blockEnd.MatchString)
			if end < 0 {
				end = len(lines) - 1 - i
			}
			for _, l := range lines[i : i+end+1] {
				if strings.TrimSpace(l) != "" {
					masked[l] = true
				}
			}
			i += end
		}
	}
	return masked
}
