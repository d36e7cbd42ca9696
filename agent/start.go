package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// New puts an agent together. It reads nothing and starts nothing.
func New(o Options) (*Agent, error) {
	o.Config = o.Config.WithDefaults()
	if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	switch {
	case len(o.Carriers) == 0:
		return nil, errors.New("agent: no carrier")
	case o.Installer == nil || o.Memory == nil || o.Prober == nil:
		return nil, errors.New("agent: Installer, Memory and Prober are needed")
	}
	for name, s := range o.Config.Services {
		if len(s.Links) > 0 && o.Linker == nil {
			return nil, fmt.Errorf("agent: %s has links and there is no Linker", name)
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Version == "" {
		o.Version = "unknown"
	}
	a := &Agent{
		opts: o, cfg: o.Config, now: o.Now, timing: o.timing, phase: report.PhaseIdle,
		log:    o.Logger.With("host", o.Config.Host, "cohort", o.Config.Cohort),
		health: map[string]health{}, counts: newCounts(), starts: starts{last: map[string]string{}, again: map[string]int{}}, silent: map[string]bool{}, said: map[string]string{},
		hints: make(chan hint, 1), changed: make(chan struct{}, 1), nudge: make(chan struct{}, 1), byHand: make(chan *handOrder),
	}
	a.held = &holds{mem: o.Memory, moment: o.Prober.Now, now: func() time.Time { return a.now() }}
	if a.timing == nil {
		a.timing = defaultTiming()
	}
	a.since = a.now().UTC()
	var boot [16]byte
	rand.Read(boot[:])
	a.boot = hex.EncodeToString(boot[:])
	return a, nil
}

// start reads what the last run left, and ends what it left open: a change without a verdict, and reloads that are owed.
func (a *Agent) start(ctx context.Context) error {
	if a.started {
		return nil
	}
	var err error
	if a.st, err = loadState(a.opts.Memory); err != nil {
		return err
	}
	if a.id, err = loadIdentity(a.opts.Memory, a.opts.MachineID); err != nil {
		return err
	}
	a.out = newReports(a.opts.Reporter, a.id, a.counts, a.cfg.Poll, a.fullEvery, a.now, a.log, a.timing)
	if err := a.bootstrap(); err != nil {
		return err
	}
	if data := a.st.Head[a.headKey()]; data != nil {
		if err := a.take(data); err != nil {
			a.log.Warn("the head in state.json is not valid any more", "err", err)
		}
	}
	if a.cur, err = a.opts.Installer.Current(ctx); err != nil {
		return err
	}
	if a.cur != nil {
		a.content = a.cur.Content
		if a.st.Trial == nil && a.cur.Content != "" {
			a.st.reconcile(a.cur.Services, a.opts.Prober.Now) // no change on a host whose state was not lost
		}
	}
	a.started = true
	return nil
}

// bootstrap begins trust with the host's own keyring, or goes on with the one that was reached from it. A newer one in the file is the will of whoever
// runs this host and is taken, with the floors as they are.
func (a *Agent) bootstrap() error {
	fresh, err := manifest.NewTrust(a.cfg.Repo, a.opts.Keyring)
	if err != nil {
		return fmt.Errorf("keyring %s: %w", a.cfg.Keyring, err)
	}
	file := digestOf(a.opts.Keyring)
	was := a.st.KeyringFile
	if was != file {
		a.st.KeyringFile = file
		a.dirty = true
	}
	had, ok := a.st.Trust[a.cfg.Repo]
	if ok {
		mine, err := fresh.Keys()
		if err != nil {
			return fmt.Errorf("keyring %s: %w", a.cfg.Keyring, err)
		}
		if keys, err := had.Keys(); err == nil && keys.Version >= mine.Version {
			// Where trust has begun, only signed keyrings move it. Who changed the file may believe otherwise, so it is said, once a change.
			if was != "" && was != file {
				a.log.Warn("the keyring file has changed and is not taken: this host goes on with the keyring that it has pinned; to begin trust anew, remove state.json",
					"file", a.cfg.Keyring, "version", mine.Version, "digest", file, "was", was, "pinned_version", keys.Version)
			}
			return nil
		}
		had.Keyring = fresh.Keyring
		fresh = had
		a.log.Info("keyring taken from the file", "version", mine.Version)
	}
	a.st.Trust[a.cfg.Repo] = fresh
	a.dirty = true
	return nil
}

// persist writes the state if it changed. It comes before every act that follows from it: floors are on disk before a head is acted on or reported.
func (a *Agent) persist() error { return a.write(a.opts.Memory.Save) }

// persistQuickly is persist, except that a power cut may bring the former state back until the next swap or persist. Before a swap that is enough, since both
// change names of one directory, in this order, which the swap fsyncs before anything is done because of it.
func (a *Agent) persistQuickly() error {
	if m, ok := a.opts.Memory.(QuickMemory); ok {
		return a.write(m.SaveUnsynced)
	}
	return a.persist()
}

// writeLate writes what could wait, once it is due. It says whether that did not work.
func (a *Agent) writeLate(now time.Time) (failed bool) {
	if a.later.IsZero() || now.Before(a.later) {
		return false
	}
	if err := a.persist(); err != nil {
		a.log.Error("state not written", "err", err)
		a.later = time.Time{} // the next look at the host tries again
		return true
	}
	return false
}

func (a *Agent) write(save func(name string, data []byte) error) error {
	if !a.dirty && a.view == nil {
		return nil
	}
	if a.dirty {
		if err := a.st.save(save); err != nil {
			return err
		}
	}
	a.dirty, a.later = false, time.Time{}
	a.seen, a.told, a.toldWhy = "", a.want, a.why
	if a.view != nil {
		a.seen = a.view.Mark().String()
	}
	return nil
}
