// Package hash carries NodeClaims over to a new version of the node class hash.
//
// A hash of another version says nothing about drift, and the cloud provider abstains from comparing.
// Left at that, a controller upgrade would switch drift off for every node that lives on
// (karpenter#1510, R74). So a NodeClaim with another version is given the hash of its class as it is
// now; one that is Drifted already keeps its hash, and stays drifted.
package hash

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
)

// Controller migrates the hashes of NodeClaims.
type Controller struct {
	client client.Client
}

// NewController returns a Controller.
func NewController(c client.Client) *Controller { return &Controller{client: c} }

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, class *v1beta1.SSHNodeClass) (reconcile.Result, error) {
	list := &karpenterv1.NodeClaimList{}
	if err := c.client.List(ctx, list); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing nodeclaims: %w", err)
	}
	var failed []error
	for i := range list.Items {
		if membership.OfClass(&list.Items[i], class.Name) {
			failed = append(failed, c.migrate(ctx, class, &list.Items[i]))
		}
	}
	return reconcile.Result{}, errors.Join(failed...)
}

func (c *Controller) migrate(ctx context.Context, class *v1beta1.SSHNodeClass, nodeClaim *karpenterv1.NodeClaim) error {
	version, hashed := nodeClaim.Annotations[apis.AnnotationNodeClassHashVersion]
	if !hashed || version == v1beta1.NodeClassHashVersion {
		return nil // one without a hash is not launched yet; Create writes it
	}
	stored := nodeClaim.DeepCopy()
	nodeClaim.Annotations[apis.AnnotationNodeClassHashVersion] = v1beta1.NodeClassHashVersion
	if !nodeClaim.StatusConditions().IsTrue(karpenterv1.ConditionTypeDrifted) {
		nodeClaim.Annotations[apis.AnnotationNodeClassHash] = class.Hash()
	}
	err := c.client.Patch(ctx, nodeClaim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("migrating the hash of nodeclaim %q: %w", nodeClaim.Name, err)
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclass.hash").
		For(&v1beta1.SSHNodeClass{}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}
