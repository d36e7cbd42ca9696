package agent

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// ServiceConfig is what the agent does for one service. A service without an entry is installed, and its evidence is `disk`.
type ServiceConfig struct {
	Links     map[string]string // absolute path → file or directory of the service ("." is all of it): symbolic links that the agent keeps
	TakeOver  bool              // what stands where a link is to be is moved aside; else it is a reason to refuse
	Owner     string            // of the installed files, by name or id; "": the agent's own
	Group     string
	Unit      string   // systemd unit; if it is stopped, files are installed, and reload and probes are skipped
	Check     []string // run against the staged files before the swap; {dir} is the service's directory
	Reload    []string // run after the swap if its files changed
	Confirm   *ConfirmConfig
	Healthy   *HealthyConfig
	Instances []InstanceConfig // several processes, each confirmed on its own
}

// ConfirmConfig is where the service's process states the epoch it loaded: one of HTTP, File and Command. With Unit or PIDFile alone there is no statement,
// only the time at which the process started (grade `restarted`). Beside File they say whose process wrote it.
type ConfirmConfig struct {
	HTTP    string   // answers JSON
	Field   string   // dotted path in JSON; for File and Command "" means that the number is all there is
	File    string   // the process writes the epoch into it after each load
	Command []string // prints the epoch; {dir} is the service's directory
	Unit    string
	PIDFile string
	Within  time.Duration
}

// HealthyConfig is how a service is known to be well, apart from what it has loaded.
type HealthyConfig struct {
	HTTP   string
	Status int           // expected answer
	For    time.Duration // how long it has to hold after a change
}

// InstanceConfig is one of several processes of a service.
type InstanceConfig struct {
	Name    string
	Confirm *ConfirmConfig
}

func (s ServiceConfig) withDefaults() ServiceConfig {
	s.Confirm = s.Confirm.withDefaults()
	if s.Healthy != nil {
		h := *s.Healthy
		if h.Status == 0 {
			h.Status = DefaultStatus
		}
		if h.For == 0 {
			h.For = DefaultFor
		}
		s.Healthy = &h
	}
	instances := make([]InstanceConfig, len(s.Instances))
	for i, in := range s.Instances {
		instances[i] = InstanceConfig{Name: in.Name, Confirm: in.Confirm.withDefaults()}
	}
	if s.Instances = nil; len(instances) > 0 {
		s.Instances = instances
	}
	return s
}

func (c *ConfirmConfig) withDefaults() *ConfirmConfig {
	if c == nil || c.Within != 0 {
		return c
	}
	with := *c
	with.Within = DefaultWithin
	return &with
}

func (s ServiceConfig) validate() error {
	if len(s.Links) > maxLinks {
		return fmt.Errorf("links: more than %d", maxLinks)
	}
	for _, path := range sorted(s.Links) {
		file := s.Links[path]
		switch {
		case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || strings.ContainsRune(path, 0):
			return fmt.Errorf("links: %q is not a full path; write /etc/checkout/checkout.yaml: checkout.yaml", path)
		case !filepath.IsLocal(file) || filepath.Clean(file) != file || strings.ContainsRune(file, 0):
			return fmt.Errorf("links: %s: %q is not a file of the service, relative to its directory", path, file)
		}
	}
	switch {
	case s.TakeOver && len(s.Links) == 0:
		return errors.New("take_over: there are no links that it could be about")
	case !validUser(s.Owner):
		return fmt.Errorf("owner: %q is not a user's name or id", s.Owner)
	case !validUser(s.Group):
		return fmt.Errorf("group: %q is not a group's name or id", s.Group)
	case !validUnit(s.Unit):
		return fmt.Errorf("unit: %q is not a systemd unit such as checkout.service", s.Unit)
	case s.Confirm != nil && len(s.Instances) > 0:
		return errors.New("confirm: the instances have a confirm each; remove this one")
	case len(s.Instances) > report.MaxInstances:
		return fmt.Errorf("instances: more than %d", report.MaxInstances)
	}
	if err := s.Confirm.validate(); err != nil {
		return fmt.Errorf("confirm.%w", err)
	}
	seen := map[string]bool{}
	for i, in := range s.Instances {
		switch {
		case !manifest.ValidName(in.Name):
			return fmt.Errorf("instances[%d].name: %q is not a name; it is lower-case letters, digits, '-' and '_'", i, in.Name)
		case seen[in.Name]:
			return fmt.Errorf("instances[%d].name: %s is there twice", i, in.Name)
		case in.Confirm == nil:
			return fmt.Errorf("instances[%d].confirm: missing", i)
		}
		seen[in.Name] = true
		if err := in.Confirm.validate(); err != nil {
			return fmt.Errorf("instances[%d].confirm.%w", i, err)
		}
	}
	if h := s.Healthy; h != nil {
		switch {
		case !validURL(h.HTTP):
			return errors.New("healthy.http: not an http or https URL")
		case h.Status < 100 || h.Status > 599:
			return fmt.Errorf("healthy.status: %d is no HTTP status", h.Status)
		case h.For < 0 || h.For > time.Hour:
			return fmt.Errorf("healthy.for: %s is not between 0 and 1h", h.For)
		}
	}
	return nil
}

// maxLinks bounds the links of a service.
const maxLinks = 1000

func (c *ConfirmConfig) validate() error {
	if c == nil {
		return nil
	}
	kinds := 0
	for _, given := range []bool{c.HTTP != "", c.File != "", len(c.Command) > 0} {
		if given {
			kinds++
		}
	}
	started := c.Unit != "" || c.PIDFile != ""
	switch {
	case kinds > 1 || kinds == 0 && !started:
		return errors.New("http: say one of http, file, command, unit and pid_file")
	case c.HTTP != "" && !validURL(c.HTTP):
		return errors.New("http: not an http or https URL")
	case c.HTTP != "" && c.Field == "", c.Field != "" && strings.Contains("."+c.Field+".", ".."):
		return fmt.Errorf("field: %q is not a dotted path such as config_epoch or build.epoch", c.Field)
	case kinds == 0 && c.Field != "":
		return errors.New("field: a start has no field; give http, file or command")
	case c.File != "" && !filepath.IsAbs(c.File):
		return fmt.Errorf("file: %q is not a full path", c.File)
	case started && kinds == 1 && c.File == "":
		return errors.New("unit: unit and pid_file stand alone or beside file")
	case c.Unit != "" && c.PIDFile != "":
		return errors.New("unit: say one of unit and pid_file")
	case !validUnit(c.Unit):
		return fmt.Errorf("unit: %q is not a systemd unit such as checkout.service", c.Unit)
	case c.PIDFile != "" && !filepath.IsAbs(c.PIDFile):
		return fmt.Errorf("pid_file: %q is not a full path", c.PIDFile)
	case c.Within < 0 || c.Within > time.Hour:
		return fmt.Errorf("within: %s is not between 0 and 1h", c.Within)
	}
	return nil
}

func validURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}

// validUser is for a name that is looked up, never handed to a shell: what no passwd file can hold is refused.
func validUser(s string) bool {
	return len(s) <= 256 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == ':' || r == 0x7f })
}

// validUnit is systemd's own alphabet; a name never looks like an option.
func validUnit(s string) bool {
	return len(s) <= 255 && !strings.HasPrefix(s, "-") && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(`:-_.\@`, r))
	})
}
