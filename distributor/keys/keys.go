// Package keys makes and loads the Ed25519 keys that sign for muster: from a file, from the environment, or through a command.
package keys

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
)

// pemType is the block that a key file holds: PKCS #8 (RFC 5958), as `openssl genpkey -algorithm ed25519` writes it.
const pemType = "PRIVATE KEY"

const (
	maxKeyBytes    = 16 << 10
	maxAnswer      = 4096
	commandTimeout = 30 * time.Second
)

// Open loads a signer from a reference: a path, "env:NAME" (the PEM text, or its base64), or "exec:COMMAND" (run by sh, within 30 seconds; it gets the message on
// standard input and answers with the raw 64-byte signature, and with the argument "public" answers with the raw 32-byte public key).
// Errors never contain key bytes. A key file that others may read is refused.
func Open(ctx context.Context, ref string) (manifest.Signer, error) {
	if name, ok := strings.CutPrefix(ref, "env:"); ok {
		text, ok := os.LookupEnv(name)
		if !ok || text == "" {
			return nil, fmt.Errorf("key %s: the environment variable is not set", ref)
		}
		return parse(ref, []byte(text))
	}
	if command, ok := strings.CutPrefix(ref, "exec:"); ok {
		return openCommand(ctx, command)
	}
	data, err := readKey(ref)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", ref, cause(err))
	}
	return parse(ref, data)
}

// modes says whether a file's mode tells who may read it. On Windows its access list does, which is not looked at: it is the directory's own there.
const modes = runtime.GOOS != "windows"

// readKey reads a key file that nobody else may read. It looks at what it opened, and a pipe does not hold it up.
func readKey(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case modes && info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("others may read it (mode %04o): run chmod 600 on it", info.Mode().Perm())
	case info.Size() > maxKeyBytes:
		return nil, fmt.Errorf("larger than %d bytes, so it is no key", maxKeyBytes)
	}
	return io.ReadAll(io.LimitReader(f, maxKeyBytes))
}

// cause drops the path that os repeats.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func parse(ref string, data []byte) (manifest.Signer, error) {
	block, rest := pem.Decode(data)
	if block == nil {
		if raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(data))); err == nil {
			block, rest = pem.Decode(raw)
		}
	}
	if block == nil || block.Type != pemType || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("key %s: not one PEM block of type %q", ref, pemType)
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil { // its text could quote bytes of the key
		return nil, fmt.Errorf("key %s: the PEM block is damaged", ref)
	}
	priv, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key %s: not an Ed25519 key", ref)
	}
	return New(priv), nil
}

// Key is a signer whose private key is in this process.
type Key struct {
	priv func() ed25519.PrivateKey // not the bytes: nothing that prints a Key, or what holds one, can show them
	id   string
}

// New makes a signer of a private key.
func New(priv ed25519.PrivateKey) *Key {
	return &Key{priv: func() ed25519.PrivateKey { return priv }, id: manifest.KeyIDOf(priv.Public().(ed25519.PublicKey))}
}

// FromSeed makes a key from a fixed seed, for tests and vectors.
func FromSeed(seed byte) *Key {
	return New(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
}

// Generate makes a new key.
func Generate() (*Key, error) {
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return New(priv), nil
}

// KeyID is the key's id.
func (k *Key) KeyID() string { return k.id }

// Public is the public key.
func (k *Key) Public() ed25519.PublicKey { return k.priv().Public().(ed25519.PublicKey) }

// Sign signs a message.
func (k *Key) Sign(message []byte) ([]byte, error) { return ed25519.Sign(k.priv(), message), nil }

// Format prints a key as its id, with whatever verb.
func (k Key) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "key %.12s…", k.id) }

// WriteFile writes the key as PEM, 0600 from the first moment, durably; an existing file is never overwritten.
func (k *Key) WriteFile(path string) error {
	der, err := x509.MarshalPKCS8PrivateKey(k.priv())
	if err != nil {
		return fmt.Errorf("key %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("key %s: %w", path, cause(err))
	}
	err = errors.Join(pem.Encode(f, &pem.Block{Type: pemType, Bytes: der}), f.Sync(), f.Close())
	if err != nil {
		os.Remove(path)
		return fmt.Errorf("key %s: %w", path, err)
	}
	if runtime.GOOS == "windows" {
		return nil // it has no fsync of a directory
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("key %s: %w", path, cause(err))
	}
	defer dir.Close()
	return dir.Sync()
}

// command is a signer behind a program: a hardware token, a key service.
type command struct {
	text string
	pub  ed25519.PublicKey
}

func openCommand(ctx context.Context, text string) (manifest.Signer, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("key exec: there is no command after it")
	}
	pub, err := run(ctx, text, nil, "public")
	if err != nil {
		return nil, fmt.Errorf("key exec: ask the command for its public key: %w", err)
	}
	if len(pub) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("key exec: asked for its public key, the command answered %d bytes, not %d", len(pub), ed25519.PublicKeySize)
	}
	return &command{text, pub}, nil
}

// run starts the command with its arguments after those in its text. What it says on standard error stays unread: it may speak of the key.
func run(ctx context.Context, text string, in []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", text + ` "$@"`, "sh"}, args...)...)
	cmd.Stdin = bytes.NewReader(in)
	cmd.WaitDelay = time.Second // for a child of it that holds the pipes
	var out limited
	cmd.Stdout = &out
	err := cmd.Run()
	switch {
	case out.over:
		return nil, fmt.Errorf("it answered more than %d bytes", maxAnswer)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("it did not end within %s", commandTimeout)
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return out.b, err
}

// limited keeps little: a key or a signature is short.
type limited struct {
	b    []byte
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	if len(l.b)+len(p) > maxAnswer {
		l.over = true
		return 0, errors.New("answer too long")
	}
	l.b = append(l.b, p...)
	return len(p), nil
}

// KeyID is the key's id.
func (c *command) KeyID() string { return manifest.KeyIDOf(c.pub) }

// Public is the public key.
func (c *command) Public() ed25519.PublicKey { return bytes.Clone(c.pub) }

// Sign asks the command, and uses the answer only if it verifies.
func (c *command) Sign(message []byte) ([]byte, error) {
	sig, err := run(context.Background(), c.text, message)
	if err != nil {
		return nil, fmt.Errorf("key exec: ask the command for a signature: %w", err)
	}
	if !ed25519.Verify(c.pub, message, sig) {
		return nil, fmt.Errorf("key exec: the command's answer (%d bytes) is no signature of its public key", len(sig))
	}
	return sig, nil
}

// Set is the four keys that a config repo starts with.
type Set struct{ Root, Release, Rollout, Operator manifest.Signer }

// OperatorTTL is the longest TTL of the operator key that a new keyring names, for all cohorts.
const OperatorTTL = 24 * time.Hour

// Keyring is a first keyring, version 1 of era 1, signed by its root key.
func (s Set) Keyring(repo string, now time.Time) (*manifest.Envelope, error) {
	k := NewKeyring(repo, now, s.Root.Public(), s.Release.Public(), s.Rollout.Public(), s.Operator.Public())
	if err := k.Validate(); err != nil {
		return nil, fmt.Errorf("keyring: %w", err)
	}
	return manifest.Seal(manifest.KindKeyring, k, s.Root)
}

// NewKeyring is the content of a first keyring: one key a role, root threshold 1.
func NewKeyring(repo string, issued time.Time, root, release, rollout, operator ed25519.PublicKey) manifest.Keyring {
	k := manifest.Keyring{V: manifest.Version, Repo: repo, Version: 1, Era: 1, Issued: issued.UTC(), Keys: map[string]manifest.PublicKey{}}
	add := func(name string, pub ed25519.PublicKey) string {
		id := manifest.KeyIDOf(pub)
		k.Keys[id] = manifest.PublicKey{Type: "ed25519", Public: pub, Name: name}
		return id
	}
	k.Roles = manifest.Roles{
		Root:     manifest.RootRole{Keys: []string{add("root", root)}, Threshold: 1},
		Release:  []manifest.ReleaseRole{{Key: add("release", release)}},
		Rollout:  []string{add("rollout", rollout)},
		Operator: []manifest.OperatorRole{{Key: add("operator", operator), Cohorts: []string{"*"}, MaxTTL: OperatorTTL.String()}},
	}
	return k
}
