// Package controllertest is what the tests of the controllers share: an API server in memory with a pool
// over it, objects to put there, and a host that runs nothing but keeps the rules of the shim.
package controllertest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// Start is the time at which every Env begins.
var Start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Env is an API server in memory, and a pool.
type Env struct {
	Client client.WithWatch
	Pool   *pool.Pool
	Clock  *clocktesting.FakeClock
	Events *Events
	Turns  *membership.Turns

	t testing.TB
}

// Scheme holds every kind that the controllers touch.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	gv := karpenterGroupVersion
	scheme.AddKnownTypes(gv, &karpenterv1.NodePool{}, &karpenterv1.NodePoolList{}, &karpenterv1.NodeClaim{}, &karpenterv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, gv)
	return scheme
}

// New returns an Env that holds the objects.
func New(t testing.TB, objects ...client.Object) *Env {
	t.Helper()
	return NewIntercepted(t, interceptor.Funcs{}, objects...)
}

// NewIntercepted is New with faults.
func NewIntercepted(t testing.TB, faults interceptor.Funcs, objects ...client.Object) *Env {
	t.Helper()
	env := &Env{Clock: clocktesting.NewFakeClock(Start), Events: &Events{}, Turns: membership.NewTurns(), t: t}
	for _, object := range objects {
		defaults(object)
	}
	memory := interceptor.NewClient(fake.NewClientBuilder().
		WithScheme(Scheme()).
		WithObjects(objects...).
		WithStatusSubresource(&v1beta1.SSHHost{}, &v1beta1.SSHNodeClass{}, &v1beta1.SSHJoinProfile{}, &karpenterv1.NodeClaim{}, &corev1.Node{}).
		WithIndex(&corev1.Node{}, membership.NodeIdentityIndex, membership.NodeIdentities).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		Build(), interceptor.Funcs{Delete: deleteExactly})
	env.Client = interceptor.NewClient(memory, faults)
	env.Pool = env.NewPool()
	return env
}

// Over returns an Env over a real API server, without a pool.
func Over(t testing.TB, c client.WithWatch) *Env {
	return &Env{Client: c, Clock: clocktesting.NewFakeClock(Start), Events: &Events{}, Turns: membership.NewTurns(), t: t}
}

// deleteExactly holds a deletion to the uid that it names, as the API server does and the fake does not.
func deleteExactly(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
	options := client.DeleteOptions{}
	options.ApplyOptions(opts)
	if want := options.Preconditions; want != nil && want.UID != nil {
		current := object.DeepCopyObject().(client.Object)
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), current); err != nil {
			return err
		}
		if current.GetUID() != *want.UID {
			return apierrors.NewConflict(schema.GroupResource{}, object.GetName(), fmt.Errorf("uid is %s and not %s", current.GetUID(), *want.UID))
		}
	}
	return c.Delete(ctx, object, opts...)
}

// defaults gives an object what the API server would.
func defaults(object client.Object) {
	if object.GetUID() == "" {
		object.SetUID(types.UID("uid-" + object.GetName()))
	}
	if t := object.GetCreationTimestamp(); t.IsZero() {
		object.SetCreationTimestamp(metav1.NewTime(Start))
	}
	if object.GetGeneration() == 0 {
		object.SetGeneration(1)
	}
}

// NewPool returns another pool over the same API server, as another controller would have.
func (e *Env) NewPool() *pool.Pool {
	e.t.Helper()
	p, _ := e.NewInventory()
	return p
}

// NewInventory is NewPool with the inventory that the pool finds hosts in.
func (e *Env) NewInventory() (*pool.Pool, *pool.Inventory) {
	e.t.Helper()
	inventory := pool.NewInventory(Namespace, func(*v1beta1.SSHHost) string { return "" })
	p := pool.New(e.Client, e.Client, inventory, pool.Options{Namespace: Namespace, Clock: e.Clock})
	if err := p.Refresh(context.Background()); err != nil {
		e.t.Fatal(err)
	}
	inventory.MarkSynced()
	return p, inventory
}

// Create puts objects into the API server.
func (e *Env) Create(objects ...client.Object) {
	e.t.Helper()
	for _, object := range objects {
		defaults(object)
		if err := e.Client.Create(context.Background(), object); err != nil {
			e.t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
		}
	}
	e.Sync()
}

// Sync does what the watch would: it brings the pool what others wrote.
func (e *Env) Sync() {
	e.t.Helper()
	if err := e.Pool.Refresh(context.Background()); err != nil {
		e.t.Fatal(err)
	}
}

// Host reads a host.
func (e *Env) Host(name string) *v1beta1.SSHHost {
	e.t.Helper()
	return get(e, Namespace, name, &v1beta1.SSHHost{})
}

// NodeClaim reads a NodeClaim; nil when there is none.
func (e *Env) NodeClaim(name string) *karpenterv1.NodeClaim {
	e.t.Helper()
	return get(e, "", name, &karpenterv1.NodeClaim{})
}

// Node reads a Node; nil when there is none.
func (e *Env) Node(name string) *corev1.Node {
	e.t.Helper()
	return get(e, "", name, &corev1.Node{})
}

// Class reads a node class; nil when there is none.
func (e *Env) Class(name string) *v1beta1.SSHNodeClass {
	e.t.Helper()
	return get(e, "", name, &v1beta1.SSHNodeClass{})
}

// Tokens counts the bootstrap token Secrets.
func (e *Env) Tokens() int {
	e.t.Helper()
	list := &corev1.SecretList{}
	if err := e.Client.List(context.Background(), list, client.InNamespace("kube-system")); err != nil {
		e.t.Fatal(err)
	}
	return len(list.Items)
}

func get[T client.Object](e *Env, namespace, name string, into T) T {
	e.t.Helper()
	err := e.Client.Get(context.Background(), types.NamespacedName{Namespace: namespace, Name: name}, into)
	if client.IgnoreNotFound(err) != nil {
		e.t.Fatal(err)
	}
	if err != nil {
		var none T
		return none
	}
	return into
}

// Events records what would become Events.
type Events struct {
	mu   sync.Mutex
	list []events.Event
}

// Publish implements events.Recorder of karpenter.
func (r *Events) Publish(list ...events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, list...)
}

// Reasons returns the reasons of the events so far on objects of kind and name, as "SSHHost/host-a".
func (r *Events) Reasons(object string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var reasons []string
	for _, e := range r.list {
		if nameOf(e.InvolvedObject) == object {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// Text returns everything that the events say.
func (r *Events) Text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, e := range r.list {
		fmt.Fprintf(&b, "%s %s %s: %s\n", e.Type, nameOf(e.InvolvedObject), e.Reason, e.Message)
	}
	return b.String()
}

func nameOf(object runtime.Object) string {
	switch o := object.(type) {
	case *v1beta1.SSHHost:
		return "SSHHost/" + o.Name
	case *v1beta1.SSHNodeClass:
		return "SSHNodeClass/" + o.Name
	case *karpenterv1.NodeClaim:
		return "NodeClaim/" + o.Name
	default:
		return fmt.Sprintf("%T", object)
	}
}
