// Package maintenance lets a host's state follow what the operator says: a free host with the maintenance
// annotation, or in a maintenance window, is parked, and goes back to Pending when that has ended. A claimed
// host keeps serving, and is parked when it is released. An annotation that asks to forget failures is heeded.
package maintenance

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

const (
	// retry is how soon a lost race is looked at again, should the watch not have brought it by then.
	retry = time.Second
	// recheck is how long to wait for the next edge of a window at most.
	recheck = time.Hour
)

// Hosts is what this controller needs of the pool.
type Hosts interface {
	SyncMaintenance(ctx context.Context, host *v1beta1.SSHHost) (*v1beta1.SSHHost, error)
}

// Controller follows the annotations and windows of hosts.
type Controller struct {
	hosts     Hosts
	recorder  events.Recorder
	clock     clock.PassiveClock
	namespace string
}

// NewController returns a Controller for the hosts of the namespace.
func NewController(hosts Hosts, recorder events.Recorder, clk clock.PassiveClock, namespace string) *Controller {
	return &Controller{hosts: hosts, recorder: recorder, clock: clk, namespace: namespace}
}

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, host *v1beta1.SSHHost) (reconcile.Result, error) {
	_, err := c.hosts.SyncMaintenance(ctx, host)
	switch {
	case errors.Is(err, pool.ErrConflict):
		return reconcile.Result{RequeueAfter: retry}, nil
	case err != nil && !errors.Is(err, pool.ErrHostNotFound):
		return reconcile.Result{}, fmt.Errorf("syncing maintenance of host %q: %w", host.Name, err)
	}
	now := c.clock.Now()
	parking := pool.ParkingOf(host, now)
	if parking.Reason == v1beta1.ReasonMaintenanceWindowInvalid {
		c.recorder.Publish(events.Event{
			InvolvedObject: host, Type: corev1.EventTypeWarning, Reason: parking.Reason, Message: parking.Message,
			DedupeValues: []string{string(host.UID), parking.Message},
		})
	}
	if parking.Next.IsZero() {
		return reconcile.Result{}, nil
	}
	// Timers and the wall clock drift apart over weeks, and a clock may be set.
	return reconcile.Result{RequeueAfter: min(max(parking.Next.Sub(now), time.Second), recheck)}, nil
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("sshhost.maintenance").
		For(&v1beta1.SSHHost{}, membership.InNamespace(c.namespace)).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}
