package manifest

import (
	"encoding/json"
	"fmt"

	"github.com/muster-config/muster/distributor/wire"
)

// document is a payload that can check itself beyond what its types say.
type document interface{ Validate() error }

// decode reads a payload strictly and checks it. Only verified bytes come here: verify first, decode after.
func decode[T any, P interface {
	*T
	document
}](kind Kind, data []byte, limit int) (*T, error) {
	if len(data) > limit {
		return nil, fmt.Errorf("%w %s: larger than %d bytes", ErrMalformed, kind, limit)
	}
	v := new(T)
	if err := wire.Decode(data, v); err != nil {
		// A later version has fields that are unknown here: say what helps.
		var later struct {
			V int `json:"v"`
		}
		if json.Unmarshal(data, &later) == nil && later.V > Version {
			err = fmt.Errorf("v: version %d was written by a newer muster, this one reads 1 to %d: upgrade it", later.V, Version)
		}
		return nil, fmt.Errorf("%w %s: %w", ErrMalformed, kind, err)
	}
	if err := P(v).Validate(); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrMalformed, kind, err)
	}
	return v, nil
}

// DecodeStatement reads a statement's payload.
func DecodeStatement(data []byte) (*Statement, error) {
	return decode[Statement](KindStatement, data, MaxSmallBytes)
}

// DecodeRelease reads a release's payload.
func DecodeRelease(data []byte) (*Release, error) {
	return decode[Release](KindRelease, data, MaxReleaseBytes)
}

// DecodeManifest reads a manifest's payload.
func DecodeManifest(data []byte) (*Manifest, error) {
	return decode[Manifest](KindManifest, data, MaxHeadBytes)
}

// DecodeOverride reads an override's payload.
func DecodeOverride(data []byte) (*Override, error) {
	return decode[Override](KindOverride, data, MaxHeadBytes)
}

// DecodeKeyring reads a keyring's payload.
func DecodeKeyring(data []byte) (*Keyring, error) {
	return decode[Keyring](KindKeyring, data, MaxKeyringBytes)
}

// DecodeHead reads a head without verifying what it carries; Trust does that.
func DecodeHead(data []byte) (*Head, error) { return decode[Head]("head", data, MaxHeadBytes) }

// DecodeVariants reads a variants object.
func DecodeVariants(data []byte) (*Variants, error) {
	return decode[Variants]("variants", data, MaxVariantsBytes)
}

// DecodeStoreID reads store.json.
func DecodeStoreID(data []byte) (*StoreID, error) {
	return decode[StoreID]("store", data, MaxSmallBytes)
}

// DecodeCommitIndex reads commits/<id>.json.
func DecodeCommitIndex(data []byte) (*CommitIndex, error) {
	return decode[CommitIndex]("commit index", data, MaxSmallBytes)
}
