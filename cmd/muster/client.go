package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
)

// connection is how a command reaches the collector.
type connection struct {
	url       string
	tokenFile string
	caFile    string
}

func (c *connection) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.url, "collector", "", "the collector's URL [MUSTER_COLLECTOR]")
	cmd.Flags().StringVar(&c.tokenFile, "token-file", "", "file with the token for it [MUSTER_TOKEN_FILE]")
	cmd.Flags().StringVar(&c.caFile, "ca-file", "", "certificates that sign the collector's, if not the system's")
}

func (c *connection) open() (*api.Client, error) {
	url, err := envOr("collector", c.url, "MUSTER_COLLECTOR")
	if err != nil {
		return nil, err
	}
	if c.tokenFile == "" {
		c.tokenFile = os.Getenv("MUSTER_TOKEN_FILE")
	}
	return api.NewClient(url, api.ClientOptions{TokenFile: c.tokenFile, CAFile: c.caFile})
}

// given reports whether the user named a collector, by flag or environment.
func (c *connection) given() bool { return c.url != "" || os.Getenv("MUSTER_COLLECTOR") != "" }

// handOver gives new heads to the collector, so that hosts hear of them now. It is for speed only: the collector reads the store by itself.
func (c *connection) handOver(ctx context.Context, st store.Reader, cohorts []string) error {
	client, err := c.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, name := range cohorts {
		head, err := st.Get(ctx, manifest.KeyHead(name), manifest.MaxHeadBytes)
		if err != nil {
			return fmt.Errorf("read the head of %s: %w", name, err)
		}
		if err := client.PutHead(ctx, name, head.Data); err != nil {
			return err
		}
	}
	return nil
}
