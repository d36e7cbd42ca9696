// Package client is for programs whose configuration muster installs: it opens one release's files and the epoch they belong to, together.
//
// A program that confirms must state the epoch of the files it has loaded, not of those that lie on disk when it is asked. So it opens its configuration
// once per load, reads everything through what it got, and remembers the epoch:
//
//	c, err := client.Open("/var/lib/muster", "checkout")
//	if err != nil { … }
//	defer c.Close()
//	data, err := c.ReadFile("checkout.yaml")
//	…
//	health.ConfigEpoch = c.Epoch()
//
// Opening resolves <root>/current one time. Whatever the agent swaps meanwhile, the files and the epoch are those of one release.
package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// recordName is the file in which a release says what it is.
const recordName = ".muster.json"

const maxRecord = 8 << 20

// Release is one release on disk, as its record says. Keys that this package does not know are ignored: the agent may be newer than the program.
type Release struct {
	Dir      string             `json:"-"` // its directory; current is not on the way to it
	Repo     string             `json:"repo"`
	Cohort   string             `json:"cohort"`
	Epoch    uint64             `json:"epoch"`
	Commit   string             `json:"commit"`
	Content  string             `json:"content"`
	Services map[string]Service `json:"services"`
}

// Service is one service of a release.
type Service struct {
	Epoch uint64 `json:"epoch"` // service epoch: what its process states
}

// ErrNone means that nothing is installed yet, or not this service.
var ErrNone = errors.New("no configuration is installed")

// Load reads the record of what is current under an agent's root. It resolves the link once; everything below Release.Dir belongs together.
func Load(root string) (*Release, error) {
	r, err := load(root)
	if err != nil {
		return nil, err
	}
	rel, err := r.release()
	_ = r.root.Close()
	return rel, err
}

type opened struct {
	root *os.Root
	dir  string
}

// load resolves current and opens that directory. A release that goes away in between, because two newer ones came, is no error: then there is a newer one.
func load(root string) (*opened, error) {
	link := filepath.Join(root, "current")
	for try := 0; ; try++ {
		dir, err := os.Readlink(link)
		if err == nil {
			if !filepath.IsAbs(dir) {
				dir = filepath.Join(root, dir)
			}
			var r *os.Root
			if r, err = os.OpenRoot(dir); err == nil {
				return &opened{r, dir}, nil
			}
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) && try < 3:
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%w under %s", ErrNone, root)
		default:
			return nil, fmt.Errorf("open configuration: %w", err)
		}
	}
}

func (o *opened) release() (*Release, error) {
	f, err := o.root.Open(recordName)
	if err != nil {
		return nil, fmt.Errorf("open configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(o.dir, recordName), err)
	}
	rel := &Release{Dir: o.dir}
	if err := json.Unmarshal(data, rel); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(o.dir, recordName), err)
	}
	return rel, nil
}

// Config is the configuration of one service in one release. It stays what it is while newer releases come.
type Config struct {
	release *Release
	service Service
	root    *os.Root
}

// Open opens the configuration of a service from what is current under an agent's root.
func Open(root, service string) (*Config, error) {
	o, err := load(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = o.root.Close() }()
	rel, err := o.release()
	if err != nil {
		return nil, err
	}
	s, ok := rel.Services[service]
	if !ok {
		return nil, fmt.Errorf("%w for %s in release %d under %s", ErrNone, service, rel.Epoch, root)
	}
	sub, err := o.root.OpenRoot(service)
	if err != nil {
		return nil, fmt.Errorf("open configuration of %s: %w", service, err)
	}
	return &Config{release: rel, service: s, root: sub}, nil
}

// Close lets the directory go.
func (c *Config) Close() error { return c.root.Close() }

// Epoch is the service epoch of these files: what the process states once it has loaded them.
func (c *Config) Epoch() uint64 { return c.service.Epoch }

// Release is the release that the files are from.
func (c *Config) Release() *Release { return c.release }

// FS gives the service's files. It is good until Close.
func (c *Config) FS() fs.FS { return c.root.FS() }

// ReadFile reads one of the service's files.
func (c *Config) ReadFile(name string) ([]byte, error) { return c.root.ReadFile(name) }
