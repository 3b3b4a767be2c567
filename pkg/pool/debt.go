package pool

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Leave is what a write that ends a claim, or a leave of the guard, knows about what is left of a membership on the host.
type Leave int

const (
	// LeaveUnknown leaves the debt on record as it is: the host's own word, or that record, will tell.
	LeaveUnknown Leave = iota
	// LeaveEnded settles the debt: leave ended well, or nothing ever ran.
	LeaveEnded
	// LeaveOwed records a debt: something of a membership may be on the host, and leave has not ended well.
	LeaveOwed
)

// Owed says whether a leave is owed to the host, as far as its status knows. Such a host is not claimed.
//
// On a host without the shim the debt is on record from before the first phase of a claim (see OweLeave). A host with the
// shim needs no such note: it keeps the claim itself and says so in every hello, so that a debt is recorded only when its
// claim is given up without a leave.
func Owed(host *v1beta1.SSHHost) bool { return host.Status.Cleanup != nil }

// OweLeave records under a claim that something may have run, or, when owed is false, that nothing has.
func (p *Pool) OweLeave(ctx context.Context, host *v1beta1.SSHHost, ref Ref, owed bool) (*v1beta1.SSHHost, error) {
	return p.underClaim(ctx, host, ref, func(h *v1beta1.SSHHost) error {
		if owed {
			p.settle(h, LeaveOwed, "PhaseStarted", "a script may have run since the last leave")
		} else {
			p.settle(h, LeaveEnded, "", "")
		}
		return nil
	})
}

// settle brings the debt up to date. One that is on record stays the same debt: since when, and whose, does not change.
func (p *Pool) settle(host *v1beta1.SSHHost, leave Leave, reason, message string) {
	switch leave {
	case LeaveEnded:
		host.Status.Cleanup = nil
	case LeaveOwed:
		debt := host.Status.Cleanup
		if debt == nil {
			debt = &v1beta1.HostCleanup{Since: &metav1.Time{Time: p.clock.Now()}, ClaimRef: host.Status.ClaimRef.DeepCopy()}
			host.Status.Cleanup = debt
		}
		debt.Reason, debt.Message = reason, cut(message)
	case LeaveUnknown:
	}
}
