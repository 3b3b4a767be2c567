package probe

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// A status that was lost (a restore, a move of the management cluster, an object that was deleted and made again) must
// not cost the nodes that run meanwhile: CAPT PR#432, R92. What a host serves is in two other places: the claim that it
// keeps itself, and the NodeClaim that names it.

// serves returns the living NodeClaim that the unclaimed host is a member for; nil when there is none. One that is being
// deleted does not count: its host is to be left.
func (c *Controller) serves(ctx context.Context, host *v1beta1.SSHHost, f finding) (*karpenterv1.NodeClaim, error) {
	// A status with a debt was not lost: the claim was given up.
	if host.Status.State == v1beta1.HostLeaving || pool.Owed(host) || f.claim == "" && (!host.Raw() || !f.kubelet) {
		return nil, nil
	}
	// The cache may say that it is there, but not that it is not: it may not have seen it yet.
	for _, reader := range []client.Reader{c.Client, c.Live} {
		list := &karpenterv1.NodeClaimList{}
		if err := reader.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing nodeclaims: %w", err)
		}
		for i := range list.Items {
			nodeClaim := &list.Items[i]
			if membership.Ours(nodeClaim) && names(nodeClaim, host, f) {
				return c.living(ctx, nodeClaim)
			}
		}
	}
	return nil, nil
}

// living returns the NodeClaim if the API server says that nobody is deleting it.
func (c *Controller) living(ctx context.Context, cached *karpenterv1.NodeClaim) (*karpenterv1.NodeClaim, error) {
	nodeClaim := &karpenterv1.NodeClaim{}
	if err := c.Live.Get(ctx, types.NamespacedName{Name: cached.Name}, nodeClaim); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading nodeclaim %q: %w", cached.Name, err)
	}
	if nodeClaim.UID != cached.UID || !nodeClaim.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	if other, err := c.Hosts.ByClaim(nodeClaim.UID); err == nil && other.Status.ClaimRef != nil {
		return nil, nil // held elsewhere: this host is one too many
	}
	return nodeClaim, nil
}

// names says whether the NodeClaim names the host, and the host it. A host with the shim says itself whom it serves; of
// one without only its Node tells.
func names(nodeClaim *karpenterv1.NodeClaim, host *v1beta1.SSHHost, f finding) bool {
	id := nodeClaim.Status.ProviderID
	if id == "" {
		return false // nothing ever ran for it
	}
	if !host.Raw() {
		return nodeClaim.UID == f.claim && (adopted(nodeClaim) || id == host.StaticProviderID())
	}
	for i := range f.nodes {
		if f.nodes[i].Spec.ProviderID == id && f.nodes[i].DeletionTimestamp.IsZero() {
			return true
		}
	}
	return false
}

// adopted says whether the NodeClaim has the provider id that its node brought, which tells nothing of its host.
func adopted(nodeClaim *karpenterv1.NodeClaim) bool {
	return !strings.HasPrefix(nodeClaim.Status.ProviderID, apis.ProviderIDPrefix)
}

// doubt says why the host is not yet believed that it serves the NodeClaim; empty when it is. The claim alone is the
// host's own word, and a host that lies must not be given another's: that one would count as extra, and be made to leave
// under its pods. So a Node with an adopted id has to be at the host's address. Where it is not, or nothing is known,
// nothing is decided: leaving this host could be as wrong.
func (c *Controller) doubt(ctx context.Context, host *v1beta1.SSHHost, nodeClaim *karpenterv1.NodeClaim) (string, error) {
	if host.Raw() || !adopted(nodeClaim) {
		return "", nil
	}
	says := fmt.Sprintf("the host says that it serves NodeClaim %s", nodeClaim.Name)
	nodes, err := membership.NodesWithID(ctx, c.Client, nodeClaim.Status.ProviderID)
	if err != nil {
		return "", err
	}
	if len(nodes) != 1 || !nodes[0].DeletionTimestamp.IsZero() {
		return fmt.Sprintf("%s, and %d nodes have its provider id %q: it is given back when there is one, at the host's address; "+
			"if there will be none, delete the NodeClaim", says, len(nodes), nodeClaim.Status.ProviderID), nil
	}
	switch has, known := membership.HasAddress(host, &nodes[0]); {
	case has:
		return "", nil
	case !known:
		return fmt.Sprintf("%s, and it is not known whether node %q is at its address: state the node's InternalIP as spec.nodeAddress", says, nodes[0].Name), nil
	default:
		return fmt.Sprintf("%s, and node %q is not at its address %s: if the host is that node, state the node's InternalIP as spec.nodeAddress; "+
			"if it is not, the host lies, or was not left: it is left when the NodeClaim's own host is known", says, nodes[0].Name, host.AdvertisedAddress()), nil
	}
}

// restore gives the host back to the NodeClaim that it serves. Nothing runs on it.
func (c *Controller) restore(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe, f finding) (reconcile.Result, error) {
	node, err := c.nodeOf(ctx, f.serves)
	if err != nil {
		return reconcile.Result{}, err
	}
	message := fmt.Sprintf("the host serves NodeClaim %s, which its status did not say", f.serves.Name)
	p, _ := c.observed(host, probe)
	_, err = c.Hosts.Reclaim(ctx, host, p, pool.Membership{
		Ref: pool.RefOf(f.serves), ProviderID: f.serves.Status.ProviderID, Installed: joinedWith(probe, f),
		Ready: node != nil && membership.Ready(node), Message: message,
	})
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("restoring the claim of host %q: %w", host.Name, err)
	}
	c.warn(host, v1beta1.EventClaimRestored, message)
	log.FromContext(ctx).Info("restored a claim", "host", host.Name, "nodeclaim", f.serves.Name)
	return reconcile.Result{}, nil
}

// nodeOf returns the Node that the NodeClaim is registered with, nil when there is none.
func (c *Controller) nodeOf(ctx context.Context, nodeClaim *karpenterv1.NodeClaim) (*corev1.Node, error) {
	name := nodeClaim.Status.NodeName
	if name == "" {
		name = nodeClaim.Name
	}
	node := &corev1.Node{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading node %q: %w", name, err)
	}
	if node.Spec.ProviderID != nodeClaim.Status.ProviderID || !node.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	return node, nil
}

// joinedWith is the marker of the profile that the host joined with under its claim, if its last run was that join.
func joinedWith(probe *dispatch.Probe, f finding) string {
	if probe.Hello == nil || probe.Hello.LastRun == nil {
		return ""
	}
	run := probe.Hello.LastRun
	if run.Phase != signing.PhaseJoin || run.Outcome != signing.OutcomeOK || run.Claim != probe.Hello.Claim.UID || f.claim == "" {
		return ""
	}
	return run.Profile + "@" + run.Version
}
