package forgetest

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-github/v60/github"
)

// Installation is that of the app.
const Installation = 4711

// App makes an app known, by the public part of its key.
func (s *Server) App(id string, key *rsa.PublicKey) { s.appID, s.app = id, key }

// signed checks a JSON web token. RS256, begun in the past, at most ten minutes long, by the app:
// https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
func (s *Server) signed(r *http.Request) error {
	parts := strings.Split(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ".")
	if len(parts) != 3 || s.app == nil {
		return fmt.Errorf("A JSON web token could not be decoded")
	}
	var header struct{ Alg, Typ string }
	var claims struct {
		Iat, Exp int64
		Iss      string
	}
	for i, into := range []any{&header, &claims} {
		data, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(data, into) != nil {
			return fmt.Errorf("A JSON web token could not be decoded")
		}
	}
	sig, err := base64.RawURLEncoding.DecodeString(parts[2])
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	now := s.Now().Unix()
	switch {
	case err != nil || header.Alg != "RS256" || rsa.VerifyPKCS1v15(s.app, crypto.SHA256, sum[:], sig) != nil:
		return fmt.Errorf("A JSON web token could not be decoded")
	case claims.Iat > now:
		return fmt.Errorf("'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued")
	case claims.Exp <= now || claims.Exp > now+600:
		return fmt.Errorf("'Expiration time' claim ('exp') is too far in the future")
	case claims.Iss != s.appID:
		return fmt.Errorf("Integration not found")
	}
	return nil
}

func (s *Server) appRoutes() {
	byApp := func(pattern string, h http.HandlerFunc) {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := s.signed(r); err != nil {
				s.refuse(w, http.StatusUnauthorized, err.Error(), docAuth)
				return
			}
			h(w, r)
		})
	}
	byApp("GET /app", func(w http.ResponseWriter, r *http.Request) {
		s.give(w, http.StatusOK, github.App{Slug: github.String("muster")})
	})
	byApp("GET /repos/{owner}/{repo}/installation", func(w http.ResponseWriter, r *http.Request) {
		s.give(w, http.StatusOK, github.Installation{ID: github.Int64(Installation)})
	})
	// A token lasts an hour: https://docs.github.com/en/rest/apps/apps#create-an-installation-access-token-for-an-app
	byApp("POST /app/installations/{id}/access_tokens", func(w http.ResponseWriter, r *http.Request) {
		var opts github.InstallationTokenOptions
		if !s.read(w, r, &opts) {
			return
		}
		if number(r, "id") != Installation {
			s.refuse(w, http.StatusNotFound, "Not Found", docAuth)
			return
		}
		token := fmt.Sprintf("ghs_installation%d", s.id())
		ends := s.Now().Add(time.Hour)
		s.tokens[token] = Token{Login: "muster[bot]", Installation: true, May: All(), Ends: ends}
		s.give(w, http.StatusCreated, github.InstallationToken{Token: &token, ExpiresAt: &github.Timestamp{Time: ends}})
	})
}
