// Package leave gives hosts back: where leave was requested, by the deletion of the NodeClaim or by a
// join that failed for good, it runs leave, removes what is left of the membership in the cluster, and
// releases the host.
//
// Leave runs while the Node still exists, and the kubelet is stopped before the Node goes; otherwise it
// would register again. A released host is Pending until a probe has found it clean and its Node is gone
// (k0smotron#1596, R58): a successor's NodeClaim has the same provider id, and core would take the old
// Node for the new one's.
//
// A host that cannot be reached, or on which leave fails, does not hold up the deletion of its NodeClaim
// for ever (metal3#1163, R62). The leave that is owed to it is on record in the same write that ends the
// claim, and is settled before it can be claimed again.
package leave

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

const (
	// DefaultGrace is how long a leave is tried that something other than the host's own fault stands in
	// the way of, before the host is released all the same; SSHNodeClass.spec.unreachableGracePeriod says
	// otherwise.
	DefaultGrace = 5 * time.Minute
	// busyDelay is how soon to look again at a host on which another phase runs, and retryDelay how soon to
	// try again a leave that something stands in the way of.
	busyDelay  = time.Second
	retryDelay = 10 * time.Second

	eventLeaveFailed  = "LeaveFailed"
	eventLeaveBlocked = "LeaveBlocked"
)

// Hosts is what this controller needs of the pool.
type Hosts interface {
	Live(ctx context.Context, name string) (*v1beta1.SSHHost, error)
	ForgetBootstrapToken(ctx context.Context, host *v1beta1.SSHHost, id string) (*v1beta1.SSHHost, error)
	SetCondition(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, c status.Condition) (*v1beta1.SSHHost, error)
	BumpFence(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, atLeast int64) (*v1beta1.SSHHost, error)
	Release(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, out pool.Outcome) (*v1beta1.SSHHost, error)
}

// Phases runs what runs on hosts.
type Phases interface {
	Leave(ctx context.Context, host *v1beta1.SSHHost, profile *v1beta1.SSHJoinProfile, vars map[string]string, claim types.UID) error
	Probe(ctx context.Context, host *v1beta1.SSHHost) (*dispatch.Probe, error)
}

// Scripts finds the scripts that a host is left with.
type Scripts interface {
	ForClass(ctx context.Context, class string) (*v1beta1.SSHJoinProfile, map[string]string, error)
}

// Tokens deletes bootstrap tokens.
type Tokens interface {
	Delete(ctx context.Context, id string) error
}

// Options of a Controller.
type Options struct {
	// Client may read from a cache; Live asks the API server.
	Client client.Client
	Live   client.Reader
	// Cluster is the one that hosts are members of.
	Cluster  membership.Cluster
	Hosts    Hosts
	Phases   Phases
	Scripts  Scripts
	Tokens   Tokens
	Turns    *membership.Turns
	Recorder events.Recorder
	Clock    clock.PassiveClock
	// Namespace of the hosts, and how many are left at once.
	Namespace string
	Workers   int
}

// Controller gives hosts back.
type Controller struct{ Options }

// NewController returns a Controller.
func NewController(opts Options) *Controller { return &Controller{opts} }

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, cached *v1beta1.SSHHost) (reconcile.Result, error) {
	if !requested(cached) {
		return reconcile.Result{}, nil
	}
	return c.Turns.Alone(ctx, c.Hosts, cached.Name, busyDelay, func(host *v1beta1.SSHHost) (reconcile.Result, error) {
		return c.reconcileLive(ctx, host)
	})
}

// reconcileLive goes on with the host as the API server has it.
func (c *Controller) reconcileLive(ctx context.Context, host *v1beta1.SSHHost) (reconcile.Result, error) {
	if !requested(host) {
		return reconcile.Result{}, nil
	}
	nodeClaim, err := c.nodeClaim(ctx, host)
	if err != nil || nodeClaim == nil {
		return reconcile.Result{}, err // without one the claim is stale, and another controller's
	}
	result, err := c.leave(ctx, host, nodeClaim)
	switch {
	case errors.Is(err, pool.ErrClaimLost), errors.Is(err, pool.ErrHostNotFound):
		return reconcile.Result{}, nil
	case errors.Is(err, pool.ErrConflict):
		return reconcile.Result{RequeueAfter: busyDelay}, nil
	}
	return result, err
}

func requested(host *v1beta1.SSHHost) bool {
	return host.Status.ClaimRef != nil && pool.HasCondition(host, v1beta1.ConditionLeaveRequested)
}

// nodeClaim returns the NodeClaim that holds the host, deleted if nobody has done so yet: a controller
// may have died after it asked for leave and before it deleted the NodeClaim.
func (c *Controller) nodeClaim(ctx context.Context, host *v1beta1.SSHHost) (*karpenterv1.NodeClaim, error) {
	nodeClaim := &karpenterv1.NodeClaim{}
	err := c.Live.Get(ctx, types.NamespacedName{Name: host.Status.ClaimRef.Name}, nodeClaim)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading nodeclaim %q: %w", host.Status.ClaimRef.Name, err)
	}
	if err != nil || nodeClaim.UID != host.Status.ClaimRef.UID {
		return nil, nil
	}
	if nodeClaim.DeletionTimestamp.IsZero() {
		uid := nodeClaim.UID
		if err := c.Client.Delete(ctx, nodeClaim, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return nil, fmt.Errorf("deleting nodeclaim %q: %w", nodeClaim.Name, err)
		}
	}
	return nodeClaim, nil
}

func (c *Controller) leave(ctx context.Context, host *v1beta1.SSHHost, nodeClaim *karpenterv1.NodeClaim) (reconcile.Result, error) {
	// A join that did not get far may have left nothing to undo, and what leave undoes may not be there.
	untouched := false
	if host.Status.State == v1beta1.HostClaimed {
		var err error
		if untouched, err = c.untouched(ctx, host); err != nil {
			return c.failed(ctx, host, nodeClaim, err)
		}
	}
	if !untouched {
		if err := c.run(ctx, host, nodeClaim); err != nil {
			return c.failed(ctx, host, nodeClaim, err)
		}
	}
	nodes, err := membership.NodesOf(ctx, c.Client, host)
	if err != nil {
		return reconcile.Result{}, err
	}
	// Core deletes the Nodes that it has registered, and then waits for us; the others are left to us.
	if err := membership.DeleteNodes(ctx, c.Client, nodes); err != nil {
		return reconcile.Result{}, err
	}
	out := outcome(host)
	out.Leave = pool.LeaveEnded
	return reconcile.Result{}, c.release(ctx, host, out)
}

// untouched says whether nothing of this claim is on the host: nothing ran, or leave has ended already.
func (c *Controller) untouched(ctx context.Context, host *v1beta1.SSHHost) (bool, error) {
	if host.Raw() {
		return !pool.Owed(host), nil
	}
	probe, err := c.Phases.Probe(ctx, host)
	if err != nil {
		return false, err
	}
	if probe.Hello == nil {
		return false, nil
	}
	uid, ours := c.Cluster.Owner(probe.Hello.Claim.UID)
	return !ours || uid != pool.RefOn(host).UID, nil
}

func (c *Controller) run(ctx context.Context, host *v1beta1.SSHHost, nodeClaim *karpenterv1.NodeClaim) error {
	profile, vars, err := c.Scripts.ForClass(ctx, nodeClaim.Spec.NodeClassRef.Name)
	if err != nil {
		return err
	}
	return c.Phases.Leave(ctx, host, profile, vars, nodeClaim.UID)
}

// outcome is what becomes of a host that was left well: one whose install or join failed is Unhealthy
// for a while, any other only waits for a probe.
func outcome(host *v1beta1.SSHHost) pool.Outcome {
	request := condition(host)
	if failure := failureOf(request); failure != "" {
		return pool.Outcome{State: v1beta1.HostUnhealthy, Reason: failure, Message: request.Message, Failure: failure}
	}
	return pool.Outcome{State: v1beta1.HostPending, Reason: v1beta1.ReasonReleased, Message: request.Message}
}

// failureOf is why leave was requested if that was a failure of the host's own.
func failureOf(request status.Condition) string {
	if request.Reason == v1beta1.ReasonInstallFailed || request.Reason == v1beta1.ReasonJoinFailed {
		return request.Reason
	}
	return ""
}

func condition(host *v1beta1.SSHHost) status.Condition {
	for _, c := range host.Status.Conditions {
		if c.Type == v1beta1.ConditionLeaveRequested {
			return c
		}
	}
	return status.Condition{}
}

// failed decides whether to try again or to release a host that was not left.
func (c *Controller) failed(ctx context.Context, host *v1beta1.SSHHost, nodeClaim *karpenterv1.NodeClaim, err error) (reconcile.Result, error) {
	if ctx.Err() != nil {
		return reconcile.Result{}, ctx.Err()
	}
	var failure *membership.Failure
	if !errors.As(err, &failure) {
		return reconcile.Result{}, err
	}
	if failure.Host == "" {
		named := *failure
		named.Host = host.Name
		failure = &named
	}
	switch failure.Kind {
	case membership.Busy:
		return reconcile.Result{RequeueAfter: busyDelay}, nil
	case membership.StaleFence:
		if _, err := c.Hosts.BumpFence(ctx, host, pool.RefOn(host), failure.HostClaim.Fence+1); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	case membership.StaleClaim: // nothing of ours is there; the probe settles what is
		return reconcile.Result{}, c.release(ctx, host, outcome(host))
	case membership.HostFault:
		return reconcile.Result{}, c.releaseUnleft(ctx, host, failure, pool.Outcome{
			State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonLeaveFailed, Failure: v1beta1.ReasonLeaveFailed,
		})
	}
	return c.wait(ctx, host, nodeClaim, failure)
}

// wait tries again until the grace is over, and then lets the NodeClaim go: the host has been out of reach, or
// nobody has put the configuration right.
func (c *Controller) wait(ctx context.Context, host *v1beta1.SSHHost, nodeClaim *karpenterv1.NodeClaim, failure *membership.Failure) (reconcile.Result, error) {
	grace, err := c.grace(ctx, nodeClaim)
	if err != nil {
		return reconcile.Result{}, err
	}
	until := condition(host).LastTransitionTime.Add(grace)
	if left := until.Sub(c.Clock.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: min(left, retryDelay)}, c.blocked(ctx, host, failure, until)
	}
	out := pool.Outcome{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonLeavePending, Failure: failureOf(condition(host))}
	if failure.Kind == membership.Configuration { // the host is not at fault
		out.State, out.Failure = v1beta1.HostPending, ""
	}
	return reconcile.Result{}, c.releaseUnleft(ctx, host, failure, out)
}

// grace is what the NodeClaim's class says; DefaultGrace when it is gone.
func (c *Controller) grace(ctx context.Context, nodeClaim *karpenterv1.NodeClaim) (time.Duration, error) {
	class := &v1beta1.SSHNodeClass{}
	name := nodeClaim.Spec.NodeClassRef.Name
	if err := c.Client.Get(ctx, types.NamespacedName{Name: name}, class); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("reading SSHNodeClass %q: %w", name, err)
	}
	if grace := class.Spec.UnreachableGracePeriod; grace != nil {
		return grace.Duration, nil
	}
	return DefaultGrace, nil
}

// blocked says on the host what its leave waits for, and until when (aws#9238, R79). A fault of configuration is
// also an event: the operator is the only one to end it before the grace does.
func (c *Controller) blocked(ctx context.Context, host *v1beta1.SSHHost, failure *membership.Failure, until time.Time) error {
	log.FromContext(ctx).Info("leave waits", "host", host.Name, "nodeclaim", pool.RefOn(host).Name, "reason", failure.Reason, "detail", failure.Detail)
	if failure.Kind == membership.Configuration {
		c.Recorder.Publish(events.Event{
			InvolvedObject: host, Type: corev1.EventTypeWarning, Reason: eventLeaveBlocked,
			Message:       failure.Error() + ": leave waits until that is put right",
			DedupeValues:  []string{string(host.UID), string(pool.RefOn(host).UID), failure.Error()},
			DedupeTimeout: 10 * time.Minute,
		})
	}
	_, err := c.Hosts.SetCondition(ctx, host, pool.RefOn(host), status.Condition{
		Type: v1beta1.ConditionLeaveBlocked, Status: metav1.ConditionTrue, Reason: failure.Reason,
		Message: fmt.Sprintf("leave waits, until %s at most: %s", until.UTC().Format(time.RFC3339), failure.Error()),
	})
	return err
}

// releaseUnleft ends the claim of a host that leave is then owed to.
func (c *Controller) releaseUnleft(ctx context.Context, host *v1beta1.SSHHost, failure *membership.Failure, out pool.Outcome) error {
	log.FromContext(ctx).Info("releasing a host that was not left", "host", host.Name, "nodeclaim", pool.RefOn(host).Name, "reason", failure.Reason, "detail", failure.Detail)
	c.Recorder.Publish(events.Event{
		InvolvedObject: host, Type: corev1.EventTypeWarning, Reason: eventLeaveFailed,
		Message: failure.Error(), DedupeValues: []string{string(host.UID), string(pool.RefOn(host).UID)},
	})
	out.Message, out.Leave = failure.Error(), pool.LeaveOwed
	return c.release(ctx, host, out)
}

// release deletes the token, if the node never took its place, and ends the claim.
func (c *Controller) release(ctx context.Context, host *v1beta1.SSHHost, out pool.Outcome) error {
	ref := pool.RefOn(host)
	if id := host.Status.BootstrapTokenID; id != "" {
		if err := c.Tokens.Delete(ctx, id); err != nil {
			return err
		}
		var err error
		if host, err = c.Hosts.ForgetBootstrapToken(ctx, host, id); err != nil {
			return err
		}
	}
	if _, err := c.Hosts.Release(ctx, host, ref, out); err != nil {
		return err
	}
	log.FromContext(ctx).Info("released", "host", host.Name, "nodeclaim", ref.Name, "state", string(out.State), "reason", out.Reason)
	return nil
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.leave").
		For(&v1beta1.SSHHost{}, membership.InNamespace(c.Namespace)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: c.Workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, 30*time.Second),
		}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}
