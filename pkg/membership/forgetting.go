package membership

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Forgetting is reconcile.AsReconciler for a controller that remembers things of hosts by their names: forget hears of
// each host that is gone, after the last reconciliation of it and before one of a host that is made under its name.
func Forgetting(reader client.Reader, hosts reconcile.ObjectReconciler[*v1beta1.SSHHost], forget func(name string)) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		host := &v1beta1.SSHHost{}
		err := reader.Get(ctx, request.NamespacedName, host)
		switch {
		case apierrors.IsNotFound(err):
			forget(request.Name)
			return reconcile.Result{}, nil
		case err != nil:
			return reconcile.Result{}, fmt.Errorf("reading host %q: %w", request.Name, err)
		}
		return hosts.Reconcile(ctx, host)
	})
}
