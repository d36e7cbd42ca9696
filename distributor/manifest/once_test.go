//go:build simulation

package manifest_test

import (
	"crypto/ed25519"
	"testing"

	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
)

// What is remembered of a good signature helps no other bytes, no other signature and no other key.
func TestVerifyOnce(t *testing.T) {
	manifest.VerifyOnce(2)
	t.Cleanup(manifest.VerifyForgets)
	key, other := keys.FromSeed(1), keys.FromSeed(2)
	e, err := manifest.Seal(manifest.KindReport, map[string]int{"v": 1}, key)
	if err != nil {
		t.Fatal(err)
	}
	mine := map[string]ed25519.PublicKey{key.KeyID(): key.Public()}
	for range 3 {
		if ids, err := e.VerifySignatures(manifest.KindReport, mine); err != nil || len(ids) != 1 {
			t.Fatalf("%v, %v", ids, err)
		}
	}
	forged := *e
	forged.Payload = append([]byte{}, e.Payload...)
	forged.Payload[0] ^= 1
	if _, err := forged.VerifySignatures(manifest.KindReport, mine); err == nil {
		t.Error("other bytes are taken")
	}
	forged = *e
	forged.Signatures = []manifest.Signature{{KeyID: key.KeyID(), Sig: append([]byte{}, e.Signatures[0].Sig...)}}
	forged.Signatures[0].Sig[5] ^= 1
	if _, err := forged.VerifySignatures(manifest.KindReport, mine); err == nil {
		t.Error("another signature is taken")
	}
	// Nor a signature and a payload that are cut elsewhere, nor a key or signature of another length.
	for _, cut := range []int{63, 65} {
		all := append(append([]byte{}, e.Signatures[0].Sig...), e.Payload...)
		forged = *e
		forged.Signatures = []manifest.Signature{{KeyID: key.KeyID(), Sig: all[:cut]}}
		if _, err := forged.VerifySignatures(manifest.KindReport, mine); err == nil {
			t.Errorf("a signature of %d bytes is taken", cut)
		}
	}
	if _, err := e.VerifySignatures(manifest.KindReport, map[string]ed25519.PublicKey{key.KeyID(): key.Public()[:31]}); err == nil {
		t.Error("a short key is taken")
	}
	if _, err := e.VerifySignatures(manifest.KindReport, map[string]ed25519.PublicKey{other.KeyID(): other.Public()}); err == nil {
		t.Error("another key is taken")
	}
}
