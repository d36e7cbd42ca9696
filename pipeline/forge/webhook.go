package forge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
)

// maxHook is what GitHub sends at most: https://docs.github.com/en/webhooks/webhook-events-and-payloads#payload-cap
const maxHook = 25 << 20

// Hook takes GitHub's webhooks as a hint to look now. Nothing of a delivery is used but that it came: a doubled one, a replayed one and one that is lost change nothing,
// since who looks reads the branch, and looks by itself too. One that is not signed with the secret gets 401.
// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
func Hook(secret []byte, wake chan<- struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "POST only", http.StatusMethodNotAllowed)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxHook))
		if err != nil {
			http.Error(w, "the body cannot be read, or is larger than 25 MiB", http.StatusRequestEntityTooLarge)
			return
		}
		mac := hmac.New(sha256.New, secret)
		mac.Write(body)
		digits, ok := strings.CutPrefix(r.Header.Get("X-Hub-Signature-256"), "sha256=")
		sig, err := hex.DecodeString(digits)
		if len(secret) == 0 || !ok || err != nil || !hmac.Equal(sig, mac.Sum(nil)) {
			http.Error(w, "the signature is missing or wrong", http.StatusUnauthorized)
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
