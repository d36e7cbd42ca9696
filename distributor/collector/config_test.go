package collector

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLoadConfig(t *testing.T) {
	const least = "store: file:///srv/muster\ndatabase: sqlite:///var/lib/muster-collector/state.db\n"
	load := func(t *testing.T, text string) (Config, error) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "collector.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return LoadConfig(path)
	}
	c, err := load(t, least)
	want := Config{Listen: "127.0.0.1:7070", Store: "file:///srv/muster", Keyring: "/etc/muster/keyring.json", Database: "sqlite:///var/lib/muster-collector/state.db", Poll: 5 * time.Second}
	if diff := cmp.Diff(want, c); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	c, err = load(t, least+`listen: 0.0.0.0:7070
tls: {cert_file: /c.pem, key_file: /k.pem, client_ca_file: ""}
keyring: /k.json
tokens_file: /t.yaml
poll: 2s
rollout_key:
inventory: []
notify: []
`)
	want = Config{Listen: "0.0.0.0:7070", CertFile: "/c.pem", KeyFile: "/k.pem", Store: want.Store, Keyring: "/k.json", Database: want.Database, TokensFile: "/t.yaml", Poll: 2 * time.Second}
	if diff := cmp.Diff(want, c); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	c, err = load(t, "store: file:///srv/muster\ndatabase: postgres://muster@db/muster\nrollout_key: env:ROLLOUT\ntls: {cert_file: /c.pem, key_file: /k.pem, client_ca_file: /ca.pem}\ninventory: [{cohort: a, file_sd: /x.json}, {cohort: b, csv: /h.csv}, {cohort: b, http_sd: \"https://h/sd\"}]\nprometheus: {url: \"http://p:9090\"}\ngates: {http_hosts: [\"queue.internal\", \"q:8080\"]}\nnotify: [{url: \"https://x/y\", events: [halted, approval], secret_file: /s}]\n")
	want = Config{
		Listen: "127.0.0.1:7070", CertFile: "/c.pem", KeyFile: "/k.pem", ClientCA: "/ca.pem", Store: want.Store, Keyring: DefaultKeyring, Database: "postgres://muster@db/muster", Poll: DefaultPoll, RolloutKey: "env:ROLLOUT",
		Inventory:  []Source{{"a", "file_sd", "/x.json"}, {"b", "csv", "/h.csv"}, {"b", "http_sd", "https://h/sd"}},
		Prometheus: "http://p:9090", GateHosts: []string{"queue.internal", "q:8080"}, Notify: []Notify{{URL: "https://x/y", Events: []string{"halted", "approval"}, SecretFile: "/s"}},
	}
	if diff := cmp.Diff(want, c); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for name, tt := range map[string]struct{ text, want string }{
		"empty":                    {"", "collector.yaml: empty"},
		"unknown key":              {least + "metrics: true\n", `collector.yaml:3: unknown key "metrics"`},
		"unknown key below":        {least + "tls:\n  cert: x\n", `collector.yaml:4: unknown key "tls.cert"`},
		"twice":                    {least + "store: x\n", "collector.yaml:3: store is set twice"},
		"another shape":            {"- a\n", "collector.yaml:1: the file is not a mapping"},
		"two documents":            {least + "---\na: b\n", "a second YAML document"},
		"not YAML":                 {"a: [\n", "collector.yaml: line"},
		"a number":                 {"store: 7\n", "collector.yaml:1: store: not a text"},
		"no store":                 {"database: sqlite:///x\n", "store: missing"},
		"a web server":             {"store: https://user:hunter2@store/x\ndatabase: sqlite:///x\n", "store: a web server cannot list what it holds"},
		"a plain web server":       {"store: http://127.0.0.1/x\ndatabase: sqlite:///x\n", "store: a web server cannot list what it holds"},
		"no database":              {"store: file:///x\n", "database: missing"},
		"relative database":        {"store: file:///x\ndatabase: sqlite://x.db\n", "database: missing or not sqlite:///absolute/path"},
		"postgres":                 {"store: file:///x\ndatabase: postgres://ana:hunter2@h\n", "database: not a URL that names a database"},
		"inventory's cohort":       {least + "inventory: [{file_sd: /x}]\n", `inventory[0]: cohort: "" is not a name`},
		"inventory's kind":         {least + "inventory: [{cohort: a, dns_sd: /x}]\n", `collector.yaml:3: unknown key "inventory[0].dns_sd"`},
		"inventory without a kind": {least + "inventory: [{cohort: a}]\n", "inventory[0]: give one of csv, file_sd and http_sd"},
		"inventory of two kinds":   {least + "inventory: [{cohort: a, csv: /x, http_sd: \"http://y\"}]\n", "give one of csv, file_sd and http_sd, not two"},
		"inventory's path":         {least + "inventory: [{cohort: a, csv: x}]\n", `inventory[0]: csv: "x" is not an absolute path`},
		"inventory's password":     {least + "inventory: [{cohort: a, http_sd: \"http://ana:hunter2@h/x\"}]\n", "the URL holds a user or a password"},
		"inventory's URL":          {least + "inventory: [{cohort: a, http_sd: \"ftp://h/x\"}]\n", "not an http or https URL"},
		"inventory twice":          {least + "inventory: [{cohort: a, csv: /x}, {cohort: a, csv: /x}]\n", "inventory[1]: csv /x of a is there twice"},
		"prometheus":               {least + "prometheus: {uri: http://p}\n", `unknown key "prometheus.uri"`},
		"gates' hosts":             {least + "gates: {http_hosts: [7]}\n", "gates.http_hosts[0]: not a text"},
		"notify's URL":             {least + "notify: [{url: ftp://x}]\n", "notify[0]: url: not an http or https URL"},
		"notify's password":        {least + "notify: [{url: \"https://ana:hunter2@x/\"}]\n", "notify[0]: url: the URL holds a user or a password"},
		"notify's events":          {least + "notify: [{url: https://x, events: [stopped]}]\n", `notify[0]: events: there is no "stopped", but halted, rolled_back`},
		"notify's secret":          {least + "notify: [{url: https://x, secret_file: s}]\n", "notify[0]: secret_file: not an absolute path"},
		"notify twice":             {least + "notify: [{url: \"https://x/hunter2\"}, {url: \"https://x/hunter2\"}]\n", "notify[1]: the URL is there twice"},
		"client certificates":      {least + "tls: {client_ca_file: /x}\n", "tls: client_ca_file needs cert_file and key_file"},
		"half of TLS":              {least + "tls: {cert_file: /x}\n", "tls: needs cert_file and key_file"},
		"open without anything":    {least + "listen: 0.0.0.0:7070\n", "listen: 0.0.0.0:7070 can be reached from other machines"},
		"open without a name":      {least + "listen: :7070\n", "can be reached from other machines"},
		"open without TLS":         {least + "listen: 10.0.0.1:7070\ntokens_file: /t\n", "can be reached from other machines"},
		"open without tokens":      {least + "listen: 10.0.0.1:7070\ntls: {cert_file: /c, key_file: /k}\n", "can be reached from other machines"},
		"listen without a port":    {least + "listen: localhost\n", "is not host:port"},
		"poll":                     {least + "poll: often\n", "is not a duration"},
		"poll without an interval": {least + "poll: 1us\n", "poll: 1µs is not between"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
