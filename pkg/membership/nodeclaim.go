package membership

import (
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
)

// NodeClassKind is the kind that our NodeClaims refer to.
const NodeClassKind = "SSHNodeClass"

// Ours says whether a NodeClaim is of a node class of this provider; a cluster may run several.
func Ours(nodeClaim *karpenterv1.NodeClaim) bool {
	ref := nodeClaim.Spec.NodeClassRef
	return ref != nil && ref.Group == apis.Group && ref.Kind == NodeClassKind
}

// OfClass says whether a NodeClaim is of the node class of that name.
func OfClass(nodeClaim *karpenterv1.NodeClaim, class string) bool {
	return Ours(nodeClaim) && nodeClaim.Spec.NodeClassRef.Name == class
}
