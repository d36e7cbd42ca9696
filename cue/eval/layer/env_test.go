package layer

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEnv(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		want       map[string]any
		places     string
	}{
		{"blank", "", map[string]any{}, ""},
		{"comments", "# a\n\n \t# b\r\n", map[string]any{}, ""},
		{"bare", "A=1\nB=\n_c9=http://x:1/?y=%20,z@é*\n", map[string]any{"A": "1", "B": "", "_c9": "http://x:1/?y=%20,z@é*"}, "A 1:1 1:3\nB 2:1 2:3\n_c9 3:1 3:5\n"},
		{"all are strings", "A=true\nB=null\nC=1e3\n", map[string]any{"A": "true", "B": "null", "C": "1e3"}, "A 1:1 1:3\nB 2:1 2:3\nC 3:1 3:3\n"},
		{"single quotes", "A='$HOME `id` \"x\" # y'  \n", map[string]any{"A": "$HOME `id` \"x\" # y"}, "A 1:1 1:3\n"},
		{"double quotes", `A="it's \"\$x\" \\ \` + "`" + `"` + "\n", map[string]any{"A": "it's \"$x\" \\ `"}, "A 1:1 1:3\n"},
		{"export", "export A=1\n  export\tB='x'\nexport=2\n", map[string]any{"A": "1", "B": "x", "export": "2"}, "A 1:8 1:10\nB 2:10 2:12\nexport 3:1 3:8\n"},
		{"windows lines", "A=1\r\nB='x'\r\n", map[string]any{"A": "1", "B": "x"}, "A 1:1 1:3\nB 2:1 2:3\n"},
		{"no final newline, trailing blanks, a mark", "\ufeffA=1 \t", map[string]any{"A": "1"}, "A 1:1 1:3\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, errs := Read("a.env", []byte(tt.body), true)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if d := cmp.Diff(any(tt.want), n.Plain()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.places, places(n)); d != "" {
				t.Errorf("places (-want +got):\n%s", d)
			}
		})
	}
}

func TestEnvRefuses(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"twice", "A=1\nB=2\nexport A=1\n", "a.env:3:8: A: set twice in one file"},
		{"no equals sign", "A=1\nFOO\n", "a.env:2:1: FOO: a name without a value: write NAME=value, or NAME= for the empty string"},
		{"only export", "export A\n", "a.env:1:8: A: a name without a value: write NAME=value, or NAME= for the empty string"},
		{"a space before the equals sign", "A = 1\n", "a.env:1:2: A: a space behind the name: write NAME=value"},
		{"a space behind it", "A= 1\n", "a.env:1:3: A: a space before the value: write NAME=value"},
		{"dash", "A-B=1\n", "a.env:1:2: A: a name has letters, digits and _ only"},
		{"digit", "1A=1\n", "a.env:1:1: not a line of an .env file: it is NAME=value, and a name has letters, digits and _ only, not first a digit"},
		{"yaml", "a: hunter2\n", "a.env:1:2: a: a name has letters, digits and _ only"},
		{"section", "[a]\n", "a.env:1:1: not a line of an .env file: it is NAME=value, and a name has letters, digits and _ only, not first a digit"},
		{"interpolation", "A=x${B}\n", "a.env:1:4: A: nothing is interpolated here, but a shell would: put the value into single quotes"},
		{"interpolation in quotes", "A=\"$B\"\n", "a.env:1:4: A: nothing is interpolated here, but a shell would: put the value into single quotes, or a backslash before it"},
		{"a comment behind", "A=1 # one\n", "a.env:1:4: A: a # in a value without quotes: readers differ, so quote the value, and write a comment on its own line"},
		{"a comment behind quotes", "A='1' # one\n", "a.env:1:6: A: something follows the closing quote: a comment has its own line"},
		{"two quotes", "A='a''b'\n", "a.env:1:6: A: something follows the closing quote: a comment has its own line"},
		{"words", "A=two words\n", "a.env:1:6: A: a space in a value without quotes: quote the value"},
		{"ampersand", "A=a&b\n", "a.env:1:4: A: a character that needs quotes: quote the value"},
		{"backslash", "A=C:\\x\n", "a.env:1:5: A: a character that needs quotes: quote the value"},
		{"backslash in single quotes", "A='C:\\x'\n", "a.env:1:6: A: a backslash in single quotes: readers differ, so write it as \\\\ in double quotes"},
		{"backslash in double quotes", "A=\"a\\n\"\n", "a.env:1:5: A: a backslash in double quotes stands before \" \\ $ or ` only: write a backslash as \\\\"},
		{"open quote", "A='a\nB=1'\n", "a.env:1:3: A: the quote does not end on its line: a value is one line"},
		{"control character", "A='a\x07'\n", "a.env:1:5: A: a control character does not fit into an .env file"},
		{"lone carriage return", "A=1\rB=2\n", "a.env:1:4: A: a control character does not fit into an .env file"},
		{"no-break space", "A=a\u00a0b\n", "a.env:1:4: A: a space in a value without quotes: quote the value"},
		{"latin-1", "A=caf\xe9\n", "a.env:1:6: not UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, errs := Read("a.env", []byte(tt.body), true)
			if len(errs) == 0 {
				t.Fatal("it is read")
			}
			if got := errs[0].Error(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if strings.Contains(errs[0].Error(), "hunter2") {
				t.Error("the value is shown")
			}
		})
	}
}

func TestB024Env(t *testing.T) {
	_, errs := Read("a.env", []byte("A=1\nA=1\n"), true)
	if len(errs) != 1 || len(errs[0].At) != 2 || errs[0].At[0].Line != 2 || errs[0].At[1].Line != 1 {
		t.Errorf("errors: %v", errs)
	}
}

// What is accepted a real shell reads the same.
func TestEnvLikeTheShell(t *testing.T) {
	body := strings.Join([]string{
		"A=plain", "B=", "export C=a=b,c", "D='$HOME `id` \"x\" # y' ", "E=\"it's \\\"\\$HOME\\\" \\\\ \\`\"", "F=http://u:p@h:1/x?y=*", "G={a}[b]!c^", "# H=1", "  I='  lead'", "J=\"\"", "K=~x",
	}, "\n") + "\n"
	if _, errs := Read("a.env", []byte(body), true); len(errs) != 1 || pathLast(errs[0]) != "K" {
		t.Fatalf("~ is expanded by a shell: %v", errs)
	}
	body = strings.TrimSuffix(body, "K=~x\n")
	n, errs := Read("a.env", []byte(body), true)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	cmd := exec.Command("sh", "-c", `set -a; . /dev/stdin; env -0`)
	cmd.Stdin = bytes.NewReader([]byte(body))
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/wrong"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := strings.Split(string(out), "\x00")
	for _, k := range n.Keys() {
		if want := k + "=" + n.Fields[k].Value.(string); !slices.Contains(seen, want) {
			t.Errorf("the shell does not have %q", want)
		}
	}
}

// pathLast is the last key of an error's path.
func pathLast(e *Error) string {
	if len(e.Path) == 0 {
		return ""
	}
	return e.Path[len(e.Path)-1]
}
