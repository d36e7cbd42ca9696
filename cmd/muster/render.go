package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/distributor/inventory"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline"
)

func (a *app) renderCmd() *cobra.Command {
	var e evaluation
	var cohort, host, out string
	cmd := &cobra.Command{
		Use:   "render --cohort COHORT [--host HOST] --out DIR",
		Short: "write exactly the files that a host of a cohort would get",
		Long: `Writes the files that every host of the cohort would get, as DIR/SERVICE/FILE:
from the files on disk that git does not ignore, or from the commit --rev. With
--host it is what that host would get, with its own overlays.
A file that embeds release.epoch has 0 there: the epoch is known at publish.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cohort == "" {
				return cli.Fail(cli.Usage, "usage: "+cmd.UseLine(), "--cohort is missing")
			}
			if out == "" {
				return cli.Fail(cli.Usage, "usage: "+cmd.UseLine(), "--out is missing")
			}
			if err := vacant(out); err != nil {
				return err
			}
			res, err := a.build(cmd.Context(), e, pipeline.Options{Cohorts: []string{cohort}})
			if err != nil {
				return err
			}
			if _, ok := res.Policy.Cohorts[cohort]; !ok && len(res.Policy.Cohorts) > 0 {
				return noCohort(cohort, res)
			}
			if err := knownHost(cohort, host, res); err != nil {
				return err
			}
			if here := standsInTheWay(cohort, res); len(here) > 0 {
				printProblems(a.errOut, here)
				return cli.Fail(cli.No, "", "not valid: %s; nothing was written", countProblems(here))
			}
			files, err := res.FilesOf(cohort, host)
			if err != nil {
				return err
			}
			if variants := res.Variants(cohort); host == "" && len(variants) > 0 {
				fmt.Fprintf(a.errOut, "muster: note: other files on %s: see them with --host\n", cli.Names(variants, 5))
			}
			written, err := writeFiles(out, files)
			if err != nil {
				return err
			}
			if a.json {
				return cli.PrintJSON(a.out, struct {
					Cohort string   `json:"cohort"`
					Host   string   `json:"host"`
					Out    string   `json:"out"`
					Files  []string `json:"files"`
				}{cohort, host, out, written})
			}
			for _, f := range written {
				fmt.Fprintln(a.out, filepath.Join(out, f))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&cohort, "cohort", "", "the cohort to render for")
	cmd.Flags().StringVar(&out, "out", "", "the directory to write to; new or empty")
	cmd.Flags().StringVar(&host, "host", "", "one host of it, with its own overlays")
	e.flags(cmd)
	return cmd
}

func noCohort(name string, res *pipeline.Rendered) error {
	var names []string
	for c := range res.Policy.Cohorts {
		names = append(names, c)
	}
	slices.Sort(names)
	hint := cli.Suggest(name, names)
	if hint == "" {
		hint = "it has " + cli.Names(names, 10)
	}
	return cli.Fail(cli.Usage, hint, "no cohort %q in the fleet", name)
}

// standsInTheWay are the errors that keep a cohort from being rendered: those of the whole commit, and of the services that it carries.
func standsInTheWay(cohort string, res *pipeline.Rendered) []eval.Problem {
	carried := res.Policy.Cohorts[cohort].Services
	return slices.DeleteFunc(onlyErrors(res.Problems), func(p eval.Problem) bool {
		return p.Service != "" && !slices.Contains(p.Cohorts, cohort) && (len(p.Cohorts) > 0 || !slices.Contains(carried, p.Service))
	})
}

// knownHost checks a host against the cohort's list, and against those of others. Where hosts are only counted or chosen by label, any that is nowhere else may be
// asked about.
func knownHost(cohort, host string, res *pipeline.Rendered) error {
	if host == "" {
		return nil
	}
	if !manifest.ValidHost(host) {
		return cli.Fail(cli.Usage, "", "%q is not a host name", host)
	}
	in := cohortsOf(host, res)
	list := res.Policy.Cohorts[cohort].Hosts.List
	switch {
	case slices.Contains(in, cohort), len(in) == 0 && len(list) == 0:
		return nil
	case len(in) > 0:
		return cli.Fail(cli.Usage, "give --cohort "+in[0], "host %s is in cohort %s, not in %s", host, cli.Names(in, 5), cohort)
	}
	hint := cli.Suggest(host, list)
	if hint == "" {
		hint = "its list has " + cli.Names(list, 10)
	}
	return cli.Fail(cli.Usage, hint, "no host %q in the list of cohort %s", host, cohort)
}

// cohortsOf are the cohorts whose lists, or rows of the inventory file, have a host.
func cohortsOf(host string, res *pipeline.Rendered) []string {
	var in []string
	for name, c := range res.Policy.Cohorts {
		if slices.Contains(c.Hosts.List, host) {
			in = append(in, name)
		}
	}
	if inv := res.Policy.Inventory; inv != nil && inv.File != "" {
		for _, f := range res.Source {
			if f.Path != path.Clean(inv.File) {
				continue
			}
			rows, _ := inventory.ParseCSV(f.Data) // one that does not read is an error of the fleet
			for _, row := range rows {
				if row.Name == host {
					in = append(in, row.Cohort)
				}
			}
		}
	}
	slices.Sort(in)
	return slices.Compact(in)
}

// vacant refuses a path that is there and is not an empty directory.
func vacant(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, syscall.ENOTDIR):
		return cli.Fail(cli.Usage, "give a new or an empty directory", "%s is not a directory", dir)
	case err != nil:
		return cli.Fail(cli.Local, "", "%w", err)
	case len(entries) > 0:
		return cli.Fail(cli.Usage, "give a new or an empty directory", "%s is not empty", dir)
	}
	return nil
}

// writeFiles writes the files below out: beside it first, then by one rename, so that out is whole or absent.
func writeFiles(out string, files []bundle.File) (written []string, err error) {
	if out, err = filepath.Abs(out); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(out), "."+filepath.Base(out)+"-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp) // after the rename there is nothing
	if err := os.Chmod(tmp, 0o755); err != nil {
		return nil, err
	}
	written = []string{}
	for _, f := range files {
		rel := filepath.FromSlash(f.Path)
		if !filepath.IsLocal(rel) {
			return nil, fmt.Errorf("file name %q leaves its directory", f.Path)
		}
		path := filepath.Join(tmp, rel)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, f.Data, fs.FileMode(f.Mode)); err != nil {
			return nil, err
		}
		if err := os.Chmod(path, fs.FileMode(f.Mode)); err != nil { // whatever the umask
			return nil, err
		}
		written = append(written, rel)
	}
	if err := os.Remove(out); err != nil && !errors.Is(err, fs.ErrNotExist) { // an empty directory: vacant looked
		return nil, err
	}
	return written, os.Rename(tmp, out)
}
