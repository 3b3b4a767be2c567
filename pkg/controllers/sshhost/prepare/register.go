package prepare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

const (
	// planDelay gathers what happens at once into one look at all hosts, and is the least time between two.
	planDelay = time.Second
	// planInterval is how soon to look again while hosts or classes have to wait for their time.
	planInterval = 30 * time.Second
)

// plan is the one thing that the planner reconciles.
var plan = reconcile.Request{NamespacedName: types.NamespacedName{Name: "plan"}}

// soon asks for a plan, whatever happened.
func soon() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc:  func(_ context.Context, _ event.CreateEvent, q queue) { q.AddAfter(plan, planDelay) },
		UpdateFunc:  func(_ context.Context, _ event.UpdateEvent, q queue) { q.AddAfter(plan, planDelay) },
		DeleteFunc:  func(_ context.Context, _ event.DeleteEvent, q queue) { q.AddAfter(plan, planDelay) },
		GenericFunc: func(_ context.Context, _ event.GenericEvent, q queue) { q.AddAfter(plan, planDelay) },
	}
}

// matters keeps probes of hosts that stay as they are away, our own writes of what is under way among them.
func matters() builder.Predicates {
	return builder.WithPredicates(predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1beta1.SSHHost)
			after, alsoOK := e.ObjectNew.(*v1beta1.SSHHost)
			return !ok || !alsoOK || pool.Claimable(before) != pool.Claimable(after) || pool.Resumable(before) != pool.Resumable(after) ||
				before.Status.InstalledProfile != after.Status.InstalledProfile || !maps.Equal(before.Labels, after.Labels)
		},
	})
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	err := ctrl.NewControllerManagedBy(m).
		Named("sshhost.prepare").
		WatchesRawSource(source.Channel(c.picked, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Workers}).
		Complete(c.byName(m.GetClient()))
	return errors.Join(err, ctrl.NewControllerManagedBy(m).
		Named("sshhost.prepare.plan").
		Watches(&v1beta1.SSHNodeClass{}, soon()).
		Watches(&v1beta1.SSHJoinProfile{}, soon()).
		Watches(&v1beta1.SSHHost{}, soon(), matters()).
		WatchesRawSource(source.Channel(c.ended, soon())).
		Complete(reconcile.Func(c.hand)))
}

// byName reconciles a host by its name; one that is gone makes room.
func (c *Controller) byName(reader client.Reader) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		host := &v1beta1.SSHHost{}
		if err := reader.Get(ctx, request.NamespacedName, host); err != nil {
			c.done(request.Name, client.IgnoreNotFound(err))
			return reconcile.Result{}, nil //nolint:nilerr // planned again
		}
		return c.Reconcile(ctx, host)
	})
}

// hand hands what Plan picked to the workers.
func (c *Controller) hand(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	names, later, err := c.Plan(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("planning preparations: %w", err)
	}
	for _, name := range names {
		host := &v1beta1.SSHHost{}
		host.Namespace, host.Name = c.Namespace, name
		select {
		case c.picked <- event.GenericEvent{Object: host}:
		case <-ctx.Done():
			return reconcile.Result{}, ctx.Err()
		}
	}
	if later {
		return reconcile.Result{RequeueAfter: planInterval}, nil
	}
	return reconcile.Result{}, nil
}
