// Package termination keeps an SSHNodeClass until no NodeClaim needs it: leave is rendered from it, so
// a class that went first would strand its hosts (k0smotron#1186, R60).
package termination

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
)

// recheck is how soon a held class is looked at again should the deletion of its last NodeClaim be missed.
const recheck = time.Minute

// Controller adds the finalizer to node classes and takes it off.
type Controller struct {
	client   client.Client
	live     client.Reader
	recorder events.Recorder
}

// NewController returns a Controller that reads NodeClaims with live, since a cache could hide the newest.
func NewController(c client.Client, live client.Reader, recorder events.Recorder) *Controller {
	return &Controller{client: c, live: live, recorder: recorder}
}

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, class *v1beta1.SSHNodeClass) (reconcile.Result, error) {
	if class.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, c.change(ctx, class, controllerutil.AddFinalizer)
	}
	if !controllerutil.ContainsFinalizer(class, apis.FinalizerTermination) {
		return reconcile.Result{}, nil
	}
	list := &karpenterv1.NodeClaimList{}
	if err := c.live.List(ctx, list); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing nodeclaims: %w", err)
	}
	users := 0
	first := ""
	for i := range list.Items {
		if !membership.OfClass(&list.Items[i], class.Name) {
			continue
		}
		if users++; first == "" {
			first = list.Items[i].Name
		}
	}
	if users > 0 {
		c.recorder.Publish(events.Event{
			InvolvedObject: class, Type: "Normal", Reason: "WaitingForNodeClaims",
			Message:      fmt.Sprintf("deletion waits for %d NodeClaims, %q among them", users, first),
			DedupeValues: []string{string(class.UID)}, DedupeTimeout: 10 * time.Minute,
		})
		return reconcile.Result{RequeueAfter: recheck}, nil
	}
	return reconcile.Result{}, c.change(ctx, class, controllerutil.RemoveFinalizer)
}

func (c *Controller) change(ctx context.Context, class *v1beta1.SSHNodeClass, f func(client.Object, string) bool) error {
	stored := class.DeepCopy()
	if !f(class, apis.FinalizerTermination) {
		return nil
	}
	err := c.client.Patch(ctx, class, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // what changed it brings us back
	}
	if err != nil {
		return fmt.Errorf("writing the finalizer of node class %q: %w", class.Name, err)
	}
	return nil
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclass.termination").
		For(&v1beta1.SSHNodeClass{}).
		Watches(&karpenterv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			nodeClaim, ok := o.(*karpenterv1.NodeClaim)
			if !ok || !membership.Ours(nodeClaim) {
				return nil
			}
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: nodeClaim.Spec.NodeClassRef.Name}}}
		})).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}
