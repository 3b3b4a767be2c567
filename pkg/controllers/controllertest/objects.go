package controllertest

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
)

// Namespace of the pool.
const Namespace = "kpssh-system"

// Cluster is the one that hosts become members of.
const Cluster membership.Cluster = "uid-kube-system"

// Names of the class and the profile that the other objects refer to.
const (
	ClassName   = "default"
	ProfileName = "tls-bootstrap"
)

var karpenterGroupVersion = schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}

// Host is an Available host with the shim at 10.0.0.<last>.
func Host(name, address string, changes ...func(*v1beta1.SSHHost)) *v1beta1.SSHHost {
	host := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name},
		Spec: v1beta1.SSHHostSpec{
			Address: address, Port: 22,
			SSHKeySecretRef: v1beta1.SecretRef{Name: "ssh-key"},
			Capacity:        corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")},
			ExecMode:        v1beta1.ExecModeVerified,
			Shim:            &v1beta1.ShimIdentity{HostID: "0123456789abcdef-" + name, ReceiptKey: "ed25519:AAAA"},
		},
		Status: v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, ObservedArch: "amd64"},
	}
	for _, change := range changes {
		change(host)
	}
	return host
}

// ClaimedBy makes the host Claimed by a NodeClaim of the name, under fence 1.
func ClaimedBy(name string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) {
		h.Status.State = v1beta1.HostClaimed
		h.Status.ClaimRef = &v1beta1.ClaimRef{Name: name, UID: types.UID("uid-" + name)}
		h.Status.ProviderID = h.StaticProviderID()
		h.Status.Fence = 1
	}
}

// InState puts the host into a state.
func InState(state v1beta1.HostState) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) { h.Status.State = state }
}

// Raw takes the shim away.
func Raw(h *v1beta1.SSHHost) {
	h.Spec.ExecMode = v1beta1.ExecModeRaw
	h.Spec.Shim = nil
}

// NodeClaim is one of ours that was launched on the host of the provider id.
func NodeClaim(name, providerID string, changes ...func(*karpenterv1.NodeClaim)) *karpenterv1.NodeClaim {
	nodeClaim := &karpenterv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{"karpenter.sh/nodepool": "pool", "team": "blue"},
		},
		Spec: karpenterv1.NodeClaimSpec{
			NodeClassRef: &karpenterv1.NodeClassReference{Group: apis.Group, Kind: "SSHNodeClass", Name: ClassName},
		},
		Status: karpenterv1.NodeClaimStatus{ProviderID: providerID},
	}
	for _, change := range changes {
		change(nodeClaim)
	}
	return nodeClaim
}

// Class is a node class that refers to the profile.
func Class(changes ...func(*v1beta1.SSHNodeClass)) *v1beta1.SSHNodeClass {
	class := &v1beta1.SSHNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: ClassName},
		Spec:       v1beta1.SSHNodeClassSpec{JoinProfileRef: v1beta1.JoinProfileRef{Name: ProfileName}, Vars: map[string]string{"mirror": "m.example"}},
	}
	for _, change := range changes {
		change(class)
	}
	return class
}

// Profile is a join profile.
func Profile(changes ...func(*v1beta1.SSHJoinProfile)) *v1beta1.SSHJoinProfile {
	profile := &v1beta1.SSHJoinProfile{
		ObjectMeta: metav1.ObjectMeta{Name: ProfileName},
		Spec: v1beta1.SSHJoinProfileSpec{
			Version: "1",
			Scripts: v1beta1.Scripts{Install: "echo install\n", Join: "echo join\n", Leave: "echo leave\n"},
		},
	}
	for _, change := range changes {
		change(profile)
	}
	return profile
}

// Node is a Ready node.
func Node(name, providerID, address string, changes ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Spec:       corev1.NodeSpec{ProviderID: providerID},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeHostName, Address: name}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, change := range changes {
		change(node)
	}
	return node
}

// NotReady makes a node not ready.
func NotReady(node *corev1.Node) { node.Status.Conditions[0].Status = corev1.ConditionFalse }
