package cloudprovider

import (
	"context"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// IsDrifted implements cloudprovider.CloudProvider. A node drifts when its host was installed with another
// profile@version than the class now names, or when the fields of the class that it was joined with changed. A hash
// of another version says nothing, nor does a class or profile that is gone: both are told by the class's Ready.
func (c *CloudProvider) IsDrifted(ctx context.Context, nodeClaim *karpv1.NodeClaim) (cloudprovider.DriftReason, error) {
	if !ours(nodeClaim.Spec.NodeClassRef) {
		return "", nil
	}
	class, err := c.class(ctx, nodeClaim.Spec.NodeClassRef.Name)
	if isMissing(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if reason, err := c.profileDrift(ctx, class, nodeClaim); reason != "" || err != nil {
		return reason, err
	}
	return classDrift(class, nodeClaim), nil
}

func (c *CloudProvider) profileDrift(ctx context.Context, class *v1beta1.SSHNodeClass, nodeClaim *karpv1.NodeClaim) (cloudprovider.DriftReason, error) {
	profile, err := c.profile(ctx, class)
	if isMissing(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	host, err := c.pool.ByClaim(nodeClaim.UID)
	if err != nil || !pool.Held(host, pool.RefOf(nodeClaim)) {
		return "", notFound("no host is held by NodeClaim %q", nodeClaim.Name)
	}
	// Before the host is in use its marker may still be that of an earlier claim.
	if host.Status.State != v1beta1.HostInUse || host.Status.InstalledProfile == "" {
		return "", nil
	}
	if host.Status.InstalledProfile != profile.Marker() {
		return v1beta1.DriftProfile, nil
	}
	return "", nil
}

func classDrift(class *v1beta1.SSHNodeClass, nodeClaim *karpv1.NodeClaim) cloudprovider.DriftReason {
	hash, ok := nodeClaim.Annotations[apis.AnnotationNodeClassHash]
	if !ok || nodeClaim.Annotations[apis.AnnotationNodeClassHashVersion] != v1beta1.NodeClassHashVersion {
		return ""
	}
	if hash != class.Hash() {
		return v1beta1.DriftNodeClass
	}
	return ""
}
