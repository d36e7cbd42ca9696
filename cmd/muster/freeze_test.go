package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/muster-config/muster/cmd/internal/keydir"
	"github.com/muster-config/muster/distributor/keys"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store/open"
	"github.com/muster-config/muster/distributor/wire"
)

// freeze URL KEYS COHORT: signs a next head in which somebody has frozen the cohort, as a version with a command for it would.
func freeze(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: freeze URL KEYS COHORT")
	}
	ctx := context.Background()
	st, err := open.Open(ctx, args[0])
	ts.Check(err)
	signer, err := keys.Open(ctx, filepath.Join(ts.MkAbs(args[1]), keydir.Rollout))
	ts.Check(err)
	obj, err := st.Get(ctx, manifest.KeyHead(args[2]), manifest.MaxHeadBytes)
	ts.Check(err)
	head, err := manifest.DecodeHead(obj.Data)
	ts.Check(err)
	m, err := manifest.DecodeManifest(head.Manifest.Payload)
	ts.Check(err)
	m.Serial++
	m.Rollout.Freezes = []manifest.Stop{{By: "ana", Why: "black friday", Since: time.Now().UTC().Truncate(time.Second)}}
	env, err := manifest.Seal(manifest.KindManifest, m, signer)
	ts.Check(err)
	head.Manifest = *env
	data, err := wire.Encode(head)
	ts.Check(err)
	_, err = st.Replace(ctx, manifest.KeyHead(args[2]), data, obj.Token)
	ts.Check(err)
}
