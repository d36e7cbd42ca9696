package manifest

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// The names of all objects in a store. No other package writes a key by hand.

// KeyStore is the store's identity document.
const KeyStore = "store.json"

// KeyInventory is the collector's inventory for plan in CI.
const KeyInventory = "inventory.json"

// KeyKeyring is keyring/<version>.json.
func KeyKeyring(version uint64) string {
	return PrefixKeyrings + strconv.FormatUint(version, 10) + ".json"
}

// KeySource is sources/<tree id>.tar.zst.
func KeySource(tree string) string { return PrefixSources + tree + ".tar.zst" }

// KeyBundle is bundles/<aa>/<sha256>.tar.zst, from an Object's digest "sha256:<hex>".
func KeyBundle(objectDigest string) string {
	h := strings.TrimPrefix(objectDigest, "sha256:")
	if len(h) < 2 {
		return PrefixBundles + "invalid"
	}
	return PrefixBundles + h[:2] + "/" + h + ".tar.zst"
}

// KeyDelta is deltas/<from tar>-<to tar>.zst.
func KeyDelta(fromTar, toTar string) string {
	return "deltas/" + strings.TrimPrefix(fromTar, "sha256:") + "-" + strings.TrimPrefix(toTar, "sha256:") + ".zst"
}

// KeyRelease is releases/<epoch, 20 digits>.json, so that keys sort as epochs do.
func KeyRelease(epoch uint64) string { return fmt.Sprintf("%s%020d.json", PrefixReleases, epoch) }

// KeyCommit is commits/<commit id>.json.
func KeyCommit(commit string) string { return PrefixCommits + commit + ".json" }

// KeyHead is cohorts/<cohort>.json.
func KeyHead(cohort string) string { return PrefixCohorts + cohort + ".json" }

// KeyHistory is history/<cohort>/<era>-<serial>-<beat>.json.
func KeyHistory(cohort string, mark Mark) string {
	return PrefixHistory + cohort + "/" + mark.String() + ".json"
}

// ParseReleaseKey gives the epoch of a release's key.
func ParseReleaseKey(key string) (epoch uint64, ok bool) {
	digits, ok := strings.CutPrefix(key, PrefixReleases)
	if !ok {
		return 0, false
	}
	digits, ok = strings.CutSuffix(digits, ".json")
	if !ok || len(digits) != 20 {
		return 0, false
	}
	epoch, err := strconv.ParseUint(digits, 10, 64)
	return epoch, err == nil && epoch > 0 && epoch <= MaxCounter && KeyRelease(epoch) == key
}

// Mark is the change mark of a head, "<era>-<serial>-<beat>": long poll mark, history key and a report's `seen`.
type Mark struct{ Era, Serial, Beat uint64 }

func (m Mark) String() string {
	var room [64]byte
	b := strconv.AppendUint(room[:0], m.Era, 10)
	b = strconv.AppendUint(append(b, '-'), m.Serial, 10)
	return string(strconv.AppendUint(append(b, '-'), m.Beat, 10))
}

// ParseMark reads what String wrote.
func ParseMark(s string) (Mark, error) {
	var m Mark
	era, rest, two := strings.Cut(s, "-")
	serial, beat, three := strings.Cut(rest, "-")
	good := two && three
	number := func(digits string) uint64 {
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n > MaxCounter || digits[0] == '0' && len(digits) > 1 {
			good = false
		}
		return n
	}
	m.Era, m.Serial, m.Beat = number(era), number(serial), number(beat)
	if !good {
		return Mark{}, fmt.Errorf("mark %.60q is not <era>-<serial>-<beat>", s)
	}
	return m, nil
}

// Compare orders marks by era, then serial, then beat: -1, 0, 1.
func (m Mark) Compare(o Mark) int {
	return cmp.Or(cmp.Compare(m.Era, o.Era), cmp.Compare(m.Serial, o.Serial), cmp.Compare(m.Beat, o.Beat))
}

// Prefixes for listing.
const (
	PrefixKeyrings = "keyring/"
	PrefixSources  = "sources/"
	PrefixBundles  = "bundles/"
	PrefixReleases = "releases/"
	PrefixCommits  = "commits/"
	PrefixCohorts  = "cohorts/"
	PrefixHistory  = "history/"
)
