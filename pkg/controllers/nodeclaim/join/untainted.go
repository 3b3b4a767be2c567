package join

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
)

// newNodes looks at Nodes as they come. What a reconcile reads may be later: join is still running as a rule when the
// Node comes, and core has registered it by the time that it ends.
func (c *Controller) newNodes() handler.EventHandler {
	return handler.Funcs{CreateFunc: func(ctx context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		if node, ok := e.Object.(*corev1.Node); ok {
			c.untainted(ctx, node)
		}
	}}
}

// untainted says what is to be done about a Node of ours that registered without the taint that core takes off with
// registration: until then it has neither the labels nor the taints of its NodeClaim, and pods are put there that must
// not be (karpenter#1049, R40). Core warns of it too, and does not say how it is mended.
func (c *Controller) untainted(ctx context.Context, node *corev1.Node) {
	if _, registered := node.Labels[karpenterv1.NodeRegisteredLabelKey]; registered || !node.DeletionTimestamp.IsZero() {
		return
	}
	for i := range node.Spec.Taints {
		if node.Spec.Taints[i].MatchTaint(&karpenterv1.UnregisteredNoExecuteTaint) {
			return
		}
	}
	for _, host := range c.holders(node) {
		if !claimed(host) {
			continue
		}
		nodeClaim := &karpenterv1.NodeClaim{}
		if err := c.Client.Get(ctx, types.NamespacedName{Name: host.Status.ClaimRef.Name}, nodeClaim); err != nil || nodeClaim.UID != host.Status.ClaimRef.UID {
			log.FromContext(ctx).Info("a node registered without the taint "+karpenterv1.UnregisteredTaintKey, "node", node.Name, "host", host.Name)
			continue
		}
		c.Recorder.Publish(events.Event{
			InvolvedObject: nodeClaim, Type: corev1.EventTypeWarning, Reason: reasonUntainted,
			Message: fmt.Sprintf("node %q registered without the taint %s, so that pods may run there that its own taints keep away: "+
				"join must give the kubelet KPSSH_TAINTS, as --register-with-taints or registerWithTaints", node.Name, karpenterv1.UnregisteredNoExecuteTaint.ToString()),
			DedupeValues: []string{string(nodeClaim.UID)}, DedupeTimeout: 10 * time.Minute,
		})
	}
}
