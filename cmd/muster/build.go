package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

// evaluation is what the commands share that read the work tree, or a commit.
type evaluation struct {
	rev     string
	noCache bool
}

func (e *evaluation) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&e.rev, "rev", "", "a commit, instead of the files on disk")
	cmd.Flags().BoolVar(&e.noCache, "no-cache", false, "evaluate everything anew; the cache is in MUSTER_CACHE, or the user's cache directory")
}

// repo opens the config repo.
func (a *app) repo() (*source.Repo, error) { return source.Open(a.dir) }

// tree reads a commit, or the files on disk that git does not ignore for "".
func tree(repo *source.Repo, rev string) (source.Tree, error) {
	if rev == "" {
		return repo.WorkTree()
	}
	return repo.Commit(rev)
}

// build evaluates the config repo as e says. What is wrong with it is in the result's problems.
func (a *app) build(ctx context.Context, e evaluation, opts pipeline.Options) (*pipeline.Rendered, error) {
	eval.Hasten(64 << 20)
	repo, err := a.repo()
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	opts.Cache = a.cache(e)
	t, err := a.read(repo, e.rev, opts)
	if err != nil {
		return nil, err
	}
	return pipeline.Build(ctx, t, opts)
}

// read is tree for one build; of the files on disk only what changed, where that is enough.
func (a *app) read(repo *source.Repo, rev string, opts pipeline.Options) (source.Tree, error) {
	if rev == "" && opts.Verdict {
		return repo.WorkTreeSeen(opts.Cache.Dir())
	}
	return tree(repo, rev)
}

// evaluate builds a tree, from the cache where that has it.
func (a *app) evaluate(ctx context.Context, t source.Tree, e evaluation, opts pipeline.Options) (*pipeline.Rendered, error) {
	opts.Cache = a.cache(e)
	return pipeline.Build(ctx, t, opts)
}

// cache opens the evaluation cache. Without a place for it everything is evaluated; one that was named and does not open is worth a word.
func (a *app) cache(e evaluation) *eval.Cache {
	if e.noCache {
		return nil
	}
	dir := os.Getenv("MUSTER_CACHE")
	named := dir != ""
	if !named {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil
		}
		dir = filepath.Join(user, "muster")
	}
	cache, err := eval.OpenCache(dir)
	if err != nil {
		if named {
			fmt.Fprintf(a.errOut, "muster: warning: no cache: %s\n", cli.Printable(err.Error()))
		}
		return nil
	}
	return cache
}

// wanted checks names that the user gave against those there are.
func wanted(what string, given, have []string) error {
	for _, name := range given {
		if slices.Contains(have, name) {
			continue
		}
		hint := cli.Suggest(name, have)
		if hint == "" {
			hint = "there is " + cli.Names(have, 10)
			if len(have) == 0 {
				hint = "there is none"
			}
		}
		return cli.Fail(cli.Usage, hint, "no %s %q", what, name)
	}
	return nil
}

// wantedCohorts checks cohorts against the fleet, unless that could not be read.
func wantedCohorts(given []string, res *pipeline.Rendered) error {
	if len(res.Policy.Cohorts) == 0 {
		return nil
	}
	for _, name := range given {
		if _, ok := res.Policy.Cohorts[name]; !ok {
			return noCohort(name, res)
		}
	}
	return nil
}

// servicesIn are the services of the evaluated tree, also those that no cohort carries.
func servicesIn(res *pipeline.Rendered) []string {
	var names []string
	for _, f := range res.Source {
		if rest, ok := strings.CutPrefix(f.Path, "services/"); ok {
			if name, _, below := strings.Cut(rest, "/"); below {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// coloured reports whether w is a terminal that takes colours.
func coloured(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}
