// Package token deletes bootstrap tokens as soon as they have served: when the node has registered, and
// when the host is free again. It also sweeps up tokens that no host names any more.
//
// The cluster's own token cleaner is off by default, so a token that we forget would lie in kube-system
// for ever (AKSFlexNode#273, R51).
package token

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
)

const (
	recheck    = 30 * time.Second
	sweepEvery = 5 * time.Minute
	// orphanAge is how old a token must be to be swept: long past the moment between making it and
	// seeing its id on the host.
	orphanAge = 5 * time.Minute
)

// Hosts is what this controller needs of the pool.
type Hosts interface {
	ForgetBootstrapToken(ctx context.Context, host *v1beta1.SSHHost, id string) (*v1beta1.SSHHost, error)
	List() ([]*v1beta1.SSHHost, error)
	ByProviderID(id string) (*v1beta1.SSHHost, error)
}

// Tokens is what this controller needs of bootstrap.
type Tokens interface {
	Delete(ctx context.Context, id string) error
	Sweep(ctx context.Context, age time.Duration, inUse func(context.Context) (map[string]bool, error)) (int, error)
}

// Controller deletes tokens.
type Controller struct {
	client    client.Client
	hosts     Hosts
	tokens    Tokens
	namespace string
	workers   int
}

// NewController returns a Controller for the hosts of the namespace.
func NewController(c client.Client, hosts Hosts, tokens Tokens, namespace string, workers int) *Controller {
	return &Controller{client: c, hosts: hosts, tokens: tokens, namespace: namespace, workers: workers}
}

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, host *v1beta1.SSHHost) (reconcile.Result, error) {
	id := host.Status.BootstrapTokenID
	if id == "" {
		return reconcile.Result{}, nil
	}
	if host.Status.ClaimRef != nil {
		registered, err := c.registered(ctx, host)
		if err != nil {
			return reconcile.Result{}, err
		}
		if !registered {
			return reconcile.Result{RequeueAfter: recheck}, nil
		}
	}
	if err := c.tokens.Delete(ctx, id); err != nil {
		return reconcile.Result{}, err
	}
	if _, err := c.hosts.ForgetBootstrapToken(ctx, host, id); err != nil {
		return reconcile.Result{}, fmt.Errorf("forgetting the bootstrap token of host %q: %w", host.Name, err)
	}
	return reconcile.Result{}, nil
}

// registered says whether the node of the claim is there, so that its kubelet has a certificate of its own.
func (c *Controller) registered(ctx context.Context, host *v1beta1.SSHHost) (bool, error) {
	nodeClaim := &karpenterv1.NodeClaim{}
	if err := c.client.Get(ctx, types.NamespacedName{Name: host.Status.ClaimRef.Name}, nodeClaim); err != nil {
		// The release of a stale claim deletes its token.
		return false, client.IgnoreNotFound(err)
	}
	if nodeClaim.UID != host.Status.ClaimRef.UID {
		return false, nil
	}
	nodes, err := membership.NodesOf(ctx, c.client, host)
	if err != nil {
		return false, err
	}
	return len(membership.RegisteredFor(nodeClaim, nodes)) > 0, nil
}

// Sweep deletes the tokens that no host names.
func (c *Controller) Sweep(ctx context.Context) error {
	deleted, err := c.tokens.Sweep(ctx, orphanAge, func(context.Context) (map[string]bool, error) {
		hosts, err := c.hosts.List()
		if err != nil {
			return nil, fmt.Errorf("listing hosts: %w", err)
		}
		ids := map[string]bool{}
		for _, host := range hosts {
			if host.Status.BootstrapTokenID != "" {
				ids[host.Status.BootstrapTokenID] = true
			}
		}
		return ids, nil
	})
	if deleted > 0 {
		log.FromContext(ctx).Info("deleted bootstrap tokens that no host names", "count", deleted)
	}
	return err
}

// sweeper runs Sweep while this process leads.
type sweeper struct{ controller *Controller }

// Start implements manager.Runnable.
func (s sweeper) Start(ctx context.Context) error {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := s.controller.Sweep(ctx); err != nil && ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "sweeping bootstrap tokens")
			}
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (sweeper) NeedLeaderElection() bool { return true }

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	if err := m.Add(sweeper{c}); err != nil {
		return fmt.Errorf("adding the token sweeper: %w", err)
	}
	return ctrl.NewControllerManagedBy(m).
		Named("sshhost.token").
		For(&v1beta1.SSHHost{}, membership.InNamespace(c.namespace)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.hostsOfNode), membership.NodeChanges()).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.workers}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// hostsOfNode finds the host of the node by its provider id. One that is still to be adopted is found once
// the host has it, whose change brings us here too.
func (c *Controller) hostsOfNode(_ context.Context, o client.Object) []reconcile.Request {
	node, ok := o.(*corev1.Node)
	if !ok || node.Spec.ProviderID == "" {
		return nil
	}
	host, err := c.hosts.ByProviderID(node.Spec.ProviderID)
	if err != nil || host.Status.BootstrapTokenID == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(host)}}
}
