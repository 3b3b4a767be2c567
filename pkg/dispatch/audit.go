package dispatch

import (
	"errors"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Outcomes of records beside those of receipts.
const (
	// outcomeUnknown is of a run in Raw mode that was lost.
	outcomeUnknown = "unknown"
)

// note records what became of an order. a is nil when it was never answered; the order's envelope is missing when an
// earlier process gave it.
func (d *Dispatcher) note(j *job, e *expectation, a *answer) {
	if d.options.Audit == nil {
		return
	}
	j.noted = true
	r := wire.Record{
		Time: d.options.Now().UTC().Truncate(time.Millisecond), Mode: wire.ModeVerified, Host: j.host.Name, HostID: j.host.HostID,
		NodeClaim: j.request.ClaimName, Claim: e.claim, Profile: e.profile, Version: e.version, Phase: string(e.phase),
		Script: e.script, Parameters: e.parameters, OrderDigest: e.order, Order: e.envelope,
	}
	if e.envelope != nil {
		r.DispatchKey = signedBy(e.envelope, j.docs.root.Dispatch.Keys)
	}
	if a != nil {
		c := a.receipt
		r.Receipt, r.Outcome, r.Reason = a.envelope, string(c.Outcome), string(c.Reason)
		r.ExitCode, r.Signal = c.ExitCode, c.Signal
		if !e.known {
			r.Parameters = c.Parameters
		}
	}
	d.options.Audit.record(r)
}

// signedBy is the id of the first key that has signed an order, and empty when none of keys has.
func signedBy(envelope []byte, keys []signing.Key) string {
	in, err := signing.Inspect(envelope, keys...)
	if err != nil || len(in.SignedBy) == 0 {
		return ""
	}
	return in.SignedBy[0].ID()
}

// noteRaw records a run that nothing vouches for.
func (d *Dispatcher) noteRaw(host Host, request *Request, err error) {
	if d.options.Audit == nil {
		return
	}
	r := wire.Record{
		Time: d.options.Now().UTC().Truncate(time.Millisecond), Mode: wire.ModeRaw, Host: host.Name,
		NodeClaim: request.ClaimName, Claim: request.Claim, Profile: request.Profile, Version: request.Version,
		Phase: string(request.Phase), Script: signing.Digest(request.Script), Outcome: string(signing.OutcomeOK),
	}
	if params, err := signing.EncodeParameters(request.Parameters); err == nil {
		r.Parameters = signing.Digest(params)
	}
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			e = fromRemote(err)
		}
		switch {
		case e.Class == ScriptFailed:
			r.Outcome, r.ExitCode = string(signing.OutcomeFailed), e.ExitCode
		case e.Class == Timeout:
			r.Outcome = string(signing.OutcomeTimeout)
		case e.Class == Unreachable && e.Reason == ReasonInterrupted:
			r.Outcome = outcomeUnknown
		default:
			return // nothing ran
		}
	}
	d.options.Audit.record(r)
}
