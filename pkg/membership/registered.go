package membership

import (
	corev1 "k8s.io/api/core/v1"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// RegisteredFor returns those of a host's Nodes that its kubelet registered for this NodeClaim. A Node
// that is older than the NodeClaim is of an earlier membership, and one that is being deleted is on
// its way out.
func RegisteredFor(nodeClaim *karpenterv1.NodeClaim, nodes []corev1.Node) []corev1.Node {
	var out []corev1.Node
	for i := range nodes {
		node := &nodes[i]
		if node.DeletionTimestamp.IsZero() && !node.CreationTimestamp.Before(&nodeClaim.CreationTimestamp) {
			out = append(out, *node)
		}
	}
	return out
}
