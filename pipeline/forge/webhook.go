package forge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
)

// maxHooks are read at once. Reading one holds no memory to speak of, but a connection.
const maxHooks = 8

// maxHook is what GitHub sends at most: https://docs.github.com/en/webhooks/webhook-events-and-payloads#payload-cap
const maxHook = 25 << 20

const (
	tooLarge = "the body cannot be read, or is larger than 25 MiB"
	unsigned = "the signature is missing or wrong"
)

// Hook takes GitHub's webhooks as a hint to look now. Nothing of a delivery is used but that it came: a doubled one, a replayed one and one that is lost change nothing,
// since who looks reads the branch, and looks by itself too. One that is not signed with the secret gets 401, and no body is kept.
// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
func Hook(secret []byte, wake chan<- struct{}) http.Handler {
	turns := make(chan struct{}, maxHooks)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "POST only", http.StatusMethodNotAllowed)
			return
		}
		if r.ContentLength > maxHook {
			http.Error(w, tooLarge, http.StatusRequestEntityTooLarge)
			return
		}
		// What cannot be signed is not read at all.
		digits, ok := strings.CutPrefix(r.Header.Get("X-Hub-Signature-256"), "sha256=")
		sig, err := hex.DecodeString(digits)
		if len(secret) == 0 || !ok || err != nil || len(sig) != sha256.Size {
			http.Error(w, unsigned, http.StatusUnauthorized)
			return
		}
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		default:
			w.Header().Set("Retry-After", "10")
			http.Error(w, "too many deliveries at once", http.StatusServiceUnavailable)
			return
		}
		mac := hmac.New(sha256.New, secret)
		if _, err := io.Copy(mac, http.MaxBytesReader(w, r.Body, maxHook)); err != nil {
			http.Error(w, tooLarge, http.StatusRequestEntityTooLarge)
			return
		}
		if !hmac.Equal(sig, mac.Sum(nil)) {
			http.Error(w, unsigned, http.StatusUnauthorized)
			return
		}
		if r.Header.Get("X-GitHub-Event") == "push" {
			select {
			case wake <- struct{}{}:
			default: // woken already
			}
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
