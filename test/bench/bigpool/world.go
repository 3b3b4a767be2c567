// Package bigpool is a real API server with pools of many hosts that nobody is behind, and the provider on it as the program
// wires it. The bench measures claims there, and the tests of pkg/pool try them.
package bigpool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

const (
	// writers fill a pool; more of them only wait for each other.
	writers = 16
	// apart is the number of a host that is none of those that a pool is filled with. No two may have one: hosts that say
	// that they are the same machine are not claimed.
	apart = 60000
	// className is that of the node class, and of its profile.
	className = "pool"
)

// World is an API server with our kinds, a node class of all hosts and its profile.
type World struct {
	server *lab.APIServer
	scheme *runtime.Scheme
	// Live reads and writes without a cache.
	Live client.Client
}

// Start starts an API server; log receives progress.
func Start(ctx context.Context, log func(format string, args ...any)) (_ *World, err error) {
	ctrllog.SetLogger(logr.Discard()) // or controller-runtime complains that nobody did
	w := &World{scheme: runtime.NewScheme()}
	if err := errors.Join(clientgoscheme.AddToScheme(w.scheme), v1beta1.AddToScheme(w.scheme)); err != nil {
		return nil, err
	}
	if w.server, err = lab.StartAPIServer(ctx, lab.APIServerOptions{Log: log}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	for _, manifest := range crds.Own() {
		if err := w.server.Apply(ctx, string(manifest)); err != nil {
			return nil, err
		}
	}
	if _, err := w.server.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"); err != nil {
		return nil, err
	}
	if w.Live, err = client.New(w.server.RESTConfig(), client.Options{Scheme: w.scheme}); err != nil {
		return nil, err
	}
	return w, w.makeClass(ctx)
}

func (w *World) makeClass(ctx context.Context) error {
	profile := &v1beta1.SSHJoinProfile{
		ObjectMeta: metav1.ObjectMeta{Name: className},
		Spec:       v1beta1.SSHJoinProfileSpec{Version: "1", Scripts: v1beta1.Scripts{Install: "true\n", Join: "true\n", Leave: "true\n"}},
	}
	class := &v1beta1.SSHNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: className},
		Spec:       v1beta1.SSHNodeClassSpec{JoinProfileRef: v1beta1.JoinProfileRef{Name: className}},
	}
	if err := errors.Join(w.Live.Create(ctx, profile), w.Live.Create(ctx, class)); err != nil {
		return fmt.Errorf("making the node class: %w", err)
	}
	class.StatusConditions().SetTrue(v1beta1.ConditionReady)
	return w.Live.Status().Update(ctx, class)
}

// Close ends the API server.
func (w *World) Close() error { return w.server.Close() }

// Pool is the hosts of one namespace, Available but for one.
type Pool struct {
	world     *World
	Namespace string
	// spare is a host in maintenance that status updates are tried on.
	spare *v1beta1.SSHHost
	hosts int
}

// NewPool makes a namespace with so many free hosts.
func (w *World) NewPool(ctx context.Context, namespace string, hosts int) (*Pool, error) {
	if err := w.Live.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return nil, fmt.Errorf("making namespace %q: %w", namespace, err)
	}
	p := &Pool{world: w, Namespace: namespace}
	var err error
	if p.spare, err = p.make(ctx, "spare", apart, v1beta1.HostMaintenance); err != nil {
		return nil, err
	}
	return p, p.grow(ctx, hosts)
}

func (p *Pool) grow(ctx context.Context, to int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for ; p.hosts < to; p.hosts++ {
		n := p.hosts
		group.Go(func() error {
			_, err := p.make(ctx, fmt.Sprintf("host-%05d", n), n, v1beta1.HostAvailable)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("filling the pool of namespace %q: %w", p.Namespace, err)
	}
	return nil
}

// Make makes a host anew that was deleted, under its name.
func (p *Pool) Make(ctx context.Context, name string) error {
	_, err := p.make(ctx, name, apart+1, v1beta1.HostAvailable)
	return err
}

// make makes one host of ten classes, as a probe leaves it.
func (p *Pool) make(ctx context.Context, name string, n int, state v1beta1.HostState) (*v1beta1.SSHHost, error) {
	capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi")}
	host := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: name,
			Labels: map[string]string{
				apis.LabelHostClass: fmt.Sprintf("class-%d", n%10), corev1.LabelTopologyZone: fmt.Sprintf("rack-%d", n%5),
			},
		},
		Spec: v1beta1.SSHHostSpec{
			Address: fmt.Sprintf("10.1.%d.%d", n/250, n%250+1), SSHKeySecretRef: v1beta1.SecretRef{Name: "ssh"}, Capacity: capacity,
			Shim: &v1beta1.ShimIdentity{
				HostID:     fmt.Sprintf("%032x", n),
				ReceiptKey: "ed25519:MCowBQYDK2VwAyEAVLDYHQ+n0A5KfWAN+rpvKyIDWyL+M14X7fX5qluwUHQ=",
			},
		},
	}
	if err := p.world.Live.Create(ctx, host); err != nil {
		return nil, err
	}
	now := metav1.Now()
	host.Status = v1beta1.SSHHostStatus{
		State: state, ObservedArch: "amd64", ObservedCapacity: capacity, ObservedGeneration: host.Generation,
		InstalledProfile: className + "@1", HostKeyFingerprint: "SHA256:uNiVztksCsDhcc0u9e8BrrJXVGuNOQzKqL8Ro2w8u4E", LastProbeTime: &now,
	}
	host.StatusConditions().SetTrueWithReason(v1beta1.ConditionReady, v1beta1.ReasonProbed, "answered its last probe")
	return host, p.world.Live.Status().Update(ctx, host)
}

// Update is one round trip of the least that a claim can cost: a status update of an object of the same kind and size.
func (p *Pool) Update(ctx context.Context) (time.Duration, error) {
	p.spare.Status.Fence++
	began := time.Now()
	err := p.world.Live.Status().Update(ctx, p.spare)
	return time.Since(began), err
}
