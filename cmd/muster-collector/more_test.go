package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-config/muster/distributor/api"
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
