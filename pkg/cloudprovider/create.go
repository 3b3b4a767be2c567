package cloudprovider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// Create implements cloudprovider.CloudProvider: it claims the cheapest host that suits the NodeClaim and returns
// at once. Called again for the same NodeClaim it returns the same host.
func (c *CloudProvider) Create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	class, profile, err := c.usableClass(ctx, nodeClaim)
	if err != nil {
		return nil, err
	}
	types, err := c.catalog.Known(class)
	if err != nil {
		return nil, createError(err)
	}
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(nodeClaim.Spec.Requirements...)
	zones := requirements.Get(corev1.LabelTopologyZone)
	host, err := c.claim(ctx, pool.Request{
		Ref:      pool.RefOf(nodeClaim),
		Selector: types.Selector(),
		Shapes:   suitable(types, nodeClaim, requirements),
		Fits:     func(h *v1beta1.SSHHost) bool { return zones.Has(instancetype.Zone(h)) && h.PassesFor(class) },
		Prefer:   profile.Marker(),
	})
	nodePool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	switch {
	case errors.Is(err, pool.ErrNoHost):
		c.shortage.met(nodePool, c.pool.Revision())
		return nil, cloudprovider.NewInsufficientCapacityError(
			fmt.Errorf("none of the %d hosts that SSHNodeClass %q selects is free and suits NodeClaim %q: %w", types.Hosts(), class.Name, nodeClaim.Name, err))
	case err != nil:
		return nil, createError(err)
	}
	c.shortage.ended(nodePool)
	return launched(host, class, types.NameOf(instancetype.Shape(host))), nil
}

// claim takes a host that is being prepared for another profile, whose install would have to be waited for and then be
// replaced, only when there is no other.
func (c *CloudProvider) claim(ctx context.Context, req pool.Request) (*v1beta1.SSHHost, error) {
	atHand := req
	atHand.Fits = func(h *v1beta1.SSHHost) bool {
		preparing := pool.Preparing(h)
		return (preparing == "" || preparing == req.Prefer) && req.Fits(h)
	}
	host, err := c.pool.Claim(ctx, atHand)
	if errors.Is(err, pool.ErrNoHost) {
		return c.pool.Claim(ctx, req)
	}
	return host, err
}

// usableClass returns the class of a NodeClaim and its profile if a host may be joined with them.
func (c *CloudProvider) usableClass(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*v1beta1.SSHNodeClass, *v1beta1.SSHJoinProfile, error) {
	ref := nodeClaim.Spec.NodeClassRef
	if !ours(ref) {
		return nil, nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("NodeClaim %q is of a node class of another provider", nodeClaim.Name))
	}
	class, err := c.class(ctx, ref.Name)
	if err != nil {
		return nil, nil, unread(err)
	}
	if !class.DeletionTimestamp.IsZero() {
		return nil, nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("SSHNodeClass %q is being deleted", class.Name))
	}
	// A copy, because StatusConditions fills in what is missing and the cache shares its objects.
	switch ready := class.DeepCopy().StatusConditions().Get(v1beta1.ConditionReady); {
	case ready.IsFalse():
		return nil, nil, cloudprovider.NewNodeClassNotReadyError(fmt.Errorf("SSHNodeClass %q: %s: %s", class.Name, ready.Reason, ready.Message))
	case ready.IsUnknown():
		text := fmt.Sprintf("SSHNodeClass %q has not been checked yet", class.Name)
		return nil, nil, cloudprovider.NewCreateError(errors.New(text), ReasonNodeClassUnknown, text)
	}
	profile, err := c.profile(ctx, class)
	if err != nil {
		return nil, nil, unread(err)
	}
	return class, profile, nil
}

// unread is the answer when a class or its profile cannot be read: if it does not exist, trying again is in vain.
func unread(err error) error {
	if isMissing(err) {
		return cloudprovider.NewNodeClassNotReadyError(err)
	}
	return cloudprovider.NewCreateError(err, ReasonNodeClassUnread, err.Error())
}

func createError(err error) error {
	reason := ReasonClaimFailed
	switch {
	case errors.Is(err, pool.ErrCold):
		reason = ReasonPoolCold
	case errors.Is(err, pool.ErrContended):
		reason = ReasonHostsContended
	}
	return cloudprovider.NewCreateError(err, reason, err.Error())
}

// suitable returns the shapes of the types that the NodeClaim can be, the cheapest first. Which of them has a free host
// is not asked: the pool takes the first that has.
func suitable(types *instancetype.Types, nodeClaim *karpv1.NodeClaim, requirements scheduling.Requirements) []string {
	type priced struct {
		shape string
		price float64
	}
	var fitting []priced
	for _, it := range types.All() {
		if types.ShapeOf(it.Name) == "" || requirements.Intersects(it.Requirements) != nil ||
			!resources.Fits(nodeClaim.Spec.Resources.Requests, it.Allocatable()) {
			continue
		}
		if offerings := it.Offerings.Compatible(requirements); len(offerings) > 0 {
			fitting = append(fitting, priced{types.ShapeOf(it.Name), offerings.Cheapest().Price})
		}
	}
	slices.SortStableFunc(fitting, func(a, b priced) int { return cmp.Compare(a.price, b.price) })
	shapes := make([]string, 0, len(fitting)) // not nil: nothing suits, rather than everything
	for _, f := range fitting {
		shapes = append(shapes, f.shape)
	}
	return shapes
}

// launched is what core copies onto the NodeClaim: labels that the node will have, annotations for drift, and what
// the host has to offer.
func launched(host *v1beta1.SSHHost, class *v1beta1.SSHNodeClass, typeName string) *karpv1.NodeClaim {
	out := described(host, host.Status.ProviderID)
	out.Labels[corev1.LabelInstanceTypeStable] = typeName
	out.Annotations = map[string]string{
		apis.AnnotationNodeClassHash:        class.Hash(),
		apis.AnnotationNodeClassHashVersion: v1beta1.NodeClassHashVersion,
	}
	out.Status.Capacity = instancetype.Capacity(host.Spec.Capacity, class)
	out.Status.Allocatable = instancetype.Allocatable(out.Status.Capacity, class)
	return out
}

// described is a claimed host as a NodeClaim under one of its provider ids.
func described(host *v1beta1.SSHHost, providerID string) *karpv1.NodeClaim {
	out := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: pool.RefOn(host).Name,
			UID:  pool.RefOn(host).UID,
			Labels: map[string]string{
				corev1.LabelOSStable:        string(corev1.Linux),
				corev1.LabelTopologyZone:    instancetype.Zone(host),
				karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
				apis.LabelHostClass:         host.Class(),
			},
		},
		Status: karpv1.NodeClaimStatus{ProviderID: providerID, Capacity: host.Spec.Capacity.DeepCopy()},
	}
	if host.Status.ObservedArch != "" {
		out.Labels[corev1.LabelArchStable] = host.Status.ObservedArch
	}
	if size := host.Status.ObservedPageSize; size > 0 {
		out.Labels[apis.LabelPageSize] = strconv.FormatInt(size, 10)
	}
	return out
}
