package forge_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/pipeline/forge"
)

const zeros = "0000000000000000000000000000000000000000"

// pullEvent is a payload in GitHub's shape: https://docs.github.com/en/webhooks/webhook-events-and-payloads#pull_request
func pullEvent(headRepo string) string {
	return fmt.Sprintf(`{"action":"synchronize","number":7,"pull_request":{"number":7,"title":"::error::$(rm -rf /)","merge_commit_sha":null,
		"head":{"ref":"x;y","sha":%q,"repo":%s},"base":{"ref":"main","sha":%q,"repo":{"full_name":"acme/config"}}},"repository":{"full_name":"acme/config"}}`, head, headRepo, other)
}

// TestB124Events: what is judged is asked of git; a payload without a list of files, of a branch that is gone or new, or of a tag is no trouble.
func TestB124Events(t *testing.T) {
	push := func(ref, before, after string, deleted bool) string {
		return fmt.Sprintf(`{"ref":%q,"before":%q,"after":%q,"deleted":%t,"commits":[],"repository":{"full_name":"acme/config"}}`, ref, before, after, deleted)
	}
	for _, tt := range []struct {
		name, event, payload string
		want                 forge.Event
	}{
		{"pull request", "pull_request", pullEvent(`{"full_name":"acme/config"}`), forge.Event{Action: "synchronize", Repo: "acme/config", Pull: 7, Head: head, Base: other, Branch: "main"}},
		{"of a fork", "pull_request", pullEvent(`{"full_name":"mallory/config"}`), forge.Event{Action: "synchronize", Repo: "acme/config", Pull: 7, Head: head, Base: other, Branch: "main", Fork: true}},
		{"of a fork that is gone", "pull_request_target", pullEvent(`null`), forge.Event{Action: "synchronize", Repo: "acme/config", Pull: 7, Head: head, Base: other, Branch: "main", Fork: true}},
		{"push without commits", "push", push("refs/heads/main", other, head, false), forge.Event{Repo: "acme/config", Head: head, Base: other, Branch: "main"}},
		{"new branch", "push", push("refs/heads/a/b", zeros, head, false), forge.Event{Repo: "acme/config", Head: head, Branch: "a/b"}},
		{"deleted branch", "push", push("refs/heads/main", other, zeros, true), forge.Event{Repo: "acme/config", Branch: "main", Why: "the branch was deleted"}},
		{"tag", "push", push("refs/tags/v1", zeros, head, false), forge.Event{Repo: "acme/config", Branch: "refs/tags/v1", Why: "a tag was pushed: what is published are commits of a branch"}},
		{"merge queue", "merge_group", fmt.Sprintf(`{"action":"checks_requested","merge_group":{"head_sha":%q,"base_sha":%q,"base_ref":"refs/heads/main"},"repository":{"full_name":"acme/config"}}`, head, other), forge.Event{Action: "checks_requested", Repo: "acme/config", Head: head, Base: other, Branch: "main"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Name = tt.event
			got, err := forge.ParseEvent(tt.event, []byte(tt.payload))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(&tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestEventRefused(t *testing.T) {
	for _, tt := range []struct{ event, payload, want string }{
		{"issues", `{}`, "not an event of a pull request"},
		{"push", `{`, "does not read"},
		{"push", `{}`, "names no ref"},
		{"push", `{"ref":"refs/heads/main","after":"$(id)"}`, "where a commit id belongs"},
		{"pull_request", `{}`, "names no pull request"},
		{"pull_request", strings.Replace(pullEvent(`null`), head, "main; id", 1), "where a commit id belongs"},
		{"merge_group", `{}`, "names no commit"},
		{"push", `{"ref":"refs/heads/main","after":"` + head + `","repository":{"full_name":"a/b/c"}}`, "where a repository belongs"},
	} {
		_, err := forge.ParseEvent(tt.event, []byte(tt.payload))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: %v, want %q", tt.event, tt.payload, err, tt.want)
		}
	}
	if _, err := forge.ParseEvent("issues", nil); !errors.Is(err, forge.ErrEvent) {
		t.Error(err)
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add("pull_request", []byte(pullEvent(`null`)))
	f.Add("push", []byte(`{"ref":"refs/heads/main","after":"`+head+`"}`))
	f.Fuzz(func(t *testing.T, name string, payload []byte) {
		e, err := forge.ParseEvent(name, payload)
		if err != nil {
			return
		}
		for _, id := range []string{e.Head, e.Base, e.Merge} {
			if strings.Trim(id, "0123456789abcdef") != "" {
				t.Errorf("%q is no commit id", id)
			}
		}
		if e.Head == "" && e.Why == "" {
			t.Error("nothing to judge, and no reason")
		}
	})
}

// commandLines are those that a runner would take for commands: a line that begins with :: once blanks are cut, and the old ##[ anywhere.
// https://github.com/actions/runner/blob/main/src/Runner.Common/ActionCommand.cs
func commandLines(out string) (cmds []string) {
	stopped := ""
	for line := range strings.Lines(strings.ReplaceAll(out, "\r", "\n")) {
		l := strings.TrimSpace(line)
		switch {
		case stopped != "":
			if l == "::"+stopped+"::" {
				stopped = ""
			}
		case strings.HasPrefix(l, "::stop-commands::"):
			stopped = strings.TrimPrefix(l, "::stop-commands::")
		case strings.HasPrefix(l, "::") || strings.Contains(l, "##["):
			cmds = append(cmds, l)
		}
	}
	return cmds
}

// Other people's text is data of our commands and never a command.
func TestCommandsHostile(t *testing.T) {
	var b bytes.Buffer
	left, err := forge.PrintAnnotations(&b, []forge.Annotation{
		{Path: "a,line=9::b\n::set-env name=PATH::x", Line: 3, Col: 1, Level: forge.LevelError, Title: "t,file=x::\r\n::y", Message: "100%\n::add-path::/tmp\r::stop-commands::x\x1b[2J"},
		{Level: forge.LevelWarning, Message: "::error::no place"},
		{Level: "set-output", Message: "no such level"},
	})
	if err != nil || left != 1 {
		t.Errorf("%d, %v", left, err)
	}
	want := "::error file=a%2Cline=9%3A%3Ab%0A%3A%3Aset-env name=PATH%3A%3Ax,line=3,col=1,title=t%2Cfile=x%3A%3A %3A%3Ay::100%25%0A::add-path::/tmp?::stop-commands::x?[2J\n::warning ::::error::no place\n"
	if b.String() != want {
		t.Errorf("got  %q\nwant %q", b.String(), want)
	}
	if got := commandLines(b.String()); len(got) != 2 {
		t.Errorf("%d commands: %v", len(got), got)
	}
}

func TestAnnotationsPerStep(t *testing.T) {
	var b bytes.Buffer
	list := findings(25)
	for range 12 {
		list = append(list, forge.Annotation{Path: "a", Level: forge.LevelWarning, Message: "w"})
	}
	left, err := forge.PrintAnnotations(&b, list)
	if err != nil || left != 17 || strings.Count(b.String(), "\n") != 20 {
		t.Errorf("%d left, %v: %s", left, err, b.String())
	}
}

// While the runner is deaf nothing is a command, and nobody can guess what ends it.
func TestDeaf(t *testing.T) {
	words := map[string]bool{}
	for range 50 {
		var b bytes.Buffer
		end, err := forge.Deaf(&b)
		if err != nil {
			t.Fatal(err)
		}
		word := strings.TrimSpace(strings.TrimPrefix(b.String(), "::stop-commands::"))
		words[word] = true
		fmt.Fprint(&b, "::set-env name=A::b\n::muster-0::\n##[error]x\nno newline at the end")
		if err := end(); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, "::notice ::heard again")
		if got := commandLines(b.String()); len(got) != 1 || got[0] != "::notice ::heard again" {
			t.Errorf("%v", got)
		}
	}
	if len(words) != 50 {
		t.Error("a word came twice")
	}
}

func TestSummary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "summary.md")
	for range 3 {
		if err := forge.AppendSummary(path, strings.Repeat("| a row |\n", 50_000)); err != nil && !strings.Contains(err.Error(), "other steps have filled it") {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil || len(data) > 1<<20 || !bytes.Contains(data, []byte("lines left out")) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if err := forge.AppendSummary(filepath.Join(path, "x"), "y"); err == nil || !strings.Contains(err.Error(), "job's summary") {
		t.Error(err)
	}
}

// TestB124Hook: a delivery with a wrong signature gets 401; a good one, once or twice, is a hint to look, and nothing of it is believed.
func TestB124Hook(t *testing.T) {
	secret := []byte("hook secret")
	sign := func(body string) string {
		m := hmac.New(sha256.New, secret)
		m.Write([]byte(body))
		return "sha256=" + hex.EncodeToString(m.Sum(nil))
	}
	const body = `{"after":"` + head + `","commits":[]}`
	for _, tt := range []struct {
		name, method, event, body, sig string
		secret                         []byte
		status, woken                  int
	}{
		{"good", "POST", "push", body, sign(body), secret, 204, 1},
		{"ping", "POST", "ping", body, sign(body), secret, 204, 0},
		{"one byte changed", "POST", "push", strings.Replace(body, "after", "aftex", 1), sign(body), secret, 401, 0},
		{"no signature", "POST", "push", body, "", secret, 401, 0},
		{"SHA-1", "POST", "push", body, "sha1=" + strings.Repeat("0", 40), secret, 401, 0},
		{"not hex", "POST", "push", body, "sha256=zz", secret, 401, 0},
		{"no secret set", "POST", "push", body, sign(body), nil, 401, 0},
		{"get", "GET", "push", "", sign(""), secret, 405, 0},
		{"too large", "POST", "push", strings.Repeat("x", 26<<20), "", secret, 413, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wake := make(chan struct{}, 1)
			h := forge.Hook(tt.secret, wake)
			for range 2 { // the same delivery twice
				req := httptest.NewRequest(tt.method, "/", strings.NewReader(tt.body))
				req.Header.Set("X-GitHub-Event", tt.event)
				req.Header.Set("X-GitHub-Delivery", "72d3162e")
				if tt.sig != "" {
					req.Header.Set("X-Hub-Signature-256", tt.sig)
				}
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, req)
				if rec.Code != tt.status {
					t.Errorf("status %d, want %d", rec.Code, tt.status)
				}
			}
			if len(wake) != tt.woken {
				t.Errorf("woken %d times, want %d", len(wake), tt.woken)
			}
		})
	}
}

// blank is a body of n bytes.
type blank struct{ n int }

func (z *blank) Read(p []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	n := min(len(p), z.n)
	clear(p[:n])
	z.n -= n
	return n, nil
}

// TestHookHoldsNoBody: whoever may send anything costs no memory, and a body that cannot be signed is not read.
func TestHookHoldsNoBody(t *testing.T) {
	send := func(h http.Handler, body io.Reader, sig string) int {
		req := httptest.NewRequest("POST", "/", body)
		req.ContentLength = -1
		req.Header.Set("X-Hub-Signature-256", sig)
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, req)
		return rec.Code
	}
	h := forge.Hook([]byte("secret"), make(chan struct{}, 1))
	plausible := "sha256=" + strings.Repeat("0", 64)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	code := send(h, &blank{20 << 20}, plausible)
	runtime.ReadMemStats(&after)
	if held := after.TotalAlloc - before.TotalAlloc; code != http.StatusUnauthorized || held > 1<<20 {
		t.Errorf("status %d, %d bytes taken", code, held)
	}
	if code := send(h, &blank{26 << 20}, plausible); code != http.StatusRequestEntityTooLarge {
		t.Errorf("26 MiB of unknown length: %d", code)
	}
	unread := &blank{1 << 20}
	if code := send(h, unread, "sha256=00"); code != http.StatusUnauthorized || unread.n != 1<<20 {
		t.Errorf("status %d, %d bytes left", code, unread.n)
	}
	// Only so many are read at once; the others are sent away, and served when there is room again.
	var slow []*io.PipeWriter
	var done sync.WaitGroup
	for range 8 {
		r, w := io.Pipe()
		slow = append(slow, w)
		done.Go(func() { send(h, r, plausible) })
		if _, err := w.Write([]byte("x")); err != nil { // it is read: it has its turn
			t.Fatal(err)
		}
	}
	if code := send(h, strings.NewReader("{}"), plausible); code != http.StatusServiceUnavailable {
		t.Errorf("a ninth: %d", code)
	}
	for _, w := range slow {
		w.Close()
	}
	done.Wait()
	if code := send(h, strings.NewReader("{}"), plausible); code != http.StatusUnauthorized {
		t.Errorf("afterwards: %d", code)
	}
}
