package dispatch

import (
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Mode is how a script reaches its host.
type Mode string

// Modes.
const (
	// Verified runs signed orders through the host's shim.
	Verified Mode = "Verified"
	// Raw runs scripts as they are with "sudo -n". See Options.AllowRaw.
	Raw Mode = "Raw"
)

// Host is where to run something, and how to know that it is the right one.
type Host struct {
	// Name is the SSHHost's, for messages.
	Name   string
	Target remote.Target
	Mode   Mode
	// HostID and ReceiptKey are the host's identity from enrolment; only in Verified.
	HostID     string
	ReceiptKey signing.Key
}

// Request is one phase to run for one claim.
type Request struct {
	Phase signing.Phase
	// Profile and Version are the join profile's name and version.
	Profile string
	Version string
	// Script is the rendered script.
	Script []byte
	// Claim is the claim that the host is to hold, or to be freed of; empty only for a leave that belongs to none.
	Claim string
	// EarlierClaim is how Claim was spelled before, by a controller of an earlier version: a host that holds it, or
	// whose last run was for it, is ordered in that spelling. It may be empty.
	EarlierClaim string
	// ClaimName is the NodeClaim's name, for the audit log.
	ClaimName string
	// Fence is the fence that the claim was issued with. A host that has seen a higher one refuses.
	Fence      int64
	Parameters map[string]string
	// Secrets travel beside the order, never in it, and are taken out of all text of the host.
	Secrets map[string]string
	// Timeout is how long the script may run, enforced on the host, in whole seconds.
	Timeout time.Duration
	// MaxClockSkew is how far the clock of a host may be from ours when it is ordered; no matter how far when zero. Only a
	// host with the shim is held to it.
	MaxClockSkew time.Duration
	// RetryFailed runs a script again whose last run for this claim failed, where otherwise that
	// failure is returned once more.
	RetryFailed bool
}

// Result is a run that ended well.
type Result struct {
	// Receipt is what the host signed, and Envelope the bytes that it signed it in. Nil in Raw mode.
	Receipt  *signing.Receipt
	Envelope []byte
	// Output is what the script printed: its head and tail, in one line, sanitised, without secrets.
	Output string
	// Reused says that the run had been ordered before, by this process or another one.
	Reused bool
}

// Probe is what a host says about itself.
type Probe struct {
	// Facts are not signed: hints, checked against their schema.
	Facts wire.HostFacts
	// Hello is what the host signed, after it was brought newer documents if it lacked any; nil in Raw mode.
	Hello *signing.Hello
	// Behind says why the host does not have the cluster's newest documents: there are none that verify, it
	// refused them, or it trusts another chain of roots. Nil when it has them, and in Raw mode.
	Behind error
	// Unfit is why the host would be given no order but to leave; nil when it is fit, and in Raw mode.
	Unfit *Error
	// HostKeyFingerprint is of the key that the host proved to hold.
	HostKeyFingerprint string
	// UserKeyFingerprint is of the key that the host accepted from us.
	UserKeyFingerprint string
	Duration           time.Duration
}

// Versions are those of the signed documents, with their digests, since two documents may have one version, and the time
// until which each holds.
type Versions struct {
	Root, Allowlist               int64
	RootDigest, AllowlistDigest   string
	RootExpires, AllowlistExpires time.Time
	// DispatchKeyListed says whether the root lists the key that orders are signed with. False, too, while it is not
	// known which key that is.
	DispatchKeyListed bool
}

// Same says whether both are of the same documents.
func (v Versions) Same(other Versions) bool {
	return v.Root == other.Root && v.Allowlist == other.Allowlist && v.RootDigest == other.RootDigest && v.AllowlistDigest == other.AllowlistDigest
}

// Trust hands out the signed documents, from wherever they are kept. It is asked for every request,
// so that new documents count at once.
type Trust interface {
	// Documents returns the envelopes of the roots by version, without a gap, and of the allowlist.
	Documents() (roots map[int64][]byte, allowlist []byte, err error)
}
