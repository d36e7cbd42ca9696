package eval

import (
	"encoding/base64"
	"fmt"
	"html"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestFilesWithSecrets: which files hold a secret, in whatever spelling, and which may.
func TestFilesWithSecrets(t *testing.T) {
	const files = threeCohorts + `
-- services/s/s.cue --
package s
values: _
files: {
	"list.conf": {format: "template", from: "list.tmpl", data: values}
	"upper.txt": {format: "text", data: "on \(values.secret_lines)"}
	"written.json": {format: "json", data: values}
	"plain.conf": {format: "raw", from: "plain.conf"}
	"repeats.conf": {format: "text", from: "repeats.conf"}
}
-- services/s/base.yaml --
tokens: [LEAK-a, LEAK-b]
secret_lines: "one LEAK\ntwo LEAK\n"
-- services/s/list.tmpl --
{{range .tokens}}allow {{slice . 0 4}}
{{end}}
-- services/s/plain.conf --
listen 80
-- services/s/repeats.conf --
  two LEAK
-- services/lit/lit.cue --
package lit
values: {a: 1}
files: {
	"lit.conf": {format: "template", from: "l.tmpl", data: {users: [{password: "LEAK"}]}}
	"other.json": {format: "template", from: "o.tmpl", data: {a: 1}}
	"coded.txt": {format: "text", from: "coded.txt"}
}
-- services/lit/l.tmpl --
{{range .users}}{{slice .password 1}}{{end}}
-- services/lit/o.tmpl --
{}
-- services/lit/coded.txt --
Basic dTpMRUFL
-- services/num/num.cue --
package num
values: _
files: {
	"pin.conf": {format: "text", data: "pin \(values.token_ttl)"}
	"ten.conf": {format: "text", data: "port 51280"}
}
-- services/num/base.yaml --
token_ttl: 128
-- services/place/place.cue --
package place
values: _
files: "p.conf": {format: "text", data: "in \(values.password_file)"}
-- services/place/base.yaml --
password_file: /run/credentials/pw
-- services/url/url.cue --
package url
values: _
files: "u.conf": {format: "text", data: "to \(values.db)"}
-- services/url/base.yaml --
db: postgres://u:LEAK@h/db
-- services/bare/base.yaml --
api: {secret: [LEAK]}
`
	req := repo(files)
	req.FilesToo, req.LeavesToo = true, true
	res := Evaluate(req)
	if res.Failed() {
		t.Fatalf("problems:\n%s", Format(res.Problems))
	}
	var got strings.Builder
	for _, u := range res.Units {
		for _, f := range u.Files {
			if u.Cohort == res.Units[0].Cohort {
				fmt.Fprintf(&got, "%s/%s %s %v\n", u.Service, f.Name, f.Format, f.Secret)
			}
		}
	}
	const want = `bare/bare.yaml yaml true
lit/coded.txt text true
lit/lit.conf template true
lit/other.json template false
num/pin.conf text true
num/ten.conf text false
place/p.conf text false
s/list.conf template true
s/plain.conf raw false
s/repeats.conf text true
s/upper.txt text true
s/written.json json true
url/u.conf text true
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

// A secret is found wherever it stands and however it is written.
func TestSpellings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.StringMatching(`[ -~]{5,20}`).Filter(func(s string) bool { return len(strings.TrimSpace(s)) > 4 }).Draw(t, "secret")
		before, after := rapid.StringMatching(`[a-z:]{0,5}`).Draw(t, "before"), rapid.StringMatching(`[a-z]{0,5}`).Draw(t, "after")
		whole := before + secret + after
		parts := spellings(secret)
		for _, text := range []string{
			whole, strconv.Quote(whole), url.QueryEscape(whole), url.PathEscape(whole), html.EscapeString(whole),
			base64.StdEncoding.EncodeToString([]byte(whole)), base64.URLEncoding.EncodeToString([]byte(whole)), fmt.Sprintf("%x", whole),
		} {
			if !containsAny([]byte(text), parts) {
				t.Fatalf("%q is not found in %s", secret, text)
			}
		}
	})
}
