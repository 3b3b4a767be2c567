// Package claim releases hosts whose NodeClaim is gone, or whose NodeClaim holds another host.
//
// Core never asks the provider to delete a NodeClaim that has no provider id yet, and a NodeClaim whose
// finalizers were stripped by hand asks nobody. Such a host goes to Pending: whatever ran on it is found
// by the next probe, which has leave run before the host can be claimed again.
package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

const (
	recheck = 5 * time.Minute
	// busyDelay is how soon to look again at a host on which a phase of the lost claim still runs, and at one
	// that its NodeClaim does not name while the host that it names is not known to be held.
	busyDelay = 2 * time.Second
)

// ReasonExtraClaim is why a host was released whose NodeClaim holds another one.
const ReasonExtraClaim = "ExtraClaim"

// Hosts is what this controller needs of the pool.
type Hosts interface {
	AllByClaim(uid types.UID) []*v1beta1.SSHHost
	Extra(host *v1beta1.SSHHost, providerID string) bool
	ForgetBootstrapToken(ctx context.Context, host *v1beta1.SSHHost, id string) (*v1beta1.SSHHost, error)
	ReleaseStale(ctx context.Context, host *v1beta1.SSHHost, reason, message string) (*v1beta1.SSHHost, error)
}

// Tokens is what this controller needs of bootstrap.
type Tokens interface {
	Delete(ctx context.Context, id string) error
}

// Options of a Controller.
type Options struct {
	// Client may read from a cache; Live asks the API server.
	Client client.Client
	Live   client.Reader
	Hosts  Hosts
	Tokens Tokens
	Turns  *membership.Turns
	// Namespace of the hosts, and how many are looked at at once.
	Namespace string
	Workers   int
}

// Controller releases stale claims.
type Controller struct{ Options }

// NewController returns a Controller.
func NewController(opts Options) *Controller { return &Controller{opts} }

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, host *v1beta1.SSHHost) (reconcile.Result, error) {
	ref := pool.RefOn(host)
	if ref.UID == "" {
		return reconcile.Result{}, nil
	}
	nodeClaim, err := c.nodeClaim(ctx, ref)
	if err != nil {
		return reconcile.Result{}, err
	}
	reason, message := v1beta1.ReasonStaleClaim, fmt.Sprintf("NodeClaim %s (uid %s) is gone", ref.Name, ref.UID)
	if nodeClaim != nil {
		if id := nodeClaim.Status.ProviderID; id == host.StaticProviderID() || id == host.Status.ProviderID {
			return reconcile.Result{RequeueAfter: recheck}, nil
		}
		if !c.Hosts.Extra(host, nodeClaim.Status.ProviderID) {
			return reconcile.Result{RequeueAfter: busyDelay}, nil
		}
		reason, message = ReasonExtraClaim, fmt.Sprintf("NodeClaim %s has its node on another host", ref.Name)
	}
	done, free := c.Turns.Try(host.Name)
	if !free {
		return reconcile.Result{RequeueAfter: busyDelay}, nil
	}
	defer done()
	return c.release(ctx, host, reason, message)
}

func (c *Controller) release(ctx context.Context, host *v1beta1.SSHHost, reason, message string) (reconcile.Result, error) {
	current := host
	if id := host.Status.BootstrapTokenID; id != "" {
		if err := c.Tokens.Delete(ctx, id); err != nil {
			return reconcile.Result{}, err
		}
		var err error
		if current, err = c.Hosts.ForgetBootstrapToken(ctx, host, id); err != nil {
			return reconcile.Result{}, ignoreGone(err)
		}
	}
	if pool.RefOn(current) != pool.RefOn(host) {
		return reconcile.Result{}, nil // somebody else released it
	}
	if _, err := c.Hosts.ReleaseStale(ctx, current, reason, message); err != nil {
		return reconcile.Result{}, ignoreGone(err)
	}
	log.FromContext(ctx).Info("released a stale claim", "host", host.Name, "reason", reason, "nodeclaim", pool.RefOn(host).Name)
	return reconcile.Result{}, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, pool.ErrClaimLost) || errors.Is(err, pool.ErrHostNotFound) {
		return nil
	}
	return fmt.Errorf("releasing a stale claim: %w", err)
}

// nodeClaim returns the NodeClaim that holds the host; nil when the API server knows none of that uid.
// A cache may say that it is there, but not that it is gone: it may not have seen it yet.
func (c *Controller) nodeClaim(ctx context.Context, ref pool.Ref) (*karpenterv1.NodeClaim, error) {
	for _, reader := range []client.Reader{c.Client, c.Live} {
		nodeClaim := &karpenterv1.NodeClaim{}
		err := reader.Get(ctx, types.NamespacedName{Name: ref.Name}, nodeClaim)
		switch {
		case err == nil && nodeClaim.UID == ref.UID:
			return nodeClaim, nil
		case err != nil && !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("reading nodeclaim %q: %w", ref.Name, err)
		}
	}
	return nil, nil
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	deletions := builder.WithPredicates(predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	})
	return ctrl.NewControllerManagedBy(m).
		Named("sshhost.claim").
		For(&v1beta1.SSHHost{}, membership.InNamespace(c.Namespace)).
		Watches(&karpenterv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			var out []reconcile.Request
			for _, host := range c.Hosts.AllByClaim(o.GetUID()) {
				out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(host)})
			}
			return out
		}), deletions).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Workers}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}
