package dispatch

import (
	"bytes"
	"fmt"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// expectation is what a receipt must say to be the answer to one order. What is not known of an
// order of an earlier process is left zero: its digest, which the host named in a signed hello, binds
// the rest.
type expectation struct {
	order      string
	envelope   []byte // the order, where this process gave it
	challenge  []byte
	claim      string
	fence      int64
	profile    string
	version    string
	phase      signing.Phase
	script     string
	parameters string
	// known says that challenge, fence and parameters are.
	known bool
	// collected says that the output may be missing: the host has lost it.
	collected bool
}

// ofRun is what is expected of a run that a hello names.
func ofRun(run *signing.RunRef) expectation {
	return expectation{
		order: run.Order, claim: run.Claim, profile: run.Profile, version: run.Version, phase: run.Phase, script: run.Script,
		collected: true,
	}
}

func mismatch(field string) error {
	return &Error{Class: Untrusted, Reason: ReasonReceiptMismatch, Detail: fmt.Sprintf("receipt is of another run: field %s", field)}
}

// check holds an answer against what it must be an answer to. session is the challenge of the session
// in which it came.
func (e *expectation) check(hostID string, session []byte, a *answer) error {
	r := a.receipt
	if r.HostID != hostID {
		return mismatch("hostID")
	}
	if r.Outcome == signing.OutcomeRefused {
		return e.checkRefusal(session, a)
	}
	for _, field := range []struct {
		name  string
		holds bool
	}{
		{"order", r.Order == e.order},
		{"claim", r.Claim == e.claim},
		{"profile", r.Profile == e.profile},
		{"version", r.Version == e.version},
		{"phase", r.Phase == e.phase},
		{"script", r.Script == e.script},
		{"challenge", !e.known || bytes.Equal(r.Challenge, e.challenge)},
		{"fence", !e.known || r.Fence == e.fence},
		{"parameters", !e.known || r.Parameters == e.parameters},
		{"outcome", r.Outcome != signing.OutcomeOK || r.ExitCode == 0 && r.Signal == ""},
	} {
		if !field.holds {
			return mismatch(field.name)
		}
	}
	return e.checkOutput(a)
}

// checkRefusal accepts a refusal of this session only. It names the order unless the host never got
// as far as reading that.
func (e *expectation) checkRefusal(session []byte, a *answer) error {
	switch {
	case !bytes.Equal(a.receipt.Challenge, session):
		return mismatch("challenge")
	case a.receipt.Order != e.order && a.receipt.Order != "":
		return mismatch("order")
	case a.output.total > 0:
		return mismatch("output")
	}
	return nil
}

func (e *expectation) checkOutput(a *answer) error {
	ref := a.receipt.Output
	if a.output.total == 0 && (e.collected || a.receipt.Outcome == signing.OutcomeInterrupted) {
		return nil
	}
	if a.output.total != ref.Kept || a.output.sum() != ref.Digest {
		return mismatch("output")
	}
	return nil
}

// verdict turns a checked answer into a result or an error. holder is the claim of the hello.
func (d *Dispatcher) verdict(a *answer, clean cleaner, docs *documents, holder signing.Claim) (*Result, error) {
	r := a.receipt
	e := &Error{Output: a.output.text(clean), Receipt: r, HostClaim: holder}
	switch r.Outcome {
	case signing.OutcomeOK:
		return &Result{Receipt: r, Envelope: a.envelope, Output: e.Output}, nil
	case signing.OutcomeFailed:
		e.Class, e.Reason, e.ExitCode = ScriptFailed, ReasonExit, r.ExitCode
		e.Detail = fmt.Sprintf("exit status %d", r.ExitCode)
		if r.Signal != "" {
			e.Reason, e.Detail = ReasonSignal, "killed by "+r.Signal
		}
	case signing.OutcomeTimeout:
		e.Class, e.Reason, e.Detail = Timeout, ReasonDeadline, fmt.Sprintf("ended by its deadline after %d ms", r.DurationMillis)
	case signing.OutcomeInterrupted:
		e.Class, e.Reason, e.Detail = Unreachable, ReasonInterrupted, "the host lost the run before its end, to a reboot or a crash"
	default:
		d.refusal(e, docs)
	}
	return nil, e
}

// refusal gives a signed refusal its class.
func (d *Dispatcher) refusal(e *Error, docs *documents) {
	e.Class, e.Reason = Refused, string(e.Receipt.Reason)
	switch e.Receipt.Reason {
	case signing.ReasonBusy:
		e.Class, e.Detail = Busy, fmt.Sprintf("order %s runs", e.Receipt.Running)
	case signing.ReasonStaleFence:
		e.Class = StaleFence
		e.Detail = fmt.Sprintf("host is held by %q with fence %d", e.HostClaim.UID, e.HostClaim.Fence)
	case signing.ReasonExpired:
		if docs != nil && docs.expired(&signing.AllowedScript{}, d.options.Now()) == nil {
			e.Reason, e.Detail = ReasonClockSkew, "documents are expired by the host's clock only"
		}
	default:
		e.Detail = "the host refused the order and ran nothing"
	}
}
