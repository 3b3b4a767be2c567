package bigpool

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// Controller is the provider as the program wires it, on a watch of its own.
type Controller struct {
	// Pool is what the provider claims from.
	Pool     *pool.Pool
	provider *cloudprovider.CloudProvider
	hosts    *Pool
	cancel   context.CancelFunc
	ended    chan error
}

// NewController starts one and waits until it knows all hosts.
func (p *Pool) NewController(ctx context.Context) (*Controller, error) {
	config := p.world.server.RESTConfig()
	store, err := cache.New(config, cache.Options{Scheme: p.world.scheme, ByObject: map[client.Object]cache.ByObject{
		&v1beta1.SSHHost{}: {Namespaces: map[string]cache.Config{p.Namespace: {}}},
	}})
	if err != nil {
		return nil, err
	}
	cached, err := client.New(config, client.Options{Scheme: p.world.scheme, Cache: &client.CacheOptions{Reader: store}})
	if err != nil {
		return nil, err
	}
	inventory := pool.NewInventory(p.Namespace, instancetype.Shape)
	if err := inventory.Feed(ctx, store); err != nil {
		return nil, err
	}
	c := &Controller{
		Pool: pool.New(cached, p.world.Live, inventory, pool.Options{Namespace: p.Namespace}), hosts: p, ended: make(chan error, 1),
	}
	c.provider = cloudprovider.New(cached, c.Pool, instancetype.NewCatalog(inventory))
	running, cancel := context.WithCancel(ctx)
	c.cancel = cancel
	go func() { c.ended <- store.Start(running) }()
	if !toolscache.WaitForCacheSync(ctx.Done(), inventory.Synced) {
		return nil, errors.Join(fmt.Errorf("waiting for all hosts: %w", ctx.Err()), c.Stop())
	}
	// As a new leader does, before the first claim.
	if err := c.Pool.Prime(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// Stop ends its watches.
func (c *Controller) Stop() error {
	c.cancel()
	return <-c.ended
}

// nodeClaim is one as core makes it.
func nodeClaim() *karpv1.NodeClaim {
	uid := uuid.NewUUID()
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "pool-" + string(uid), UID: uid},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: apis.Group, Kind: cloudprovider.NodeClassKind, Name: className},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
				{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64"}},
				{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.CapacityTypeOnDemand}},
			},
			Resources: karpv1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"),
			}},
		},
	}
}

// Create times the provider's launch of a NodeClaim and then, uncounted, releases its host, so that the pool stays as full.
func (c *Controller) Create(ctx context.Context) (time.Duration, error) {
	n := nodeClaim()
	began := time.Now()
	launched, err := c.provider.Create(ctx, n)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	if launched.Status.ProviderID == "" {
		return 0, errors.New("Create returned without a provider id")
	}
	held, err := c.Pool.HeldBy(ctx, pool.RefOf(n), launched.Status.ProviderID)
	if err != nil {
		return 0, err
	}
	if len(held) != 1 {
		return 0, fmt.Errorf("%d hosts are held by one NodeClaim", len(held))
	}
	return took, c.release(ctx, held[0], pool.RefOf(n))
}

func (c *Controller) release(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref) error {
	_, err := c.Pool.Release(ctx, host, ref, pool.Outcome{State: v1beta1.HostAvailable, Reason: v1beta1.ReasonProbed})
	return err
}

// contended says whether core would try again at once: other claims were quicker.
func contended(err error) bool {
	var failed *corecloudprovider.CreateError
	return errors.As(err, &failed) && failed.ConditionReason == cloudprovider.ReasonHostsContended
}
