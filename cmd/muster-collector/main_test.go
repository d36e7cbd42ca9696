package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/wire"
)

func TestMain(m *testing.M) {
	if os.Getenv("MUSTER_TEST_MAIN") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// place is a directory with all that a collector needs.
func place(t *testing.T, more string) (dir, config string) {
	t.Helper()
	dir = t.TempDir()
	root, rel, roll, op := keys.FromSeed(1), keys.FromSeed(2), keys.FromSeed(3), keys.FromSeed(4)
	e, err := manifest.Seal(manifest.KindKeyring, keys.NewKeyring("acme/config", time.Now().UTC(), root.Public(), rel.Public(), roll.Public(), op.Public()), root)
	if err != nil {
		t.Fatal(err)
	}
	data, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "keyring.json"), string(data))
	config = filepath.Join(dir, "collector.yaml")
	write(t, config, fmt.Sprintf("listen: 127.0.0.1:0\nstore: file://%s/store\nkeyring: %s/keyring.json\ndatabase: sqlite://%s/db/state.db\n%s", dir, dir, dir, strings.ReplaceAll(more, "DIR", dir)))
	return dir, config
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// collect starts the binary and gives its first line.
func collect(t *testing.T, args ...string) (cmd *exec.Cmd, line string, out *bufio.Reader) {
	t.Helper()
	cmd = exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "MUSTER_TEST_MAIN=1")
	cmd.Stderr = io.Discard
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	withUs(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	out = bufio.NewReader(pipe)
	line, err = out.ReadString('\n')
	if err != nil {
		t.Fatalf("no first line: %v", err)
	}
	return cmd, strings.TrimSpace(line), out
}

func TestRunAndStop(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		dir, config := place(t, "")
		cmd, line, out := collect(t, "run", "--config", config)
		_, rest, ok := strings.Cut(line, "listening on ")
		url, rest, ok2 := strings.Cut(rest, " ")
		if !ok || !ok2 || rest != "for repo acme/config, reading file://"+dir+"/store" {
			t.Fatalf("first line: %s", line)
		}
		c, err := api.NewClient(url, api.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		st, err := c.Status(t.Context())
		if err != nil || len(st.Cohorts) != 0 {
			t.Errorf("%+v, %v", st, err)
		}
		// Somebody waits while it is told to end.
		waiting := make(chan error, 1)
		go func() {
			_, _, err := c.GetHead(context.Background(), "prod", manifest.Mark{}, 50*time.Second)
			waiting <- err
		}()
		start := time.Now()
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		more, _ := io.ReadAll(out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", sig, err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s: it took %s", sig, d)
		}
		if string(more) != "muster-collector: stopped\n" {
			t.Errorf("last words: %q", more)
		}
		if err := <-waiting; err == nil {
			t.Error("who waited got a head")
		}
		c.Close()
		if info, err := os.Stat(filepath.Join(dir, "db", "state.db")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("database: %v, %v", info.Mode(), err)
		}
	}
}

func TestUsage(t *testing.T) {
	_, open := place(t, "listen: x\n")
	_, broken := place(t, "")
	write(t, filepath.Join(filepath.Dir(broken), "keyring.json"), "{}")
	_, noKeyring := place(t, "")
	os.Remove(filepath.Join(filepath.Dir(noKeyring), "keyring.json"))
	_, tokens := place(t, "tokens_file: DIR/tokens.yaml\n")
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no flag":          {[]string{"run"}, 2, "--config is missing"},
		"unknown flag":     {[]string{"run", "--x"}, 2, "unknown flag: --x"},
		"an argument":      {[]string{"run", "x"}, 2, "muster-collector run takes no argument"},
		"unknown command":  {[]string{"go"}, 2, `unknown command "go"`},
		"no file":          {[]string{"run", "--config", "/nowhere.yaml"}, 2, "read configuration: open /nowhere.yaml"},
		"a key twice":      {[]string{"run", "--config", open}, 2, "collector.yaml:5: listen is set twice"},
		"no keyring":       {[]string{"run", "--config", noKeyring}, 7, "muster: hint: copy keyring.json"},
		"a broken keyring": {[]string{"run", "--config", broken}, 4, "keyring: "},
		"no tokens file":   {[]string{"run", "--config", tokens}, 2, "tokens.yaml: no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], tt.args...)
			cmd.Env = append(os.Environ(), "MUSTER_TEST_MAIN=1")
			var errOut strings.Builder
			cmd.Stderr = &errOut
			err := cmd.Run()
			var ee *exec.ExitError
			text := strings.ReplaceAll(errOut.String(), "muster-collector: ", "muster: ")
			if !errors.As(err, &ee) || ee.ExitCode() != tt.code || !strings.Contains(text, strings.ReplaceAll(tt.want, "muster-collector: ", "muster: ")) {
				t.Errorf("%v\n%s", err, errOut.String())
			}
		})
	}
}

func TestTLSAndTokens(t *testing.T) {
	sum := sha256.Sum256([]byte("t0k"))
	dir, config := place(t, "tls: {cert_file: DIR/cert.pem, key_file: DIR/key.pem}\ntokens_file: DIR/tokens.yaml\n")
	write(t, filepath.Join(dir, "tokens.yaml"), fmt.Sprintf("people:\n- {name: ana, sha256: %s, role: viewer, cohorts: [\"*\"]}\n", hex.EncodeToString(sum[:])))
	write(t, filepath.Join(dir, "token"), "t0k\n")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "collector"}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
	write(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	_, line, _ := collect(t, "run", "--config", config)
	_, rest, _ := strings.Cut(line, "listening on ")
	url, _, _ := strings.Cut(rest, " ")
	if !strings.HasPrefix(url, "https://") {
		t.Fatalf("first line: %s", line)
	}
	c, err := api.NewClient(url, api.ClientOptions{TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "cert.pem")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Status(t.Context()); err != nil {
		t.Error(err)
	}
	nobody, err := api.NewClient(url, api.ClientOptions{CAFile: filepath.Join(dir, "cert.pem")})
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	if _, err := nobody.Status(t.Context()); !errors.Is(err, api.ErrDenied) {
		t.Error(err)
	}
}

func TestForget(t *testing.T) {
	_, config := place(t, "")
	ctx := t.Context()
	var out strings.Builder
	for want, args := range map[string][]string{
		"--config is missing":       {"forget", "web-1"},
		"accepts 1 arg":             {"forget", "--config", config},
		"no such file or directory": {"forget", "--config", config, "web-1"}, // it never ran
	} {
		if err := run(ctx, args, &out, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	cmd, _, _ := collect(t, "run", "--config", config)
	if err := run(ctx, []string{"forget", "--config", config, "web-1"}, &out, io.Discard); err == nil || !strings.Contains(err.Error(), "another collector has it open") {
		t.Errorf("while it runs: %v", err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := run(ctx, []string{"forget", "--config", config, "web-1"}, &out, io.Discard); err == nil || cli.CodeOf(err) != cli.No || !strings.Contains(err.Error(), `no host "web-1" is remembered`) {
		t.Errorf("%v", err)
	}
}
