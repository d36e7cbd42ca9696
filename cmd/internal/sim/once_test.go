//go:build simulation

package sim

import "github.com/muster-config/muster/distributor/manifest"

// remember has equal signatures be checked once: hundreds of hosts in one process get the same envelopes.
func remember() { manifest.VerifyOnce(20_000) }
