//go:build simulation

package manifest

// VerifyForgets ends VerifyOnce.
func VerifyForgets() { once.Store(nil) }
