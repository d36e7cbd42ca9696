//go:build simulation

package manifest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// once are signatures that were found good, and keyrings that were read, in this process; nil: nothing is remembered. None of this is in a program that is built without the tag.
var once atomic.Pointer[known]

type known struct {
	limit int

	mu   sync.RWMutex
	good map[[sha256.Size]byte]bool
	keys map[string]Keyring // by payload
}

// VerifyOnce has this process verify equal bytes once, for up to n signatures: many simulated hosts in one process get the same envelopes.
func VerifyOnce(n int) {
	once.Store(&known{limit: n, good: map[[sha256.Size]byte]bool{}, keys: map[string]Keyring{}})
}

// verify checks one signature.
func verify(pub ed25519.PublicKey, message, sig []byte) bool {
	k := once.Load()
	if k == nil {
		return ed25519.Verify(pub, message, sig)
	}
	if len(pub) != ed25519.PublicKeySize || len(sig) != ed25519.SignatureSize {
		return false
	}
	h := sha256.New()
	for _, part := range [][]byte{pub, sig, message} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write(part)
	}
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	k.mu.RLock()
	good := k.good[sum]
	k.mu.RUnlock()
	if good || !ed25519.Verify(pub, message, sig) {
		return good
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.good) >= k.limit {
		clear(k.good)
	}
	k.good[sum] = true
	return true
}

// keyringOf reads the payload of a keyring that was accepted.
func keyringOf(payload []byte) (Keyring, error) {
	k := once.Load()
	if k != nil {
		k.mu.RLock()
		have, ok := k.keys[string(payload)]
		k.mu.RUnlock()
		if ok {
			return have, nil
		}
	}
	read, err := DecodeKeyring(payload)
	if err != nil {
		return Keyring{}, err
	}
	if k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.keys) >= k.limit {
			clear(k.keys)
		}
		k.keys[string(payload)] = *read
	}
	return *read, nil
}
