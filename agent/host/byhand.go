package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-config/muster/agent"
	"github.com/muster-config/muster/agent/control"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/parcel"
	"github.com/muster-config/muster/distributor/report"
)

// Hold keeps a host as it is, through its agent where one runs. The answer comes when it is in force.
func Hold(ctx context.Context, cfg agent.Config, o agent.HoldOrder, open func() (*Host, error)) (report.Hold, error) {
	return ordered(ctx, cfg, control.Request{Op: control.OpHold, Hold: &o}, open, func(h *Host) (report.Hold, error) { return h.Agent.Hold(o) })
}

// Unhold ends a hold, in the same manner, and gives what it was.
func Unhold(ctx context.Context, cfg agent.Config, by, why string, open func() (*Host, error)) (report.Hold, error) {
	req := control.Request{Op: control.OpUnhold, Hold: &agent.HoldOrder{By: by, Why: why}}
	return ordered(ctx, cfg, req, open, func(h *Host) (report.Hold, error) { return h.Agent.Unhold(by, why) })
}

func ordered(ctx context.Context, cfg agent.Config, req control.Request, open func() (*Host, error), alone func(*Host) (report.Hold, error)) (report.Hold, error) {
	a, err := control.Ask(ctx, cfg.Root, req)
	switch {
	case errors.Is(err, control.ErrNoAgent):
		h, err := open()
		if err != nil {
			return report.Hold{}, err
		}
		defer func() { _ = h.Close() }()
		return alone(h)
	case err != nil:
		return report.Hold{}, err
	case a.Hold == nil:
		return report.Hold{}, errors.New("ask the agent: it does not say what it did; is it of another version?")
	}
	return *a.Hold, nil
}

// Apply takes what a store or a file brings, through the host's agent where one runs.
func Apply(ctx context.Context, cfg agent.Config, from string, o agent.HoldOrder, open func() (*Host, error)) (agent.OnceResult, error) {
	from, err := source(from)
	if err != nil {
		return agent.OnceResult{}, err
	}
	a, err := control.Ask(ctx, cfg.Root, control.Request{Op: control.OpApply, Hold: &o, From: from})
	if errors.Is(err, control.ErrNoAgent) {
		h, err := open()
		if err != nil {
			return agent.OnceResult{}, err
		}
		defer func() { _ = h.Close() }()
		return h.applyFrom(ctx, from, o, h.ApplyOnce)
	}
	res := agent.OnceResult{}
	if a != nil && a.Result != nil {
		res = *a.Result
	}
	return res, err
}

// ApplyFrom implements control.Agent.
func (h *Host) ApplyFrom(ctx context.Context, from string, o agent.HoldOrder) (agent.OnceResult, error) {
	return h.applyFrom(ctx, from, o, h.Agent.Apply)
}

func (h *Host) applyFrom(ctx context.Context, from string, o agent.HoldOrder, apply func(context.Context, agent.Carrier, agent.HoldOrder) (agent.OnceResult, error)) (agent.OnceResult, error) {
	if strings.Contains(from, "://") {
		c, err := carrier(ctx, from, h.config.Collector.URL, h.client)
		if err != nil {
			return agent.OnceResult{}, fmt.Errorf("--from: %w", err)
		}
		return apply(ctx, c, o)
	}
	f, err := openFile(from)
	if err != nil {
		return agent.OnceResult{}, err
	}
	defer f.file.Close()
	return apply(ctx, f, o)
}

// source is what was given, as the agent finds it too: a URL, or an absolute path. A directory is a store.
func source(given string) (string, error) {
	if strings.Contains(given, "://") {
		return given, nil
	}
	path, err := filepath.Abs(given)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("--from: %w", err)
	}
	if info.IsDir() {
		return "file://" + path, nil
	}
	return path, nil
}

// File carries from the one file that `muster override set --out` writes.
type File struct {
	file *os.File
	name string
	p    *parcel.Parcel
}

func openFile(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a named pipe nobody writes to does not hold it up
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	var p *parcel.Parcel
	if err == nil {
		p, err = parcel.Open(f, info.Size())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &File{f, path, p}, nil
}

// Name implements agent.Carrier.
func (f *File) Name() string { return f.name }

// Head implements agent.Carrier.
func (f *File) Head(_ context.Context, cohort string) ([]byte, error) {
	if has := f.p.Cohort(); has != "" && has != cohort {
		return nil, fmt.Errorf("it is for cohort %s, not for %s: %w", has, cohort, manifest.ErrForeign)
	}
	return f.p.Read(manifest.KeyHead(cohort), manifest.MaxHeadBytes)
}

// Keyring implements agent.Carrier.
func (f *File) Keyring(_ context.Context, version uint64) ([]byte, error) {
	return f.p.Read(manifest.KeyKeyring(version), manifest.MaxKeyringBytes)
}

// Object implements agent.Carrier.
func (f *File) Object(_ context.Context, key string) (io.ReadCloser, int64, error) {
	r, size, err := f.p.Open(key)
	if err != nil {
		return nil, 0, err
	}
	return io.NopCloser(r), size, nil
}
