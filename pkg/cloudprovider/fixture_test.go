package cloudprovider_test

import (
	"context"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

const namespace = "kpssh-system"

func newHost(name string, changes ...func(*v1beta1.SSHHost)) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace, UID: types.UID("uid-" + name), Labels: map[string]string{apis.LabelHostClass: "big"},
		},
		Spec: v1beta1.SSHHostSpec{Address: "192.0.2.1", Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"),
		}},
		Status: v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, ObservedArch: "amd64"},
	}
	for _, change := range changes {
		change(h)
	}
	return h
}

func ofClass(class, cpu string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) {
		h.Labels[apis.LabelHostClass] = class
		h.Spec.Capacity[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
}

func arm(h *v1beta1.SSHHost) { h.Status.ObservedArch = "arm64" }

func zone(z string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) { h.Labels[corev1.LabelTopologyZone] = z }
}

// serving makes a host the NodeClaim's, in use.
func serving(nc *karpv1.NodeClaim, changes ...func(*v1beta1.SSHHost)) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) {
		h.Status.State = v1beta1.HostInUse
		h.Status.ClaimRef = &v1beta1.ClaimRef{Name: nc.Name, UID: nc.UID}
		h.Status.ProviderID = h.StaticProviderID()
		h.Status.InstalledProfile = "tls-bootstrap@3"
		for _, change := range changes {
			change(h)
		}
	}
}

func newClass(changes ...func(*v1beta1.SSHNodeClass)) *v1beta1.SSHNodeClass {
	c := &v1beta1.SSHNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "pool", UID: "uid-class", Generation: 1},
		Spec:       v1beta1.SSHNodeClassSpec{JoinProfileRef: v1beta1.JoinProfileRef{Name: "tls-bootstrap"}, Vars: map[string]string{"a": "1"}},
		Status:     v1beta1.SSHNodeClassStatus{Conditions: []status.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready"}}},
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

func newProfile() *v1beta1.SSHJoinProfile {
	return &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "tls-bootstrap"}, Spec: v1beta1.SSHJoinProfileSpec{Version: "3"}}
}

func newNodeClaim(changes ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	nc := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim", UID: "uid-claim"},
		Spec:       karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Group: apis.Group, Kind: "SSHNodeClass", Name: "pool"}},
	}
	for _, change := range changes {
		change(nc)
	}
	return nc
}

func requires(key string, values ...string) func(*karpv1.NodeClaim) {
	return func(nc *karpv1.NodeClaim) {
		nc.Spec.Requirements = append(nc.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values})
	}
}

func requests(cpu string) func(*karpv1.NodeClaim) {
	return func(nc *karpv1.NodeClaim) {
		nc.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

// world is a provider over an API server that keeps the optimistic lock.
type world struct {
	t         *testing.T
	client    client.WithWatch
	inventory *pool.Inventory
	pool      *pool.Pool
	provider  *cloudprovider.CloudProvider
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	return newWorldWith(t, interceptor.Funcs{}, objects...)
}

func newWorldWith(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *world {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1beta1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, inventory: pool.NewInventory(namespace, instancetype.Shape)}
	w.client = fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).
		WithStatusSubresource(&v1beta1.SSHHost{}, &v1beta1.SSHNodeClass{}).WithInterceptorFuncs(funcs).Build()
	w.pool = pool.New(w.client, w.client, w.inventory, pool.Options{Namespace: namespace})
	if err := w.pool.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	w.inventory.MarkSynced()
	w.provider = cloudprovider.New(w.client, w.pool, instancetype.NewCatalog(w.inventory))
	return w
}

func (w *world) stored(name string) *v1beta1.SSHHost {
	w.t.Helper()
	h := &v1beta1.SSHHost{}
	if err := w.client.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: name}, h); err != nil {
		w.t.Fatal(err)
	}
	return h
}
