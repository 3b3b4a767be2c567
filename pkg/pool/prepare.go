package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// reasonInstalling is why a host is Preparing.
const reasonInstalling = "Installing"

// Preparing returns the "<profile>@<version>" that is being installed on the host ahead of any claim; empty when none is.
func Preparing(host *v1beta1.SSHHost) string {
	for i := range host.Status.Conditions {
		if c := &host.Status.Conditions[i]; c.Type == v1beta1.ConditionPreparing && c.Status == metav1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// UnpreparedSince is when the last preparation of the host ended, if that was not well; the zero time otherwise.
func UnpreparedSince(host *v1beta1.SSHHost) time.Time {
	for i := range host.Status.Conditions {
		c := &host.Status.Conditions[i]
		if c.Type == v1beta1.ConditionPreparing && c.Status == metav1.ConditionFalse && c.Reason != v1beta1.ReasonPrepared {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// Resumable says whether a process may go on with the preparation that another one began: nobody has claimed the host,
// and nothing but that preparation is under way on it.
func Resumable(host *v1beta1.SSHHost) bool {
	return Preparing(host) != "" && host.Status.ClaimRef == nil && host.DeletionTimestamp.IsZero() &&
		(host.Status.State == v1beta1.HostAvailable || host.Status.State == v1beta1.HostPending)
}

// BeginPreparation says that marker, "<profile>@<version>", is about to be installed on a free host, and raises its fence
// as a claim would: orders of earlier claims are refused from then on. The host stays free to be claimed, which raises
// the fence again, unless it has no shim: such a host is owed a leave from now on, and not claimed before that is settled.
// Tried once: ErrConflict when the host has changed.
func (p *Pool) BeginPreparation(ctx context.Context, host *v1beta1.SSHHost, marker string) (*v1beta1.SSHHost, error) {
	if !Claimable(host) || len(p.Peers(host, PeerMachineID, PeerHostID)) > 0 {
		return nil, &EdgeError{Host: host.Name, From: host.Status.State, To: v1beta1.HostAvailable}
	}
	return p.swap(ctx, host, func(h *v1beta1.SSHHost) error {
		h.Status.Fence++
		p.setCondition(h, v1beta1.ConditionPreparing, metav1.ConditionTrue, reasonInstalling, marker)
		if h.Raw() {
			p.settle(h, LeaveOwed, reasonInstalling, marker)
		}
		return nil
	})
}

// SetPrepared records that install has ended well on a host as BeginPreparation returned it, also when the host was
// claimed meanwhile: its join then need not install again. ErrClaimLost when more than that has happened to it.
func (p *Pool) SetPrepared(ctx context.Context, begun *v1beta1.SSHHost, marker string) (*v1beta1.SSHHost, error) {
	return p.whilePreparing(ctx, begun, func(h *v1beta1.SSHHost) error {
		h.Status.InstalledProfile = marker
		return nil
	})
}

// Preparation is how a preparation ended.
type Preparation struct {
	// Reason and Message are of the condition Preparing. Reason is ReasonPrepared when install and leave ended well.
	Reason, Message string
	// HostFault says that it failed for a reason of the host, which becomes Unhealthy. Any other host becomes Pending: the
	// probe that follows finds out whether it is clean, as after a membership.
	HostFault bool
	// Leave is whether a leave is owed to the host.
	Leave Leave
}

// EndPreparation ends what BeginPreparation began, begun being the host as that returned it. On a host that was claimed
// meanwhile it changes nothing but the condition: the claim finds out by itself. ErrClaimLost when more than a claim has
// happened to it.
func (p *Pool) EndPreparation(ctx context.Context, begun *v1beta1.SSHHost, out Preparation) (*v1beta1.SSHHost, error) {
	return p.whilePreparing(ctx, begun, func(h *v1beta1.SSHHost) error {
		p.setCondition(h, v1beta1.ConditionPreparing, metav1.ConditionFalse, out.Reason, out.Message)
		if h.Status.ClaimRef != nil {
			return nil
		}
		p.settle(h, out.Leave, out.Reason, out.Message)
		switch h.Status.State {
		case v1beta1.HostAvailable, v1beta1.HostPending:
		default: // parked, say
			return nil
		}
		if !out.HostFault {
			return p.move(h, v1beta1.HostPending, out.Reason, out.Message)
		}
		p.fail(h, out.Reason, out.Message)
		return p.move(h, v1beta1.HostUnhealthy, out.Reason, out.Message)
	})
}

// overtake ends a preparation that a leave has come before: it takes away what install was making.
func (p *Pool) overtake(h *v1beta1.SSHHost) {
	if marker := Preparing(h); marker != "" {
		p.setCondition(h, v1beta1.ConditionPreparing, metav1.ConditionFalse, v1beta1.ReasonLeaving, marker+" was not installed to the end: the host is left")
	}
}

// whilePreparing writes change while nothing has happened to the host since begun but what a preparation allows for: a
// probe, a change of its spec, and one claim under which nothing was installed yet. On a conflict it tries again on a
// fresh read.
func (p *Pool) whilePreparing(ctx context.Context, begun *v1beta1.SSHHost, change func(*v1beta1.SSHHost) error) (*v1beta1.SSHHost, error) {
	lost := fmt.Errorf("preparing host %q: %w", begun.Name, ErrClaimLost)
	current := begun
	for attempt := 1; ; attempt++ {
		if !sincePreparing(begun, current) {
			return nil, lost
		}
		next, err := p.swap(ctx, current, change)
		switch {
		case err == nil:
			return next, nil
		case errors.Is(err, ErrHostNotFound):
			return nil, lost
		case !isConflict(err) || attempt == maxAttempts:
			return nil, err
		}
		if current, err = p.Live(ctx, begun.Name); errors.Is(err, ErrHostNotFound) {
			return nil, lost
		} else if err != nil {
			return nil, err
		}
	}
}

func sincePreparing(begun, now *v1beta1.SSHHost) bool {
	if now.UID != begun.UID || Preparing(now) == "" {
		return false
	}
	if now.Status.ClaimRef == nil {
		return now.Status.Fence == begun.Status.Fence
	}
	return now.Status.State == v1beta1.HostClaimed && now.Status.Fence == begun.Status.Fence+1 &&
		(now.Status.InstalledProfile == begun.Status.InstalledProfile || now.Status.InstalledProfile == Preparing(begun))
}
