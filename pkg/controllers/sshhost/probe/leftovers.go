package probe

import (
	"context"
	"fmt"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// cleanConditions is the verification pass over a free host: what is on it of a membership by the host's own word.
// A host that did not look, as with an older shim, has no say in it.
func cleanConditions(probe *dispatch.Probe) []status.Condition {
	switch found := probe.Facts.Leftovers; {
	case found == nil:
		return nil
	case len(found) == 0:
		return []status.Condition{{Type: v1beta1.ConditionClean, Status: metav1.ConditionTrue, Reason: "NothingLeft"}}
	default:
		return []status.Condition{{
			Type: v1beta1.ConditionClean, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonNotClean, Message: strings.Join(found, ", "),
		}}
	}
}

// parkedAction is what is counted for a host that is left alone.
func parkedAction(reason string) membership.ZombieAction {
	if reason == v1beta1.ReasonNotClean {
		return membership.ZombieNotClean
	}
	return membership.ZombieParkedForeign
}

// notClean makes a host Unhealthy that a leave which ended well has not cleaned. It is left again with back-off.
func (c *Controller) notClean(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe, f finding) (reconcile.Result, error) {
	message := "leave ended well, but the host still has " + strings.Join(f.leftovers, ", ")
	c.warn(host, v1beta1.EventNotClean, message)
	c.Metrics.Zombie(membership.ZombieNotClean)
	_, err := c.Hosts.EndLeaving(ctx, host, pool.Outcome{
		State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonNotClean, Message: message, Failure: v1beta1.ReasonNotClean, Leave: owes(host),
		Conditions: cleanConditions(probe),
	})
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("ending the leave of host %q: %w", host.Name, err)
	}
	return reconcile.Result{RequeueAfter: c.Interval}, nil
}
