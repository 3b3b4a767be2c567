package pool

import (
	"context"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Membership is what a host is found to be a member under, although its status does not say so.
type Membership struct {
	// Ref is the living NodeClaim that the host serves, ProviderID its status.providerID.
	Ref        Ref
	ProviderID string
	// Installed is the "<profile>@<version>" that the host joined with; empty when that is not known.
	Installed string
	// Ready says that its Node is Ready.
	Ready bool
	// Message is for people.
	Message string
}

// Reclaim gives a free host back to the NodeClaim that it serves, after its status was lost: InUse when the Node is
// Ready, else Claimed. probe is what the host said; its fence is that of the claim, and is not raised, since nobody else
// has had the host in between. Like the writes on free hosts it is tried once, and answers ErrConflict.
func (p *Pool) Reclaim(ctx context.Context, host *v1beta1.SSHHost, probe Probe, m Membership) (*v1beta1.SSHHost, error) {
	to := v1beta1.HostClaimed
	if m.Ready {
		to = v1beta1.HostInUse
	}
	switch host.Status.State {
	case "", v1beta1.HostPending, v1beta1.HostAvailable, v1beta1.HostUnhealthy:
	default: // claimed, or fenced for a leave or by the operator
		return nil, &EdgeError{Host: host.Name, From: host.Status.State, To: to}
	}
	return p.swap(ctx, host, func(h *v1beta1.SSHHost) error {
		p.enter(h, to, v1beta1.ReasonClaimRestored, m.Message)
		p.observe(h, probe)
		h.Status.ClaimRef = &v1beta1.ClaimRef{Name: m.Ref.Name, UID: m.Ref.UID}
		h.Status.ProviderID = m.ProviderID
		if m.Installed != "" {
			h.Status.InstalledProfile = m.Installed
		}
		clearCondition(h, v1beta1.ConditionLeaveRequested)
		if h.Raw() {
			p.settle(h, LeaveOwed, v1beta1.ReasonClaimRestored, m.Message)
		}
		return nil
	})
}
