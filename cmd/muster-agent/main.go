// Command muster-agent keeps one host right: it fetches the release that the signed manifest of its cohort assigns to the host, installs it, has the
// services load it, and reports what their processes really run.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/host"
	"github.com/muster-config/muster/cmd/internal/cli"
)

const name = "muster-agent"

func main() {
	cli.Main(name, func(ctx context.Context) error { return command(os.Stdout, os.Stderr).ExecuteContext(ctx) })
}

// app is what the commands share.
type app struct {
	out, err io.Writer
	config   string
	json     bool
}

func command(stdout, stderr io.Writer) *cobra.Command {
	a := &app{out: stdout, err: stderr}
	root := &cobra.Command{
		Use:               name,
		Short:             "installs what the signed manifest of its cohort assigns to this host, and proves it",
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cli.Fail(cli.Usage, fmt.Sprintf("run `%s --help`", cmd.CommandPath()), "%w", err)
	})
	root.PersistentFlags().StringVar(&a.config, "config", "/etc/muster/agent.yaml", "the host's configuration file")
	root.AddCommand(a.runCmd(), a.onceCmd(), a.statusCmd(), a.verifyCmd(), a.holdCmd(), a.unholdCmd(), a.applyCmd())
	for _, c := range root.Commands() {
		c.Args = cli.NoArgs
	}
	cli.Root(root)
	return root
}

// load reads the configuration; what is wrong with it is a usage error.
func (a *app) load() (agent.Config, error) {
	cfg, err := agent.LoadConfig(a.config)
	if err != nil {
		hint := cmp.Or(cli.HintOf(err), "`muster init` writes a commented example")
		if e := new(agent.ConfigError); errors.As(err, &e) {
			switch {
			case e.Key == "services" || strings.HasPrefix(e.Key, "services."):
				hint = fmt.Sprintf("correct %s in %s", cli.Printable(e.Key), e.File)
			case e.File != a.config:
				hint = fmt.Sprintf("%s may hold services: and nothing else, as %s does", e.File, a.config)
			}
		}
		return cfg, cli.Fail(cli.Usage, hint, "%w", err)
	}
	return cfg, nil
}

func (a *app) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
}

func (a *app) open(ctx context.Context, cfg agent.Config, log *slog.Logger) (*host.Host, error) {
	h, err := host.Open(ctx, cfg, host.Options{Logger: log, Version: version(), Applied: debug.FreeOSMemory})
	if err != nil {
		var e *cli.Error
		if !errors.As(err, &e) && strings.Contains(err.Error(), "sources[") {
			return nil, cli.Fail(cli.Usage, "sources are file://, s3:// or https:// stores, or the collector.url", "%s: %w", a.config, err)
		}
		return nil, err
	}
	return h, nil
}

func version() string { return name + " " + cli.Version }

// small keeps the agent's own memory low: it works for a moment and then waits for a long time.
func small() {
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(256 << 20) // soft: a large bundle makes the collector work harder before the process grows
}
