package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Root makes a root command do what all programs do alike: without arguments it prints the help; an unknown command is a usage error that
// says what there is; `version`, --version and `help COMMAND` work. Call it when all commands are there. It uses no template of cobra's,
// which would link text/template into the agent.
func Root(root *cobra.Command) {
	var version bool
	root.Flags().BoolVar(&version, "version", false, "print the version")
	root.Args = cobra.ArbitraryArgs
	root.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 0:
			return UnknownCommand(cmd, args[0])
		case version:
			return printVersion(cmd, nil)
		}
		return cmd.Help()
	}
	root.SetHelpCommand(&cobra.Command{
		Use: "help [COMMAND]", Short: "print the help of a command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd := root
			for _, name := range args {
				sub := find(cmd, name)
				if sub == nil {
					return UnknownCommand(cmd, name)
				}
				cmd = sub
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	})
	if find(root, "version") == nil {
		root.AddCommand(&cobra.Command{Use: "version", Short: "print the version", Args: NoArgs, RunE: printVersion})
	}
}

func printVersion(cmd *cobra.Command, _ []string) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", cmd.Root().Name(), Version)
	return err
}

func find(cmd *cobra.Command, name string) *cobra.Command {
	for _, sub := range cmd.Commands() {
		if sub.Name() == name && !sub.Hidden {
			return sub
		}
	}
	return nil
}

// UnknownCommand is a usage error that names the nearest command there is.
func UnknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	hint := fmt.Sprintf("`%s --help` lists the commands", cmd.CommandPath())
	if s := Suggest(name, names); s != "" {
		hint = s + " " + hint
	}
	return Fail(Usage, hint, "%s: unknown command %q", cmd.CommandPath(), name)
}

// NoArgs is for commands that take no argument.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return Fail(Usage, fmt.Sprintf("`%s --help` lists the flags", cmd.CommandPath()), "%s takes no argument, but got %q", cmd.CommandPath(), args[0])
}
