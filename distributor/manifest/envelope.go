package manifest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/muster-config/muster/distributor/wire"
)

// Kind names what an envelope carries; its payload type is "application/vnd.muster.<kind>.v1+json".
type Kind string

// The kinds of envelope.
const (
	KindRelease   Kind = "release"
	KindStatement Kind = "statement"
	KindManifest  Kind = "manifest"
	KindOverride  Kind = "override"
	KindKeyring   Kind = "keyring"
	KindReport    Kind = "report"
)

// Envelope is a DSSE envelope (https://github.com/secure-systems-lab/dsse): signatures over the exact payload bytes.
type Envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     []byte      `json:"payload"` // base64 in JSON
	Signatures  []Signature `json:"signatures"`
}

// Signature is one signature of an envelope. KeyID is KeyIDOf the public key.
type Signature struct {
	KeyID string `json:"keyid"`
	Sig   []byte `json:"sig"` // base64 in JSON
}

// Signer signs messages with one Ed25519 key. Implementations live in distributor/keys.
type Signer interface {
	KeyID() string
	Public() ed25519.PublicKey
	Sign(message []byte) ([]byte, error)
}

// KeyIDOf is the lower-case hex SHA-256 of the raw 32-byte public key, so that one key never counts twice.
func KeyIDOf(pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return hex.EncodeToString(sum[:])
}

// payloadType is the envelope's payload type of a kind.
func (k Kind) payloadType() string { return "application/vnd.muster." + string(k) + ".v1+json" }

// Seal encodes payload with wire.Encode and signs its DSSE pre-authentication encoding with every signer, at least one. It does not check the payload:
// whoever writes a document has it accepted by its own reader before it goes out.
func Seal(kind Kind, payload any, signers ...Signer) (*Envelope, error) {
	data, err := wire.Encode(payload)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	e := &Envelope{PayloadType: kind.payloadType(), Payload: data}
	if err := e.Sign(signers...); err != nil {
		return nil, err
	}
	if len(e.Signatures) == 0 {
		return nil, fmt.Errorf("sign %s: no signer is given", kind)
	}
	return e, nil
}

// Sign adds signatures to an envelope, as the next keyring needs from the root keys of two versions. A key that signed already is left out.
func (e *Envelope) Sign(signers ...Signer) error {
	pae := dsse.PAE(e.PayloadType, e.Payload)
	for _, s := range signers {
		id := s.KeyID()
		if slices.ContainsFunc(e.Signatures, func(have Signature) bool { return have.KeyID == id }) {
			continue
		}
		sig, err := s.Sign(pae)
		if err != nil {
			return fmt.Errorf("sign with key %.12s…: %w", id, err)
		}
		signed(s.Public(), pae, sig)
		e.Signatures = append(e.Signatures, Signature{KeyID: id, Sig: sig})
	}
	return nil
}

// ParseEnvelope strictly decodes an envelope without verifying it.
func ParseEnvelope(data []byte) (*Envelope, error) {
	return parseEnvelope("envelope", data, MaxReleaseBytes)
}

func parseEnvelope(what Kind, data []byte, limit int) (*Envelope, error) {
	if len(data) > limit {
		return nil, fmt.Errorf("%w %s: larger than %d bytes", ErrMalformed, what, limit)
	}
	var e Envelope
	if err := wire.Decode(data, &e); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrMalformed, what, err)
	}
	return &e, nil
}

// VerifySignatures returns the distinct key ids of keys (key id → public key) that made a valid signature on e, which must be of kind.
// It is the only place where a signature is checked. No valid signature is an error, never an empty success.
func (e *Envelope) VerifySignatures(kind Kind, keys map[string]ed25519.PublicKey) ([]string, error) {
	refuse := func(format string, args ...any) ([]string, error) {
		return nil, fmt.Errorf("%s: %w: %s", kind, ErrSignature, fmt.Sprintf(format, args...))
	}
	switch {
	case e == nil:
		return refuse("there is no envelope")
	case e.PayloadType != kind.payloadType():
		return refuse("the envelope says it carries %.100q", e.PayloadType)
	case len(e.Signatures) == 0:
		return refuse("it carries no signature")
	case len(e.Signatures) > MaxSignatures:
		return refuse("it carries more than %d signatures", MaxSignatures)
	}
	pae := dsse.PAE(e.PayloadType, e.Payload)
	var good []string
	why := ""
	for _, s := range e.Signatures {
		// The id is compared with the key itself, so that no table of keys can give one key two names.
		pub, ok := keys[s.KeyID]
		switch {
		case !ok || len(pub) != ed25519.PublicKeySize || KeyIDOf(pub) != s.KeyID:
			why = fmt.Sprintf("key %.12q may not sign this", s.KeyID)
		case !verify(pub, pae, s.Sig):
			why = fmt.Sprintf("the signature of key %.12q does not fit", s.KeyID)
		case !slices.Contains(good, s.KeyID):
			good = append(good, s.KeyID)
		}
	}
	if len(good) == 0 {
		return refuse("%s", why)
	}
	slices.Sort(good)
	return good, nil
}

// Digest is "sha256:<hex>" of the payload bytes: the identity of what was signed.
func (e *Envelope) Digest() string {
	sum := sha256.Sum256(e.Payload)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Ext carries keys of later versions: kept, never looked into, never trusted.
type Ext map[string]json.RawMessage
