package dispatch

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Class is what kind of trouble an Error is.
type Class string

// Classes.
const (
	// Unreachable: no connection, or one that was lost for good, or a run that the host lost to a
	// reboot. Run again later: it first asks the host what became of the run.
	Unreachable Class = "Unreachable"
	// AuthRejected: the host takes none of the SSH keys.
	AuthRejected Class = "AuthRejected"
	// HostKeyMismatch: another host answered. Nothing was sent.
	HostKeyMismatch Class = "HostKeyMismatch"
	// Refused: the host ran nothing. Reason is one of signing's, or one of those below.
	Refused Class = "Refused"
	// ScriptFailed: the script ran and failed.
	ScriptFailed Class = "ScriptFailed"
	// Timeout: the script's time was up, or the host owes a receipt.
	Timeout Class = "Timeout"
	// Untrusted: an answer that does not verify. Nothing it says is believed.
	Untrusted Class = "Untrusted"
	// Config: found wrong before anything was dialled.
	Config Class = "Config"
	// Busy: another run goes on.
	Busy Class = "Busy"
	// NotHardened: the host's own doctor found what the operator does not tolerate. Nothing was sent.
	NotHardened Class = "HostNotHardened"
	// StaleFence: the host has seen a higher fence, HostClaim.Fence.
	StaleFence Class = "StaleFence"
	// StaleClaim: the host is held by another claim, HostClaim, which has to leave first.
	StaleClaim Class = "StaleClaim"
)

func classes() []Class {
	return []Class{
		Unreachable, AuthRejected, HostKeyMismatch, Refused, ScriptFailed, Timeout, Untrusted, Config, Busy, NotHardened, StaleFence, StaleClaim,
	}
}

// refusal says whether somebody refused: the host, or we before there was anything for it to refuse.
func (c Class) refusal() bool {
	switch c {
	case Refused, Busy, StaleFence, StaleClaim, Untrusted, Config, NotHardened:
		return true
	}
	return false
}

// Reasons beside those of package signing and of package remote.
const (
	ReasonExit             = "exit"             // ScriptFailed: exit status in ExitCode
	ReasonSignal           = "signal"           // ScriptFailed: killed by a signal
	ReasonDeadline         = "deadline"         // Timeout: the script's
	ReasonNoReceipt        = "no-receipt"       // Timeout: of the answer
	ReasonInterrupted      = "interrupted"      // Unreachable: the run did not come to its end, or never began
	ReasonNoHello          = "no-hello"         // Untrusted: nothing there speaks the protocol
	ReasonWrongIdentity    = "wrong-identity"   // Untrusted: hello of another host or key
	ReasonForeignRoot      = "foreign-root"     // Untrusted: the host trusts another chain of roots
	ReasonReceiptMismatch  = "receipt-mismatch" // Untrusted: the receipt answers something else
	ReasonProtocol         = "protocol"         // Untrusted: not what the protocol allows
	ReasonClockSkew        = "clock-skew"       // Refused: expired by the host's clock only; Config: too far from ours
	ReasonHostClaimed      = "claimed"          // StaleClaim
	ReasonTrustMissing     = "trust-missing"    // Config: documents cannot be read or do not verify
	ReasonTarget           = "target"           // Config: address, user, keys or host key pin
	ReasonRequest          = "request"          // Config: the request itself
	ReasonIdentityMissing  = "identity-missing" // Config: no hostID or receipt key in the SSHHost
	ReasonHostKeyUnpinned  = "HostKeyUnpinned"  // Config: no secret goes to a host whose key nobody pinned
	ReasonFindings         = "findings"         // NotHardened
	ReasonSigner           = "signer"           // Config: the dispatch key does not sign
	ReasonRawNotAllowed    = "raw-not-allowed"  // Config
	ReasonSudoPassword     = "SudoPasswordRequired"
	ReasonSudoRequiresTTY  = "SudoRequiresTTY"
	ReasonSudoUnavailable  = "SudoUnavailable"
	ReasonSudoNotPermitted = "SudoNotPermitted"
)

// refusalReasons are those of the classes that are refusals.
func refusalReasons() []string {
	all := []string{
		ReasonNoHello, ReasonWrongIdentity, ReasonForeignRoot, ReasonReceiptMismatch, ReasonProtocol, ReasonClockSkew, ReasonHostClaimed,
		ReasonTrustMissing, ReasonTarget, ReasonRequest, ReasonIdentityMissing, ReasonHostKeyUnpinned, ReasonFindings, ReasonSigner,
		ReasonRawNotAllowed, ReasonSudoPassword, ReasonSudoRequiresTTY, ReasonSudoUnavailable, ReasonSudoNotPermitted,
	}
	for _, reason := range reasons() {
		all = append(all, string(reason))
	}
	return all
}

// Error is why a request came to no good end. Its text is safe to show: text of the host in it is
// sanitised, secrets are taken out.
type Error struct {
	Class  Class
	Reason string
	Host   string
	Phase  signing.Phase
	// Detail says what happened, in our words.
	Detail string
	// Output is what the script printed, as in Result; empty when nothing ran.
	Output string
	// ExitCode is the script's, when Reason is ReasonExit.
	ExitCode int
	// HostClaim is who holds the host, by its own hello, and the highest fence that it has seen.
	HostClaim signing.Claim
	// Receipt is the verified receipt that says so, when there is one.
	Receipt *signing.Receipt
	// RetryAt is when a host that rejected our keys, or asked for a pause, is dialled again at the earliest.
	RetryAt time.Time
	// Err is the cause, when it is one of ours: a context's end, an error of package remote.
	Err error
}

// maxErrorOutput is how much of the output, its end, an error's text shows.
const maxErrorOutput = 200

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	switch {
	case e.Host == "":
		b.WriteString("checking what may run")
	case e.Phase == "":
		fmt.Fprintf(&b, "asking host %q", e.Host)
	default:
		fmt.Fprintf(&b, "running %s on host %q", e.Phase, e.Host)
	}
	fmt.Fprintf(&b, ": %s (%s)", e.Class, e.Reason)
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Output != "" {
		b.WriteString(": " + last(e.Output, maxErrorOutput))
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// atJump says whether a jump host takes no key, is another one, or forwards nothing: that is for somebody to put right
// there or in the cluster. One that is out of reach is no better than a host that is.
func (e *Error) atJump() bool {
	var jump *remote.JumpError
	return errors.As(e.Err, &jump) && (e.Class == AuthRejected || e.Class == HostKeyMismatch || e.Reason == remote.ReasonForwarding)
}

// IsConfiguration tells what somebody has to change in the cluster (a profile, a signature, a key, an
// object) from what is wrong with the host. A host is not to be blamed for the former.
func (e *Error) IsConfiguration() bool {
	if e.Class == Config || e.atJump() {
		return true
	}
	if e.Class != Refused {
		return false
	}
	switch signing.Reason(e.Reason) {
	case signing.ReasonMalformed, signing.ReasonTooLarge, signing.ReasonUntrusted, signing.ReasonWrongType,
		signing.ReasonRollback, signing.ReasonExpired, signing.ReasonNotAllowed, signing.ReasonParam,
		signing.ReasonPin, signing.ReasonSecretMismatch, signing.ReasonUnexpectedFrame:
		return true
	}
	return false
}
