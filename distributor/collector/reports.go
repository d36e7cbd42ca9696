package collector

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/muster-config/muster/distributor/api"
	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// said is one checked report or heartbeat, before it meets what is known of its host.
type said struct {
	cohort, host, boot string
	counter            uint64
	report             *report.Report     // signed, or
	envelope           *manifest.Envelope // of report
	beat               *api.Heartbeat
	refused            string // it is well formed and yet not to be believed
	signed             bool   // send a signed one
}

// requestError is a request that is refused as a whole: nothing of it counts.
type requestError struct {
	status int
	err    error
	hint   string
	reason string // api.Error's
	code   int    // exit code of the table; 0: what the status says
}

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

func refuse(status int, hint, format string, args ...any) *requestError {
	return &requestError{status: status, err: fmt.Errorf(format, args...), hint: hint}
}

// PostReports takes reports from the same process: see api.Client.
func (c *Collector) PostReports(_ context.Context, post api.ReportPost) (*api.ReportAnswer, error) {
	return c.takeReports(post, local)
}

// Report takes one report from the same process.
func (c *Collector) Report(_ context.Context, item api.ReportItem) (api.ReportResult, error) {
	answer, err := c.takeReports(api.ReportPost{Reports: []api.ReportItem{item}}, local)
	if err != nil {
		return api.ReportResult{}, err
	}
	return answer.Results[0], nil
}

// takeReports checks all of a post before anything of it counts: a malformed one, or one for a cohort that the caller may not speak for, refuses the whole post.
func (c *Collector) takeReports(post api.ReportPost, who caller) (*api.ReportAnswer, error) {
	if len(post.Reports) == 0 {
		return nil, refuse(http.StatusBadRequest, "", "no report in the post")
	}
	if len(post.Reports) > report.MaxBatch {
		return nil, refuse(http.StatusRequestEntityTooLarge, "", "%d reports in one post, at most %d are taken", len(post.Reports), report.MaxBatch)
	}
	list, errs := c.checkAll(post.Reports)
	for i, err := range errs {
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "", "report %d: %w", i, err)
		}
		if !who.may(list[i].cohort) {
			return nil, refuse(http.StatusForbidden, "give the host a token of its cohort", "this token may not report for cohort %s", list[i].cohort)
		}
	}
	answer := &api.ReportAnswer{Results: make([]api.ReportResult, len(list))}
	changed := false
	c.mu.Lock()
	for i := range list {
		s := &list[i]
		res := api.ReportResult{Host: s.host}
		switch {
		case s.refused != "":
			res.Error = s.refused
		case s.signed:
			res.SendSigned = true
		default:
			got, err := c.apply(s)
			if err != nil {
				if len(list) == 1 {
					c.mu.Unlock()
					return nil, err
				}
				res.Error = err.Error()
				break
			}
			changed = changed || got.changed
			res.Accepted, res.Counter, res.SendSigned, res.Error = got.accepted, got.counter, got.signed, got.refused
			if !got.accepted && !got.signed && got.refused == "" {
				res.Error = fmt.Sprintf("late: counter %d of this boot was heard already, the highest is %d", s.counter, got.counter)
			}
			if got.accepted && s.report != nil && who.secure {
				res.HeartbeatKey = c.heartbeatKey(s.cohort, s.host, s.boot)
			}
		}
		c.tally(s, res)
		answer.Results[i] = res
	}
	if changed {
		c.bump()
	}
	c.mu.Unlock()
	return answer, nil
}

// tally counts what became of a report.
func (c *Collector) tally(s *said, res api.ReportResult) {
	if s.beat != nil {
		c.count.heartbeats.Add(1)
	} else {
		c.count.signed.Add(1)
	}
	switch {
	case res.Accepted:
		c.count.accepted.Add(1)
	case res.Counter > 0:
		c.count.late.Add(1)
	case res.Error != "":
		c.count.refused.Add(1)
	}
}

// apply lets one checked report count. Under c.mu.
func (c *Collector) apply(s *said) (result, error) {
	now := c.now()
	var h *host
	if co := c.cohorts[s.cohort]; co != nil {
		h = co.hosts[s.host]
	}
	if h == nil {
		if s.beat != nil {
			return result{signed: true}, nil
		}
		if c.fleet != nil && !c.inFleet(s.cohort) {
			return result{}, refuse(http.StatusBadRequest, "correct `cohort` in agent.yaml, or add the cohort to the fleet", "release %d has no cohort %s", c.fleetAt, s.cohort)
		}
		if c.hosts >= maxHosts {
			return result{}, refuse(http.StatusServiceUnavailable, "", "the collector knows %d hosts and takes no more", c.hosts)
		}
		h = &host{name: s.host}
		h.listed = c.roster.has(s.cohort, s.host)
		c.cohortOf(s.cohort).hosts[s.host] = h
		c.hosts++
	}
	var got result
	if s.beat != nil {
		if got = h.beat(s.boot, s.counter, s.beat.Digest, now); got.accepted {
			h.probed = probed{}
		}
	} else {
		before := h.report
		if got = h.take(s.report, s.envelope.Digest(), now); got.accepted {
			h.report, h.probed = c.shapes.swap(before, h.report), probedOf(s.report)
		}
		if got.older && now.Sub(h.said) >= olderAgain {
			h.said = now
			c.log.Warn("a report is refused as one that is sent again", "cohort", s.cohort, "host", s.host, "err", got.refused)
		}
	}
	if got.accepted || got.changed {
		var env *manifest.Envelope
		if got.accepted {
			env = s.envelope
		}
		c.dirty.host(s.cohort, s.host, env)
		wake(c.flushNow)
	}
	return got, nil
}

// share is how many items of a post are checked in a row: half of what a report costs is its signature, and a gateway's post has hundreds of them.
const share = 16

// checkAll checks the items of a post, on all processors if there are many.
func (c *Collector) checkAll(items []api.ReportItem) ([]said, []error) {
	list, errs := make([]said, len(items)), make([]error, len(items))
	var next atomic.Int64
	work := func() {
		for {
			from := int(next.Add(share)) - share
			if from >= len(items) {
				return
			}
			for i := from; i < min(from+share, len(items)); i++ {
				list[i], errs[i] = c.check(items[i])
			}
		}
	}
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), (len(items)+share-1)/share) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	return list, errs
}

// check decodes and verifies one item without looking at what is known.
func (c *Collector) check(item api.ReportItem) (said, error) {
	switch {
	case (item.Signed == nil) == (item.Heartbeat == nil):
		return said{}, errors.New("needs exactly one of signed and heartbeat")
	case item.Heartbeat != nil:
		return c.checkBeat(item.Heartbeat)
	}
	e := item.Signed
	// A report names its own key, so this payload is decoded before its signature is checked: strictly, and within limits.
	r, err := report.Decode(e.Payload)
	if err != nil {
		return said{}, err
	}
	s := said{cohort: r.Cohort, host: r.Host, boot: r.Boot, counter: r.Counter, report: r, envelope: e}
	pub := ed25519.PublicKey(r.Key)
	if _, err := e.VerifySignatures(manifest.KindReport, map[string]ed25519.PublicKey{manifest.KeyIDOf(pub): pub}); err != nil {
		s.refused = fmt.Sprintf("report of host %s: %v: it must be signed by the key that it names", r.Host, err)
	}
	if s.refused == "" {
		s.refused = c.foreign(r.Repo, r.Store)
	}
	return s, nil
}

// foreign says why a report does not belong here, or "".
func (c *Collector) foreign(repo, storeID string) string {
	if repo != c.repo {
		return fmt.Sprintf("the report is of repo %s; this collector serves %s", repo, c.repo)
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if storeID != "" && c.trust.Store != "" && storeID != c.trust.Store {
		return fmt.Sprintf("the report is of store %s; this collector reads store %s", storeID, c.trust.Store)
	}
	return ""
}

func (c *Collector) checkBeat(b *api.Heartbeat) (said, error) {
	switch {
	case !manifest.ValidRepo(b.Repo):
		return said{}, errors.New("repo: not a repository name")
	case !manifest.ValidName(b.Cohort):
		return said{}, fmt.Errorf("cohort: %.80q is not a name", b.Cohort)
	case !manifest.ValidHost(b.Host):
		return said{}, fmt.Errorf("host: %.80q is not a host name", b.Host)
	case !report.ValidBoot(b.Boot):
		return said{}, errors.New("boot: not an id")
	case b.Counter == 0 || b.Counter > manifest.MaxCounter:
		return said{}, errors.New("counter: not from 1 to below 2^53")
	case !manifest.ValidDigest(b.Digest):
		return said{}, errors.New("digest: not a digest")
	}
	s := said{cohort: b.Cohort, host: b.Host, boot: b.Boot, counter: b.Counter, beat: b}
	if b.Repo != c.repo {
		s.refused = c.foreign(b.Repo, "")
		return s, nil
	}
	// A wrong MAC may mean that the collector lost its secret: the host proves itself with a signature.
	s.signed = !hmac.Equal(api.HeartbeatMAC(c.heartbeatKey(b.Cohort, b.Host, b.Boot), *b), b.MAC)
	return s, nil
}

// heartbeatKey is the key of one boot: derived, so that it needs no memory and survives a restart.
func (c *Collector) heartbeatKey(cohort, host, boot string) []byte {
	mac := hmac.New(sha256.New, c.secret)
	fmt.Fprintf(mac, "muster heartbeat key\n%s\n%s\n%s\n%s", c.repo, cohort, host, boot)
	return mac.Sum(nil)
}
