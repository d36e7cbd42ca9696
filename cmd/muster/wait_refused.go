package main

import (
	"context"
	"io"
	"os"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/open"
)

// refusals looks up why a commit was refused, in the store if one is given and else through the collector. It is a help for people, read from an index that
// decides nothing: whatever goes wrong with it, the answer is "".
func refusals(url string, c *api.Client) func(ctx context.Context, commit string) string {
	if url == "" {
		url = os.Getenv("MUSTER_STORE")
	}
	read := func(ctx context.Context, key string) ([]byte, error) {
		body, _, err := c.Object(ctx, key)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		return io.ReadAll(io.LimitReader(body, manifest.MaxSmallBytes))
	}
	if url != "" {
		read = func(ctx context.Context, key string) ([]byte, error) {
			st, err := open.OpenRead(ctx, url)
			if err != nil {
				return nil, err
			}
			obj, err := st.Get(ctx, key, manifest.MaxSmallBytes)
			return obj.Data, err
		}
	}
	return func(ctx context.Context, commit string) string {
		data, err := read(ctx, manifest.KeyCommit(commit))
		if err != nil {
			return ""
		}
		ix, err := manifest.DecodeCommitIndex(data)
		if err != nil || ix.Commit != commit || ix.Epoch != 0 {
			return ""
		}
		return ix.Reason
	}
}
