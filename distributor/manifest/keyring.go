package manifest

import (
	"crypto/ed25519"
	"path"
	"time"
)

// Keyring names who may sign what. Version n+1 is signed by n's root keys and by its own.
type Keyring struct {
	V       int                  `json:"v"`
	Repo    string               `json:"repo"`
	Version uint64               `json:"version"`
	Era     uint64               `json:"era"`
	Issued  time.Time            `json:"issued"`
	Keys    map[string]PublicKey `json:"keys"` // key id → key
	Roles   Roles                `json:"roles"`
	Ext     Ext                  `json:"ext,omitempty"`
}

// PublicKey is an Ed25519 public key.
type PublicKey struct {
	Type   string `json:"type"`   // "ed25519"
	Public []byte `json:"public"` // 32 bytes, base64 in JSON
	Name   string `json:"name,omitempty"`
}

// Roles are the roles of a keyring.
type Roles struct {
	Root     RootRole       `json:"root"`
	Release  []ReleaseRole  `json:"release"`
	Rollout  []string       `json:"rollout"` // key ids
	Operator []OperatorRole `json:"operator"`
}

// RootRole signs keyrings.
type RootRole struct {
	Keys      []string `json:"keys"`
	Threshold int      `json:"threshold"`
}

// ReleaseRole signs releases and plain statements, up to LastEpoch if that is not 0.
type ReleaseRole struct {
	Key       string `json:"key"`
	LastEpoch uint64 `json:"last_epoch,omitempty"`
}

// OperatorRole signs overrides of its cohorts (path.Match globs) for at most MaxTTL (a Go duration).
type OperatorRole struct {
	Key     string   `json:"key"`
	Cohorts []string `json:"cohorts"`
	MaxTTL  string   `json:"max_ttl"`
}

// Validate checks a keyring: every role names a known key, every key id is its key's own, a key has one role.
func (k *Keyring) Validate() error {
	var c check
	c.version(k.V)
	c.that(ValidRepo(k.Repo), "repo: not a repository name")
	c.that(k.Version > 0 && k.Version <= MaxCounter, "version: out of range")
	c.counter("era", k.Era)
	c.time("issued", k.Issued)
	c.that(len(k.Keys) <= 1000, "keys: too many")
	for id, pub := range k.Keys {
		c.that(pub.Type == "ed25519" && len(pub.Public) == ed25519.PublicKeySize, "keys.%.12s: not an ed25519 key", id)
		c.that(KeyIDOf(pub.Public) == id, "keys.%.12s: the id is not the key's own", id)
		c.text("keys.name", pub.Name)
	}
	role := map[string]string{}
	use := func(name, id string) {
		_, known := k.Keys[id]
		c.that(known, "roles.%s: %.12s is not among the keys", name, id)
		c.that(role[id] == "", "roles.%s: %.12s is already a %s key", name, id, role[id])
		role[id] = name
	}
	for _, id := range k.Roles.Root.Keys {
		use("root", id)
	}
	c.that(k.Roles.Root.Threshold >= 1 && k.Roles.Root.Threshold <= len(k.Roles.Root.Keys), "roles.root.threshold: out of range")
	for _, r := range k.Roles.Release {
		use("release", r.Key)
		c.counter("roles.release.last_epoch", r.LastEpoch)
	}
	for _, id := range k.Roles.Rollout {
		use("rollout", id)
	}
	for _, r := range k.Roles.Operator {
		use("operator", r.Key)
		c.that(len(r.Cohorts) > 0, "roles.operator: %.12s has no cohorts", r.Key)
		for _, g := range r.Cohorts {
			_, err := path.Match(g, "x")
			c.that(err == nil, "roles.operator: %.80q is not a pattern", g)
		}
		d, err := time.ParseDuration(r.MaxTTL)
		c.that(err == nil && d > 0, "roles.operator.max_ttl: not a duration")
	}
	return c.err
}
