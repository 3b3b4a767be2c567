// Package status says on a join profile whether its scripts and declarations can be used at all. Whether
// they are signed is a matter of the node classes that refer to it, whose vars they are rendered with.
package status

import (
	"context"
	"fmt"
	"time"

	opstatus "github.com/awslabs/operatorpkg/status"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// Controller keeps the Ready condition of join profiles.
type Controller struct {
	client client.Client
	clock  clock.Clock
}

// NewController returns a Controller.
func NewController(c client.Client, clk clock.Clock) *Controller {
	return &Controller{client: c, clock: clk}
}

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, prof *v1beta1.SSHJoinProfile) (reconcile.Result, error) {
	stored := prof.DeepCopy()
	conditions := prof.StatusConditions(opstatus.WithClock(c.clock))
	if err := check(prof); err != nil {
		conditions.SetFalse(v1beta1.ConditionReady, v1beta1.ReasonProfileInvalid, err.Error())
	} else {
		conditions.SetTrueWithReason(v1beta1.ConditionReady, v1beta1.ReasonValid, "")
	}
	if equality.Semantic.DeepEqual(stored.Status, prof.Status) {
		return reconcile.Result{}, nil
	}
	err := c.client.Status().Patch(ctx, prof, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case client.IgnoreNotFound(err) != nil:
		return reconcile.Result{}, fmt.Errorf("writing the status of join profile %q: %w", prof.Name, err)
	}
	return reconcile.Result{}, nil
}

func check(prof *v1beta1.SSHJoinProfile) error {
	scripts := prof.Spec.Scripts
	for _, s := range []struct {
		phase  profile.Phase
		script string
	}{{profile.Install, scripts.Install}, {profile.Join, scripts.Join}, {profile.Leave, scripts.Leave}, {profile.Uninstall, scripts.Uninstall}} {
		if s.script == "" && s.phase == profile.Uninstall {
			continue
		}
		if err := profile.CheckTemplate([]byte(s.script)); err != nil {
			return fmt.Errorf("%s: %w", s.phase, err)
		}
		if _, err := profile.Declare(s.phase, declared(prof, s.phase)); err != nil {
			return err
		}
	}
	return nil
}

func declared(prof *v1beta1.SSHJoinProfile, phase profile.Phase) []profile.Parameter {
	if prof.Spec.Parameters == nil {
		return nil
	}
	list := map[profile.Phase][]v1beta1.Parameter{
		profile.Install: prof.Spec.Parameters.Install, profile.Join: prof.Spec.Parameters.Join,
		profile.Leave: prof.Spec.Parameters.Leave, profile.Uninstall: prof.Spec.Parameters.Uninstall,
	}[phase]
	out := make([]profile.Parameter, 0, len(list))
	for _, p := range list {
		out = append(out, profile.Parameter{
			Name: p.Name, Type: p.Type, Pattern: p.Pattern, Enum: p.Enum, MaxLength: int(p.MaxLength), Optional: p.Optional, Secret: p.Secret, Pins: p.Pin,
		})
	}
	return out
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("joinprofile.status").
		For(&v1beta1.SSHJoinProfile{}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}
