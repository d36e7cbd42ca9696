package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/pipeline"
)

func (a *app) schemaCmd() *cobra.Command {
	return group("schema", "the services' schemas", a.schemaExportCmd())
}

func (a *app) schemaExportCmd() *cobra.Command {
	var e evaluation
	var out string
	cmd := &cobra.Command{
		Use:   "export [SERVICE…] --out DIR",
		Short: "write the services' schemas as JSON Schema, for editors",
		Long: `Writes each service's #Config as JSON Schema to DIR/SERVICE.schema.json, and prints
the line that makes an editor check a YAML layer while it is written. Without
SERVICE it writes all that there are.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return cli.Fail(cli.Usage, "usage: "+cmd.UseLine(), "--out is missing")
			}
			if info, err := os.Stat(out); err == nil && !info.IsDir() {
				return cli.Fail(cli.Usage, "give a directory", "%s is not a directory", out)
			}
			res, err := a.build(cmd.Context(), e, pipeline.Options{Services: args, CheckOnly: true, Schemas: true})
			if err != nil {
				return err
			}
			if err := wanted("service", args, servicesIn(res)); err != nil {
				return err
			}
			schemas := res.Schemas()
			missing := slices.DeleteFunc(slices.Clone(args), func(s string) bool { return schemas[s] != nil })
			switch {
			case len(missing) > 0 && res.Failed(), len(schemas) == 0 && res.Failed():
				printProblems(a.errOut, onlyErrors(res.Problems))
				return cli.Fail(cli.No, "", "not valid: %s; nothing was written", countProblems(res.Problems))
			case len(missing) > 0:
				return cli.Fail(cli.No, "write a #Config in services/"+missing[0]+"/schema.cue", "no schema: %s; nothing was written", cli.Names(missing, 10))
			case len(schemas) == 0:
				return cli.Fail(cli.No, "a schema is #Config in services/SERVICE/schema.cue", "no service has a schema")
			}
			files := map[string]string{} // by service
			for _, name := range slices.Sorted(maps.Keys(schemas)) {
				files[name] = filepath.Join(out, name+".schema.json")
				if err := replaceFile(files[name], schemas[name]); err != nil {
					return fmt.Errorf("write %s: %w", files[name], err)
				}
			}
			if a.json {
				return cli.PrintJSON(a.out, struct {
					Out   string            `json:"out"`
					Files map[string]string `json:"files"`
				}{out, files})
			}
			for _, name := range slices.Sorted(maps.Keys(files)) {
				fmt.Fprintln(a.out, files[name])
			}
			name := slices.Min(slices.Collect(maps.Keys(files)))
			fmt.Fprintf(a.out, "\nAs the first line of services/%s/base.yaml it makes editors check the file (yaml-language-server):\n\n    # yaml-language-server: $schema=%s\n", name, a.fromService(name, files[name]))
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "the directory to write to")
	e.flags(cmd)
	return cmd
}

// fromService is how a layer of a service refers to a file: relative to it where both are in the same repository.
func (a *app) fromService(service, file string) string {
	abs, err := filepath.Abs(file)
	if err != nil {
		return file
	}
	root, err := filepath.Abs(a.dir)
	if err != nil {
		return abs
	}
	// -C may be a directory in the repository.
	for dir := root; ; dir = filepath.Dir(dir) {
		base := filepath.Join(dir, "services", service)
		if _, err := os.Stat(base); err == nil {
			if in, err := filepath.Rel(dir, abs); err == nil && filepath.IsLocal(in) {
				if rel, err := filepath.Rel(base, abs); err == nil {
					return filepath.ToSlash(rel)
				}
			}
			return abs
		}
		if dir == filepath.Dir(dir) {
			return abs
		}
	}
}

// replaceFile writes a file whole or not at all, and makes its directory.
func replaceFile(path string, data []byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	if _, err := tmp.Write(data); err != nil {
		return errors.Join(err, tmp.Close())
	}
	if err := tmp.Chmod(0o644); err != nil {
		return errors.Join(err, tmp.Close())
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
