package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/pipeline/forge"
)

// forging is how a command reaches GitHub.
type forging struct {
	repo, api, tokenFile, author string
	app, appKey                  string
	installation                 int64

	with func(*forge.Config) // tests: their clock
}

func (g *forging) flags(cmd *cobra.Command, repoEnv string) {
	cmd.Flags().StringVar(&g.repo, "github", "", "the repository on GitHub, OWNER/NAME"+repoEnv)
	cmd.Flags().StringVar(&g.api, "github-api", "", "address of the API, of a GitHub of one's own [GITHUB_API_URL]")
	cmd.Flags().StringVar(&g.tokenFile, "github-token-file", "", "file with the token, read anew for each request; else the token is in GITHUB_TOKEN")
	cmd.Flags().StringVar(&g.app, "github-app", "", "id of a GitHub App, in place of a token")
	cmd.Flags().StringVar(&g.appKey, "github-app-key", "", "the app's private key: a path, or env:NAME")
	cmd.Flags().Int64Var(&g.installation, "github-installation", 0, "the app's installation, if it is not that of the repository")
	cmd.Flags().StringVar(&g.author, "github-author", "", "login that comments are written as, if it cannot be found out")
}

// client opens GitHub; nil if there is nothing to authenticate with.
func (g *forging) client(patience time.Duration) (*forge.Client, error) {
	cfg := forge.Config{API: g.api, Repo: g.repo, Author: g.author, Agent: "muster/" + cli.Version, Patience: patience}
	if cfg.API == "" {
		cfg.API = os.Getenv("GITHUB_API_URL")
	}
	switch {
	case g.app != "" && g.tokenFile != "":
		return nil, cli.Fail(cli.Usage, "", "--github-app and --github-token-file exclude each other")
	case g.app == "" && (g.appKey != "" || g.installation != 0):
		return nil, cli.Fail(cli.Usage, "give --github-app ID", "--github-app-key and --github-installation go with --github-app")
	case g.app != "":
		key, err := g.key()
		if err != nil {
			return nil, err
		}
		cfg.App = &forge.App{ID: g.app, Installation: g.installation, Key: key}
	case g.tokenFile != "":
		cfg.Token = func() (string, error) { return readForgeToken(g.tokenFile) }
		if _, err := cfg.Token(); err != nil {
			return nil, err
		}
	case os.Getenv("GITHUB_TOKEN") != "":
		token := strings.TrimSpace(os.Getenv("GITHUB_TOKEN"))
		cfg.Token = func() (string, error) { return token, nil }
	default:
		return nil, nil
	}
	if g.with != nil {
		g.with(&cfg)
	}
	return forge.New(cfg)
}

func (g *forging) key() ([]byte, error) {
	if g.appKey == "" {
		return nil, cli.Fail(cli.Usage, "give --github-app-key, a path or env:NAME", "--github-app-key is missing")
	}
	if name, ok := strings.CutPrefix(g.appKey, "env:"); ok {
		if key := os.Getenv(name); key != "" {
			return []byte(key), nil
		}
		return nil, cli.Fail(cli.Usage, "", "--github-app-key: the variable %s is empty", name)
	}
	return readSmall(g.appKey, "the app's key")
}

func readForgeToken(path string) (string, error) {
	data, err := readSmall(path, "GitHub's token")
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", cli.Fail(cli.Usage, "put the token, and nothing else, into the file", "%s does not hold a token", path)
	}
	return token, nil
}

func readSmall(path, what string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return data, nil
}

// forgeNote is what went wrong with GitHub, in one line with the next step.
func forgeNote(err error) string {
	text := cli.Printable(err.Error())
	var hinter interface{ Hint() string }
	if errors.As(err, &hinter) && hinter.Hint() != "" {
		text += "; " + hinter.Hint()
	}
	return text
}
