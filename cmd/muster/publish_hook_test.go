package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestB124Webhook: a signed webhook makes the publisher look at once; a wrong one gets 401 and changes nothing; one that comes twice publishes nothing twice; and the branch
// is looked at without any.
func TestB124Webhook(t *testing.T) {
	s := newSite(t, "package fleet\n\nprecedence: [\"env\"]\ncohorts: prod: {labels: env: \"prod\", hosts: list: [\"prod-1\"]}\n")
	s.publish("publish")
	first := s.git(s.bare, "rev-parse", "main")
	s.until("the first release, without a webhook", func() bool { return strings.Contains(s.out["publish"].String(), "epoch 1 is commit "+first[:12]) })

	// Another publisher, that looks by itself once an hour.
	if err := os.WriteFile(filepath.Join(s.dir, "hook"), []byte("hooksecret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start("hooked", "muster", "publish", "--watch", "--remote", s.remote, "--cache", filepath.Join(s.dir, "cache2"), "--every", "1h", "--store", "file://"+s.dir+"/store2", "--keys", filepath.Join(s.dir, "keys"),
		"--webhook", "127.0.0.1:0", "--webhook-secret-file", filepath.Join(s.dir, "hook"))
	address := regexp.MustCompile(`listening for webhooks on (\S+)`)
	out := s.out["hooked"]
	s.until("the first look", func() bool { return strings.Contains(out.String(), "epoch 1 is commit "+first[:12]) })
	url := "http://" + address.FindStringSubmatch(out.String())[1] + "/"
	send := func(secret string) int {
		body := []byte(`{"ref":"refs/heads/main","commits":[]}`)
		m := hmac.New(sha256.New, []byte(secret))
		m.Write(body)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-GitHub-Event", "push")
		req.Header.Set("X-GitHub-Delivery", "the same")
		req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(m.Sum(nil)))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	s.write("services/web/base.yaml", "workers: 5\n")
	second := s.push("second", "main")
	if got := send("wrong"); got != http.StatusUnauthorized {
		t.Errorf("a wrong signature got %d", got)
	}
	for range 3 {
		if got := send("hooksecret"); got != http.StatusNoContent {
			t.Errorf("a webhook got %d", got)
		}
	}
	s.until("the second release", func() bool { return strings.Contains(out.String(), "epoch 2 is commit "+second[:12]) })
	if strings.Count(out.String(), " is commit ") != 2 || strings.Contains(out.String(), "hooksecret") {
		t.Errorf("%s", out)
	}
}
