package shim

import (
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// job is an order with all that belongs to it, each part checked as it came in.
type job struct {
	digest   string
	envelope []byte // as it was signed
	order    *signing.Order
	allowed  *signing.AllowedScript
	params   map[string]string
	script   []byte
	secrets  map[string]string
}

// documents takes the documents that a session may begin with, each checked and kept before the next is
// read, and returns the frame behind them: an order, or a probe for a host that nobody has an order for.
func (s *session) documents(t wire.Type, payload []byte) (wire.Type, []byte, error) {
	for roots := 0; t == wire.Root; {
		if roots++; roots > wire.MaxRoots {
			return t, nil, refuse(signing.ReasonTooLarge, "more than %d roots", wire.MaxRoots)
		}
		next, err := s.trust.rollRoot(s.host.dir, payload)
		if err != nil {
			return t, nil, err
		}
		s.trust = next
		if t, payload, err = s.must(); err != nil {
			return t, nil, err
		}
	}
	if t != wire.Allowlist {
		return t, payload, nil
	}
	next, err := s.trust.rollAllowlist(s.host.dir, payload)
	if err != nil {
		return t, nil, err
	}
	s.trust = next
	return s.must()
}

// order takes an order and what belongs to it, and runs it. The checks are made in the
// order of the frames, each of them before the next frame is read:
//
//	cap, frame                        wire
//	base64, signatures, strict parse  signing
//	host, challenge                   this host, this session
//	allowlist, script digest          the list that this host has now
//	expiry                            of root and list
//	parameters                        digest, schema, pins
//	script, secrets                   digest, commitments
//	one run at a time                 lock
//	fence and claim                   durable state
//
// and then started is written, and only then anything runs.
func (s *session) order(ctx context.Context, first wire.Type, payload []byte) error {
	if first != wire.Order {
		return unexpected(first, wire.Order)
	}
	var j job
	if err := s.checkOrder(&j, payload); err != nil {
		return err
	}
	if err := s.checkRest(&j); err != nil {
		return err
	}
	return s.run(ctx, &j)
}

// must reads a frame where the end of the stream is a fault.
func (s *session) must() (wire.Type, []byte, error) {
	t, payload, err := s.next()
	if errors.Is(err, io.EOF) {
		err = refuse(signing.ReasonMalformed, "session ends before the order is complete")
	}
	return t, payload, err
}

func unexpected(got, want wire.Type) error {
	return refuse(signing.ReasonUnexpectedFrame, "%s frame where %s is due", got, want)
}

// checkOrder believes an order that is signed for dispatch, meant for this host and this session,
// and names a script of the list that this host has.
func (s *session) checkOrder(j *job, envelope []byte) error {
	if digest, err := signing.PayloadDigest(envelope); err == nil {
		s.answer.Order, j.digest = digest, digest
	}
	order, err := signing.OpenOrder(envelope, s.trust.root)
	if err != nil {
		return err
	}
	j.order, j.envelope = order, envelope
	if order.HostID != s.host.id {
		return refuse(signing.ReasonWrongHost, "order is for host %s", order.HostID)
	}
	if subtle.ConstantTimeCompare(order.Challenge, s.challenge) != 1 {
		return refuse(signing.ReasonStaleChallenge, "order is for another session")
	}
	s.answer.Claim, s.answer.Fence = order.Claim, order.Fence
	s.answer.Profile, s.answer.Version, s.answer.Phase = order.Profile, order.Version, order.Phase
	s.answer.Script, s.answer.Parameters = order.Script, order.Parameters
	if s.trust.list == nil {
		return refuse(signing.ReasonNotAllowed, "host has no allowlist of an author that its root lists")
	}
	if order.Allowlist != s.trust.listRef.Digest {
		return refuse(signing.ReasonRollback, "order names allowlist %s, host has %s", order.Allowlist, s.trust.listRef.Digest)
	}
	if j.allowed, err = s.trust.list.Find(order.Profile, order.Version, order.Phase, order.Script); err != nil {
		return err
	}
	if wire.OlderThan(s.host.cfg.Build.Version, s.trust.list.MinShim) {
		return refuse(signing.ReasonShimTooOld, "shim is %s, allowlist asks for %s", s.host.cfg.Build.Version, s.trust.list.MinShim)
	}
	return s.trust.checkExpiry(j.allowed, s.host.cfg.Now(), s.host.cfg.Build.Time)
}

// checkRest reads and checks what belongs to an order.
func (s *session) checkRest(j *job) error {
	t, payload, err := s.must()
	if err != nil {
		return err
	}
	if t != wire.Parameters {
		return unexpected(t, wire.Parameters)
	}
	if err := j.checkParameters(payload); err != nil {
		return err
	}
	if t, payload, err = s.must(); err != nil {
		return err
	}
	if t == wire.Script {
		j.script = payload
		if t, payload, err = s.must(); err != nil {
			return err
		}
	} else {
		j.script = s.host.keptScript(j.order.Script)
	}
	if t != wire.Secrets {
		return unexpected(t, wire.Secrets)
	}
	if j.script == nil {
		return unexpected(t, wire.Script)
	}
	if signing.Digest(j.script) != j.order.Script {
		return refuse(signing.ReasonNotAllowed, "script has digest %s, order names %s", signing.Digest(j.script), j.order.Script)
	}
	return j.checkSecrets(s.challenge, payload)
}

func (j *job) checkParameters(frame []byte) error {
	if got := signing.Digest(frame); got != j.order.Parameters {
		return refuse(signing.ReasonParam, "parameters have digest %s, order names %s", got, j.order.Parameters)
	}
	var err error
	if j.params, err = signing.DecodeParameters(frame); err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(j.order.Secrets))
	for _, name := range append(slices.Collect(maps.Keys(j.params)), names...) {
		if !strings.HasPrefix(name, "KPSSH_") {
			return refuse(signing.ReasonParam, "%.80q is not a KPSSH_ name", name)
		}
	}
	return j.allowed.Check(j.params, names)
}

func (j *job) checkSecrets(challenge, frame []byte) error {
	var err error
	if j.secrets, err = signing.DecodeParameters(frame); err != nil {
		return err
	}
	if len(j.secrets) != len(j.order.Secrets) {
		return refuse(signing.ReasonSecretMismatch, "%d secrets came, order names %d", len(j.secrets), len(j.order.Secrets))
	}
	for name, value := range j.secrets {
		if j.order.Secrets[name] != signing.Commitment(challenge, name, value) {
			return refuse(signing.ReasonSecretMismatch, "secret %.80q is not the one that the order commits to", name)
		}
	}
	return j.allowed.CheckSecrets(j.secrets)
}

// admit holds an order against who has the host, and returns who has it from the start of the run.
func admit(held signing.Claim, o *signing.Order) (signing.Claim, error) {
	leaving := o.Phase == signing.PhaseLeave || o.Phase == signing.PhaseUninstall
	same := held.UID == o.Claim && o.Fence >= held.Fence
	free := held.UID == "" && o.Fence > held.Fence
	switch {
	case leaving && (same || held.UID == "" && o.Fence >= held.Fence):
		return signing.Claim{UID: held.UID, Fence: o.Fence}, nil
	case !leaving && o.Claim != "" && (same || free):
		return signing.Claim{UID: o.Claim, Fence: o.Fence}, nil
	}
	return held, refuse(signing.ReasonStaleFence, "order of claim %q, fence %d; host is held by %q, fence %d",
		o.Claim, o.Fence, held.UID, held.Fence)
}

// deadline is how long an order lets its script run.
func (j *job) deadline() time.Duration { return time.Duration(j.order.TimeoutSeconds) * time.Second }
