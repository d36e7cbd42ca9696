package agent

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

// identityName is the document that holds the key which signs this host's reports.
const identityName = "identity.json"

// identity signs reports. Made at the first start; made anew when the machine is another one than beside it, as two clones of a disk are two hosts.
type identity struct{ key ed25519.PrivateKey }

type identityDoc struct {
	V       int    `json:"v"`
	Seed    []byte `json:"seed"`
	Machine string `json:"machine"` // digest of the machine id, "" if it has none
}

func loadIdentity(m Memory, machineID string) (*identity, error) {
	machine := ""
	if machineID != "" {
		sum := sha256.Sum256([]byte("muster machine\n" + machineID))
		machine = hex.EncodeToString(sum[:])
	}
	data, err := m.Load(identityName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return newIdentity(m, machine)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", identityName, err)
	}
	var doc identityDoc
	if err := wire.Decode(data, &doc); err != nil || doc.V != 1 || len(doc.Seed) != ed25519.SeedSize {
		// Not what err says: it could repeat a piece of the key.
		return nil, fmt.Errorf("%s is broken; remove it to get a new identity, which the collector then has to accept", identityName)
	}
	if doc.Machine != machine {
		return newIdentity(m, machine)
	}
	return &identity{ed25519.NewKeyFromSeed(doc.Seed)}, nil
}

func newIdentity(m Memory, machine string) (*identity, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make an identity: %w", err)
	}
	data, err := wire.Encode(identityDoc{V: 1, Seed: key.Seed(), Machine: machine})
	if err != nil {
		return nil, fmt.Errorf("make an identity: %w", err)
	}
	if err := m.Save(identityName, data); err != nil {
		return nil, fmt.Errorf("write %s: %w", identityName, err)
	}
	return &identity{key}, nil
}

// The methods of manifest.Signer.

func (i *identity) Public() ed25519.PublicKey           { return i.key.Public().(ed25519.PublicKey) }
func (i *identity) KeyID() string                       { return manifest.KeyIDOf(i.Public()) }
func (i *identity) Sign(message []byte) ([]byte, error) { return ed25519.Sign(i.key, message), nil }
