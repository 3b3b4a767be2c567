package join

import (
	"context"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// Reasons of what is found on the Node; all but the last are failures.
const (
	reasonRegistrationTimeout = "RegistrationTimeout"
	reasonNodeNameConflict    = "NodeNameConflict"
	reasonNodeNameMismatch    = "NodeNameMismatch"
	reasonProviderIDMismatch  = "ProviderIDMismatch"
	reasonProviderIDMissing   = "ProviderIDMissing"
	reasonProviderIDTaken     = "ProviderIDTaken"
	reasonUntainted           = "RegisteredUntainted"
)

// ConditionNodeAddress on a host is False when its Node advertises another InternalIP than it should.
const ConditionNodeAddress = "NodeAddressMatches"

// idDelay is how long a Node may be without a provider id, which a cloud controller may bring.
const idDelay = time.Minute

// findNode returns the Node that the host has registered for the NodeClaim; nil when there is none yet. A
// Node that is not what it should be ends in a reason, and not in waiting for a time-out.
func (c *Controller) findNode(ctx context.Context, s membership.Subject) (*corev1.Node, error) {
	nodes, err := membership.NodesOf(ctx, c.Client, s.Host)
	if err != nil {
		return nil, err
	}
	registered := membership.RegisteredFor(s.NodeClaim, nodes)
	named, err := c.namesake(ctx, s)
	if err != nil {
		return nil, err
	}
	if s.Class.Adopts() {
		return c.findAdopted(s, registered, named)
	}
	return c.findStatic(s, registered, named)
}

// namesake returns the Node of the NodeClaim's name if nobody is deleting it.
func (c *Controller) namesake(ctx context.Context, s membership.Subject) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: s.NodeClaim.Name}, node); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading node %q: %w", s.NodeClaim.Name, err)
	}
	if !node.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	return node, nil
}

func (c *Controller) findStatic(s membership.Subject, registered []corev1.Node, named *corev1.Node) (*corev1.Node, error) {
	want := s.Host.StaticProviderID()
	switch {
	case named != nil && named.Spec.ProviderID == want:
		return named, nil
	case named != nil && !membership.Backs(s.Host, named):
		return nil, c.nameConflict(s, named)
	case named != nil && named.Spec.ProviderID == "":
		if c.Clock.Since(named.CreationTimestamp.Time) < idDelay {
			return nil, nil
		}
		return nil, c.fault(s, membership.Configuration, reasonProviderIDMissing,
			"node %q registered without a provider id: join must give the kubelet KPSSH_PROVIDER_ID", named.Name)
	case named != nil:
		return nil, c.fault(s, membership.Configuration, reasonProviderIDMismatch,
			"node %q registered as %q and not as %q; a class whose nodes bring their own id needs providerIDSource Adopt", named.Name, named.Spec.ProviderID, want)
	case len(registered) > 0:
		return nil, c.fault(s, membership.Configuration, reasonNodeNameMismatch,
			"the host registered as node %q and not as %q: join must give the kubelet KPSSH_NODE_NAME", registered[0].Name, s.NodeClaim.Name)
	default:
		return nil, nil
	}
}

// findAdopted prefers the Node of the NodeClaim's name, then a Ready one, then the newest. An empty
// provider id is none (k0smotron#1309, R43).
func (c *Controller) findAdopted(s membership.Subject, registered []corev1.Node, named *corev1.Node) (*corev1.Node, error) {
	if named != nil {
		if _, known := membership.HasAddress(s.Host, named); !known && !membership.Backs(s.Host, named) {
			registered = append(registered, *named) // a host that is known by a DNS name only
		}
	}
	var best *corev1.Node
	for i := range registered {
		node := &registered[i]
		if node.Spec.ProviderID != "" && (best == nil || better(s.NodeClaim.Name, node, best)) {
			best = node
		}
	}
	if best == nil {
		return nil, nil
	}
	if other, err := c.Hosts.ByProviderID(best.Spec.ProviderID); err == nil && other.Name != s.Host.Name && other.Status.ClaimRef != nil {
		return nil, c.fault(s, membership.Configuration, reasonProviderIDTaken, "node %q has the provider id %q, which is that of host %q", best.Name, best.Spec.ProviderID, other.Name)
	}
	return best, nil
}

func better(name string, a, b *corev1.Node) bool {
	if (a.Name == name) != (b.Name == name) {
		return a.Name == name
	}
	if membership.Ready(a) != membership.Ready(b) {
		return membership.Ready(a)
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// noteAddress says on the host whether its Node advertises the address that it should
// (kubernetes#44702, R37). It does not end the join: behind NAT the two may differ on purpose.
func (c *Controller) noteAddress(ctx context.Context, s membership.Subject, node *corev1.Node) (*v1beta1.SSHHost, error) {
	has, known := membership.HasAddress(s.Host, node)
	if !known {
		return s.Host, nil
	}
	condition := status.Condition{Type: ConditionNodeAddress, Status: metav1.ConditionTrue, Reason: "NodeIPMatches"}
	if !has {
		condition.Status, condition.Reason = metav1.ConditionFalse, "NodeIPMismatch"
		condition.Message = fmt.Sprintf("node %q does not have the InternalIP %s", node.Name, s.Host.AdvertisedAddress())
	}
	return c.Hosts.SetCondition(ctx, s.Host, pool.RefOf(s.NodeClaim), condition)
}

// explainAfter is how old a Node may be before it is said why it is not ready.
const explainAfter = 5 * time.Minute

// explain names what keeps a Node from being ready (hcloud-ccm#611, R39: a taint that no cloud controller
// ever removes).
func (c *Controller) explain(s membership.Subject, node *corev1.Node) {
	if c.Clock.Since(node.CreationTimestamp.Time) < explainAfter {
		return
	}
	text := fmt.Sprintf("node %q is not ready", node.Name)
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			text = fmt.Sprintf("%s: %s", text, condition.Reason)
		}
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == "node.cloudprovider.kubernetes.io/uninitialized" {
			text += fmt.Sprintf("; it has the taint %s, which only a cloud controller that knows the host removes: start the kubelet without --cloud-provider=external", taint.Key)
		}
	}
	c.Recorder.Publish(events.Event{
		InvolvedObject: s.NodeClaim, Type: corev1.EventTypeWarning, Reason: "NodeNotReady", Message: text,
		DedupeValues: []string{string(s.NodeClaim.UID)}, DedupeTimeout: 10 * time.Minute,
	})
}
