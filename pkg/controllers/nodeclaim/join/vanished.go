package join

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
)

// hasNode says whether a Node of the host is in the cache, and ends the wait for it if so. An error is no
// sign that there is none.
func (c *Controller) hasNode(ctx context.Context, host *v1beta1.SSHHost) bool {
	nodes, err := membership.NodesOf(ctx, c.Client, host)
	if err == nil && len(nodes) == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.vanished, host.Name)
	return true
}

// nodeless gives a host in use back whose Node somebody removed by force. A kubelet that runs does not
// register again, core keeps the NodeClaim as long as we list it and waits for its Node, so that pods
// are planned onto it for ever (karpenter#2072, R99).
func (c *Controller) nodeless(ctx context.Context, s membership.Subject) (reconcile.Result, error) {
	if left := vanishedLimit - c.since(c.vanished, s.Host); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	// The cache may be behind.
	name := cmp.Or(s.NodeClaim.Status.NodeName, s.NodeClaim.Name)
	err := c.Live.Get(ctx, types.NamespacedName{Name: name}, &corev1.Node{})
	switch {
	case err == nil:
		return reconcile.Result{RequeueAfter: waitDelay}, nil
	case client.IgnoreNotFound(err) != nil:
		return reconcile.Result{}, fmt.Errorf("reading node %q: %w", name, err)
	}
	// Nothing speaks against the host: it is not to be marked.
	return reconcile.Result{}, c.giveUp(ctx, s, &membership.Failure{
		Kind: membership.Configuration, Reason: v1beta1.EventNodeVanished, Host: s.Host.Name,
		Detail: fmt.Sprintf("node %q has been gone for %s", name, vanishedLimit),
	})
}
