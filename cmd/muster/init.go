package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
)

//go:embed all:skeleton
var skeleton embed.FS

func (a *app) initCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "init DIR",
		Short: "make a config repo to start from",
		Long: `Writes a small config repo that validates as it is: one service with a schema,
a cohort, a commented agent.yaml and collector.yaml, and a GitHub workflow.
DIR is new or empty (a fresh clone with nothing but .git is fine).`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			if !filepath.IsAbs(dir) {
				dir = filepath.Join(a.dir, dir)
			}
			hasGit, err := emptyButGit(dir)
			if err != nil {
				return err
			}
			files, err := writeSkeleton(dir)
			if err != nil {
				return fmt.Errorf("init: %w", err)
			}
			var hint string
			if !hasGit {
				git := exec.CommandContext(cmd.Context(), "git", "init", "-q", "-b", "main", dir)
				git.Env = withoutGit(os.Environ())
				if text, err := git.CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
					hint = "git init && "
				} else if err != nil {
					return cli.Fail(cli.Local, "the files are written; make it a git repository yourself", "git init %s: %w: %s", dir, err, text)
				}
			}
			if a.json {
				return cli.PrintJSON(a.out, struct {
					Dir   string   `json:"dir"`
					Files []string `json:"files"`
				}{dir, files})
			}
			fmt.Fprintf(a.out, "%s is a config repo now (%s). Next:\n\n    cd %s && %sgit add -A && git commit -m 'first configuration'\n    muster validate\n    muster keys init ../keys --repo example/config\n", dir, cli.Count(len(files), "file"), dir, hint)
			return nil
		},
	}
}

// emptyButGit checks that dir is new, empty, or holds only a .git.
func emptyButGit(dir string) (hasGit bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if errors.Is(err, syscall.ENOTDIR) {
		return false, cli.Fail(cli.Usage, "give a new or an empty directory", "init: %s is not a directory", dir)
	} else if err != nil {
		return false, cli.Fail(cli.Local, "", "init: %w", err)
	}
	for _, e := range entries {
		if e.Name() != ".git" {
			return false, cli.Fail(cli.Usage, "give a new or an empty directory", "init: %s is not empty", dir)
		}
		hasGit = true
	}
	return hasGit, nil
}

func writeSkeleton(dir string) ([]string, error) {
	sub, err := fs.Sub(skeleton, "skeleton")
	if err != nil {
		return nil, err
	}
	var files []string
	err = fs.WalkDir(sub, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(path))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		data, err := fs.ReadFile(sub, path)
		if err != nil {
			return err
		}
		files = append(files, path)
		return os.WriteFile(to, data, 0o644)
	})
	return files, err
}

// withoutGit drops what would send git elsewhere (GIT_DIR of a hook that runs this).
func withoutGit(env []string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "GIT_") {
			out = append(out, kv)
		}
	}
	return out
}
