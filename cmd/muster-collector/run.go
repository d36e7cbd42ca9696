package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/collector"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/open"
)

func runCmd(stdout, stderr io.Writer) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "run --config FILE",
		Short: "run until SIGTERM or SIGINT",
		Args:  cli.NoArgs,
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
	st, err := open.OpenRead(ctx, cfg.Store)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	var certificates *tls.Config
	if cfg.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return cli.Fail(cli.Usage, "", "tls: %w", err)
		}
		certificates = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	c, err := collector.New(cfg, collector.Deps{Store: st, Keyring: keyring, Tokens: tokens, Log: log})
	if err != nil {
		return err
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

	// The background work outlives the server by a moment, so that the last reports are written.
	group, gctx := errgroup.WithContext(ctx)
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer stop()
		return c.Serve(gctx, ln)
	})
	group.Go(func() error { return c.Run(work) })
	if err := group.Wait(); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "muster-collector: stopped")
	return nil
}

func readKeyring(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		hint := ""
		if errors.Is(err, fs.ErrNotExist) {
			hint = "copy keyring.json from the directory that `muster keys init` made"
		}
		return nil, cli.Fail(cli.Local, hint, "keyring: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 2*manifest.MaxKeyringBytes+1))
	if err != nil {
		return nil, fmt.Errorf("keyring %s: %w", path, err)
	}
	return data, nil
}
