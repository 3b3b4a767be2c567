package operator

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	cpmetrics "sigs.k8s.io/karpenter/pkg/cloudprovider/metrics"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	corecontrollers "sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// wire puts core and our controllers on the manager, as core's kwok provider does.
func (o *Operator) wire(ctx context.Context) error {
	inventory := pool.NewInventory(o.options.PoolNamespace, instancetype.Shape)
	if err := inventory.Feed(ctx, o.manager.GetCache()); err != nil {
		return err
	}
	hosts := pool.New(o.manager.GetClient(), o.manager.GetAPIReader(), inventory, pool.Options{
		Namespace: o.options.PoolNamespace, Clock: o.clock,
		Backoff: pool.Backoff{Base: o.options.FailureBackoff, Max: o.options.FailureBackoffMax, QuarantineAfter: int32(o.options.QuarantineAfter)},
	})
	prime := manager.RunnableFunc(func(ctx context.Context) error {
		if err := hosts.Prime(ctx); err != nil {
			log.FromContext(ctx).Error(err, "reading all hosts; the first claim tries again")
		}
		return nil
	})
	if err := o.manager.Add(prime); err != nil {
		return fmt.Errorf("adding a task of the leader: %w", err)
	}
	if err := o.addCore(ctx, hosts, inventory); err != nil {
		return err
	}
	return o.addOurs(ctx, hosts, inventory)
}

func (o *Operator) addCore(ctx context.Context, hosts *pool.Pool, inventory *pool.Inventory) error {
	mgr := o.manager
	store := nodeoverlay.NewInstanceTypeStore()
	provider := cloudprovider.New(mgr.GetClient(), hosts, instancetype.NewCatalog(inventory))
	undecorated := cpmetrics.Decorate(provider)
	decorated := overlay.Decorate(undecorated, mgr.GetClient(), store)
	cluster := state.NewCluster(o.clock, mgr.GetClient(), decorated)
	for _, c := range corecontrollers.NewControllers(ctx, mgr, o.clock, provider.Damped(mgr.GetClient(), o.clock), o.recorder, decorated, undecorated, cluster, store) {
		if err := c.Register(ctx, mgr); err != nil {
			return fmt.Errorf("registering a controller of core: %w", err)
		}
	}
	return nil
}

func (o *Operator) addOurs(ctx context.Context, hosts *pool.Pool, inventory *pool.Inventory) error {
	mgr, opts := o.manager, o.options
	trust := newTrust(mgr.GetClient(), types.NamespacedName{Namespace: opts.Namespace, Name: opts.TrustConfigMap})
	signer, key, err := dispatchKey(ctx, opts, mgr.GetClient())
	if err != nil {
		return err
	}
	logins := dispatch.NewLogins()
	dispatcher, err := o.dispatcher(trust, signer, logins)
	if err != nil {
		return err
	}
	cluster, err := membership.ReadCluster(ctx, mgr.GetAPIReader())
	if err != nil {
		return err
	}
	all, err := controllers.New(ctx, controllers.Dependencies{
		Cluster: cluster, ClusterVersion: newClusterVersion(mgr.GetConfig(), o.clock).get,
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Indexer: mgr.GetFieldIndexer(), Pool: hosts, Inventory: inventory,
		Dispatcher: dispatcher, Logins: logins, Access: hostaccess.New(mgr.GetClient(), opts.PoolNamespace, opts.AllowRawExec),
		Trust: trust, TrustConfigMap: trust.name, DispatchKey: key, DispatchKeySecret: dispatchKeySecret(opts),
		Recorder: o.recorder, Registerer: crmetrics.Registry, PoolNamespace: opts.PoolNamespace, AllowRaw: opts.AllowRawExec, Clock: o.clock,
		ProbeInterval: opts.ProbeInterval, ProbeTimeout: opts.ProbeTimeout,
		JoinParallelism: opts.JoinParallelism, LeaveParallelism: opts.LeaveParallelism, ProbeParallelism: opts.ProbeParallelism,
		PrepareParallelism: opts.PrepareParallelism,
	})
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := c.Register(ctx, mgr); err != nil {
			return fmt.Errorf("registering a controller: %w", err)
		}
	}
	return nil
}

// dispatcher makes what talks to hosts.
func (o *Operator) dispatcher(trust dispatch.Trust, signer signing.Signer, logins *dispatch.Logins) (*dispatch.Dispatcher, error) {
	metrics, err := dispatch.NewMetrics(crmetrics.Registry)
	if err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	connections := remote.NewPool(remote.PoolOptions{
		MaxConnections: o.options.SSHMaxConnections, MaxDials: o.options.SSHMaxDials,
		MaxPerHost: o.options.SSHMaxPerHost, MaxPerJump: o.options.SSHMaxPerJump,
	})
	if err := crmetrics.Registry.Register(newConnectionCollector(connections.Stats)); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	hangUp := manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		return connections.Close()
	})
	if err := o.manager.Add(hangUp); err != nil {
		return nil, fmt.Errorf("adding a task of the leader: %w", err)
	}
	return dispatch.New(dispatch.Options{
		Trust: trust, Signer: signer, Pool: connections, AllowRaw: o.options.AllowRawExec, Tolerated: o.options.Tolerated,
		Audit: o.audit, Metrics: metrics, Logins: logins, Now: o.clock.Now,
	}), nil
}
