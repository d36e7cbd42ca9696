package manifest

import "time"

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
