package collector

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/muster-config/muster/distributor/manifest"
)

// Defaults of a Config.
const (
	DefaultListen  = "127.0.0.1:7070"
	DefaultKeyring = "/etc/muster/keyring.json"
	DefaultPoll    = 5 * time.Second
)

const maxConfigBytes = 1 << 20

// Config is collector.yaml. The zero value of a field that may be left out is its default; LoadConfig and WithDefaults fill it in.
type Config struct {
	Listen     string // host:port; anything but loopback needs TLS and TokensFile
	CertFile   string // tls.cert_file, PEM
	KeyFile    string // tls.key_file, PEM
	Store      string // URL
	Keyring    string // path of the keyring where trust begins
	ClientCA   string // tls.client_ca_file, PEM: whoever connects must have a certificate that one of these signed
	Database   string // sqlite:///absolute/path or postgres://…; New alone also takes "", which remembers nothing over a restart
	TokensFile string
	Poll       time.Duration // how often the store is read
	RolloutKey string        // where the rollout key is (a path, env:NAME, exec:COMMAND): this collector also takes cohorts to new releases; "" is no controller here
	Inventory  []Source      // beside what the fleet itself says
	Prometheus string        // URL of the server that gates ask; "": gates that ask one are inconclusive
	GateHosts  []string      // gates.http_hosts: hosts, with a port or for any, that http gates may ask; nil: any that is not link-local
	Notify     []Notify      // who is told what stops or waits
}

// WithDefaults fills in what was left out.
func (c Config) WithDefaults() Config {
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.Keyring == "" {
		c.Keyring = DefaultKeyring
	}
	if c.Poll == 0 {
		c.Poll = DefaultPoll
	}
	return c
}

// Validate checks a Config after WithDefaults: one line, naming the key.
func (c Config) Validate() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %q is not host:port, such as %s", c.Listen, DefaultListen)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("tls: needs cert_file and key_file, or neither")
	}
	if c.ClientCA != "" && c.CertFile == "" {
		return errors.New("tls: client_ca_file needs cert_file and key_file")
	}
	if !loopbackHost(host) && (c.CertFile == "" || c.TokensFile == "") {
		return fmt.Errorf("listen: %s can be reached from other machines; set tls.cert_file, tls.key_file and tokens_file, or listen on %s", c.Listen, DefaultListen)
	}
	if u, err := url.Parse(c.Store); c.Store == "" || err != nil || u.Scheme == "" {
		return errors.New("store: missing or not a URL; name the store that muster publish writes to: file:///path or s3://bucket/prefix")
	} else if u.Scheme == "https" || u.Scheme == "http" {
		return errors.New("store: a web server cannot list what it holds, and a collector has to; name the store itself: file:///path or s3://bucket/prefix")
	}
	if err := checkDatabase(c.Database); err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, src := range c.Inventory {
		if err := src.validate(); err != nil {
			return fmt.Errorf("inventory[%d]: %w", i, err)
		}
		if seen[src.name()] {
			return fmt.Errorf("inventory[%d]: %s is there twice", i, src.name())
		}
		seen[src.name()] = true
	}
	for i, n := range c.Notify {
		if err := n.validate(); err != nil {
			return fmt.Errorf("notify[%d]: %w", i, err)
		}
		if slices.ContainsFunc(c.Notify[:i], func(o Notify) bool { return o.URL == n.URL }) {
			return fmt.Errorf("notify[%d]: the URL is there twice; list the events once", i)
		}
	}
	if c.Poll < 10*time.Millisecond || c.Poll > time.Hour {
		return fmt.Errorf("poll: %s is not between 10ms and 1h", c.Poll)
	}
	return nil
}

func (s Source) validate() error {
	if !manifest.ValidName(s.Cohort) {
		return fmt.Errorf("cohort: %.80q is not a name", s.Cohort)
	}
	switch s.Kind {
	case listCSV, listFileSD:
		if !filepath.IsAbs(s.At) {
			return fmt.Errorf("%s: %q is not an absolute path", s.Kind, s.At)
		}
	case listHTTPSD:
		if err := checkURL(s.At); err != nil {
			return fmt.Errorf("%s: %w", s.Kind, err)
		}
	default:
		return errors.New("give one of csv, file_sd and http_sd")
	}
	return nil
}

// checkURL checks the address of another server. The error never holds it.
func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("not an http or https URL")
	case u.User != nil:
		return errors.New("the URL holds a user or a password; messages and the page show URLs")
	}
	return nil
}

func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// LoadConfig reads a configuration file, fills in defaults and validates. An error is one line that names file, line and key.
func LoadConfig(path string) (Config, error) {
	var c Config
	if err := readYAML(path, &c, configKeys); err != nil {
		return Config{}, err
	}
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ErrNotRegular is something else than a file where a file is wanted: a directory, a pipe, a device.
var ErrNotRegular = errors.New("not a regular file")

// OpenRegular opens a regular file for reading, or what a symbolic link to one leads to. A pipe that nobody writes to does not hold it up.
func OpenRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, ErrNotRegular)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readYAML reads a file that holds one mapping.
func readYAML[T any](path string, to *T, keys fields[T]) error {
	f, err := OpenRegular(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("read configuration: %w", err)
	case len(data) > maxConfigBytes:
		return fmt.Errorf("%s: larger than %d bytes", path, maxConfigBytes)
	}
	if err := parseYAML(data, to, keys); err != nil {
		return fmt.Errorf("%s%w", path, err) // the error begins with ":<line>: " or ": "
	}
	return nil
}

func parseYAML[T any](data []byte, to *T, keys fields[T]) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return errors.New(": empty")
	case err != nil:
		return fmt.Errorf(": %s", strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " "))
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return fmt.Errorf(":%d: a second YAML document; keep one", max(more.Line, 1))
	}
	return keys.read(doc.Content[0], "", to)
}

// fields is how a mapping is read: key → what sets it. A nil function marks a key that this version does not do yet.
type fields[T any] map[string]func(n *yaml.Node, at string, to *T) error

func (f fields[T]) read(n *yaml.Node, at string, to *T) error {
	if n.Kind != yaml.MappingNode {
		return fail(n, "%s is not a mapping of keys to values", orTop(at))
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := k.Value
		if at != "" {
			name = at + "." + k.Value
		}
		set, known := f[k.Value]
		switch {
		case k.Kind != yaml.ScalarNode || !known:
			return fail(k, "unknown key %q", name)
		case seen[k.Value]:
			return fail(k, "%s is set twice", name)
		case set == nil && empty(v):
			continue
		case set == nil:
			return fail(k, "%s: this version does not do that yet; remove it", name)
		}
		seen[k.Value] = true
		if err := set(v, name, to); err != nil {
			return err
		}
	}
	return nil
}

// empty is a value that asks for nothing.
func empty(n *yaml.Node) bool {
	switch n.Kind {
	case yaml.ScalarNode:
		return n.Tag == "!!null" || n.Value == ""
	case yaml.SequenceNode, yaml.MappingNode:
		return len(n.Content) == 0
	}
	return false
}

func orTop(at string) string {
	if at == "" {
		return "the file"
	}
	return at
}

func fail(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf(":%d: %s", n.Line, fmt.Sprintf(format, args...))
}

func text(n *yaml.Node, at string, to *string) error {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" && n.Tag != "!!null" {
		return fail(n, "%s: not a text", at)
	}
	*to = n.Value
	if n.Tag == "!!null" {
		*to = ""
	}
	return nil
}

func texts(n *yaml.Node, at string, to *[]string) error {
	if n.Kind != yaml.SequenceNode {
		return fail(n, "%s: not a list", at)
	}
	for i, c := range n.Content {
		var s string
		if err := text(c, fmt.Sprintf("%s[%d]", at, i), &s); err != nil {
			return err
		}
		*to = append(*to, s)
	}
	return nil
}

func duration(n *yaml.Node, at string, to *time.Duration) error {
	d, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		return fail(n, "%s: %q is not a duration such as 5s", at, n.Value)
	}
	*to = d
	return nil
}

var tlsKeys = fields[Config]{
	"cert_file":      func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.CertFile) },
	"key_file":       func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.KeyFile) },
	"client_ca_file": func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.ClientCA) },
}

var configKeys = fields[Config]{
	"listen":      func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Listen) },
	"tls":         func(n *yaml.Node, at string, c *Config) error { return tlsKeys.read(n, at, c) },
	"store":       func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Store) },
	"keyring":     func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Keyring) },
	"database":    func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Database) },
	"tokens_file": func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.TokensFile) },
	"poll":        func(n *yaml.Node, at string, c *Config) error { return duration(n, at, &c.Poll) },
	"rollout_key": func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.RolloutKey) },
	"inventory": func(n *yaml.Node, at string, c *Config) error {
		return each(n, at, func(n *yaml.Node, at string) error {
			var s Source
			if err := sourceKeys.read(n, at, &s); err != nil {
				return err
			}
			c.Inventory = append(c.Inventory, s)
			return nil
		})
	},
	"prometheus": func(n *yaml.Node, at string, c *Config) error { return prometheusKeys.read(n, at, c) },
	"gates":      func(n *yaml.Node, at string, c *Config) error { return gatesKeys.read(n, at, c) },
	"notify": func(n *yaml.Node, at string, c *Config) error {
		return each(n, at, func(n *yaml.Node, at string) error {
			var to Notify
			if err := notifyKeys.read(n, at, &to); err != nil {
				return err
			}
			c.Notify = append(c.Notify, to)
			return nil
		})
	},
}

var prometheusKeys = fields[Config]{
	"url": func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Prometheus) },
}

var gatesKeys = fields[Config]{
	"http_hosts": func(n *yaml.Node, at string, c *Config) error {
		c.GateHosts = []string{} // an empty list allows none
		return texts(n, at, &c.GateHosts)
	},
}

var notifyKeys = fields[Notify]{
	"url":         func(n *yaml.Node, at string, to *Notify) error { return text(n, at, &to.URL) },
	"events":      func(n *yaml.Node, at string, to *Notify) error { return texts(n, at, &to.Events) },
	"secret_file": func(n *yaml.Node, at string, to *Notify) error { return text(n, at, &to.SecretFile) },
}

var sourceKeys = fields[Source]{
	"cohort":  func(n *yaml.Node, at string, s *Source) error { return text(n, at, &s.Cohort) },
	"csv":     func(n *yaml.Node, at string, s *Source) error { return s.from(listCSV, n, at) },
	"file_sd": func(n *yaml.Node, at string, s *Source) error { return s.from(listFileSD, n, at) },
	"http_sd": func(n *yaml.Node, at string, s *Source) error { return s.from(listHTTPSD, n, at) },
}

// from is one of the places that a source may name.
func (s *Source) from(kind string, n *yaml.Node, at string) error {
	if s.Kind != "" {
		return fail(n, "%s: give one of csv, file_sd and http_sd, not two; make another entry", at)
	}
	s.Kind = kind
	return text(n, at, &s.At)
}
