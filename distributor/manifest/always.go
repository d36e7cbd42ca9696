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
