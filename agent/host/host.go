// Package host is a real agent on a real host: agent's loop with its disk, its processes and its carriers, put together from a configuration.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/control"
	"github.com/muster-config/muster/agent/install"
	"github.com/muster-config/muster/agent/metrics"
	"github.com/muster-config/muster/agent/probe"
	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/store"
	"github.com/muster-config/muster/distributor/store/open"
)

// Options are what a host may need beyond its configuration.
type Options struct {
	Logger  *slog.Logger
	Version string
	// HTTP speaks to the collector, in place of a client of the host's own: many hosts in one process share connections.
	HTTP *http.Client
	// MachineID tells clones of one disk apart; default /etc/machine-id, "-" for none.
	MachineID string
	// Applied is agent.Options.Applied.
	Applied func()
}

// Host is an agent together with what it holds open.
type Host struct {
	*agent.Agent
	root    *install.Root
	client  *api.Client
	log     *slog.Logger
	metrics string
	config  agent.Config
}

// Open takes a host's root into use and puts its agent together. It asks nobody and starts nothing.
func Open(ctx context.Context, cfg agent.Config, o Options) (*Host, error) {
	h := &Host{}
	opts, err := h.options(ctx, cfg, o)
	if err != nil {
		_ = h.Close()
		return nil, err
	}
	if h.root, err = install.Open(opts.Config.Root); err != nil {
		_ = h.Close()
		return nil, err
	}
	h.root.Own(Owners(opts.Config))
	h.metrics, h.config = opts.Config.Metrics, opts.Config
	if h.log = opts.Logger; h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	opts.Installer, opts.Linker, opts.Memory = h.root, h.root, h.root
	if h.Agent, err = agent.New(opts); err != nil {
		_ = h.Close()
		return nil, err
	}
	return h, nil
}

// Run keeps the host right until ctx ends, and lets its operator look: by the control socket, and by Prometheus if the configuration says where. Neither keeps
// the host from being configured: what is wrong with them is logged.
func (h *Host) Run(ctx context.Context) error {
	showing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	if s, err := control.Listen(h.root.Path()); err != nil {
		h.log.Error("muster-agent status will read from disk", "err", err)
	} else {
		wg.Go(func() {
			if err := s.Serve(showing, h); err != nil {
				h.log.Error("muster-agent status will read from disk", "err", err)
			}
		})
	}
	if h.metrics != "" {
		wg.Go(func() {
			if err := metrics.Serve(showing, h.metrics, h.Status); err != nil {
				h.log.Error("no metrics; check metrics: in the configuration", "err", err)
			}
		})
	}
	return h.Agent.Run(ctx)
}

// Status is what is known about a host at the host itself: what its running agent says, or, where none answers, what is on disk.
func Status(ctx context.Context, cfg agent.Config) (*agent.Status, error) {
	s, err := control.Status(ctx, cfg.Root)
	if err == nil || !errors.Is(err, control.ErrNoAgent) && !errors.Is(err, control.ErrSilent) {
		return s, err
	}
	silence := ""
	if errors.Is(err, control.ErrSilent) {
		silence = err.Error()
	}
	in, content, drift, err := install.VerifyOwned(ctx, cfg.Root, Owners(cfg))
	if err != nil {
		return nil, err
	}
	return agent.SavedStatus(cfg, install.Documents(cfg.Root), in, content, drift, silence, time.Now(), probe.New().Now())
}

// Head is the newest verified head that a host has, as it came: its running agent's, or what is on disk; nil if there is none.
func Head(ctx context.Context, cfg agent.Config) ([]byte, error) {
	a, err := control.Ask(ctx, cfg.Root, control.Request{Op: control.OpHead})
	if err == nil {
		return a.Head, nil
	}
	if !errors.Is(err, control.ErrNoAgent) && !errors.Is(err, control.ErrSilent) {
		return nil, err
	}
	return agent.SavedHead(cfg, install.Documents(cfg.Root), time.Now())
}

// Owners says whose the files of services are to be.
func Owners(cfg agent.Config) map[string]install.Ownership {
	owners := map[string]install.Ownership{}
	for name, s := range cfg.Services {
		if s.Owner != "" || s.Group != "" {
			owners[name] = install.Ownership{Owner: s.Owner, Group: s.Group}
		}
	}
	return owners
}

// Check says whether Open would take a configuration, as far as that shows without taking the root into use.
func Check(ctx context.Context, cfg agent.Config) error {
	h := &Host{}
	defer func() { _ = h.Close() }()
	opts, err := h.options(ctx, cfg, Options{})
	if err == nil {
		_, err = manifest.NewTrust(opts.Config.Repo, opts.Keyring)
	}
	return err
}

func (h *Host) options(ctx context.Context, cfg agent.Config, o Options) (agent.Options, error) {
	opts := agent.Options{Config: cfg.WithDefaults(), Prober: probe.New(), Logger: o.Logger, Version: o.Version, MachineID: o.MachineID, Applied: o.Applied}
	cfg = opts.Config
	if err := cfg.Validate(); err != nil {
		return opts, err
	}
	var err error
	if opts.Keyring, err = readKeyring(cfg.Keyring); err != nil {
		return opts, err
	}
	if cfg.Collector.URL != "" {
		h.client, err = api.NewClient(cfg.Collector.URL, api.ClientOptions{TokenFile: cfg.Collector.TokenFile, CAFile: cfg.Collector.CAFile, HTTP: o.HTTP})
		if err != nil {
			return opts, err
		}
		opts.Reporter = h.client
	}
	for i, source := range cfg.Sources {
		c, err := carrier(ctx, source, cfg.Collector.URL, h.client)
		if err != nil {
			return opts, fmt.Errorf("sources[%d]: %w", i, err)
		}
		opts.Carriers = append(opts.Carriers, c)
	}
	switch opts.MachineID {
	case "":
		if id, err := os.ReadFile("/etc/machine-id"); err == nil {
			opts.MachineID = strings.TrimSpace(string(id))
		}
	case "-":
		opts.MachineID = ""
	}
	return opts, nil
}

// Close lets go of the root. The agent must not run any more.
func (h *Host) Close() error {
	if h.client != nil {
		h.client.Close()
	}
	if h.root == nil {
		return nil
	}
	return h.root.Close()
}

// carrier is the collector if the source is its address, else the store that the URL names.
func carrier(ctx context.Context, source, collector string, client *api.Client) (agent.Carrier, error) {
	if client != nil && strings.TrimSuffix(source, "/") == strings.TrimSuffix(collector, "/") {
		return Collector{client}, nil
	}
	if strings.HasPrefix(source, "http://") {
		return nil, errors.New("a store is read over https; an http source can only be the collector, and then it is the same as collector.url")
	}
	s, err := open.OpenRead(ctx, source)
	if err != nil {
		return nil, err
	}
	return agent.StoreCarrier{Store: s}, nil
}

func readKeyring(path string) ([]byte, error) {
	data, err := agent.ReadFile(path, manifest.MaxKeyringBytes)
	if err != nil {
		return nil, fmt.Errorf("read the keyring: %w; copy keyring.json from whoever made the keys (`muster keys init`), or set keyring: to its path", err)
	}
	if len(data) > manifest.MaxKeyringBytes {
		return nil, fmt.Errorf("the keyring %s is larger than %d bytes; that is no keyring", path, manifest.MaxKeyringBytes)
	}
	return data, nil
}

// Collector carries from the collector, and can wait there for a newer head.
type Collector struct{ Client *api.Client }

// Name implements agent.Carrier.
func (c Collector) Name() string { return c.Client.URL() }

// Head implements agent.Carrier.
func (c Collector) Head(ctx context.Context, cohort string) ([]byte, error) {
	data, _, err := c.Client.GetHead(ctx, cohort, manifest.Mark{}, 0)
	return data, asStore(err)
}

// AwaitHead implements agent.Hinter.
func (c Collector) AwaitHead(ctx context.Context, cohort string, after manifest.Mark) ([]byte, error) {
	data, _, err := c.Client.GetHead(ctx, cohort, after, api.MaxWait)
	return data, asStore(err)
}

// Object implements agent.Carrier.
func (c Collector) Object(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	body, size, err := c.Client.Object(ctx, key)
	return body, size, asStore(err)
}

// Keyring implements agent.Carrier.
func (c Collector) Keyring(ctx context.Context, version uint64) ([]byte, error) {
	body, _, err := c.Object(ctx, manifest.KeyKeyring(version))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, manifest.MaxKeyringBytes+1))
	if err == nil && len(data) > manifest.MaxKeyringBytes {
		err = store.ErrTooLarge
	}
	return data, asStore(err)
}

// asStore gives the client's errors the sentinels that all carriers share, and keeps the client's own for who prints them.
func asStore(err error) error {
	if err == nil {
		return nil
	}
	for _, s := range []struct{ from, to error }{
		{api.ErrNotFound, store.ErrNotFound}, {api.ErrNotModified, store.ErrNotModified}, {api.ErrDenied, store.ErrDenied},
		{api.ErrUnreachable, store.ErrUnreachable}, {api.ErrBusy, store.ErrUnreachable}, {api.ErrRefused, store.ErrUnreachable},
	} {
		if errors.Is(err, s.from) {
			return &carried{err, s.to}
		}
	}
	return err
}

type carried struct{ err, is error }

func (e *carried) Error() string   { return e.err.Error() }
func (e *carried) Unwrap() []error { return []error{e.err, e.is} }
