// Package examples carries the example config repos inside the binary: `muster demo` runs on acme.
package examples

import (
	"embed"
	"io/fs"
)

//go:embed all:acme
var files embed.FS

// Acme is the config repo of a small shop: three services, three cohorts, twelve hosts.
func Acme() fs.FS {
	sub, err := fs.Sub(files, "acme")
	if err != nil {
		panic(err) // the directory is compiled in
	}
	return sub
}
