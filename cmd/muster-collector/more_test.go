package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/keys"
)

// With client_ca_file only those get as far as a request who have a certificate of it; the token is asked for all the same.
func TestClientCertificates(t *testing.T) {
	dir, config := place(t, "tls: {cert_file: DIR/cert.pem, key_file: DIR/key.pem, client_ca_file: DIR/cert.pem}\n")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "both"}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	write(t, filepath.Join(dir, "cert.pem"), string(certPEM))
	write(t, filepath.Join(dir, "key.pem"), string(keyPEM))
	_, line, _ := collect(t, "run", "--config", config)
	_, rest, _ := strings.Cut(line, "listening on ")
	url, _, _ := strings.Cut(rest, " ")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	for _, with := range []bool{false, true} {
		conf := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		if with {
			conf.Certificates = []tls.Certificate{pair}
		}
		transport := &http.Transport{TLSClientConfig: conf}
		c, err := api.NewClient(url, api.ClientOptions{HTTP: &http.Client{Transport: transport}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Status(t.Context()); (err == nil) != with {
			t.Errorf("with a certificate %t: %v", with, err)
		}
		transport.CloseIdleConnections()
	}
}

func TestRolloutKey(t *testing.T) {
	dir, config := place(t, "rollout_key: DIR/rollout.key\n")
	cmd := exec.Command(os.Args[0], "run", "--config", config)
	cmd.Env = append(os.Environ(), "MUSTER_TEST_MAIN=1")
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "rollout_key: ") || !strings.Contains(string(out), dir) {
		t.Errorf("no such key: %v\n%s", err, out)
	}
	write(t, filepath.Join(dir, "rollout.key"), "not a key\n")
	cmd = exec.Command(os.Args[0], "run", "--config", config)
	cmd.Env = append(os.Environ(), "MUSTER_TEST_MAIN=1")
	if out, err = cmd.CombinedOutput(); err == nil || strings.Contains(string(out), "not a key") {
		t.Errorf("a broken key: %v\n%s", err, out)
	}
	// A key that agents would not take orders of is told at once, and before anything listens.
	os.Remove(filepath.Join(dir, "rollout.key"))
	if err := keys.FromSeed(2).WriteFile(filepath.Join(dir, "rollout.key")); err != nil { // the release key
		t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0], "run", "--config", config)
	cmd.Env = append(os.Environ(), "MUSTER_TEST_MAIN=1")
	if out, err = cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() != 4 || !strings.Contains(string(out), filepath.Join(dir, "rollout.key")+" is not in the role rollout of "+dir+"/keyring.json") || strings.Contains(string(out), "listening") {
		t.Errorf("another key: %v\n%s", err, out)
	}
	os.Remove(filepath.Join(dir, "rollout.key"))
	if err := keys.FromSeed(3).WriteFile(filepath.Join(dir, "rollout.key")); err != nil {
		t.Fatal(err)
	}
	if _, _, more := collect(t, "run", "--config", config); !strings.Contains(readLine(t, more), "with the rollout key") {
		t.Error("the rollout key is not used")
	}
	// The page is there, too: no token is asked for on loopback.
	_, config = place(t, "")
	_, line, _ := collect(t, "run", "--config", config)
	_, rest, _ := strings.Cut(line, "listening on ")
	url, _, _ := strings.Cut(rest, " ")
	resp, err := http.Get(url + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "Nothing is released yet") {
		t.Errorf("%d, %v: %.200s", resp.StatusCode, err, body)
	}
}

func readLine(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// What is no file does not hold the start up.
func TestPipesAreRefused(t *testing.T) {
	for what, name := range map[string]string{
		"config": "collector.yaml", "keyring": "keyring.json", "tokens": "tokens.yaml", "certificate": "cert.pem", "key": "key.pem",
	} {
		t.Run(what, func(t *testing.T) {
			dir, config := place(t, "tls: {cert_file: DIR/cert.pem, key_file: DIR/key.pem}\ntokens_file: DIR/tokens.yaml\n")
			write(t, filepath.Join(dir, "tokens.yaml"), "people:\n- {name: ana, sha256: "+strings.Repeat("ab", 32)+", role: viewer, cohorts: [\"*\"]}\n")
			write(t, filepath.Join(dir, "cert.pem"), "")
			write(t, filepath.Join(dir, "key.pem"), "")
			path := filepath.Join(dir, name)
			os.Remove(path)
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "run", "--config", config)
			cmd.Env = append(os.Environ(), "MUSTER_TEST_MAIN=1")
			if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), path+": not a regular file") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// SIGHUP reads the tokens file again, and never ends the collector; without it the file is read with the next poll.
func TestHangUp(t *testing.T) {
	dir, config := place(t, "tokens_file: DIR/tokens.yaml\npoll: 1h\n")
	sum := func(token string) string { s := sha256.Sum256([]byte(token)); return hex.EncodeToString(s[:]) }
	people := func(name string) {
		t.Helper()
		write(t, filepath.Join(dir, "tokens.yaml"), "people:\n- {name: "+name+", sha256: "+sum(name)+", role: viewer, cohorts: [\"*\"]}\n")
	}
	people("ana")
	cmd, url := started(t, config)
	may := func(token string) bool {
		t.Helper()
		c, err := api.NewClient(url, api.ClientOptions{Token: token})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Status(t.Context())
		if err != nil && !errors.Is(err, api.ErrDenied) {
			t.Fatalf("%s: %v", token, err)
		}
		return err == nil
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not so: %s", what)
			}
		}
	}
	if !may("ana") || may("ben") {
		t.Fatal("before")
	}
	people("ben")
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	until("ben may", func() bool { return may("ben") })
	if may("ana") {
		t.Error("ana still may")
	}
	write(t, filepath.Join(dir, "tokens.yaml"), "people: {\n")
	for range 3 {
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	if !may("ben") {
		t.Error("a slip of the pen locks out")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it did not end well: %v", err)
	}

	dir, config = place(t, "tokens_file: DIR/tokens.yaml\npoll: 50ms\n")
	people("ana")
	_, url = started(t, config)
	people("ben")
	until("ben may, without a signal", func() bool { return may("ben") && !may("ana") })
}

// started starts a collector and gives its URL.
func started(t *testing.T, config string) (*exec.Cmd, string) {
	t.Helper()
	cmd, line, _ := collect(t, "run", "--config", config)
	_, rest, _ := strings.Cut(line, "listening on ")
	url, _, _ := strings.Cut(rest, " ")
	return cmd, url
}
