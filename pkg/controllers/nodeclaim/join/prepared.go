package join

import (
	"context"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// takeOver goes on with a preparation that was under way when the host was claimed, and whose process is gone: its
// install is collected, or run if it is of another version, and the host is left, so that it is free for the claim.
func (c *Controller) takeOver(ctx context.Context, s membership.Subject, failure *membership.Failure) (reconcile.Result, error) {
	fence, marker := failure.HostClaim.Fence, s.Profile.Marker()
	log.FromContext(ctx).Info("taking over a preparation", "host", s.Host.Name, "nodeclaim", s.NodeClaim.Name)
	if s.Host.Status.InstalledProfile != marker {
		if err := c.Phases.Prepare(ctx, s, fence); err != nil {
			return c.failed(ctx, s, err)
		}
		var err error
		if s.Host, err = keep(s.Host)(c.Hosts.SetInstalled(ctx, s.Host, pool.RefOf(s.NodeClaim), marker)); err != nil {
			return c.failed(ctx, s, err)
		}
	}
	if err := c.Phases.EndPreparation(ctx, s, fence); err != nil {
		return c.failed(ctx, s, err)
	}
	return reconcile.Result{RequeueAfter: time.Millisecond}, nil
}

// notPreparing takes back what a preparation said of the host that ended without saying so.
func (c *Controller) notPreparing(ctx context.Context, s membership.Subject) (membership.Subject, error) {
	if pool.Preparing(s.Host) == "" {
		return s, nil
	}
	var err error
	s.Host, err = keep(s.Host)(c.Hosts.SetCondition(ctx, s.Host, pool.RefOf(s.NodeClaim), status.Condition{
		Type: v1beta1.ConditionPreparing, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonClaimed, Message: "claimed by NodeClaim " + s.NodeClaim.Name,
	}))
	return s, err
}
