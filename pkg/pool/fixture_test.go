package pool_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

const namespace = "kpssh-system"

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func scheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1beta1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

func newHost(name string, changes ...func(*v1beta1.SSHHost)) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: uuid.NewUUID(), Generation: 1},
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

func inState(state v1beta1.HostState) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) {
		h.Status.State = state
		if state == v1beta1.HostClaimed || state == v1beta1.HostInUse {
			h.Status.ClaimRef = &v1beta1.ClaimRef{Name: claimA.Name, UID: claimA.UID}
			h.Status.ProviderID = h.StaticProviderID()
			h.Status.Fence = 1
		}
	}
}

func installed(marker string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) { h.Status.InstalledProfile = marker }
}

func labelled(key, value string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) { metav1.SetMetaDataLabel(&h.ObjectMeta, key, value) }
}

func parked(h *v1beta1.SSHHost) {
	metav1.SetMetaDataAnnotation(&h.ObjectMeta, apis.AnnotationMaintenance, "")
}

var (
	claimA = pool.Ref{Name: "claim-a", UID: types.UID("uid-a")}
	claimB = pool.Ref{Name: "claim-b", UID: types.UID("uid-b")}
)

// world is an API server that keeps the optimistic lock, and one pool on it.
type world struct {
	t         testing.TB
	client    client.WithWatch
	inventory *pool.Inventory
	pool      *pool.Pool
	clock     *clocktesting.FakeClock
}

func classShape(h *v1beta1.SSHHost) string { return h.Class() }

func newWorld(t testing.TB, hosts ...*v1beta1.SSHHost) *world {
	return newWorldWith(t, interceptor.Funcs{}, hosts...)
}

func newWorldWith(t testing.TB, funcs interceptor.Funcs, hosts ...*v1beta1.SSHHost) *world {
	t.Helper()
	objects := make([]client.Object, 0, len(hosts))
	for _, h := range hosts {
		objects = append(objects, h)
	}
	w := &world{t: t, clock: clocktesting.NewFakeClock(start)}
	w.client = fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(objects...).
		WithStatusSubresource(&v1beta1.SSHHost{}).WithInterceptorFuncs(funcs).Build()
	w.inventory, w.pool = w.another()
	return w
}

// another is a second controller on the same API server, with a cache of its own.
func (w *world) another() (*pool.Inventory, *pool.Pool) {
	inv := pool.NewInventory(namespace, classShape)
	w.sync(inv)
	inv.MarkSynced()
	return inv, pool.New(w.client, w.client, inv, pool.Options{Namespace: namespace, Clock: w.clock})
}

// sync brings an inventory up to date, as its watch would sooner or later.
func (w *world) sync(inv *pool.Inventory) {
	w.t.Helper()
	list := &v1beta1.SSHHostList{}
	if err := w.client.List(context.Background(), list); err != nil {
		w.t.Fatal(err)
	}
	for i := range list.Items {
		inv.OnAdd(&list.Items[i], false)
	}
}

// stored is a host as the API server has it.
func (w *world) stored(name string) *v1beta1.SSHHost {
	w.t.Helper()
	h := &v1beta1.SSHHost{}
	if err := w.client.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: name}, h); err != nil {
		w.t.Fatal(err)
	}
	return h
}

// meanwhile changes a host behind the pool's back.
func (w *world) meanwhile(name string, change func(*v1beta1.SSHHost)) {
	w.t.Helper()
	h := w.stored(name)
	change(h)
	if err := w.client.Status().Update(context.Background(), h); err != nil {
		w.t.Fatal(err)
	}
}
