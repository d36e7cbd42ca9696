//go:build !simulation

package manifest

import "crypto/ed25519"

// verify checks one signature.
func verify(pub ed25519.PublicKey, message, sig []byte) bool {
	return len(pub) == ed25519.PublicKeySize && ed25519.Verify(pub, message, sig)
}

// keyringOf reads the payload of a keyring that was accepted.
func keyringOf(payload []byte) (Keyring, error) {
	read, err := DecodeKeyring(payload)
	if err != nil {
		return Keyring{}, err
	}
	return *read, nil
}

// signed is told of each signature that this process makes.
func signed(ed25519.PublicKey, []byte, []byte) {}

// openHead reads a head by a keyring, whose payload is given as well.
func openHead(k *Keyring, _, data []byte) (*opened, error) { return readHead(k, data) }

// statementsKnown is what is remembered of the statements of an opened head: nothing.
type statementsKnown struct{} //nolint:unused // see once.go

// statement verifies one of the manifest's.
func (o *opened) statement(k *Keyring, i int) (*VerifiedStatement, error) {
	return verifyAnyStatement(k, &o.manifest.Statements[i])
}

// verifyOverride verifies an override's envelope.
func verifyOverride(k *Keyring, e *Envelope) (*VerifiedOverride, error) { return readOverride(k, e) }
