package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-config/muster/agent"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const least = "host: web-17\nrepo: acme/config\ncohort: prod-eu\nsources: [\"s3://acme-config/prod\"]\n"

func TestLoadConfig(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir, "agent.yaml", `# a comment
host: web-17
repo: acme/config
cohort: prod-eu
labels: {role: web, zone: eu-west-1a}
mode: enforce
sources: ["https://collector:7070", "s3://acme-config/prod"]
keyring: /etc/muster/keyring.json
root: /var/lib/muster
collector: {url: https://collector:7070, token_file: /etc/muster/token, ca_file: ""}
poll: 5m
metrics: "127.0.0.1:9464"
services:
  checkout:
    links:   {/etc/checkout/checkout.yaml: checkout.yaml}
    take_over: true
    owner:   checkout
    group:   "1000"
    unit:    checkout.service
    healthy: {http: "http://127.0.0.1:8080/health"}
    check:   [/usr/bin/checkout, --test-config, "{dir}/checkout.yaml"]
    reload:  [systemctl, reload, checkout.service]
    confirm: {http: "http://127.0.0.1:8080/health", field: config_epoch}
`)
	write(t, dir, "services.d/search.yaml", "services:\n  search:\n    confirm: {http: 'http://127.0.0.1:8081/', field: build.epoch, within: 10s}\n")
	write(t, dir, "services.d/several.yaml", "services:\n  several:\n    instances:\n      - {name: a, confirm: {file: /run/a.epoch, pid_file: /run/a.pid}}\n      - {name: b, confirm: {command: [b, --epoch], field: x, within: 1s}}\n      - {name: c, confirm: {unit: several@c.service}}\n")
	got, err := agent.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	want := agent.Config{
		Host: "web-17", Repo: "acme/config", Cohort: "prod-eu", Labels: map[string]string{"role": "web", "zone": "eu-west-1a"}, Mode: "enforce",
		Sources: []string{"https://collector:7070", "s3://acme-config/prod"}, Keyring: "/etc/muster/keyring.json", Root: "/var/lib/muster",
		Collector: agent.CollectorConfig{URL: "https://collector:7070", TokenFile: "/etc/muster/token"}, Poll: 5 * time.Minute, Metrics: "127.0.0.1:9464",
		Services: map[string]agent.ServiceConfig{
			"checkout": {
				Check:   []string{"/usr/bin/checkout", "--test-config", "{dir}/checkout.yaml"},
				Reload:  []string{"systemctl", "reload", "checkout.service"},
				Confirm: &agent.ConfirmConfig{HTTP: "http://127.0.0.1:8080/health", Field: "config_epoch", Within: 30 * time.Second},
				Links:   map[string]string{"/etc/checkout/checkout.yaml": "checkout.yaml"}, TakeOver: true, Owner: "checkout", Group: "1000", Unit: "checkout.service",
				Healthy: &agent.HealthyConfig{HTTP: "http://127.0.0.1:8080/health", Status: 200, For: 10 * time.Second},
			},
			"several": {Instances: []agent.InstanceConfig{
				{Name: "a", Confirm: &agent.ConfirmConfig{File: "/run/a.epoch", PIDFile: "/run/a.pid", Within: 30 * time.Second}},
				{Name: "b", Confirm: &agent.ConfirmConfig{Command: []string{"b", "--epoch"}, Field: "x", Within: time.Second}},
				{Name: "c", Confirm: &agent.ConfirmConfig{Unit: "several@c.service", Within: 30 * time.Second}},
			}},
			"search": {Confirm: &agent.ConfirmConfig{HTTP: "http://127.0.0.1:8081/", Field: "build.epoch", Within: 10 * time.Second}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConfigErrors(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"empty":              {"", ": empty"},
		"not YAML":           {"host: [", "agent.yaml: line 1: did not find expected node content"},
		"not a mapping":      {"- a\n", ":1: not a mapping"},
		"two documents":      {least + "---\nhost: x\n", ":5: a second YAML document"},
		"unknown key":        {least + "pol: 5s\n", `:5: unknown key "pol" (did you mean "poll"?)`},
		"unknown, far":       {least + "frobnicate: 1\n", `:5: unknown key "frobnicate"`},
		"unknown in service": {least + "services:\n  checkout:\n    relaod: [x]\n", `:7: unknown key "services.checkout.relaod" (did you mean "reload"?)`},
		"twice":              {least + "poll: 5s\npoll: 6s\n", `:6: key "poll" is also on line 5`},
		"mode":               {least + "mode: force\n", `:5: mode: "force" is not known; it is enforce or observe`},
		"metrics":            {least + "metrics: 9464\n", `metrics: "9464" is not an address and port such as 127.0.0.1:9464`},
		"unit":               {least + "services: {checkout: {unit: --x}}\n", `services.checkout.unit: "--x" is not a systemd unit`},
		"healthy":            {least + "services: {checkout: {healthy: {}}}\n", "services.checkout.healthy.http: not an http or https URL"},
		"healthy status":     {least + "services: {checkout: {healthy: {http: \"http://127.0.0.1/\", status: ok}}}\n", `:5: services.checkout.healthy.status: "ok" is no HTTP status`},
		"confirm exec":       {least + "services: {checkout: {confirm: {exec: [x]}}}\n", `:5: unknown key "services.checkout.confirm.exec"`},
		"confirm two":        {least + "services: {checkout: {confirm: {file: /x, command: [y]}}}\n", "services.checkout.confirm.http: say one of http, file, command, unit and pid_file"},
		"confirm none":       {least + "services: {checkout: {confirm: {within: 5s}}}\n", "services.checkout.confirm.http: say one of"},
		"confirm file":       {least + "services: {checkout: {confirm: {file: x}}}\n", `services.checkout.confirm.file: "x" is not a full path`},
		"confirm unit+http":  {least + "services: {checkout: {confirm: {http: \"http://127.0.0.1/\", field: a, unit: x.service}}}\n", "services.checkout.confirm.unit: unit and pid_file stand alone or beside file"},
		"confirm unit+pid":   {least + "services: {checkout: {confirm: {pid_file: /x, unit: x.service}}}\n", "services.checkout.confirm.unit: say one of unit and pid_file"},
		"instances+confirm":  {least + "services: {checkout: {confirm: {file: /x}, instances: [{name: a, confirm: {file: /y}}]}}\n", "services.checkout.confirm: the instances have a confirm each"},
		"instance":           {least + "services: {checkout: {instances: [{name: a}]}}\n", "services.checkout.instances[0].confirm: missing"},
		"instance twice":     {least + "services: {checkout: {instances: [{name: a, confirm: {file: /y}}, {name: a, confirm: {file: /z}}]}}\n", "services.checkout.instances[1].name: a is there twice"},
		"instance key":       {least + "services: {checkout: {instances: [{nam: a}]}}\n", `:5: unknown key "services.checkout.instances[0].nam" (did you mean "name"?)`},
		"link relative":      {least + "services: {checkout: {links: {etc/x: x}}}\n", `services.checkout.links: "etc/x" is not a full path`},
		"link out":           {least + "services: {checkout: {links: {/etc/x: ../x}}}\n", `services.checkout.links: /etc/x: "../x" is not a file of the service`},
		"link twice":         {least + "services: {a: {links: {/etc/x: x}}, b: {links: {/etc/x: y}}}\n", "services.b.links: /etc/x is a link of a too"},
		"link into root":     {least + "root: /r\nservices: {a: {links: {/r/current: x}}}\n", "services.a.links: /r/current is inside root"},
		"link into root/":    {least + "root: /r//\nservices: {a: {links: {/r/current: x}}}\n", "services.a.links: /r/current is inside root"},
		"link over root":     {least + "root: /a/r\nservices: {a: {links: {/a: x}}}\n", "services.a.links: root /a/r is below /a"},
		"link below a link":  {least + "services: {a: {links: {/etc/x: .}}, b: {links: {/etc/x/y/z: y}}}\n", "services.b.links: /etc/x/y/z is below /etc/x, which is a link of a"},
		"take over nothing":  {least + "services: {a: {take_over: true}}\n", "services.a.take_over: there are no links"},
		"take over what":     {least + "services: {a: {take_over: yes}}\n", `:5: services.a.take_over: "yes" is neither true nor false`},
		"owner":              {least + "services: {a: {owner: \"a b\"}}\n", `services.a.owner: "a b" is not a user's name or id`},
		"poll too short":     {least + "poll: 10ms\n", "poll: 10ms is below the least, 1s"},
		"poll no duration":   {least + "poll: 5\n", `:5: poll: "5" is not a duration such as 60s`},
		"no cohort":          {"host: a\nrepo: r\nsources: [\"s3://b\"]\n", `cohort: "" is not a cohort name`},
		"no repo":            {"host: a\ncohort: c\nsources: [\"s3://b\"]\n", "repo: missing"},
		"no sources":         {"host: a\nrepo: r\ncohort: c\n", "sources: missing"},
		"bad source":         {"host: a\nrepo: r\ncohort: c\nsources: [bucket]\n", "sources[0]: not a URL"},
		"source twice":       {"host: a\nrepo: r\ncohort: c\nsources: [\"s3://b\", \"s3://b\"]\n", "sources[1]: named twice"},
		"command as text":    {least + "services: {checkout: {reload: systemctl reload x}}\n", ":5: services.checkout.reload: not a list; write [a, b]"},
		"null":               {least + "root:\n", ":5: root: not a text"},
		"relative root":      {least + "root: var\n", `root: "var" is not an absolute path`},
		"http collector":     {least + "collector: {url: \"http://collector:7070\"}\n", "collector.url: collector:7070 is not this machine; use https"},
		"password":           {least + "collector: {url: \"https://me:12345SECRET@c:7070\"}\n", "collector.url: holds a user or password"},
		"confirm":            {least + "services: {checkout: {confirm: {http: x, field: x}}}\n", "services.checkout.confirm.http: not an http"},
		"confirm field":      {least + "services: {checkout: {confirm: {http: \"http://127.0.0.1/\", field: a..b}}}\n", `services.checkout.confirm.field: "a..b" is not a dotted path`},
		"service name":       {least + "services: {Check/out: {}}\n", "services.Check/out: not a service name"},
		"merge key":          {least + "<<: {poll: 5s}\n", ":5: a key must be plain text"},
		"alias":              {"host: &h a\nrepo: *h\n", ":2: repo: not a text"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := agent.LoadConfig(write(t, t.TempDir(), "agent.yaml", tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "agent.yaml") || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "SECRET") {
				t.Errorf("%v\nwant %q", err, tc.want)
			}
		})
	}
	dir := t.TempDir()
	path := write(t, dir, "agent.yaml", least+"services: {search: {}}\n")
	write(t, dir, "services.d/search.yaml", "services: {search: {}}\n")
	if _, err := agent.LoadConfig(path); err == nil || !strings.Contains(err.Error(), `services.d/search.yaml: service "search" is in `) {
		t.Error(err)
	}
	write(t, dir, "services.d/search.yaml", "host: x\n")
	if _, err := agent.LoadConfig(path); err == nil || !strings.Contains(err.Error(), `services.d/search.yaml:1: unknown key "host"`) {
		t.Error(err)
	}
}

// What is wrong with a service is said of the file and the key that it is in.
func TestConfigErrorPlace(t *testing.T) {
	for text, want := range map[string]string{
		"services: {search: {links: {etc/x: x}}}\n":            "services.search.links",
		"services: {search: {confirm: {http: x, field: y}}}\n": "services.search.confirm.http",
		"services: {search: {reload: x}}\n":                    "services.search.reload",
		"services: {search: {relaod: [x]}}\n":                  "services.search.relaod",
		"services: {search: {}, search: {}}\n":                 "services.search",
		"services: {checkout: {}}\n":                           "services.checkout",
		"services: {checkout.x: {}}\n":                         "services.checkout.x",
		"services: []\n":                                       "services",
		"host: a\n":                                            "host",
	} {
		dir := t.TempDir()
		path := write(t, dir, "agent.yaml", least+"services: {checkout: {}}\n")
		part := write(t, dir, "services.d/more.yaml", text)
		_, err := agent.LoadConfig(path)
		e := new(agent.ConfigError)
		if !errors.As(err, &e) || e.File != part || e.Key != want || !strings.HasPrefix(err.Error(), part+":") {
			t.Errorf("%q: %+v, %v", text, e, err)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add(least)
	f.Add(least + "services: {checkout: {confirm: {http: x, field: a.b}, reload: [a], links: {/a: b}, instances: [{name: a, confirm: {file: /x}}], healthy: {http: x, status: 1, for: 1s}}}\n")
	f.Add("a: &a [*a]\n")
	f.Add("? {a: b}\n: c\n")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(dir, "agent.yaml")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := agent.LoadConfig(path)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %q", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("loaded and not valid: %v", err)
		}
	})
}
