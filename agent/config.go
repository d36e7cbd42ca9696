package agent

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// Defaults of a Config.
const (
	DefaultRoot    = "/var/lib/muster"
	DefaultKeyring = "/etc/muster/keyring.json"
	DefaultPoll    = 60 * time.Second
	DefaultWithin  = 30 * time.Second
	MinPoll        = time.Second
	DefaultStatus  = 200
	DefaultFor     = 10 * time.Second
	ModeEnforce    = report.ModeEnforce
	ModeObserve    = report.ModeObserve // fetch, verify, compare, report what would change; never swap
)

// Config is agent.yaml. The zero value of a field that may be left out is its default; LoadConfig and WithDefaults fill it in.
type Config struct {
	Host      string
	Repo      string
	Cohort    string
	Labels    map[string]string
	Mode      string   // enforce or observe
	Sources   []string // URLs; default: the collector
	Keyring   string   // path of the keyring where trust begins
	Root      string
	Collector CollectorConfig
	Poll      time.Duration
	Metrics   string // host:port of the Prometheus endpoint; "": none
	Services  map[string]ServiceConfig
}

// CollectorConfig says where reports go. Without a URL there is no collector.
type CollectorConfig struct {
	URL       string
	TokenFile string
	CAFile    string
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
	c.Root = filepath.Clean(c.Root) // as it is compared with paths, and shown
	if c.Poll == 0 {
		c.Poll = DefaultPoll
	}
	if len(c.Sources) == 0 && c.Collector.URL != "" {
		c.Sources = []string{c.Collector.URL}
	}
	services := make(map[string]ServiceConfig, len(c.Services))
	for name, s := range c.Services {
		services[name] = s.withDefaults()
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
	case c.Mode != ModeEnforce && c.Mode != ModeObserve:
		return fmt.Errorf("mode: %q is not known; it is %s or %s", c.Mode, ModeEnforce, ModeObserve)
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
	if c.Metrics != "" {
		host, port, err := net.SplitHostPort(c.Metrics)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || host != "localhost" && net.ParseIP(host) == nil {
			return fmt.Errorf("metrics: %q is not an address and port such as 127.0.0.1:9464", c.Metrics)
		}
	}
	return c.validateServices()
}

func (c Config) validateServices() error {
	if len(c.Services) > report.MaxServices {
		return fmt.Errorf("services: more than %d", report.MaxServices)
	}
	linked := map[string]string{}
	for _, name := range sorted(c.Services) {
		s := c.Services[name]
		if !manifest.ValidName(name) {
			return fmt.Errorf("services.%s: not a service name", name)
		}
		if err := s.validate(); err != nil {
			return fmt.Errorf("services.%s.%w", name, err)
		}
		for _, path := range sorted(s.Links) {
			if other, ok := linked[path]; ok {
				return fmt.Errorf("services.%s.links: %s is a link of %s too; keep one of them", name, path, other)
			}
			linked[path] = name
			if path == c.Root || strings.HasPrefix(path, c.Root+"/") {
				return fmt.Errorf("services.%s.links: %s is inside root; what is there is the agent's own", name, path)
			}
			if strings.HasPrefix(c.Root, path+"/") {
				return fmt.Errorf("services.%s.links: root %s is below %s; what leads there is the agent's own", name, c.Root, path)
			}
		}
	}
	// A link below another would be written into what that one leads to: the installed release. By other spellings of a path that is found on the disk (Clashes).
	for _, path := range sorted(linked) {
		for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
			if other, ok := linked[dir]; ok {
				return fmt.Errorf("services.%s.links: %s is below %s, which is a link of %s; choose another path", linked[path], path, dir, other)
			}
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
