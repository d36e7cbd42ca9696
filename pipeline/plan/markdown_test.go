package plan_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/cue/eval"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/pipeline/plan"
)

func TestMarkdown(t *testing.T) {
	base, head := valid("main"), valid("work tree")
	head.replace("checkout", "staging", leaf("timeout_ms", set("base", "9", "services/checkout/base.yaml:2")), leaf("limits.workers", set("base", "8", "services/checkout/base.yaml:6")))
	head.everywhere("web", nil, file("nginx.conf", "a\n"))
	p := plan.Of(base.Side, head.Side, plan.Options{})
	want := `### muster plan: changes

**1 value in 1 service, 1 service added, 2 files, 3 of 3 cohorts, 403 to 423 hosts**

<code>work tree</code> against <code>main</code> · digest <code>` + p.Digest + `</code>

| | cohort | |
|---|---|---|
| ~ | <code>prod-eu</code> | 120 hosts&#58; web; standard&#58; 3 waves&#58; 6 hosts (5%, bake 10m), then 30 (25%, bake 30m), then all 120 |
| ~ | <code>prod-us</code> | 280 to 300 hosts&#58; web; careful&#58; 3 waves&#58; 14 to 15 hosts (5%, bake 10m), then after approval 70 to 75 (25%, bake 30m), then all 280 to 300 |
| ~ | <code>staging</code> | 3 hosts&#58; checkout, web; standard&#58; 3 waves&#58; 1 host (5%, bake 10m), then 1 (25%, bake 30m), then all 3 |

<details><summary><code>checkout</code>: 1 value, 1 file</summary>

- ✏️ <code>timeout&#95;ms</code> <code>1500</code> → <code>9</code> — staging (3 hosts) · <code>set at services/checkout/base.yaml&#58;2&#58;1 (base)</code>
- ✏️ file <code>checkout/checkout.yaml</code> — staging (3 hosts)

</details>

<details><summary><code>web</code>: added, 1 file</summary>

- ➕ service added: 0 values, 1 file — prod-eu, prod-us, staging (403 to 423 hosts)
- ➕ file <code>web/nginx.conf</code> — prod-eu, prod-us, staging (403 to 423 hosts)

</details>
`
	if diff := cmp.Diff(want, p.Markdown("muster plan --base main")); diff != "" {
		t.Error(diff)
	}
}

// ours are the only tags of a plan.
var ours = regexp.MustCompile(`</?(code|details|summary)>`)

// TestMarkdownEscapes: text that tries to be markdown, HTML, a mention, an issue or a link is nothing but text.
func TestMarkdownEscapes(t *testing.T) {
	evil := "</code></details><script>x</script> `a` ``` |\n| @ana #12 GH-7 [x](http://evil) www.evil.example **b** _c_ ~~d~~ <!-- \\ &amp; $$e$$"
	base, head := valid("main|`"), valid("x@ana")
	base.everywhere("web", []eval.Leaf{leaf("a|"+evil, set("base", "1", "b.yaml:1"))}, file("f"+evil, "1\n"), file("g.conf", "1\n"))
	head.everywhere("web", []eval.Leaf{leaf("a|"+evil, set("base", `"`+evil+`"`, "services/"+evil+":1"))}, file("f"+evil, "2\n"), file("g.conf", "```\n~~~~\n   ```\n</details>\n@ana `````\n"))
	head.problem(eval.Problem{Severity: eval.SeverityWarning, Service: "web", Path: evil, Message: evil, Cohorts: []string{"prod-eu"}, SetAt: []eval.Pos{{File: evil, Line: 1, Col: 1}}})
	head.source("services/mailer/"+evil, "x")
	out := plan.Of(base.Side, head.Side, plan.Options{}).Markdown("muster plan --base '" + evil + "'")

	// The diff is fenced longer than anything in it.
	before, rest, ok := strings.Cut(out, "\n``````diff\n")
	if !ok {
		t.Fatalf("no fence of six:\n%s", out)
	}
	inside, after, ok := strings.Cut(rest, "\n``````\n")
	if !ok || !strings.Contains(inside, "\n+@ana `````") || strings.Contains(inside, "``````") {
		t.Fatalf("the fence does not hold:\n%s", rest)
	}
	for _, part := range []string{before, after} {
		part = regexp.MustCompile("(?s)```+diff\n.*?\n```+\n").ReplaceAllString(part, "")
		bare := ours.ReplaceAllString(part, "")
		for _, bad := range []string{"<", ">", "`", "@", "[", "]", "_c", "~~", "\\", "$", "http:", "www.evil", "GH-7", "evil |", "#12 "} {
			if at := strings.Index(bare, bad); at >= 0 {
				t.Errorf("%q gets through: …%q", bad, bare[max(0, at-60):min(len(bare), at+60)])
			}
		}
		// What is no code and begins a mention or an issue is code by itself.
		plain := regexp.MustCompile(`<code>[^<]*</code>`).ReplaceAllString(part, "")
		if strings.Contains(plain, "&#64;") || strings.Contains(plain, "&#35;") {
			t.Errorf("a mention or an issue outside of code: %s", plain)
		}
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "| ") && strings.Count(line, "|") != 4 {
			t.Errorf("a row of the table has other cells: %q", line)
		}
	}
	for _, tag := range []string{"details", "summary", "code"} {
		if strings.Count(before+after, "<"+tag+">") != strings.Count(before+after, "</"+tag+">") {
			t.Errorf("<%s> is not closed", tag)
		}
	}
}

// TestB116OutputTooLong: a comment is never longer than the server takes, whatever changes; it is cut at a line, the verdict and the errors come first, and it says
// what is left out.
func TestB116OutputTooLong(t *testing.T) {
	wide := strings.Repeat("😀|`", 60)
	for _, n := range []int{0, 1, 10, 100, 1000, 3000} {
		for _, kind := range []string{"values", "services", "cohorts", "errors", "diffs"} {
			if kind == "diffs" && n > 1000 {
				continue // a hundred are too long already
			}
			t.Run(fmt.Sprintf("%s %d", kind, n), func(t *testing.T) {
				base, head := valid("main"), valid("work tree")
				switch kind {
				case "values":
					var was, is []eval.Leaf
					for i := range n {
						path := fmt.Sprintf("v%04d", i)
						was, is = append(was, leaf(path, set("base", `"`+wide+`"`, "b.yaml:1"))), append(is, leaf(path, set("base", fmt.Sprintf("%d", i), "b.yaml:1")))
					}
					base.everywhere("web", was)
					head.everywhere("web", is)
				case "services":
					for i := range n {
						head.everywhere(fmt.Sprintf("s%04d-%s", i, strings.Repeat("x", 50)), []eval.Leaf{leaf("a", set("base", "1", "b.yaml:1"))})
					}
				case "cohorts":
					for i := range n {
						name := fmt.Sprintf("c%04d-%s", i, strings.Repeat("x", 50))
						head.Policy.Cohorts[name] = manifest.CohortPolicy{Services: []string{"web"}, Hosts: manifest.HostsPolicy{List: []string{"h"}}, Rollout: "standard"}
						head.unit("web", name, []eval.Leaf{leaf("a", set("base", "1", "b.yaml:1"))})
					}
				case "errors":
					for i := range n {
						head.problem(eval.Problem{Severity: eval.SeverityError, Service: "mailer", Path: fmt.Sprintf("p%d", i), Message: wide, Cohorts: []string{"prod-eu"}})
						head.problem(eval.Problem{Severity: eval.SeverityWarning, Service: "mailer", Path: fmt.Sprintf("p%d", i), Message: wide})
					}
				case "diffs":
					for i := range n {
						name := fmt.Sprintf("s%04d", i)
						base.everywhere(name, nil, file("x.conf", "a\n"))
						head.everywhere(name, nil, file("x.conf", strings.Repeat("```"+wide+"\n", i%80)))
					}
				}
				p := plan.Of(base.Side, head.Side, plan.Options{})
				out := p.Markdown("muster plan --base main")
				if len(out) > plan.MaxMarkdown {
					t.Fatalf("%d bytes", len(out))
				}
				if !strings.HasSuffix(out, "\n") || strings.Count(out, "<details>") != strings.Count(out, "</details>") {
					t.Errorf("it does not end whole: …%q", out[max(0, len(out)-200):])
				}
				fences := regexp.MustCompile("(?m)^```+(diff)?$").FindAllString(out, -1)
				for i := 0; i < len(fences); i += 2 {
					if i+1 == len(fences) || fences[i] != fences[i+1]+"diff" {
						t.Fatalf("fences %q", fences)
					}
				}
				first := "### muster plan: changes\n\n**"
				if kind == "errors" && n > 0 {
					first = "### muster plan: not valid\n\n**"
				} else if n == 0 {
					first = "### muster plan: no changes\n\n**nothing changes on any host"
				}
				if !strings.HasPrefix(out, first) {
					t.Errorf("%q is not first: %.200s", first, out)
				}
				if n >= 1000 && !regexp.MustCompile("(?i)left out").MatchString(out) {
					t.Error("it does not say that something is left out")
				}
			})
		}
	}
}
