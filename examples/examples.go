// Package examples carries the example config repos inside the binary: `muster demo` runs on acme.
package examples

import (
	"embed"
	"io/fs"
)

//go:embed all:acme all:plain
var files embed.FS

// Acme is the config repo of a small shop: three services, three cohorts, twenty-four hosts; CUE, YAML, JSON and TOML.
func Acme() fs.FS { return sub("acme") }

// Plain is a config repo without schemas: YAML and .env files and a fleet.
func Plain() fs.FS { return sub("plain") }

func sub(dir string) fs.FS {
	f, err := fs.Sub(files, dir)
	if err != nil {
		panic(err) // the directory is compiled in
	}
	return f
}
