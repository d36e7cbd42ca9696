package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestRoot(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		out  string // in it
		err  string
	}{
		{"", OK, "Usage:", ""},
		{"--version", OK, "prog " + Version + "\n", ""},
		{"version", OK, "prog " + Version + "\n", ""},
		{"version x", Usage, "", `prog version takes no argument, but got "x"`},
		{"wiat", Usage, "", `prog: unknown command "wiat"`},
		{"help", OK, "Usage:", ""},
		{"help wait", OK, "waits", ""},
		{"help wiat", Usage, "", `prog: unknown command "wiat"`},
		{"help wait x", Usage, "", `prog wait: unknown command "x"`},
		{"help secret", Usage, "", `prog: unknown command "secret"`},
	} {
		var out bytes.Buffer
		root := &cobra.Command{Use: "prog", SilenceErrors: true, SilenceUsage: true}
		none := func(*cobra.Command, []string) error { return nil }
		root.AddCommand(&cobra.Command{Use: "wait", Short: "waits", RunE: none}, &cobra.Command{Use: "secret", Hidden: true, RunE: none})
		Root(root)
		root.SetArgs(strings.Fields(tt.args))
		root.SetOut(&out)
		err := root.Execute()
		if CodeOf(err) != tt.code || !strings.Contains(out.String(), tt.out) || tt.err != "" && (err == nil || err.Error() != tt.err) {
			t.Errorf("prog %s: %v, want %d %q\n%s", tt.args, err, tt.code, tt.err, out.String())
		}
	}
}
