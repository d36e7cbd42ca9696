package manifest

import (
	"encoding/hex"
	"strings"
	"time"
)

// Limits on what is read, in one place. Reading over them is ErrMalformed.
const (
	MaxHeadBytes          = 4 << 20
	MaxReleaseBytes       = 32 << 20
	MaxKeyringBytes       = 256 << 10
	MaxVariantsBytes      = 64 << 20
	MaxSmallBytes         = 1 << 20 // store.json, commits/…
	MaxCounter            = 1<<53 - 1
	MaxVariants           = 16
	MaxAssignments        = 10_000
	MaxStatements         = 64
	MaxOverrides          = 32
	MaxFiles              = 20_000 // of a bundle
	MaxSignatures         = 16     // of an envelope: each costs a verification
	MaxNameBytes          = 63
	MaxTextBytes          = 4096 // why, reason, subject
	MaxGateVerdicts       = 32   // carried by a rollout
	MaxGateSamples        = 40   // carried by a gate's verdict
	KeptGateSamples       = 12   // so many a verdict is made with: every host reads them
	MaxStops              = 32   // halts of a rollout, and freezes
	MaxFreshFor           = 24 * time.Hour
	MaxRememberedContents = 64 // per cohort, in TrustState.Contents
)

// ValidName reports whether s may name a service, cohort or label: [a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?
func ValidName(s string) bool {
	if len(s) == 0 || len(s) > MaxNameBytes {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !alnum && (c != '-' && c != '_' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return true
}

// ValidHost reports whether s may name a host: 1 to 253 bytes of letters, digits, '.', '_', '-', starting with a letter or digit.
func ValidHost(s string) bool {
	if len(s) == 0 || len(s) > 253 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alnum && (c != '-' && c != '_' && c != '.' || i == 0) {
			return false
		}
	}
	return true
}

// ValidDigest reports whether s is "sha256:" and 64 lower-case hex digits.
func ValidDigest(s string) bool {
	h, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(h) == 64 && validHex(h)
}

// ValidCommit reports whether s is a commit or tree id: 40 or 64 lower-case hex digits.
func ValidCommit(s string) bool { return (len(s) == 40 || len(s) == 64) && validHex(s) }

func validHex(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && s == strings.ToLower(s)
}
