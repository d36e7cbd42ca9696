package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// ConfigError is something wrong in a configuration file.
type ConfigError struct {
	File string
	Key  string // dotted; "" where it is about none
	err  error
}

func (e *ConfigError) Error() string { return e.err.Error() }
func (e *ConfigError) Unwrap() error { return e.err }

// maxConfigBytes bounds a configuration file.
const maxConfigBytes = 1 << 20

// LoadConfig reads a configuration file and the services.d/*.yaml beside it (each holds a `services:` mapping of its own), fills in defaults and
// validates. An error is one line that names file, line and key.
func LoadConfig(path string) (Config, error) {
	var c Config
	if err := loadFile(path, &c, configKeys); err != nil {
		return Config{}, err
	}
	parts, err := filepath.Glob(filepath.Join(filepath.Dir(path), "services.d", "*.yaml"))
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	sort.Strings(parts)
	from := map[string]string{}
	for name := range c.Services {
		from[name] = path
	}
	for _, part := range parts {
		var p Config
		if err := loadFile(part, &p, partKeys); err != nil {
			return Config{}, err
		}
		for name, s := range p.Services {
			if other, ok := from[name]; ok {
				return Config{}, &ConfigError{part, "services." + name, fmt.Errorf("%s: service %q is in %s too; keep one of them", part, name, other)}
			}
			from[name] = part
			if c.Services == nil {
				c.Services = map[string]ServiceConfig{}
			}
			c.Services[name] = s
		}
	}
	if c.Host == "" {
		name, err := os.Hostname()
		if err != nil {
			return Config{}, fmt.Errorf("%s: host: missing, and this machine has no name: %w", path, err)
		}
		c.Host = name
	}
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		e := &ConfigError{File: path}
		e.Key, _, _ = strings.Cut(err.Error(), ": ") // every one of them begins with its key
		longest := 0                                 // a name that is refused for its dots may begin with another's
		for name, file := range from {
			if strings.HasPrefix(e.Key+".", "services."+name+".") && len(name) > longest {
				e.File, longest = file, len(name)
			}
		}
		e.err = fmt.Errorf("%s: %w", e.File, err)
		return Config{}, e
	}
	return c, nil
}

func loadFile(path string, c *Config, keys fields[Config]) error {
	data, err := ReadFile(path, maxConfigBytes)
	switch {
	case err != nil:
		return fmt.Errorf("read configuration: %w", err)
	case len(data) > maxConfigBytes:
		return fmt.Errorf("%s: larger than %d bytes", path, maxConfigBytes)
	}
	if err := parseConfig(data, c, keys); err != nil {
		e := &ConfigError{File: path, err: fmt.Errorf("%s%w", path, err)} // the error begins with ":<line>: " or ": "
		if at := new(placeError); errors.As(err, &at) {
			e.Key = at.key
		}
		return e
	}
	return nil
}

func parseConfig(data []byte, c *Config, keys fields[Config]) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return errors.New(": empty")
	case err != nil:
		return fmt.Errorf(": %s", oneLine(err))
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return fmt.Errorf(":%d: a second YAML document; keep one", max(more.Line, 1))
	}
	return keys.read(doc.Content[0], "", c)
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " ")
}

// fields is how a mapping is read: key → what sets it.
type fields[T any] map[string]func(n *yaml.Node, at string, to *T) error

var partKeys = fields[Config]{"services": configKeys["services"]}

var configKeys = fields[Config]{
	"host":    func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Host) },
	"repo":    func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Repo) },
	"cohort":  func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Cohort) },
	"keyring": func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Keyring) },
	"root":    func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Root) },
	"poll":    func(n *yaml.Node, at string, c *Config) error { return duration(n, at, &c.Poll) },
	"sources": func(n *yaml.Node, at string, c *Config) error { return texts(n, at, &c.Sources) },
	"mode":    func(n *yaml.Node, at string, c *Config) error { return word(n, at, &c.Mode, ModeEnforce, ModeObserve) },
	"metrics": func(n *yaml.Node, at string, c *Config) error { return text(n, at, &c.Metrics) },
	"labels": func(n *yaml.Node, at string, c *Config) error {
		c.Labels = map[string]string{}
		return mapping(n, at, func(k, v *yaml.Node, at string) error {
			var s string
			err := text(v, at, &s)
			c.Labels[k.Value] = s
			return err
		})
	},
	"collector": func(n *yaml.Node, at string, c *Config) error { return collectorKeys.read(n, at, &c.Collector) },
	"services": func(n *yaml.Node, at string, c *Config) error {
		c.Services = map[string]ServiceConfig{}
		return mapping(n, at, func(k, v *yaml.Node, at string) error {
			var s ServiceConfig
			err := serviceKeys.read(v, at, &s)
			c.Services[k.Value] = s
			return err
		})
	},
}

var collectorKeys = fields[CollectorConfig]{
	"url":        func(n *yaml.Node, at string, c *CollectorConfig) error { return text(n, at, &c.URL) },
	"token_file": func(n *yaml.Node, at string, c *CollectorConfig) error { return text(n, at, &c.TokenFile) },
	"ca_file":    func(n *yaml.Node, at string, c *CollectorConfig) error { return text(n, at, &c.CAFile) },
}

var serviceKeys = fields[ServiceConfig]{
	"check":  func(n *yaml.Node, at string, s *ServiceConfig) error { return texts(n, at, &s.Check) },
	"reload": func(n *yaml.Node, at string, s *ServiceConfig) error { return texts(n, at, &s.Reload) },
	"confirm": func(n *yaml.Node, at string, s *ServiceConfig) error {
		s.Confirm = &ConfirmConfig{}
		return confirmKeys.read(n, at, s.Confirm)
	},
	"links": func(n *yaml.Node, at string, s *ServiceConfig) error {
		s.Links = map[string]string{}
		return mapping(n, at, func(k, v *yaml.Node, at string) error {
			var file string
			err := text(v, at, &file)
			s.Links[k.Value] = file
			return err
		})
	},
	"take_over": func(n *yaml.Node, at string, s *ServiceConfig) error { return boolean(n, at, &s.TakeOver) },
	"owner":     func(n *yaml.Node, at string, s *ServiceConfig) error { return text(n, at, &s.Owner) },
	"group":     func(n *yaml.Node, at string, s *ServiceConfig) error { return text(n, at, &s.Group) },
	"unit":      func(n *yaml.Node, at string, s *ServiceConfig) error { return text(n, at, &s.Unit) },
	"healthy": func(n *yaml.Node, at string, s *ServiceConfig) error {
		s.Healthy = &HealthyConfig{}
		return healthyKeys.read(n, at, s.Healthy)
	},
	"instances": func(n *yaml.Node, at string, s *ServiceConfig) error {
		if n.Kind != yaml.SequenceNode {
			return fail(n, at, "not a list; write [{name: a, confirm: {...}}]")
		}
		s.Instances = make([]InstanceConfig, len(n.Content))
		for i, c := range n.Content {
			if err := instanceKeys.read(c, fmt.Sprintf("%s[%d]", at, i), &s.Instances[i]); err != nil {
				return err
			}
		}
		return nil
	},
}

var instanceKeys = fields[InstanceConfig]{
	"name": func(n *yaml.Node, at string, i *InstanceConfig) error { return text(n, at, &i.Name) },
	"confirm": func(n *yaml.Node, at string, i *InstanceConfig) error {
		i.Confirm = &ConfirmConfig{}
		return confirmKeys.read(n, at, i.Confirm)
	},
}

var confirmKeys = fields[ConfirmConfig]{
	"http":     func(n *yaml.Node, at string, c *ConfirmConfig) error { return text(n, at, &c.HTTP) },
	"field":    func(n *yaml.Node, at string, c *ConfirmConfig) error { return text(n, at, &c.Field) },
	"file":     func(n *yaml.Node, at string, c *ConfirmConfig) error { return text(n, at, &c.File) },
	"command":  func(n *yaml.Node, at string, c *ConfirmConfig) error { return texts(n, at, &c.Command) },
	"unit":     func(n *yaml.Node, at string, c *ConfirmConfig) error { return text(n, at, &c.Unit) },
	"pid_file": func(n *yaml.Node, at string, c *ConfirmConfig) error { return text(n, at, &c.PIDFile) },
	"within":   func(n *yaml.Node, at string, c *ConfirmConfig) error { return duration(n, at, &c.Within) },
}

var healthyKeys = fields[HealthyConfig]{
	"http": func(n *yaml.Node, at string, h *HealthyConfig) error { return text(n, at, &h.HTTP) },
	"for":  func(n *yaml.Node, at string, h *HealthyConfig) error { return duration(n, at, &h.For) },
	"status": func(n *yaml.Node, at string, h *HealthyConfig) error {
		var s string
		if err := text(n, at, &s); err != nil {
			return err
		}
		var err error
		if h.Status, err = strconv.Atoi(s); err != nil || h.Status < 100 || h.Status > 599 {
			return fail(n, at, "%q is no HTTP status", s)
		}
		return nil
	},
}

func (f fields[T]) read(n *yaml.Node, at string, to *T) error {
	return mapping(n, at, func(k, v *yaml.Node, at string) error {
		set, known := f[k.Value]
		if !known {
			return failAt(k, at, "unknown key %q%s", at, f.didYouMean(k.Value))
		}
		return set(v, at, to)
	})
}

func mapping(n *yaml.Node, at string, each func(k, v *yaml.Node, at string) error) error {
	if n.Kind != yaml.MappingNode {
		if at == "" {
			return failAt(n, at, "not a mapping of keys to values")
		}
		return fail(n, at, "not a mapping of keys to values")
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.Tag == "!!merge" {
			return failAt(k, at, "a key must be plain text")
		}
		path := k.Value
		if at != "" {
			path = at + "." + path
		}
		if line, twice := seen[k.Value]; twice {
			return failAt(k, path, "key %q is also on line %d", path, line)
		}
		seen[k.Value] = k.Line
		if err := each(k, v, path); err != nil {
			return err
		}
	}
	return nil
}

func text(n *yaml.Node, at string, to *string) error {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return fail(n, at, "not a text")
	}
	*to = n.Value
	return nil
}

func texts(n *yaml.Node, at string, to *[]string) error {
	if n.Kind != yaml.SequenceNode {
		return fail(n, at, "not a list; write [a, b]")
	}
	*to = make([]string, len(n.Content))
	for i, c := range n.Content {
		if err := text(c, fmt.Sprintf("%s[%d]", at, i), &(*to)[i]); err != nil {
			return err
		}
	}
	if len(*to) > 0 && (*to)[0] == "" {
		return fail(n, at+"[0]", "empty")
	}
	return nil
}

func duration(n *yaml.Node, at string, to *time.Duration) error {
	var s string
	if err := text(n, at, &s); err != nil {
		return err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return fail(n, at, "%q is not a duration such as 60s or 5m", s)
	}
	*to = d
	return nil
}

// word reads one of a few words, or "" for the default.
func word(n *yaml.Node, at string, to *string, words ...string) error {
	if err := text(n, at, to); err != nil {
		return err
	}
	if *to != "" && !slices.Contains(words, *to) {
		return fail(n, at, "%q is not known; it is %s", *to, strings.Join(words, " or "))
	}
	return nil
}

func boolean(n *yaml.Node, at string, to *bool) error {
	var s string
	if err := text(n, at, &s); err != nil {
		return err
	}
	if s != "true" && s != "false" {
		return fail(n, at, "%q is neither true nor false", s)
	}
	*to = s == "true"
	return nil
}

// fail says what is wrong with the value of a key.
func fail(n *yaml.Node, key, format string, args ...any) error {
	return failAt(n, key, "%s: %s", key, fmt.Sprintf(format, args...))
}

// failAt is fail with a text that names the key itself, if any.
func failAt(n *yaml.Node, key, format string, args ...any) error {
	return &placeError{n.Line, key, fmt.Sprintf(format, args...)}
}

type placeError struct {
	line int
	key  string
	text string
}

func (e *placeError) Error() string { return fmt.Sprintf(":%d: %s", e.line, e.text) }

func (f fields[T]) didYouMean(key string) string {
	best, dist := "", 3
	for k := range f {
		if d := distance(key, k); d < dist || d == dist && best != "" && k < best {
			best, dist = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// distance is the edit distance of two keys.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			prev, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, prev+cost)
		}
	}
	return row[len(b)]
}
