package agent

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"sort"
	"strings"
	"time"
	"unicode"

	"github.com/muster-config/muster/distributor/manifest"
)

// Defaults of a Config.
const (
	DefaultRoot    = "/var/lib/muster"
	DefaultKeyring = "/etc/muster/keyring.json"
	DefaultPoll    = 60 * time.Second
	DefaultWithin  = 30 * time.Second
	MinPoll        = time.Second
	ModeEnforce    = "enforce"
)

// Config is agent.yaml. The zero value of a field that may be left out is its default; LoadConfig and WithDefaults fill it in.
type Config struct {
	Host      string
	Repo      string
	Cohort    string
	Labels    map[string]string
	Mode      string   // enforce
	Sources   []string // URLs; default: the collector
	Keyring   string   // path of the keyring where trust begins
	Root      string
	Collector CollectorConfig
	Poll      time.Duration
	Services  map[string]ServiceConfig
}

// CollectorConfig says where reports go. Without a URL there is no collector.
type CollectorConfig struct {
	URL       string
	TokenFile string
	CAFile    string
}

// ServiceConfig is what the agent does for one service. A service without an entry is installed, and its evidence is `disk`.
type ServiceConfig struct {
	Check   []string // run against the staged files before the swap; {dir} is the service's directory
	Reload  []string // run after the swap if its files changed
	Confirm *ConfirmConfig
}

// ConfirmConfig is where the service's process states the epoch it loaded.
type ConfirmConfig struct {
	HTTP   string
	Field  string // dotted path in a JSON answer
	Within time.Duration
}

// WithDefaults fills in what was left out (not the host name).
func (c Config) WithDefaults() Config {
	if c.Mode == "" {
		c.Mode = ModeEnforce
	}
	if c.Keyring == "" {
		c.Keyring = DefaultKeyring
	}
	if c.Root == "" {
		c.Root = DefaultRoot
	}
	if c.Poll == 0 {
		c.Poll = DefaultPoll
	}
	if len(c.Sources) == 0 && c.Collector.URL != "" {
		c.Sources = []string{c.Collector.URL}
	}
	services := make(map[string]ServiceConfig, len(c.Services))
	for name, s := range c.Services {
		if s.Confirm != nil && s.Confirm.Within == 0 {
			confirm := *s.Confirm
			confirm.Within = DefaultWithin
			s.Confirm = &confirm
		}
		services[name] = s
	}
	c.Services = services
	return c
}

// Validate checks a Config after WithDefaults: one line, naming the key.
func (c Config) Validate() error {
	switch {
	case !manifest.ValidHost(c.Host):
		return fmt.Errorf("host: %q is not a host name; set host: to letters, digits, dots and dashes", c.Host)
	case c.Repo == "":
		return errors.New("repo: missing; set it to the name of the config repo, as in its keyring")
	case !manifest.ValidName(c.Cohort):
		return fmt.Errorf("cohort: %q is not a cohort name", c.Cohort)
	case c.Mode != ModeEnforce:
		return fmt.Errorf("mode: %q is not known; it is enforce", c.Mode)
	case len(c.Sources) == 0:
		return errors.New("sources: missing; name the store or set collector.url")
	case !filepath.IsAbs(c.Root):
		return fmt.Errorf("root: %q is not an absolute path", c.Root)
	case c.Poll < MinPoll:
		return fmt.Errorf("poll: %s is below the least, %s", c.Poll, MinPoll)
	case c.Poll > 24*time.Hour:
		return fmt.Errorf("poll: %s is above the most, 24h", c.Poll)
	}
	for k, v := range c.Labels {
		if !manifest.ValidName(k) {
			return fmt.Errorf("labels: %q is not a label's name; it is lower-case letters, digits, '-' and '_'", k)
		}
		if len(v) > 200 || strings.ContainsFunc(v, unicode.IsControl) {
			return fmt.Errorf("labels.%s: longer than 200 bytes, or holds a control character", k)
		}
	}
	seen := map[string]bool{}
	for i, s := range c.Sources {
		if u, err := url.Parse(s); err != nil || u.Scheme == "" {
			return fmt.Errorf("sources[%d]: not a URL", i)
		}
		if seen[s] {
			return fmt.Errorf("sources[%d]: named twice", i)
		}
		seen[s] = true
	}
	if err := c.Collector.validate(); err != nil {
		return err
	}
	names := make([]string, 0, len(c.Services))
	for name := range c.Services {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if err := c.Services[name].validate(); err != nil {
			return fmt.Errorf("services.%s.%w", name, err)
		}
		if !manifest.ValidName(name) {
			return fmt.Errorf("services.%s: not a service name", name)
		}
	}
	return nil
}

func (c CollectorConfig) validate() error {
	if c.URL == "" {
		if c.TokenFile != "" || c.CAFile != "" {
			return errors.New("collector.url: missing, though other keys of collector are set")
		}
		return nil
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		return errors.New("collector.url: not an http or https URL")
	case u.User != nil:
		return errors.New("collector.url: holds a user or password; use token_file")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return fmt.Errorf("collector.url: %s is not this machine; use https", u.Host)
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (s ServiceConfig) validate() error {
	if s.Confirm == nil {
		return nil
	}
	u, err := url.Parse(s.Confirm.HTTP)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		return errors.New("confirm.http: not an http or https URL")
	case s.Confirm.Field == "" || strings.Contains("."+s.Confirm.Field+".", ".."):
		return fmt.Errorf("confirm.field: %q is not a dotted path such as config_epoch or build.epoch", s.Confirm.Field)
	case s.Confirm.Within < 0 || s.Confirm.Within > time.Hour:
		return fmt.Errorf("confirm.within: %s is not between 0 and 1h", s.Confirm.Within)
	}
	return nil
}
