package forge

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/google/go-github/v60/github"
)

// App authenticates as an installation of a GitHub App: short-lived tokens, and rights that are the app's and no person's.
type App struct {
	ID           string // app id or client id
	Installation int64  // 0: found by the repository
	Key          []byte // PEM of the private key that GitHub made

	key *rsa.PrivateKey
}

func (a *App) parse() error {
	wrong := func(what string) error {
		return &Error{Op: "authenticate as an app", Message: what, Next: "give the .pem file that GitHub made for the app, as it is", kind: ErrDenied}
	}
	if a.ID == "" {
		return wrong("its id is missing")
	}
	block, _ := pem.Decode(a.Key)
	if block == nil {
		return wrong("the key is not PEM")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		a.key = key
		return nil
	}
	any, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return wrong("the key cannot be read")
	}
	key, ok := any.(*rsa.PrivateKey)
	if !ok {
		return wrong("the key is not an RSA key")
	}
	a.key = key
	return nil
}

// jwt is a JSON web token signed with RS256 (RFC 7519, RFC 7518 3.3). It begins a minute ago, against clocks that are behind, and lasts under the ten minutes allowed:
// https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
func (a *App) jwt(now time.Time) (string, error) {
	claims, err := json.Marshal(struct {
		IssuedAt int64  `json:"iat"`
		Expires  int64  `json:"exp"`
		Issuer   string `json:"iss"`
	}{now.Add(-time.Minute).Unix(), now.Add(8 * time.Minute).Unix(), a.ID})
	if err != nil {
		return "", err
	}
	b64 := base64.RawURLEncoding
	text := b64.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + b64.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, a.key, crypto.SHA256, sum[:])
	if err != nil {
		return "", fmt.Errorf("sign the app's token: %w", err)
	}
	return text + "." + b64.EncodeToString(sig), nil
}

// installation gets tokens of an app's installation, and keeps one until shortly before its end.
type installation struct {
	app         *App
	api         *github.Client // authenticates with the JWT
	owner, name string
	now         func() time.Time

	turn chan struct{} // one asks for a token at a time; who waits for it may give up
	id   int64         // of who has the turn

	mu    sync.Mutex // never held over a request
	have  string
	until time.Time
}

// kept is the token that is there; "" if there is none, or it ends.
func (i *installation) kept() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.now().Before(i.until) {
		return ""
	}
	return i.have
}

func (i *installation) token(ctx context.Context) (string, error) {
	if have := i.kept(); have != "" {
		return have, nil
	}
	select {
	case i.turn <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	defer func() { <-i.turn }()
	if have := i.kept(); have != "" { // got meanwhile
		return have, nil
	}
	if i.id == 0 {
		i.id = i.app.Installation
	}
	if i.id == 0 {
		found, _, err := i.api.Apps.FindRepositoryInstallation(ctx, i.owner, i.name)
		if err != nil {
			return "", fail(fmt.Sprintf("find the app's installation in %s/%s", i.owner, i.name), err)
		}
		i.id = found.GetID()
	}
	// A second token does no harm: this may be sent again.
	got, _, err := i.api.Apps.CreateInstallationToken(again(ctx), i.id, &github.InstallationTokenOptions{Repositories: []string{i.name}})
	if err != nil {
		return "", fail("get a token of installation "+strconv.FormatInt(i.id, 10), err)
	}
	if got.GetToken() == "" {
		return "", fail("get a token of the app's installation", errors.New("the answer holds none"))
	}
	until := i.now().Add(50 * time.Minute)
	if at := got.GetExpiresAt(); !at.IsZero() {
		until = at.Add(-5 * time.Minute)
	}
	i.mu.Lock()
	i.have, i.until = got.GetToken(), until
	i.mu.Unlock()
	return got.GetToken(), nil
}

// forget drops a token that was refused.
func (i *installation) forget(token string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.have == token {
		i.have = ""
	}
}
