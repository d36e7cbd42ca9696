// Command muster takes a commit of a config repo to every host, and proves that it arrived.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-config/muster/cmd/internal/cli"
	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor"
	"github.com/muster-config/muster/distributor/rollout"
	"github.com/muster-config/muster/pipeline"
	"github.com/muster-config/muster/pipeline/source"
)

func main() {
	eval.Child() // never returns in a process that was started to evaluate
	cli.Main("muster", func(ctx context.Context) error {
		return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}, rules...)
}

// rules give the sentinels of the packages that only this main links their exit codes.
var rules = []cli.Rule{
	{Is: source.ErrNoRepo, Code: cli.Usage, Hint: "give the config repo with -C DIR, or start one with `muster init DIR`"},
	{Is: source.ErrNoRev, Code: cli.Usage, Hint: "give a branch, a tag or a commit id of this repository; `git log` lists them"},
	{Is: source.ErrUnsupported, Code: cli.No},
	{Is: source.ErrNoWorkTree, Code: cli.Usage},
	{Is: source.ErrShallow, Code: cli.Conflict, Hint: "fetch the whole history: git fetch --unshallow"},
	{Is: pipeline.ErrUnknownCohort, Code: cli.Usage},
	{Is: distributor.ErrRewritten, Code: cli.Conflict, Hint: "publish a commit that contains the released one; `git log` shows whether history was rewritten"},
	{Is: distributor.ErrContended, Code: cli.Conflict, Hint: "run the command again"},
	{Is: distributor.ErrRefused, Code: cli.No},
	{Is: distributor.ErrMaybePublished, Code: cli.Unreachable, Hint: "run the command again: it finds out, and publishes nothing twice"},
	{Is: distributor.ErrDamaged, Code: cli.NotTrusted, Hint: "run `muster fsck` on the store"},
	{Is: rollout.ErrStopped, Code: cli.No},
	{Is: rollout.ErrUnfit, Code: cli.No, Hint: "`muster rollout status COHORT` shows where it stands"},
	{Is: rollout.ErrBehind, Code: cli.NotTrusted, Hint: "run `muster fsck` on the store"},
	{Is: rollout.ErrVanished, Code: cli.Conflict},
}

// app is what all commands share.
type app struct {
	args   []string
	dir    string // -C
	json   bool
	out    io.Writer
	errOut io.Writer
	raw    io.Writer // out as it was given: for workflow commands of our own
}

// run is one call of muster.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	a := &app{args: args, out: stdout, errOut: stderr, raw: stdout}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if os.Getenv("GITHUB_ACTIONS") == "true" {
		err = harmless(err)
	}
	return err
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "muster",
		Short: "take a commit of a config repo to every host, and prove that it arrived",
		Long: `muster takes a commit of a config repo to every host, and proves that it arrived.

A config change is not done when the store is updated. It is done when every
running instance has confirmed that it runs it.

Exit codes: 0 done; 1 the answer is no; 2 usage; 3 conflict; 4 not trusted;
5 not reachable; 6 differs; 7 local failure; 130 interrupted.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { a.quiet(cmd) }
	root.PersistentFlags().StringVarP(&a.dir, "chdir", "C", ".", "the config repo, or a directory in it")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON for scripts")
	root.AddCommand(a.initCmd(), a.validateCmd(), a.renderCmd(), a.planCmd(), a.explainCmd(), a.schemaCmd(), a.keysCmd(), a.publishCmd(), a.ciCmd(), a.rolloutCmd(), a.freezeCmd(), a.unfreezeCmd(), a.holdCmd(), a.unholdCmd(), a.rollbackCmd(), a.overrideCmd(), a.statusCmd(), a.hostsCmd(), a.waitCmd(), a.logCmd(), a.showCmd(), a.fsckCmd(), a.demoCmd(), a.demoReloadCmd(), a.versionCmd())
	cli.Root(root)
	usageErrors(root)
	flagErrors := root.FlagErrorFunc()
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// `muster plan --base HEAD`: the command is what is unknown, not its flags.
		if name := firstWord(a.args); cmd == root && name != "" {
			return cli.UnknownCommand(root, name)
		}
		return flagErrors(cmd, err)
	})
	return root
}

// firstWord is the first argument that is no flag, nor the value of -C.
func firstWord(args []string) string {
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "-C" || args[i] == "--chdir":
			i++
		case !strings.HasPrefix(args[i], "-"):
			return args[i]
		}
	}
	return ""
}

// usageErrors makes every complaint about flags and arguments a usage error (exit 2) that says what to do.
func usageErrors(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		hint := fmt.Sprintf("`%s --help` lists the flags", cmd.CommandPath())
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			var names []string
			cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
			if s := cli.Suggest(unknown.GetSpecifiedName(), names); s != "" {
				hint = strings.Replace(s, `"`, `"--`, 1) + " " + hint
			}
		}
		return cli.Fail(cli.Usage, hint, "%s: %w", cmd.CommandPath(), err)
	})
	for _, sub := range cmd.Commands() {
		if args := sub.Args; args != nil {
			sub.Args = func(cmd *cobra.Command, given []string) error {
				err := args(cmd, given)
				var e *cli.Error
				if err == nil || errors.As(err, &e) {
					return err
				}
				return cli.Fail(cli.Usage, "usage: "+cmd.UseLine(), "%s: %w", cmd.CommandPath(), err)
			}
		}
		usageErrors(sub)
	}
}

// group is a command that only has commands below it.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return cli.UnknownCommand(cmd, args[0])
		}
		return cli.Fail(cli.Usage, fmt.Sprintf("`%s --help` lists the commands", cmd.CommandPath()), "%s: which one?", cmd.CommandPath())
	}}
	cmd.AddCommand(subs...)
	return cmd
}

// envOr is the flag's value, or that of the environment variable; a missing one is a usage error that names both.
func envOr(flag, value, env string) (string, error) {
	if value == "" {
		value = os.Getenv(env)
	}
	if value == "" {
		return "", cli.Fail(cli.Usage, fmt.Sprintf("give --%s, or set %s", flag, env), "--%s is missing", flag)
	}
	return value, nil
}

// oneOf checks the value of a flag that takes one of a few words.
func oneOf(flag, value string, words ...string) error {
	if slices.Contains(words, value) {
		return nil
	}
	return cli.Fail(cli.Usage, "it takes "+strings.Join(words, ", "), "--%s %q is not known", flag, value)
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "print the version; with --json that of its evaluator too", Args: cli.NoArgs, RunE: func(*cobra.Command, []string) error {
		if a.json {
			return cli.PrintJSON(a.out, struct {
				Version   string `json:"version"`
				Evaluator string `json:"evaluator"`
			}{cli.Version, eval.EvaluatorVersion})
		}
		_, err := fmt.Fprintf(a.out, "muster %s\n", cli.Version)
		return err
	}}
}
