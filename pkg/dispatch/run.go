package dispatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// job is a request on its way through a session.
type job struct {
	host    Host
	request Request
	docs    *documents
	script  string // digest
	clean   cleaner
	noted   bool // in the audit log
}

func (d *Dispatcher) runVerified(ctx context.Context, host Host, request Request) (*Result, error) {
	j, err := d.prepare(host, request)
	if err != nil {
		return nil, err
	}
	s, err := d.open(ctx, host)
	if err != nil {
		return nil, err
	}
	defer s.close()
	j.request.spellClaim(s.hello)
	switch j.fate(s.hello) {
	case fateCollect:
		return d.collectEnded(s, j)
	case fateWait:
		expected := ofRun(s.hello.LastRun)
		s.close()
		return d.await(ctx, j, expected, time.Duration(s.hello.LastRun.Deadline)*time.Second)
	case fateBusy:
		return nil, &Error{
			Class: Busy, Reason: string(signing.ReasonBusy), HostClaim: s.hello.Claim,
			Detail: fmt.Sprintf("%s of claim %q runs", s.hello.LastRun.Phase, s.hello.LastRun.Claim),
		}
	}
	return d.order(ctx, s, j)
}

// prepare finds out what can be found out without the host.
func (d *Dispatcher) prepare(host Host, request Request) (*job, error) {
	docs, err := d.trust.load()
	if err != nil {
		return nil, err
	}
	allowed, err := docs.allowed(request.Profile, request.Version, request.Phase, request.Script, d.options.Now())
	if err != nil {
		return nil, err
	}
	err = allowed.Check(request.Parameters, slices.Sorted(maps.Keys(request.Secrets)))
	if err == nil {
		err = allowed.CheckSecrets(request.Secrets)
	}
	if err != nil {
		return nil, &Error{Class: Config, Reason: string(signing.ReasonOf(err)), Detail: fmt.Sprintf("checking parameters against the allowlist: %v", err)}
	}
	if len(request.Secrets) > 0 && !host.Target.HostKey.Pinned() {
		// Whoever holds a stolen SSH key could stand in between and pass the real host's hello on.
		return nil, &Error{Class: Config, Reason: ReasonHostKeyUnpinned, Detail: "no host key is pinned: secrets are not sent to a host that nobody has vouched for"}
	}
	if d.options.Signer == nil {
		return nil, &Error{Class: Config, Reason: ReasonSigner, Detail: "no dispatch key to sign orders with"}
	}
	return &job{
		host: host, request: request, docs: docs, script: signing.Digest(request.Script), clean: newCleaner(request.Secrets),
	}, nil
}

type fate int

const (
	fateOrder   fate = iota // nothing of the kind has run
	fateWait                // it runs
	fateCollect             // it has ended
	fateBusy                // something else runs
)

// fate decides by the last run of the host what becomes of a request.
func (j *job) fate(hello *signing.Hello) fate {
	last := hello.LastRun
	switch {
	case last == nil || last.State == signing.RunInterrupted:
		return fateOrder
	case last.State == signing.RunStarted && j.is(last):
		return fateWait
	case last.State == signing.RunStarted:
		return fateBusy
	case j.is(last) && (last.Outcome == signing.OutcomeOK || !j.request.RetryFailed):
		return fateCollect
	}
	return fateOrder
}

// spellClaim takes the earlier spelling of the claim where that is the host's.
func (r *Request) spellClaim(hello *signing.Hello) {
	held := hello.Claim.UID
	if held == "" && hello.LastRun != nil {
		held = hello.LastRun.Claim
	}
	if r.EarlierClaim != "" && held == r.EarlierClaim {
		r.Claim = held
	}
}

// is tells whether a run is the one that is asked for. What belongs to no claim is always a new one.
func (j *job) is(run *signing.RunRef) bool {
	r := &j.request
	return r.Claim != "" && run.Claim == r.Claim && run.Phase == r.Phase &&
		run.Profile == r.Profile && run.Version == r.Version && run.Script == j.script
}

// admissible tells beforehand what a host would refuse because of who holds it.
func (r *Request) admissible(held signing.Claim) error {
	class, reason := StaleFence, string(signing.ReasonStaleFence)
	switch {
	case held.UID != "" && held.UID != r.Claim:
		class, reason = StaleClaim, ReasonHostClaimed
	case r.Fence > held.Fence:
		return nil
	case r.Fence == held.Fence && (leaving(r.Phase) || held.UID == r.Claim):
		return nil
	}
	return &Error{
		Class: class, Reason: reason, HostClaim: held,
		Detail: fmt.Sprintf("order of claim %q with fence %d, host is held by %q with fence %d", r.Claim, r.Fence, held.UID, held.Fence),
	}
}

// inTime says why a host's clock is too wrong for what is asked: a token or a certificate would not be valid there.
func (r *Request) inTime(hello *signing.Hello, now time.Time) error {
	skew := hello.Clock.Sub(now)
	if r.MaxClockSkew <= 0 || skew.Abs() <= r.MaxClockSkew {
		return nil
	}
	return &Error{
		Class: Config, Reason: ReasonClockSkew,
		Detail: fmt.Sprintf("the host's clock is %+.0f s from ours, at most %.0f s will do: let chrony or systemd-timesyncd set it",
			skew.Seconds(), r.MaxClockSkew.Seconds()),
	}
}

// order signs an order for the session and sends it with all that belongs to it.
func (d *Dispatcher) order(ctx context.Context, s *session, j *job) (*Result, error) {
	frames, err := j.docs.missing(s.hello)
	if err != nil {
		return nil, err
	}
	if unfit := d.unfit(s.hello, j.docs); unfit != nil && !leaving(j.request.Phase) {
		return nil, unfit // it may have become so since it was probed
	}
	if err := j.request.admissible(s.hello.Claim); err != nil {
		return nil, err
	}
	if err := j.request.inTime(s.hello, d.options.Now()); err != nil {
		return nil, err
	}
	body, expected, err := d.sign(ctx, s.hello, j)
	if err != nil {
		return nil, err
	}
	defer func() {
		if !j.noted {
			d.note(j, &expected, nil)
		}
	}()
	a, err := s.ask(j.request.Timeout+d.options.ReceiptMargin, append(frames, body...)...)
	var cut *errCut
	if errors.As(err, &cut) {
		if ctx.Err() != nil {
			return nil, interrupted(context.Cause(ctx))
		}
		s.close()
		expected.collected = true
		return d.await(ctx, j, expected, j.request.Timeout)
	}
	if err != nil {
		return nil, err
	}
	if err := expected.check(j.host.HostID, s.hello.Challenge, a); err != nil {
		return nil, err
	}
	d.note(j, &expected, a)
	return d.verdict(a, j.clean, j.docs, s.hello.Claim)
}

// sign makes the order and the frames that go with it.
func (d *Dispatcher) sign(ctx context.Context, hello *signing.Hello, j *job) ([]frame, expectation, error) {
	r := &j.request
	params, err := signing.EncodeParameters(r.Parameters)
	if err != nil {
		return nil, expectation{}, refusedHere(err)
	}
	secrets, err := signing.EncodeParameters(r.Secrets)
	if err != nil {
		return nil, expectation{}, refusedHere(err)
	}
	commitments := make(map[string]string, len(r.Secrets))
	for name, value := range r.Secrets {
		commitments[name] = signing.Commitment(hello.Challenge, name, value)
	}
	order := &signing.Order{
		HostID: hello.HostID, Challenge: hello.Challenge, Allowlist: j.docs.listRef,
		Profile: r.Profile, Version: r.Version, Phase: r.Phase, Script: j.script,
		Claim: r.Claim, Fence: r.Fence, Parameters: signing.Digest(params), Secrets: commitments,
		TimeoutSeconds: int64(r.Timeout / time.Second),
	}
	envelope, err := signing.Sign(ctx, order, d.options.Signer)
	if err != nil {
		if ctx.Err() != nil {
			return nil, expectation{}, interrupted(context.Cause(ctx))
		}
		if signing.ReasonOf(err) != "" {
			return nil, expectation{}, refusedHere(err)
		}
		return nil, expectation{}, &Error{Class: Config, Reason: ReasonSigner, Detail: fmt.Sprintf("signing order: %v", err)}
	}
	digest, err := signing.PayloadDigest(envelope)
	if err != nil {
		return nil, expectation{}, refusedHere(err)
	}
	frames := []frame{{wire.Order, envelope}, {wire.Parameters, params}}
	if !slices.Contains(hello.Scripts, j.script) {
		frames = append(frames, frame{wire.Script, r.Script})
	}
	return append(frames, frame{wire.Secrets, secrets}), expectation{
		order: digest, envelope: envelope, challenge: hello.Challenge, claim: r.Claim, fence: r.Fence, profile: r.Profile, version: r.Version,
		phase: r.Phase, script: j.script, parameters: order.Parameters, known: true,
	}, nil
}

// refusedHere is for what package signing does not sign.
func refusedHere(err error) error {
	reason := string(signing.ReasonOf(err))
	if reason == "" {
		reason = ReasonRequest
	}
	return &Error{Class: Config, Reason: reason, Detail: fmt.Sprintf("making the order: %v", err)}
}

// interrupted is for a run of which it is not known how it ended.
func interrupted(cause error) error {
	return &Error{Class: Unreachable, Reason: ReasonInterrupted, Detail: fmt.Sprintf("lost the run before its receipt: %v", cause), Err: cause}
}
