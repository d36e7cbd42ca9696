package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/distributor/bundle"
	"github.com/muster-config/muster/pipeline"
)

func (a *app) renderCmd() *cobra.Command {
	var cohort, out, rev string
	cmd := &cobra.Command{
		Use:   "render --cohort COHORT --out DIR",
		Short: "write exactly the files that a host of a cohort would get",
		Long: `Writes the files that every host of the cohort would get, as DIR/SERVICE/FILE:
from the files on disk that git does not ignore, or from the commit --rev.
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
			res, err := a.build(cmd.Context(), rev, pipeline.Options{Cohorts: []string{cohort}})
			if err != nil {
				return err
			}
			if _, ok := res.Policy.Cohorts[cohort]; !ok && len(res.Policy.Cohorts) > 0 {
				return noCohort(cohort, res)
			}
			if res.Failed() {
				printProblems(a.errOut, res.Problems)
				return cli.Fail(cli.No, "", "not valid: %s; nothing was written", countProblems(res.Problems))
			}
			files, err := res.Files(cohort)
			if err != nil {
				return err
			}
			written, err := writeFiles(out, files)
			if err != nil {
				return err
			}
			if a.json {
				return cli.PrintJSON(a.out, struct {
					Cohort string   `json:"cohort"`
					Out    string   `json:"out"`
					Files  []string `json:"files"`
				}{cohort, out, written})
			}
			for _, f := range written {
				fmt.Fprintln(a.out, filepath.Join(out, f))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&cohort, "cohort", "", "the cohort to render for")
	cmd.Flags().StringVar(&out, "out", "", "the directory to write to; new or empty")
	cmd.Flags().StringVar(&rev, "rev", "", "a commit, instead of the files on disk")
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
