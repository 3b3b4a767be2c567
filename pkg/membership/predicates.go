package membership

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// InNamespace keeps a controller to the hosts of the pool namespace: whoever may write an SSHHost into
// another namespace must not get anything done by it. What else must hold goes here too: of two
// builder.Predicates on one watch only the last counts.
func InNamespace(namespace string, others ...predicate.Predicate) builder.Predicates {
	return builder.WithPredicates(append(others, predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetNamespace() == namespace
	}))...)
}

// NodeChanges keeps the kubelets' heartbeats away: it lets through what a controller of ours acts on,
// that a Node came, went, or changed its identity, its readiness or its taints.
func NodeChanges() builder.Predicates {
	return builder.WithPredicates(predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Node)
			after, alsoOK := e.ObjectNew.(*corev1.Node)
			return !ok || !alsoOK || Ready(before) != Ready(after) ||
				before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
				!slices.Equal(NodeIdentities(before), NodeIdentities(after)) ||
				!equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints)
		},
	})
}
