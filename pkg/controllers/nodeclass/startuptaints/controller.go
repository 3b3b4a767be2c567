// Package startuptaints takes startup taints off our nodes once the gate that their node class names
// is open: so many pods are Ready on the node, or the node has a condition.
//
// Only taints that the NodeClaim lists as startup taints are touched, and only on a node that karpenter
// has registered: before that it puts them back (karpenter#1772, R41). There is no time-out: a gate
// that never opens keeps pods off a node that is not ready for them.
package startuptaints

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
)

// PodNodeIndex is the field by which karpenter core indexes pods.
const PodNodeIndex = "spec.nodeName"

// conflictDelay spaces out attempts against whoever else writes the node.
const conflictDelay = 200 * time.Millisecond

// Controller opens startup taint gates.
type Controller struct {
	client client.Client
}

// NewController returns a Controller.
func NewController(c client.Client) *Controller { return &Controller{client: c} }

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, node *corev1.Node) (reconcile.Result, error) {
	if !concerned(node) {
		return reconcile.Result{}, nil
	}
	nodeClaim, class, err := c.owners(ctx, node)
	if err != nil || nodeClaim == nil || class == nil {
		return reconcile.Result{}, err
	}
	open, err := c.openTaints(ctx, node, nodeClaim, class)
	if err != nil || len(open) == 0 {
		return reconcile.Result{}, err
	}
	stored := node.DeepCopy()
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return slices.ContainsFunc(open, func(o corev1.Taint) bool { return o.MatchTaint(&t) })
	})
	err = c.client.Patch(ctx, node, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	case client.IgnoreNotFound(err) != nil:
		return reconcile.Result{}, fmt.Errorf("removing startup taints of node %q: %w", node.Name, err)
	}
	return reconcile.Result{}, nil
}

// openTaints are the taints of the node that are startup taints of its NodeClaim and whose gate is open.
func (c *Controller) openTaints(ctx context.Context, node *corev1.Node, nodeClaim *karpenterv1.NodeClaim, class *v1beta1.SSHNodeClass) ([]corev1.Taint, error) {
	var open []corev1.Taint
	for _, taint := range node.Spec.Taints {
		gate := gateOf(class, taint.Key)
		if gate == nil || !slices.ContainsFunc(nodeClaim.Spec.StartupTaints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
			continue
		}
		isOpen, err := c.open(ctx, node, gate.RemoveWhen)
		if err != nil {
			return nil, err
		}
		if isOpen {
			open = append(open, taint)
		}
	}
	return open, nil
}

func concerned(node *corev1.Node) bool {
	return node.DeletionTimestamp.IsZero() && len(node.Spec.Taints) > 0 &&
		node.Labels[karpenterv1.NodeRegisteredLabelKey] == "true"
}

// owners returns the NodeClaim that core made the node's owner, and its class; nil when it is not ours.
func (c *Controller) owners(ctx context.Context, node *corev1.Node) (*karpenterv1.NodeClaim, *v1beta1.SSHNodeClass, error) {
	owner := ownerOf(node)
	if owner == nil {
		return nil, nil, nil
	}
	nodeClaim := &karpenterv1.NodeClaim{}
	if err := c.client.Get(ctx, types.NamespacedName{Name: owner.Name}, nodeClaim); err != nil {
		return nil, nil, ignoreNotFound("reading nodeclaim", owner.Name, err)
	}
	if nodeClaim.UID != owner.UID || !membership.Ours(nodeClaim) || len(nodeClaim.Spec.StartupTaints) == 0 {
		return nil, nil, nil
	}
	class := &v1beta1.SSHNodeClass{}
	if err := c.client.Get(ctx, types.NamespacedName{Name: nodeClaim.Spec.NodeClassRef.Name}, class); err != nil {
		return nil, nil, ignoreNotFound("reading node class", nodeClaim.Spec.NodeClassRef.Name, err)
	}
	return nodeClaim, class, nil
}

func ownerOf(node *corev1.Node) *metav1.OwnerReference {
	for i := range node.OwnerReferences {
		if o := &node.OwnerReferences[i]; o.Kind == "NodeClaim" && o.APIVersion == karpenterAPIVersion {
			return o
		}
	}
	return nil
}

const karpenterAPIVersion = "karpenter.sh/v1"

func ignoreNotFound(doing, name string, err error) error {
	if client.IgnoreNotFound(err) == nil {
		return nil
	}
	return fmt.Errorf("%s %q: %w", doing, name, err)
}

func gateOf(class *v1beta1.SSHNodeClass, key string) *v1beta1.StartupTaintGate {
	for i := range class.Spec.StartupTaintGates {
		if class.Spec.StartupTaintGates[i].TaintKey == key {
			return &class.Spec.StartupTaintGates[i]
		}
	}
	return nil
}

func (c *Controller) open(ctx context.Context, node *corev1.Node, when v1beta1.RemoveWhen) (bool, error) {
	switch {
	case when.NodeCondition != nil:
		return hasCondition(node, when.NodeCondition), nil
	case when.PodsReady != nil:
		return c.podsReady(ctx, node, when.PodsReady)
	default:
		return false, nil // admission refuses it
	}
}

func hasCondition(node *corev1.Node, want *v1beta1.NodeCondition) bool {
	status := want.Status
	if status == "" {
		status = corev1.ConditionTrue
	}
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == want.Type && c.Status == status
	})
}

func (c *Controller) podsReady(ctx context.Context, node *corev1.Node, want *v1beta1.PodsReady) (bool, error) {
	selector, err := metav1.LabelSelectorAsSelector(&want.Selector)
	if err != nil {
		return false, nil //nolint:nilerr // the class's readiness says so; the gate stays shut
	}
	pods := &corev1.PodList{}
	err = c.client.List(ctx, pods, client.InNamespace(want.Namespace),
		client.MatchingLabelsSelector{Selector: selector}, client.MatchingFields{PodNodeIndex: node.Name})
	if err != nil {
		return false, fmt.Errorf("listing pods of node %q: %w", node.Name, err)
	}
	ready := int32(0)
	for i := range pods.Items {
		if podReady(&pods.Items[i]) {
			ready++
		}
	}
	return ready >= max(want.MinReady, 1), nil
}

func podReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclass.startuptaints").
		For(&corev1.Node{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			node, ok := o.(*corev1.Node)
			return ok && concerned(node)
		}))).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			pod, ok := o.(*corev1.Pod)
			if !ok || pod.Spec.NodeName == "" || !podReady(pod) {
				return nil
			}
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: pod.Spec.NodeName}}}
		})).
		Watches(&v1beta1.SSHNodeClass{}, handler.EnqueueRequestsFromMapFunc(c.nodesOfClass)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// nodesOfClass finds the nodes that an edited gate may open.
func (c *Controller) nodesOfClass(ctx context.Context, o client.Object) []reconcile.Request {
	list := &karpenterv1.NodeClaimList{}
	if err := c.client.List(ctx, list); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if name := list.Items[i].Status.NodeName; name != "" && membership.OfClass(&list.Items[i], o.GetName()) {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		}
	}
	return requests
}
