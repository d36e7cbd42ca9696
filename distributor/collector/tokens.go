package collector

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Roles of a person.
const (
	RoleViewer   = "viewer"   // reads
	RoleOperator = "operator" // reads, hands heads over, steers rollouts, retires hosts and accepts their keys
)

// Tokens is tokens.yaml: who may speak to the collector. It holds digests only, so that the file is no secret.
type Tokens struct {
	Agents []AgentToken
	People []PersonToken
}

// AgentToken lets agents report for cohorts and read what they need. Cohorts are names or patterns such as prod-*.
type AgentToken struct {
	SHA256  string // hex digest of the token
	Cohorts []string
}

// PersonToken lets a person read, and with the role operator hand heads over, for cohorts.
type PersonToken struct {
	Name    string
	SHA256  string
	Role    string
	Cohorts []string
}

// LoadTokens reads a tokens file. An error is one line that names file, line and key; it never holds a token.
func LoadTokens(path string) (*Tokens, error) {
	var t Tokens
	if err := readYAML(path, &t, tokensKeys); err != nil {
		return nil, err
	}
	if len(t.Agents)+len(t.People) == 0 {
		return nil, fmt.Errorf("%s: lets nobody in; add agents and people", path)
	}
	return &t, nil
}

var tokensKeys = fields[Tokens]{
	"agents": func(n *yaml.Node, at string, t *Tokens) error {
		return each(n, at, func(n *yaml.Node, at string) error {
			var a AgentToken
			if err := agentKeys.read(n, at, &a); err != nil {
				return err
			}
			t.Agents = append(t.Agents, a)
			return checkToken(n, at, t, a.SHA256, a.Cohorts)
		})
	},
	"people": func(n *yaml.Node, at string, t *Tokens) error {
		return each(n, at, func(n *yaml.Node, at string) error {
			var p PersonToken
			if err := personKeys.read(n, at, &p); err != nil {
				return err
			}
			if p.Name == "" {
				return fail(n, "%s.name: missing", at)
			}
			if p.Role != RoleViewer && p.Role != RoleOperator {
				return fail(n, "%s.role: %q is not %s or %s", at, p.Role, RoleViewer, RoleOperator)
			}
			t.People = append(t.People, p)
			return checkToken(n, at, t, p.SHA256, p.Cohorts)
		})
	},
}

var agentKeys = fields[AgentToken]{
	"sha256":  func(n *yaml.Node, at string, a *AgentToken) error { return text(n, at, &a.SHA256) },
	"cohorts": func(n *yaml.Node, at string, a *AgentToken) error { return texts(n, at, &a.Cohorts) },
}

var personKeys = fields[PersonToken]{
	"name":    func(n *yaml.Node, at string, p *PersonToken) error { return text(n, at, &p.Name) },
	"sha256":  func(n *yaml.Node, at string, p *PersonToken) error { return text(n, at, &p.SHA256) },
	"role":    func(n *yaml.Node, at string, p *PersonToken) error { return text(n, at, &p.Role) },
	"cohorts": func(n *yaml.Node, at string, p *PersonToken) error { return texts(n, at, &p.Cohorts) },
}

func each(n *yaml.Node, at string, one func(n *yaml.Node, at string) error) error {
	if n.Kind != yaml.SequenceNode {
		return fail(n, "%s: not a list", at)
	}
	for i, c := range n.Content {
		if err := one(c, fmt.Sprintf("%s[%d]", at, i)); err != nil {
			return err
		}
	}
	return nil
}

func checkToken(n *yaml.Node, at string, t *Tokens, sum string, cohorts []string) error {
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size || strings.ToLower(sum) != sum {
		return fail(n, "%s.sha256: not 64 lower-case hex digits; make it with: printf %%s TOKEN | sha256sum", at)
	}
	uses := 0
	for _, a := range t.Agents {
		if a.SHA256 == sum {
			uses++
		}
	}
	for _, p := range t.People {
		if p.SHA256 == sum {
			uses++
		}
	}
	if uses > 1 {
		return fail(n, "%s.sha256: is there twice; give everybody a token of their own", at)
	}
	if len(cohorts) == 0 {
		return fail(n, "%s.cohorts: missing; name cohorts, or \"*\" for all", at)
	}
	for _, c := range cohorts {
		if _, err := path.Match(c, "x"); err != nil || c == "" {
			return fail(n, "%s.cohorts: %q is not a name or a pattern", at, c)
		}
	}
	return nil
}

// caller is who sent a request, and what that allows.
type caller struct {
	agent   bool   // may report and read heads and objects
	person  bool   // may read everything
	hand    bool   // may hand heads over, and change hosts
	name    string // of a person with a token
	cohorts []string
	secure  bool // over TLS or loopback: a heartbeat key may be given
}

// may says whether the caller may do something about a cohort.
func (c caller) may(cohort string) bool {
	for _, p := range c.cohorts {
		if ok, err := path.Match(p, cohort); err == nil && ok {
			return true
		}
	}
	return false
}

// local is who calls a collector without tokens, which listens on loopback only; and code in the same process.
var local = caller{agent: true, person: true, hand: true, cohorts: []string{"*"}, secure: true}

// lookup finds whose token it is. Every entry is compared in the same time, so that a wrong token does not tell how near it was.
func (t *Tokens) lookup(token string) (caller, bool) {
	sum := sha256.Sum256([]byte(token))
	got := []byte(hex.EncodeToString(sum[:]))
	var found caller
	ok := false
	for _, a := range t.Agents {
		if subtle.ConstantTimeCompare(got, []byte(a.SHA256)) == 1 {
			found, ok = caller{agent: true, cohorts: a.Cohorts}, true
		}
	}
	for _, p := range t.People {
		if subtle.ConstantTimeCompare(got, []byte(p.SHA256)) == 1 {
			found, ok = p.caller(), true
		}
	}
	return found, ok
}

func (p PersonToken) caller() caller {
	return caller{person: true, hand: p.Role == RoleOperator, name: p.Name, cohorts: p.Cohorts}
}

// all says whether the caller may see every cohort, also one that nobody thought of yet.
func (c caller) all() bool { return slices.Contains(c.cohorts, "*") }

// identify finds out who sent a request: false if it is nobody that the collector knows.
func (c *Collector) identify(r *http.Request) (caller, bool) {
	tokens := c.tokens.Load()
	if tokens == nil {
		return local, true
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.Header.Get("Authorization") == "" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return c.fromSession(tokens, r) // a browser
	}
	if !ok || token == "" || len(token) > 4<<10 {
		return caller{}, false
	}
	who, ok := tokens.lookup(token)
	who.secure = r.TLS != nil || fromLoopback(r)
	return who, ok
}
