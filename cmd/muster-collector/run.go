package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/collector"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/distributor/rollout/gate"
	"github.com/muster-config/muster/distributor/store/open"
)

func runCmd(stdout, stderr io.Writer) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "run --config FILE",
		Short: "run until SIGTERM or SIGINT; SIGHUP reads the tokens file again",
		Long: `Runs the collector that FILE, a collector.yaml, describes, until SIGTERM or SIGINT;
SIGHUP reads the tokens file again. docs/rollouts.md lists the file's keys.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return cli.Fail(cli.Usage, "give --config /etc/muster/collector.yaml", "--config is missing")
			}
			return serve(cmd.Context(), path, stdout, stderr)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "collector.yaml")
	return cmd
}

// serve puts a collector together and runs it until ctx ends, which is how it ends well.
func serve(ctx context.Context, path string, stdout, stderr io.Writer) error {
	// SIGHUP would end the process, from the first moment on.
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	cfg, err := collector.LoadConfig(path)
	if err != nil {
		return &cli.Error{Code: cli.Usage, Err: err}
	}
	var tokens *collector.Tokens
	if cfg.TokensFile != "" {
		if tokens, err = collector.LoadTokens(cfg.TokensFile); err != nil {
			return &cli.Error{Code: cli.Usage, Err: err}
		}
	}
	keyring, err := readKeyring(cfg.Keyring)
	if err != nil {
		return err
	}
	st, err := open.Open(ctx, cfg.Store)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	certificates, err := certificates(cfg)
	if err != nil {
		return err
	}
	var signer manifest.Signer
	if cfg.RolloutKey != "" {
		if signer, err = rolloutKey(ctx, cfg.RolloutKey); err != nil {
			return err
		}
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	deps := collector.Deps{Store: st, Keyring: keyring, Tokens: tokens, Log: log}
	if signer != nil {
		deps.Steering = &collector.Steering{Store: st, Signer: signer}
	}
	gates, err := gate.NewKeeper(gate.Config{Prometheus: cfg.Prometheus, HTTPHosts: cfg.GateHosts})
	if err != nil {
		return cli.Fail(cli.Usage, "", "%s: %w", path, err)
	}
	c, err := collector.New(cfg, deps)
	if err != nil {
		return err
	}
	if signer != nil {
		if err := mayOrder(ctx, c, cfg, signer); err != nil {
			return errors.Join(err, c.Close())
		}
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return errors.Join(cli.Fail(cli.Local, "stop what listens there, or change listen", "listen: %w", err), c.Close())
	}
	scheme := "http"
	if certificates != nil {
		ln, scheme = tls.NewListener(ln, certificates), "https"
	}
	fmt.Fprintf(stdout, "muster-collector: listening on %s://%s for repo %s, reading %s\n", scheme, ln.Addr(), c.Repo(), st.URL())
	if signer != nil {
		fmt.Fprintln(stdout, "muster-collector: takes cohorts to new releases with the rollout key")
	}

	// The background work outlives the server by a moment, so that the last reports are written.
	group, gctx := errgroup.WithContext(ctx)
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer stop()
		return c.Serve(gctx, ln)
	})
	group.Go(func() error { return c.Run(work) })
	group.Go(func() error {
		for {
			select {
			case <-gctx.Done():
				return nil
			case <-hup:
				c.ReadTokens()
			}
		}
	})
	if signer != nil {
		controller := &rollout.Controller{Store: st, Signer: signer, Seen: c, Gates: c.Overhear(gates), Waits: c.Waits, By: "muster-collector on " + hostName(), Log: log}
		group.Go(func() error { return gates.Run(gctx) })
		group.Go(func() error { return controller.Run(gctx) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "muster-collector: stopped")
	return nil
}

// certificates are what the collector shows, and asks for.
func certificates(cfg collector.Config) (*tls.Config, error) {
	if cfg.CertFile == "" {
		return nil, nil
	}
	certPEM, err := readFile(cfg.CertFile, maxPEM)
	if err != nil {
		return nil, cli.Fail(cli.Usage, "", "tls.cert_file: %w", err)
	}
	keyPEM, err := readFile(cfg.KeyFile, maxPEM)
	if err != nil {
		return nil, cli.Fail(cli.Usage, "", "tls.key_file: %w", err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, cli.Fail(cli.Usage, "", "tls: %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if cfg.ClientCA != "" {
		pem, err := readFile(cfg.ClientCA, maxPEM)
		if err != nil {
			return nil, cli.Fail(cli.Usage, "", "tls.client_ca_file: %w", err)
		}
		c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !c.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, cli.Fail(cli.Usage, "", "tls.client_ca_file: %s holds no PEM certificate", cfg.ClientCA)
		}
	}
	return c, nil
}

// mayOrder checks that agents take what the rollout key signs: a controller with another key would never get an order written, and hardly anybody would look for why.
func mayOrder(ctx context.Context, c *collector.Collector, cfg collector.Config, signer manifest.Signer) error {
	ok, err := c.MayOrder(ctx, signer.KeyID())
	ref := cfg.RolloutKey
	if strings.HasPrefix(ref, "exec:") {
		ref = "the key of its command" // which may hold what is not for logs
	}
	switch {
	case ok:
		return nil
	case err != nil:
		return fmt.Errorf("rollout_key: %s is not in the role rollout of %s, and newer keyrings cannot be read: %w", ref, cfg.Keyring, err)
	}
	return cli.Fail(cli.NotTrusted, "give `rollout_key` the rollout key of this repo, or add the key to the role in a new keyring",
		"rollout_key: %s is not in the role rollout of %s, nor of a newer keyring in the store: agents would refuse what it signs", ref, cfg.Keyring)
}

// rolloutKey opens the key.
func rolloutKey(ctx context.Context, ref string) (manifest.Signer, error) {
	signer, err := keys.Open(ctx, ref)
	if err != nil {
		return nil, cli.Fail(cli.Usage, "", "rollout_key: %w", err)
	}
	return signer, nil
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "an unnamed machine"
	}
	return name
}

func readKeyring(path string) ([]byte, error) {
	data, err := readFile(path, 2*manifest.MaxKeyringBytes)
	switch {
	case errors.Is(err, collector.ErrNotRegular):
		return nil, cli.Fail(cli.Usage, "give `keyring` the path of keyring.json", "keyring: %w", err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, cli.Fail(cli.Local, "copy keyring.json from the directory that `muster keys init` made", "keyring: %w", err)
	case err != nil:
		return nil, cli.Fail(cli.Local, "", "keyring: %w", err)
	}
	return data, nil
}

const maxPEM = 4 << 20 // a bundle of all public authorities is a quarter of a megabyte

// readFile reads a regular file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := collector.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s: larger than %d bytes", path, limit)
	}
	return data, err
}
