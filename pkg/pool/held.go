package pool

import (
	"context"
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// The writes in this file are issued under a claim: they return the host as written, or ErrClaimLost when ref does
// not hold host any more.

// SetInstalled records the marker of the profile whose install ended well, "<profile>@<version>"; an empty one makes
// the next join install again.
func (p *Pool) SetInstalled(ctx context.Context, host *v1beta1.SSHHost, ref Ref, marker string) (*v1beta1.SSHHost, error) {
	return p.underClaim(ctx, host, ref, func(h *v1beta1.SSHHost) error {
		h.Status.InstalledProfile = marker
		return nil
	})
}

// SetBootstrapToken records the id of a token that is about to be used. While another id is recorded the answer is
// ErrTokenRecorded: delete that token, then ForgetBootstrapToken.
func (p *Pool) SetBootstrapToken(ctx context.Context, host *v1beta1.SSHHost, ref Ref, id string) (*v1beta1.SSHHost, error) {
	return p.underClaim(ctx, host, ref, func(h *v1beta1.SSHHost) error {
		if h.Status.BootstrapTokenID != "" && h.Status.BootstrapTokenID != id {
			return fmt.Errorf("host %q: %w", h.Name, ErrTokenRecorded)
		}
		h.Status.BootstrapTokenID = id
		return nil
	})
}

// SetProviderID records the provider id that the node registered with. Write it here before it is written to the
// NodeClaim, so that at every moment one of the two leads to the other.
func (p *Pool) SetProviderID(ctx context.Context, host *v1beta1.SSHHost, ref Ref, id string) (*v1beta1.SSHHost, error) {
	return p.underClaim(ctx, host, ref, func(h *v1beta1.SSHHost) error {
		h.Status.ProviderID = id
		return nil
	})
}

// SetInUse says that the node is Ready. It forgives earlier failures. On a host that is InUse it changes nothing.
func (p *Pool) SetInUse(ctx context.Context, host *v1beta1.SSHHost, ref Ref) (*v1beta1.SSHHost, error) {
	return p.underClaim(ctx, host, ref, func(h *v1beta1.SSHHost) error {
		if h.Status.State == v1beta1.HostInUse {
			return nil
		}
		forget(h)
		return p.move(h, v1beta1.HostInUse, v1beta1.ReasonJoined, "node of NodeClaim "+ref.Name+" is Ready")
	})
}

// SetTrust records what the host said of itself, with a condition about that. Nothing else of it changes.
func (p *Pool) SetTrust(ctx context.Context, host *v1beta1.SSHHost, ref Ref, trust *v1beta1.HostTrust, c status.Condition) (*v1beta1.SSHHost, error) {
	return p.underClaim(ctx, host, ref, func(h *v1beta1.SSHHost) error {
		h.Status.Trust = trust.DeepCopy()
		p.setCondition(h, c.Type, c.Status, c.Reason, c.Message)
		return nil
	})
}

// SetCondition sets a condition of the host other than Ready.
func (p *Pool) SetCondition(ctx context.Context, host *v1beta1.SSHHost, ref Ref, c status.Condition) (*v1beta1.SSHHost, error) {
	return p.underClaim(ctx, host, ref, func(h *v1beta1.SSHHost) error {
		p.setCondition(h, c.Type, c.Status, c.Reason, c.Message)
		return nil
	})
}

// BumpFence raises the fence by one, and at least to atLeast: after it, orders with an earlier fence are refused by
// the host once it has seen a later one.
func (p *Pool) BumpFence(ctx context.Context, host *v1beta1.SSHHost, ref Ref, atLeast int64) (*v1beta1.SSHHost, error) {
	return p.underClaim(ctx, host, ref, func(h *v1beta1.SSHHost) error {
		h.Status.Fence = max(h.Status.Fence+1, atLeast)
		return nil
	})
}

// RequestLeave asks for the host back: the leave controller sees the condition LeaveRequested, runs leave and releases.
// Asking twice changes nothing.
func (p *Pool) RequestLeave(ctx context.Context, host *v1beta1.SSHHost, ref Ref, reason, message string) (*v1beta1.SSHHost, error) {
	return p.underClaim(ctx, host, ref, func(h *v1beta1.SSHHost) error {
		if !HasCondition(h, v1beta1.ConditionLeaveRequested) {
			p.setCondition(h, v1beta1.ConditionLeaveRequested, metav1.ConditionTrue, reason, message)
		}
		return nil
	})
}

// Outcome is how a claim ended.
type Outcome struct {
	// State is Available (warm: leave ran, or nothing ever ran), Pending (something is owed to the host before it may
	// be used: a probe decides), Unhealthy (something is wrong with it) or Maintenance.
	State           v1beta1.HostState
	Reason, Message string
	// Leave is whether a leave is owed to the host. Available says by itself that none is.
	Leave Leave
	// Failure is why a phase failed for a reason of the host, empty when none did. It is counted, and the host is not
	// offered for a while.
	Failure string
	// Conditions are set as they are.
	Conditions []status.Condition
	// Machine is what the probe found that a leave was proven with.
	Machine Machine
}

// Release ends the claim. What it asks for becomes Maintenance when the operator parked the host. The recorded
// bootstrap token and the install marker stay: see ForgetBootstrapToken and SetInstalled.
//
// A fault of configuration is never Unhealthy: release to Pending, or to Available when nothing has run.
func (p *Pool) Release(ctx context.Context, host *v1beta1.SSHHost, ref Ref, out Outcome) (*v1beta1.SSHHost, error) {
	if out.State == v1beta1.HostInUse || out.State == v1beta1.HostClaimed {
		return nil, &EdgeError{Host: host.Name, From: host.Status.State, To: out.State}
	}
	return p.underClaim(ctx, host, ref, func(h *v1beta1.SSHHost) error {
		if err := p.end(h, out); err != nil {
			return err
		}
		h.Status.ClaimRef = nil
		h.Status.ProviderID = ""
		clearCondition(h, v1beta1.ConditionLeaveRequested)
		clearCondition(h, v1beta1.ConditionLeaveBlocked)
		return nil
	})
}

// end is what a release and a leave of the guard have in common: where the host goes, what it is owed, and whether it
// failed.
func (p *Pool) end(h *v1beta1.SSHHost, out Outcome) error {
	if out.State == v1beta1.HostAvailable {
		out.Leave = LeaveEnded
	}
	p.settle(h, out.Leave, out.Reason, out.Message)
	for _, c := range out.Conditions {
		p.setCondition(h, c.Type, c.Status, c.Reason, c.Message)
	}
	if out.Failure != "" {
		p.fail(h, out.Failure, out.Message)
	}
	switch parking := p.parked(h); {
	case parking.Reason != "":
		out.State = v1beta1.HostMaintenance
		out.Reason, out.Message = parking.Reason, parking.Message
	case out.State == v1beta1.HostAvailable && RetryIn(h, p.clock.Now()) > 0:
		out.State = v1beta1.HostUnhealthy
		out.Reason, out.Message = BackingOff(h)
	}
	return p.move(h, out.State, out.Reason, out.Message)
}

// ReleaseStale releases the claim that host carries, whoever it is of, to Pending: its NodeClaim is gone, or holds
// another host (see Extra). The caller has made sure of that with the API server.
//
// A host that was in use is owed a leave. Of one that was not, the host itself or a debt on record tells.
func (p *Pool) ReleaseStale(ctx context.Context, host *v1beta1.SSHHost, reason, message string) (*v1beta1.SSHHost, error) {
	out := Outcome{State: v1beta1.HostPending, Reason: reason, Message: message}
	if host.Status.State == v1beta1.HostInUse {
		out.Leave = LeaveOwed
	}
	return p.Release(ctx, host, RefOn(host), out)
}
