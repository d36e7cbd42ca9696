package plan_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/pipeline/plan"
)

// everything that a plan can print.
func everything(t *testing.T, p plan.Plan) string {
	t.Helper()
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(data) + text(p) + p.Markdown("muster plan --base main")
}

// TestB134NoSecretInAPlan: no secret is printed, wherever it shows in a rendered file.
func TestB134NoSecretInAPlan(t *testing.T) {
	const old, fresh = "hunter-MARKER-1", "hunter-MARKER-2"
	withLeaves := func(secret string) *world {
		l := secretly(leaf("db.password", set("base", `"`+secret+`"`, "services/mailer/base.yaml:3"), eval.Setting{Layer: "base", Secret: true, Sum: sumOf(`"` + secret + `"`)}))
		return valid("x").everywhere("auth", []eval.Leaf{l}, file("auth.yaml", "password: "+secret+"\n"), file("nginx.conf", fmt.Sprintf(`
listen 80;
auth_basic "%[1]s";
proxy_pass http://u:%[1]s@upstream;
set $pw '%[1]s';
"%[1]s"
prefix%[1]ssuffix
`+strings.Repeat("x", 190)+`%[1]s
`+strings.Repeat("y", 500)+`%[1]s
-----BEGIN PRIVATE KEY-----
%[1]sMIIC
-----END PRIVATE KEY-----
`, secret)), file("bare.txt", "API_TOKEN="+secret+"9\n"))
	}
	withoutLeaves := func(secret string) *world { // a service without leaves: only names and forms tell
		return valid("x").everywhere("auth", nil, file("a.conf", fmt.Sprintf("db_password = %[1]s\n\"token\": \"%[1]s\",\nPGURL=postgres://u:%[1]s@h/db\ncredential %[1]s\n", secret)))
	}
	for name, f := range map[string]func(string) *world{
		"with leaves":    withLeaves,
		"without leaves": withoutLeaves,
	} {
		t.Run(name, func(t *testing.T) {
			p := plan.Of(f(old).Side, f(fresh).Side, plan.Options{})
			all := everything(t, p)
			if strings.Contains(all, "MARKER") {
				t.Error(all)
			}
			if !strings.Contains(all, "(secret)") || !p.Changes {
				t.Error("the change is not told at all: ", text(p))
			}
		})
	}
	p := plan.Of(withLeaves(old).Side, withLeaves(fresh).Side, plan.Options{})
	if len(p.Values) != 1 || !p.Values[0].Secret || p.Values[0].Before+p.Values[0].After != "" {
		t.Errorf("%+v", p.Values)
	}
	for _, want := range []string{"~ db.password  (secret) changed   prod-eu, prod-us, staging", "+auth_basic (secret);", "+prefix(secret)suffix", "+proxy_pass http://(secret)@upstream;"} {
		if !strings.Contains(text(p), want) {
			t.Errorf("no %q in:\n%s", want, text(p))
		}
	}
}

// TestSecretsBelowLeaves: a leaf may be a list with a secret in it, or a text of several lines; and a file may be all secret, as its name says.
func TestSecretsBelowLeaves(t *testing.T) {
	side := func(n string) plan.Side {
		list, key := "hunter-MARKER-"+n, "line-MARKER-"+n
		w := valid("x").everywhere("auth", []eval.Leaf{secretly(leaf("users", set("base", `[{"password":"`+list+`"}]`, "services/auth/base.yaml:1")))},
			file("users.conf", "user ann "+list+"\n  "+key+"\n"), file("api_token", "raw-MARKER-"+n+"\n"))
		for i := range w.Units {
			if w.Units[i].Service == "auth" {
				w.Units[i].Secrets = []string{sumOf(`"` + list + `"`), sumOf(`"` + key + `"`)}
			}
		}
		return w.Side
	}
	p := plan.Of(side("1"), side("2"), plan.Options{})
	if all := everything(t, p); strings.Contains(all, "MARKER") {
		t.Error(all)
	}
	for _, want := range []string{"+user ann (secret)\n", "(not shown: by its name it holds a secret)\n"} {
		if !strings.Contains(text(p), want) {
			t.Errorf("no %q in:\n%s", want, text(p))
		}
	}
}

// TestNoDiffOfFilesWithSecrets: evaluation knows which files hold secrets in a spelling that no mask finds. On which side they do is no matter.
func TestNoDiffOfFilesWithSecrets(t *testing.T) {
	for _, secretly := range [][2]bool{{true, true}, {true, false}, {false, true}} {
		side := func(n string, secret bool) plan.Side {
			f := file("web.conf", "listen 80\nurl MARKER%22q"+n+"\n")
			f.Secret = secret
			return valid("x").everywhere("web", []eval.Leaf{leaf("a", set("base", "1", ""))}, f).Side
		}
		p := plan.Of(side("1", secretly[0]), side("2", secretly[1]), plan.Options{})
		all := everything(t, p)
		if strings.Contains(all, "MARKER") || strings.Contains(all, "listen 80") {
			t.Error(all)
		}
		if len(p.Files) != 1 || p.Files[0].Kind != plan.Changed || p.Files[0].Diff != "(not shown: the service has secrets)\n" {
			t.Errorf("%+v", p.Files)
		}
	}
}

// What a file is, its format says: a template may write one whose name ends in .json, and its values do not tell what changes in it.
func TestDataByFormat(t *testing.T) {
	side := func(n string) plan.Side {
		tmpl, data := file("t.json", "[1, "+n+"]\n"), file("d.conf", "a: "+n+"\n")
		tmpl.Format, data.Format = "template", "yaml"
		return valid("x").everywhere("web", []eval.Leaf{leaf("a", set("base", n, ""))}, tmpl, data).Side
	}
	p := plan.Of(side("1"), side("2"), plan.Options{})
	if len(p.Files) != 2 || p.Files[0].Diff != "" || !strings.Contains(p.Files[1].Diff, "+[1, 2]\n") {
		t.Errorf("%+v", p.Files)
	}
}

// TestHostile: names and values that try to steer a terminal.
func TestHostile(t *testing.T) {
	evil := "\x1b]0;owned\a\x1b[2J\u202e\u2066\r\n"
	head := valid("x").everywhere("auth", []eval.Leaf{leaf("a"+evil, set("base", `"`+evil+`"`, "services/x"+evil+":1"))}, file("n"+evil, evil))
	base := valid("y").everywhere("auth", []eval.Leaf{leaf("a"+evil, set("base", `1`, "services/x:1"))}, file("n"+evil, "1"))
	p := plan.Of(base.Side, head.Side, plan.Options{})
	for _, out := range []string{text(p), p.Markdown("")} {
		if strings.ContainsAny(out, "\x1b\a\r\u202e\u2066") {
			t.Errorf("%q", out)
		}
	}
}
