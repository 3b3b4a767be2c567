// Package status says whether a node class can be used, on its Ready condition and with a stable reason,
// before any host is dialled for it: profile, signatures, keys, Secrets, vars, the cluster's endpoint,
// hosts. Core launches nothing for a class that is not Ready.
package status

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	opstatus "github.com/awslabs/operatorpkg/status"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/window"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	// recheckBad and recheckGood are how soon a class is looked at again without a cause, as documents
	// expire by themselves and Secrets may not be watched.
	recheckBad  = 30 * time.Second
	recheckGood = 5 * time.Minute
)

// Hosts lists the pool, or says that it is not known yet.
type Hosts interface {
	List() ([]*v1beta1.SSHHost, error)
}

// Access reads the Secrets that hosts are logged in to with.
type Access interface {
	Login(ctx context.Context, secret string) (*hostaccess.Login, error)
}

// Environment makes the variables of a phase.
type Environment interface {
	Environment(ctx context.Context, s membership.Subject, phase signing.Phase, token string) (params, secrets map[string]string, err error)
}

// Trust hands out the signed documents, as dispatch has them.
type Trust interface {
	Documents() (roots map[int64][]byte, allowlist []byte, err error)
}

// Options of a Controller.
type Options struct {
	// Client may read from a cache; Live asks the API server, for Secrets.
	Client      client.Client
	Live        client.Reader
	Hosts       Hosts
	Access      Access
	Environment Environment
	Trust       Trust
	// DispatchKey is the public half of the key that signs orders, or why there is none.
	DispatchKey func() (signing.Key, error)
	// Logins remembers how logins went; it may be nil.
	Logins *dispatch.Logins
	// SlowLogin is how long a login may take before the class says so; DefaultSlowLogin when zero.
	SlowLogin time.Duration
	// AllowRaw says whether hosts without the shim may be used.
	AllowRaw bool
	Clock    clock.Clock
	// Namespace of the pool, and the ConfigMap that holds the signed documents.
	Namespace      string
	TrustConfigMap types.NamespacedName
	// DispatchKeySecret is the Secret that DispatchKey reads; zero when the key is elsewhere.
	DispatchKeySecret types.NamespacedName
}

// Controller keeps the Ready condition of node classes.
type Controller struct{ Options }

// NewController returns a Controller.
func NewController(opts Options) *Controller {
	if opts.SlowLogin <= 0 {
		opts.SlowLogin = DefaultSlowLogin
	}
	return &Controller{opts}
}

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, class *v1beta1.SSHNodeClass) (reconcile.Result, error) {
	stored := class.DeepCopy()
	v := &view{class: class, now: c.Clock.Now()}
	found, err := c.check(ctx, v)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := c.describeLogins(ctx, v); err != nil {
		return reconcile.Result{}, err
	}
	conditions := class.StatusConditions(opstatus.WithClock(c.Clock))
	recheck := recheckBad
	if found == nil {
		conditions.SetTrueWithReason(v1beta1.ConditionReady, v1beta1.ReasonReady, "")
		recheck = v.nextLook()
	} else {
		conditions.SetFalse(v1beta1.ConditionReady, found.reason, found.message)
	}
	now := c.Clock.Now()
	if windows, err := window.At(class.Spec.MaintenanceWindows, now); err == nil && !windows.Next.IsZero() {
		recheck = min(recheck, max(windows.Next.Sub(now), time.Second))
	}
	if equality.Semantic.DeepEqual(stored.Status, class.Status) {
		return reconcile.Result{RequeueAfter: recheck}, nil
	}
	err = c.Client.Status().Patch(ctx, class, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case client.IgnoreNotFound(err) != nil:
		return reconcile.Result{}, fmt.Errorf("writing the status of node class %q: %w", class.Name, err)
	}
	if found != nil {
		log.FromContext(ctx).Info("node class is not ready", "class", class.Name, "reason", found.reason, "detail", found.message)
	}
	return reconcile.Result{RequeueAfter: recheck}, nil
}

// nextLook is when to look at a good class again without a cause: soon while a condition beside Ready may change, and
// when a certificate runs out.
func (v *view) nextLook() time.Duration {
	next := recheckGood
	if len(v.class.Status.Conditions) > 1 {
		next = recheckBad
	}
	if left := v.recheck.Sub(v.now); !v.recheck.IsZero() && left < next {
		return max(left, time.Second)
	}
	return next
}

// Register implements controller.Controller of operatorpkg. The cache must be able to watch the
// ConfigMaps of the controller's namespace and the Secrets of the pool's.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(c.allClasses)
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclass.status").
		For(&v1beta1.SSHNodeClass{}).
		Watches(&v1beta1.SSHJoinProfile{}, handler.EnqueueRequestsFromMapFunc(c.classesOfProfile)).
		Watches(&v1beta1.SSHHost{}, all, membership.InNamespace(c.Namespace, specChanges())).
		Watches(&corev1.ConfigMap{}, all, only(c.TrustConfigMap)).
		Watches(&corev1.Secret{}, all, builder.WithPredicates(predicate.NewPredicateFuncs(c.usesSecret))).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// specChanges keeps away what the pool writes of its hosts.
func specChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			!equality.Semantic.DeepEqual(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels())
	}}
}

// usesSecret says whether a class may depend on the Secret.
func (c *Controller) usesSecret(o client.Object) bool {
	return o.GetNamespace() == c.Namespace || client.ObjectKeyFromObject(o) == c.DispatchKeySecret
}

func only(name types.NamespacedName) builder.Predicates {
	return builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		return client.ObjectKeyFromObject(o) == name
	}))
}

func (c *Controller) allClasses(ctx context.Context, _ client.Object) []reconcile.Request {
	return c.classes(ctx, func(*v1beta1.SSHNodeClass) bool { return true })
}

func (c *Controller) classesOfProfile(ctx context.Context, o client.Object) []reconcile.Request {
	return c.classes(ctx, func(class *v1beta1.SSHNodeClass) bool { return class.Spec.JoinProfileRef.Name == o.GetName() })
}

func (c *Controller) classes(ctx context.Context, keep func(*v1beta1.SSHNodeClass) bool) []reconcile.Request {
	list := &v1beta1.SSHNodeClassList{}
	if err := c.Client.List(ctx, list); err != nil {
		return nil // looked at again after the recheck
	}
	var out []reconcile.Request
	for i := range list.Items {
		if keep(&list.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
		}
	}
	return out
}
