package collector

import (
	"context"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/wire"
)

const (
	maxChange      = 64 << 10
	maxChangeHosts = 1000
	maxRetired     = 100_000
	// forgetAfter is how long a host that is retired and silent is still remembered.
	forgetAfter = 7 * 24 * time.Hour
)

// ChangeHosts retires hosts, takes that back, or accepts the key of one that was installed anew: see api.Client.
func (c *Collector) ChangeHosts(_ context.Context, change string, q api.HostsChange) (*api.HostsChanged, error) {
	return c.changeHosts(local, change, q)
}

func (c *Collector) postHosts(w http.ResponseWriter, r *http.Request, who caller) error {
	data, err := body(w, r, maxChange)
	if err != nil {
		return err
	}
	var q api.HostsChange
	if err := wire.Decode(data, &q); err != nil {
		return refuse(http.StatusBadRequest, "", "%w", err)
	}
	got, err := c.changeHosts(who, r.PathValue("change"), q)
	if err != nil {
		return err
	}
	return answer(w, got)
}

// changeHosts does it for all hosts or for none.
func (c *Collector) changeHosts(who caller, change string, q api.HostsChange) (*api.HostsChanged, error) {
	do, ok := map[string]func(k hostKey, by, why string) error{
		api.HostsRetire: c.retire, api.HostsUnretire: c.unretire, api.HostsAccept: c.accepted,
	}[change]
	switch {
	case !ok:
		return nil, refuse(http.StatusNotFound, "there are retire, unretire and accept", "%.60q is nothing that can be done with hosts", change)
	case len(q.Hosts) == 0 || len(q.Hosts) > maxChangeHosts:
		return nil, refuse(http.StatusBadRequest, "", "hosts: not 1 to %d names", maxChangeHosts)
	case len(q.Reason) > 500 || strings.ContainsFunc(q.Reason, func(r rune) bool { return r < ' ' }):
		return nil, refuse(http.StatusBadRequest, "", "reason: longer than 500 bytes, or with a control character")
	}
	by := who.name
	if by == "" {
		by = q.By
	}
	if by == "" || len(by) > 200 || strings.ContainsFunc(by, func(r rune) bool { return r < ' ' }) {
		return nil, refuse(http.StatusBadRequest, "", "by: say who does it")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var keys []hostKey
	for _, name := range q.Hosts {
		k, err := c.locate(who, q.Cohort, name)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if change == api.HostsRetire && len(c.retired)+len(keys) > maxRetired {
		return nil, refuse(http.StatusConflict, "", "more than %d hosts are retired: take them out of the inventory", maxRetired)
	}
	// Whatever may refuse does so before anything is done.
	if change == api.HostsAccept {
		for _, k := range keys {
			if err := c.acceptable(k); err != nil {
				return nil, err
			}
		}
	}
	out := &api.HostsChanged{Hosts: []api.HostRef{}}
	for _, k := range keys {
		if err := do(k, by, q.Reason); err != nil {
			return nil, err
		}
		out.Hosts = append(out.Hosts, api.HostRef{Cohort: k.cohort, Host: k.host})
		c.log.Info("host changed by hand", "change", change, "cohort", k.cohort, "host", k.host, "by", by, "reason", q.Reason)
	}
	if change != api.HostsAccept {
		wake(c.relist) // what a person confirmed may let a shorter list in
		c.forgetTree() // and that of the fleet, too
	}
	c.bump()
	wake(c.flushNow)
	return out, nil
}

// forgetTree has the fleet's inventory read again. Under c.mu.
func (c *Collector) forgetTree() {
	if s, ok := c.fleetSource(); ok {
		if l := c.lists[s.name()]; l != nil && l.problem != "" {
			l.version = ""
			wake(c.reread)
		}
	}
}

// locate finds the cohort in which a host is meant. Under c.mu.
func (c *Collector) locate(who caller, cohort, name string) (hostKey, error) {
	var in []string
	for _, co := range c.cohortNames(who) {
		if cohort != "" && co != cohort {
			continue
		}
		known := c.roster.has(co, name)
		if entry := c.cohorts[co]; entry != nil {
			known = known || entry.hosts[name] != nil
		}
		if _, retired := c.retired[hostKey{co, name}]; known || retired {
			in = append(in, co)
		}
	}
	switch {
	case len(in) == 1:
		return hostKey{in[0], name}, nil
	case len(in) > 1:
		return hostKey{}, refuse(http.StatusConflict, "name the cohort", "host %.80q is in cohorts %s", name, strings.Join(in, ", "))
	}
	return hostKey{}, refuse(http.StatusNotFound, "`muster hosts` lists them", "no host %.80q%s", name, orNothing(" in cohort ", cohort))
}

func (c *Collector) retire(k hostKey, by, why string) error {
	c.retired[k] = retirement{By: by, Why: why, At: c.now().UTC().Truncate(time.Second)}
	c.dirty.retired[k] = true
	return nil
}

func (c *Collector) unretire(k hostKey, _, _ string) error {
	if _, ok := c.retired[k]; ok {
		delete(c.retired, k)
		c.dirty.retired[k] = true
	}
	return nil
}

// acceptable says why there is nothing to accept of a host. Under c.mu.
func (c *Collector) acceptable(k hostKey) error {
	co := c.cohorts[k.cohort]
	if co == nil || co.hosts[k.host] == nil || co.hosts[k.host].foreignKey == nil && co.hosts[k.host].older.IsZero() {
		return refuse(http.StatusConflict, "", "host %s of cohort %s: no agent with another identity key spoke; there is nothing to accept", k.host, k.cohort)
	}
	return nil
}

// accepted pins the key that spoke last as a stranger's: the host was installed anew. Its next report counts; what the former key said does not any more. Or it lets in what was
// refused because the host's clock had been ahead before. Under c.mu.
func (c *Collector) accepted(k hostKey, by, _ string) error {
	co := c.cohorts[k.cohort]
	h := co.hosts[k.host]
	if !h.older.IsZero() && (h.foreignKey == nil || h.quiet(h.foreign, c.now())) {
		c.log.Info("a start of the agent accepted, and those after it, though others said a later time", "cohort", k.cohort, "host", k.host, "time", h.older.UTC(), "by", by)
		h.acceptOlder()
		h.pinned = c.now().UTC()
		c.dirty.host(k.cohort, k.host, nil)
		return nil
	}
	c.log.Info("identity key accepted", "cohort", k.cohort, "host", k.host, "key", hex.EncodeToString(h.foreignKey[:4]), "before", hex.EncodeToString(h.key[:4]), "by", by)
	c.shapes.drop(h.report)
	co.hosts[k.host] = &host{name: h.name, key: h.foreignKey, listed: h.listed, pinned: c.now().UTC()}
	c.dirty.host(k.cohort, k.host, nil)
	return nil
}

// prune lets go of hosts that are retired and were not heard for long. Under c.mu.
func (c *Collector) prune(now time.Time) {
	for name, co := range c.cohorts {
		for hostName, h := range co.hosts {
			if h.report == nil || now.Sub(h.received) < forgetAfter || c.roster.has(name, hostName) {
				continue
			}
			if in := c.input(name, hostName, co, h, now); in.Retired {
				c.shapes.drop(h.report)
				delete(co.hosts, hostName)
				c.hosts--
				c.dirty.lost(hostKey{name, hostName})
			}
		}
	}
	for k, r := range c.retired {
		co := c.cohorts[k.cohort]
		if now.Sub(r.At) > forgetAfter && !c.roster.has(k.cohort, k.host) && (co == nil || co.hosts[k.host] == nil) {
			delete(c.retired, k)
			c.dirty.retired[k] = true
		}
	}
}
