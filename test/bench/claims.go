package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/crds"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

const (
	poolHosts  = 1000
	claimPairs = 500
	// writers fill the pool; more of them only wait for each other.
	writers       = 16
	poolNamespace = "kpssh-system"
	poolName      = "pool"
)

// claims measures, on an API server of its own with a pool of 1 000 hosts, karpenter's call of Create, which returns
// with a provider id, and in turns with it one status update of an object of the same kind and size.

func (b *bench) claims(ctx context.Context) (_ []Result, err error) {
	ctrllog.SetLogger(logr.Discard()) // or controller-runtime complains that nobody did
	server, err := lab.StartAPIServer(ctx, lab.APIServerOptions{Log: b.detail})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	world, err := newPoolWorld(ctx, server)
	if err != nil {
		return nil, err
	}
	defer world.stop()
	b.say("  a pool of %d hosts is filled", poolHosts)
	var s sides
	for i := range warmUp + claimPairs {
		var create, update time.Duration
		steps := []func(context.Context) (time.Duration, error){world.create, world.update}
		took := []*time.Duration{&create, &update}
		for j := range steps {
			if i%2 == 1 {
				j = 1 - j
			}
			if *took[j], err = steps[j](ctx); err != nil {
				return nil, err
			}
		}
		if i >= warmUp {
			s.add(create, update)
		}
		b.progress("claims", i+1, warmUp+claimPairs)
	}
	g := goal{figure: "Q1", what: "Create, 1 000 hosts / a status update, p99 of each", most: 2, required: true, quantile: 0.99, unit: "s"}
	typical := goal{figure: "Q1 typical", what: "the same, medians", most: 2, quantile: 0.5, unit: "s"}
	return []Result{g.judge(&s), typical.judge(&s)}, nil
}

// poolWorld is the provider as the controller wires it, on a filled pool.
type poolWorld struct {
	client   client.Client
	pool     *pool.Pool
	provider *cloudprovider.CloudProvider
	// spare is a host outside the pool that status updates are tried on.
	spare   *v1beta1.SSHHost
	claimed int
	cancel  context.CancelFunc
	ended   chan error
}

func newPoolWorld(ctx context.Context, server *lab.APIServer) (*poolWorld, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	for _, manifest := range crds.Own() {
		if err := server.Apply(ctx, string(manifest)); err != nil {
			return nil, err
		}
	}
	if _, err := server.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"); err != nil {
		return nil, err
	}
	live, err := client.New(server.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	w := &poolWorld{ended: make(chan error, 1)}
	if w.spare, err = fill(ctx, live); err != nil {
		return nil, fmt.Errorf("filling the pool: %w", err)
	}
	store, err := cache.New(server.RESTConfig(), cache.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	w.client, err = client.New(server.RESTConfig(), client.Options{Scheme: scheme, Cache: &client.CacheOptions{Reader: store}})
	if err != nil {
		return nil, err
	}
	inventory := pool.NewInventory(poolNamespace, instancetype.Shape)
	running, cancel := context.WithCancel(ctx)
	w.cancel = cancel
	go func() { w.ended <- store.Start(running) }()
	if err := inventory.Feed(ctx, store); err != nil {
		w.stop()
		return nil, err
	}
	w.pool = pool.New(w.client, live, inventory, pool.Options{Namespace: poolNamespace})
	w.provider = cloudprovider.New(w.client, w.pool, instancetype.NewCatalog(inventory))
	// As a new leader does, before the first claim.
	if err := w.pool.Prime(ctx); err != nil {
		w.stop()
		return nil, err
	}
	return w, w.synced(ctx, inventory)
}

// synced waits until the inventory is complete.
func (w *poolWorld) synced(ctx context.Context, inventory *pool.Inventory) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !inventory.Synced() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			w.stop()
			return ctx.Err()
		}
	}
	return nil
}

func (w *poolWorld) stop() {
	w.cancel()
	<-w.ended
}

// create has the provider launch a NodeClaim and then, uncounted, releases its host, so that the pool stays as full.
func (w *poolWorld) create(ctx context.Context) (time.Duration, error) {
	w.claimed++
	nodeClaim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pool-%05d", w.claimed), UID: uuid.NewUUID()},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: apis.Group, Kind: cloudprovider.NodeClassKind, Name: poolName},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
				{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64"}},
				{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.CapacityTypeOnDemand}},
			},
			Resources: karpv1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"),
			}},
		},
	}
	began := time.Now()
	launched, err := w.provider.Create(ctx, nodeClaim)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	if launched.Status.ProviderID == "" {
		return 0, errors.New("Create returned without a provider id")
	}
	ref := pool.RefOf(nodeClaim)
	held, err := w.pool.HeldBy(ctx, ref, launched.Status.ProviderID)
	if err != nil {
		return 0, err
	}
	if len(held) != 1 {
		return 0, fmt.Errorf("%d hosts are held by one NodeClaim", len(held))
	}
	_, err = w.pool.Release(ctx, held[0], ref, pool.Outcome{State: v1beta1.HostAvailable, Reason: v1beta1.ReasonProbed})
	return took, err
}

// update is one round trip of the least that a claim can cost.
func (w *poolWorld) update(ctx context.Context) (time.Duration, error) {
	w.spare.Status.Fence++
	began := time.Now()
	err := w.client.Status().Update(ctx, w.spare)
	return time.Since(began), err
}

// fill makes the pool's objects, and returns one more host that is not in it.
func fill(ctx context.Context, c client.Client) (*v1beta1.SSHHost, error) {
	profile := &v1beta1.SSHJoinProfile{
		ObjectMeta: metav1.ObjectMeta{Name: poolName},
		Spec:       v1beta1.SSHJoinProfileSpec{Version: "1", Scripts: v1beta1.Scripts{Install: "true\n", Join: "true\n", Leave: "true\n"}},
	}
	class := &v1beta1.SSHNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: poolName},
		Spec:       v1beta1.SSHNodeClassSpec{JoinProfileRef: v1beta1.JoinProfileRef{Name: poolName}},
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: poolNamespace}}
	for _, o := range []client.Object{namespace, profile, class} {
		if err := c.Create(ctx, o); err != nil {
			return nil, err
		}
	}
	class.StatusConditions().SetTrue(v1beta1.ConditionReady)
	if err := c.Status().Update(ctx, class); err != nil {
		return nil, err
	}
	numbers := make(chan int)
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for n := range numbers {
				if errs[i] == nil {
					_, errs[i] = makeHost(ctx, c, n, v1beta1.HostAvailable)
				}
			}
		})
	}
	for n := range poolHosts {
		numbers <- n
	}
	close(numbers)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return makeHost(ctx, c, poolHosts, v1beta1.HostMaintenance)
}

// makeHost makes one host of ten classes, as a probe leaves it.
func makeHost(ctx context.Context, c client.Client, n int, state v1beta1.HostState) (*v1beta1.SSHHost, error) {
	capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi")}
	host := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: poolNamespace, Name: fmt.Sprintf("host-%04d", n),
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
	if err := c.Create(ctx, host); err != nil {
		return nil, err
	}
	now := metav1.Now()
	host.Status = v1beta1.SSHHostStatus{
		State: state, ObservedArch: "amd64", ObservedCapacity: capacity, ObservedGeneration: host.Generation,
		InstalledProfile: poolName + "@1", HostKeyFingerprint: "SHA256:uNiVztksCsDhcc0u9e8BrrJXVGuNOQzKqL8Ro2w8u4E", LastProbeTime: &now,
	}
	host.StatusConditions().SetTrueWithReason(v1beta1.ConditionReady, v1beta1.ReasonProbed, "answered its last probe")
	return host, c.Status().Update(ctx, host)
}
