package verdict

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/muster-config/muster/distributor/manifest"
	"github.com/muster-config/muster/distributor/report"
)

// ErrForged is a report that the host did not sign, or not as this host: somebody made it or took it from elsewhere. Every other error of Prove is a report that is
// genuine and does not say that the host is confirmed.
var ErrForged = errors.New("not to be believed")

// Claim is what somebody says that a host has confirmed, with what is there to prove it.
type Claim struct {
	Host string
	View *manifest.View // a head that the asking side verified itself
	Good func(epoch uint64) bool
	// Variants is the document in which the statement that View assigns keeps its host variants, if it does; see Assigned.
	Variants *manifest.Variants
	Signed   *manifest.Envelope
	Pinned   ed25519.PublicKey // the host's identity key if it is known; nil: that in the report is taken for it
	Now      time.Time
}

// Proven is what a host's own signature says.
type Proven struct {
	Key   ed25519.PublicKey
	Epoch uint64
	At    time.Time // by the host's clock
}

// Prove says whether a host itself has signed that it runs what the head assigns to it. It proves that whoever has the key said so at a time, and no more: not that it
// still is so, and not that the key is that host's, unless it was known before.
func Prove(c Claim) (Proven, error) {
	r, err := c.open()
	if err != nil {
		return Proven{}, err
	}
	p := Proven{Key: r.Key, Epoch: r.Running, At: r.At}
	// An older report together with an older head would be a proof of what was, so it must be this very head. That one is not older than it may be is for the caller.
	switch seen, err := manifest.ParseMark(r.Seen); {
	case err != nil:
		return p, errors.New("it says that it has seen no order yet")
	case seen.Compare(c.View.Mark()) > 0:
		return p, fmt.Errorf("it has seen order %s, which is newer than %s that was shown here", r.Seen, c.View.Mark())
	case seen.Compare(c.View.Mark()) < 0:
		return p, fmt.Errorf("the newest that it signed is about order %s, and %s is the newest", r.Seen, c.View.Mark())
	}
	want, err := c.assigned(r)
	switch {
	case err != nil:
		return p, err
	case !c.Good(want.Epoch()) || want.Override != "":
		return p, fmt.Errorf("the head assigns epoch %d to it (%s)", want.Epoch(), want.Why)
	case want.Variants != nil:
		return p, errors.New("what is assigned to it cannot be looked up: its statement keeps host variants in an object that is not there")
	case r.Running != want.Epoch() || r.Desired != want.Epoch() || r.Override != "":
		return p, fmt.Errorf("it says that it runs epoch %d and wants epoch %d", r.Running, r.Desired)
	case r.Content != want.Content:
		return p, fmt.Errorf("it says that it runs content %.19s…, and %.19s… was signed", r.Content, want.Content)
	case r.Phase != report.PhaseIdle || !r.Confirmed || r.Mode != report.ModeEnforce || r.Drifted > 0 || len(r.Drift) > 0:
		return p, fmt.Errorf("it does not say that it is confirmed: %s", orUnsaid(r.Reason))
	}
	return p, nil
}

// Before says whether the newest that the host itself signed, as far as it is shown, is from before a release: it knew nothing of the release, by its clock and by what it
// states. That it signed nothing since it does not prove.
func Before(c Claim, rel *manifest.Release) bool {
	r, err := c.open()
	return err == nil && r.At.Before(rel.Created) && max(r.Desired, r.Attempted, r.Running) < rel.Epoch
}

// open gives the report if the host signed it as itself.
func (c Claim) open() (*report.Report, error) {
	if c.Signed == nil {
		return nil, errors.New("the collector does not hand out a report that it signed")
	}
	r, err := report.Decode(c.Signed.Payload)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForged, err)
	}
	pub := ed25519.PublicKey(r.Key)
	if _, err := c.Signed.VerifySignatures(manifest.KindReport, map[string]ed25519.PublicKey{manifest.KeyIDOf(pub): pub}); err != nil {
		return nil, fmt.Errorf("%w: its report: %w", ErrForged, err)
	}
	m := &c.View.Manifest
	switch {
	case c.Pinned != nil && !bytes.Equal(c.Pinned, pub):
		return nil, fmt.Errorf("%w: its report is signed by key %.8s…, and it was known by %.8s…", ErrForged, manifest.KeyIDOf(pub), manifest.KeyIDOf(c.Pinned))
	case r.Host != c.Host:
		return nil, fmt.Errorf("%w: the report that is shown for it is of host %s", ErrForged, r.Host)
	case r.Cohort != m.Cohort || r.Repo != m.Repo || r.Store != m.Store:
		return nil, fmt.Errorf("%w: its report is of another cohort, repo or store", ErrForged)
	}
	return r, nil
}

// Assigned is what the head assigns to the host of a claim, by the labels that its report states: Variants of it is set if the object of that name is needed.
func (c Claim) Assigned() (manifest.Resolution, error) {
	r, err := c.open()
	if err != nil {
		return manifest.Resolution{}, err
	}
	return c.assigned(r)
}

func (c Claim) assigned(r *report.Report) (manifest.Resolution, error) {
	want, err := manifest.Resolve(c.View, manifest.Host{Name: c.Host, Labels: r.Labels}, c.Now)
	if err == nil && want.Variants != nil && c.Variants != nil {
		want = want.WithVariants(c.Host, *c.Variants)
	}
	return want, err
}
