//go:build simulation

package manifest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
)

// once are signatures that were found good, and keyrings that were read, in this process; nil: nothing is remembered. None of this is in a program that is built without the tag.
var once atomic.Pointer[known]

type known struct {
	limit int

	mu    sync.RWMutex
	good  map[[sha256.Size]byte]bool
	keys  map[string]Keyring            // by payload
	made  uint64                        // signatures, by this process
	heads map[string]map[string]*opened // by the bytes of the keyring and of the head: the outcome depends on nothing else
	count int                           // of them
	over  map[overKey]overKnown
}

// VerifyOnce has this process verify equal bytes once, for up to n signatures: many simulated hosts in one process get the same envelopes.
func VerifyOnce(n int) {
	once.Store(&known{limit: n, good: map[[sha256.Size]byte]bool{}, keys: map[string]Keyring{}, heads: map[string]map[string]*opened{}, over: map[overKey]overKnown{}})
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
	sum := sumOf(pub, sig, message)
	k.mu.RLock()
	good := k.good[sum]
	k.mu.RUnlock()
	if good || !ed25519.Verify(pub, message, sig) {
		return good
	}
	k.keep(sum)
	return true
}

// sumOf names a signature of a message by a key.
func sumOf(pub ed25519.PublicKey, sig, message []byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, part := range [][]byte{pub, sig, message} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write(part)
	}
	h.Sum(sum[:0])
	return sum
}

func (k *known) keep(sum [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.good) >= k.limit {
		clear(k.good)
	}
	k.good[sum] = true
}

// spotCheck is of how many signatures that this process made one is verified all the same.
const spotCheck = 64

// signed remembers a signature that this process made itself as good.
func signed(pub ed25519.PublicKey, message, sig []byte) {
	k := once.Load()
	if k == nil {
		return
	}
	if atomic.AddUint64(&k.made, 1)%spotCheck == 0 && !ed25519.Verify(pub, message, sig) {
		panic("manifest: a signer makes signatures that are not its own")
	}
	k.keep(sumOf(pub, sig, message))
}

// openHead reads a head by a keyring, whose payload is given as well. Who gets what another one got may not change it; see intact.
func openHead(k *Keyring, keyring, data []byte) (*opened, error) {
	kn := once.Load()
	if kn == nil {
		return readHead(k, data)
	}
	kn.mu.RLock()
	o := kn.heads[string(keyring)][string(data)]
	kn.mu.RUnlock()
	if o != nil {
		return o, nil
	}
	o, err := readHead(k, data)
	if err != nil {
		return nil, err
	}
	kn.mu.Lock()
	defer kn.mu.Unlock()
	if kn.count >= headsKept {
		kn.intact()
		clear(kn.heads)
		kn.count = 0
	}
	by := kn.heads[string(keyring)]
	if by == nil {
		by = map[string]*opened{}
		kn.heads[string(keyring)] = by
	}
	by[string(data)] = o
	kn.count++
	return o, nil
}

const headsKept = 256

// intact panics if somebody changed what is shared.
func (k *known) intact() {
	for _, by := range k.heads {
		for data, o := range by {
			head, err := DecodeHead([]byte(data))
			if err != nil {
				panic(err)
			}
			m, err := DecodeManifest(head.Manifest.Payload)
			same := err == nil && reflect.DeepEqual(head, o.head) && reflect.DeepEqual(m, o.manifest)
			for i, st := range o.known.list {
				is, err := DecodeStatement(o.manifest.Statements[i].Payload)
				same = same && err == nil && reflect.DeepEqual(*is, st.Statement)
			}
			if !same {
				panic(fmt.Sprintf("manifest: somebody changed the view of a head that others share: %s", data))
			}
		}
	}
}

// statementsKnown are the statements of an opened head that were verified.
type statementsKnown struct {
	mu   sync.Mutex
	list map[int]*VerifiedStatement
}

// statement verifies one of the manifest's.
func (o *opened) statement(k *Keyring, i int) (*VerifiedStatement, error) {
	if once.Load() == nil {
		return verifyAnyStatement(k, &o.manifest.Statements[i])
	}
	o.known.mu.Lock()
	defer o.known.mu.Unlock()
	if st := o.known.list[i]; st != nil {
		return st, nil
	}
	st, err := verifyAnyStatement(k, &o.manifest.Statements[i])
	if err != nil {
		return nil, err
	}
	if o.known.list == nil {
		o.known.list = map[int]*VerifiedStatement{}
	}
	o.known.list[i] = st
	return st, nil
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

// overKey is an envelope by its bytes, and the keyring that it was verified by: the decoded one, which is one for all in this process and is kept with what it was asked about.
type overKey struct {
	keys uintptr
	sum  [sha256.Size]byte
}

type overKnown struct {
	keys map[string]PublicKey
	is   *VerifiedOverride
}

// verifyOverride verifies an override's envelope.
func verifyOverride(k *Keyring, e *Envelope) (*VerifiedOverride, error) {
	kn := once.Load()
	if kn == nil {
		return readOverride(k, e)
	}
	sum := sumOf([]byte(e.PayloadType), []byte(fmt.Sprint(e.Signatures)), e.Payload)
	key := overKey{reflect.ValueOf(k.Keys).Pointer(), sum}
	kn.mu.RLock()
	had, ok := kn.over[key]
	kn.mu.RUnlock()
	if ok {
		return had.is, nil
	}
	o, err := readOverride(k, e)
	if err != nil {
		return nil, err
	}
	kn.mu.Lock()
	defer kn.mu.Unlock()
	if len(kn.over) >= kn.limit {
		clear(kn.over)
	}
	kn.over[key] = overKnown{k.Keys, o}
	return o, nil
}
