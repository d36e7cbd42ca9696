// Package manifest is what muster signs and how it is read: releases, statements, manifests, overrides, keyrings,
// their envelope, the names of their objects, the one function that says which release a host runs (Resolve), and
// the state machine that says which head may be believed (Trust). Bytes and values in, values out: it has no clock,
// no disk and no network.
package manifest
