package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// Name is how metrics call the provider.
const Name = "kpssh"

// NodeClassKind is the kind of the node class that the provider answers for.
const NodeClassKind = "SSHNodeClass"

// Reasons of the Launched condition when Create may succeed later.
const (
	ReasonNodeClassUnread  = "NodeClassUnread"
	ReasonNodeClassUnknown = "NodeClassReadinessUnknown"
	ReasonPoolCold         = "PoolNotSynced"
	ReasonHostsContended   = "HostsContended"
	ReasonClaimFailed      = "ClaimFailed"
)

// ReasonNodeClaimDeleted is why a host has LeaveRequested.
const ReasonNodeClaimDeleted = "NodeClaimDeleted"

// repairAfter is how long a node may be NotReady before core's node repair replaces it.
const repairAfter = 10 * time.Minute

// CloudProvider implements karpenter's interface.
type CloudProvider struct {
	reader  client.Reader
	pool    *pool.Pool
	catalog *instancetype.Catalog
	// shortage is why Damped has NodePools wait.
	shortage shortage
}

var _ cloudprovider.CloudProvider = (*CloudProvider)(nil)

// New makes a provider that reads node classes and join profiles with reader, which may be a cache.
func New(reader client.Reader, p *pool.Pool, catalog *instancetype.Catalog) *CloudProvider {
	return &CloudProvider{reader: reader, pool: p, catalog: catalog}
}

// RegisterLabels makes core treat the host class as a label that instance types may define, so that pods can select
// it without every NodePool naming it. Core keeps such labels in a global set: call it once, before core starts.
func RegisterLabels() { karpv1.WellKnownLabels.Insert(apis.LabelHostClass, apis.LabelPageSize) }

// Name implements cloudprovider.CloudProvider.
func (c *CloudProvider) Name() string { return Name }

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (c *CloudProvider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1beta1.SSHNodeClass{}}
}

// RepairPolicies implements cloudprovider.CloudProvider.
func (c *CloudProvider) RepairPolicies() []cloudprovider.RepairPolicy {
	return []cloudprovider.RepairPolicy{
		{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse, TolerationDuration: repairAfter},
		{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, TolerationDuration: repairAfter},
	}
}

// ours says whether a reference is to a node class of this provider. Core asks about every NodePool of the cluster.
func ours(ref *karpv1.NodeClassReference) bool {
	return ref != nil && ref.Group == apis.Group && ref.Kind == NodeClassKind
}

// GetInstanceTypes implements cloudprovider.CloudProvider. A NodePool of another provider has none here. A class
// that cannot be read is an error and not an empty list, which would make its nodes drift.
func (c *CloudProvider) GetInstanceTypes(ctx context.Context, nodePool *karpv1.NodePool) ([]*cloudprovider.InstanceType, error) {
	ref := nodePool.Spec.Template.Spec.NodeClassRef
	if !ours(ref) {
		return nil, nil
	}
	class, err := c.class(ctx, ref.Name)
	if err != nil {
		return nil, err
	}
	types, err := c.catalog.For(class)
	if err != nil {
		return nil, err
	}
	return types.All(), nil
}

// Delete implements cloudprovider.CloudProvider. A host that the NodeClaim, by name and uid, does not hold is left
// alone whatever its provider id: that id belongs to the host and may serve a successor by now.
func (c *CloudProvider) Delete(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	ref := pool.RefOf(nodeClaim)
	held, err := c.pool.HeldBy(ctx, ref, nodeClaim.Status.ProviderID)
	if err != nil {
		return fmt.Errorf("deleting NodeClaim %q: %w", nodeClaim.Name, err)
	}
	waiting := false
	for _, host := range held {
		_, err := c.pool.RequestLeave(ctx, host, ref, ReasonNodeClaimDeleted, "NodeClaim "+nodeClaim.Name+" is being deleted")
		switch {
		case errors.Is(err, pool.ErrClaimLost):
		case err != nil:
			return fmt.Errorf("deleting NodeClaim %q: %w", nodeClaim.Name, err)
		default:
			waiting = true
		}
	}
	if waiting {
		return nil
	}
	return notFound("no host is held by NodeClaim %q", nodeClaim.Name)
}

// Get implements cloudprovider.CloudProvider, for the static and the adopted id of a claimed host.
func (c *CloudProvider) Get(ctx context.Context, providerID string) (*karpv1.NodeClaim, error) {
	host, err := c.pool.ClaimedByProviderID(ctx, providerID)
	switch {
	case errors.Is(err, pool.ErrHostNotFound):
		return nil, notFound("no claimed host has provider id %q", providerID)
	case err != nil:
		return nil, fmt.Errorf("getting provider id %q: %w", providerID, err)
	}
	return described(host, providerID), nil
}

// List implements cloudprovider.CloudProvider. It holds every claimed host whatever its health, once for each of its
// ids, so that core's garbage collection never misses one; while the cache is cold it is an error.
func (c *CloudProvider) List(context.Context) ([]*karpv1.NodeClaim, error) {
	hosts, err := c.pool.Claimed()
	if err != nil {
		return nil, fmt.Errorf("listing claimed hosts: %w", err)
	}
	out := make([]*karpv1.NodeClaim, 0, len(hosts))
	for _, host := range hosts {
		out = append(out, described(host, host.StaticProviderID()))
		if id := host.Status.ProviderID; id != "" && id != host.StaticProviderID() {
			out = append(out, described(host, id))
		}
	}
	return out, nil
}

func (c *CloudProvider) class(ctx context.Context, name string) (*v1beta1.SSHNodeClass, error) {
	class := &v1beta1.SSHNodeClass{}
	if err := c.reader.Get(ctx, client.ObjectKey{Name: name}, class); err != nil {
		return nil, fmt.Errorf("getting SSHNodeClass %q: %w", name, err)
	}
	return class, nil
}

func (c *CloudProvider) profile(ctx context.Context, class *v1beta1.SSHNodeClass) (*v1beta1.SSHJoinProfile, error) {
	profile := &v1beta1.SSHJoinProfile{}
	if err := c.reader.Get(ctx, client.ObjectKey{Name: class.Spec.JoinProfileRef.Name}, profile); err != nil {
		return nil, fmt.Errorf("getting SSHJoinProfile %q: %w", class.Spec.JoinProfileRef.Name, err)
	}
	return profile, nil
}

func notFound(format string, args ...any) error {
	return cloudprovider.NewNodeClaimNotFoundError(fmt.Errorf(format, args...))
}

func isMissing(err error) bool { return apierrors.IsNotFound(err) }
