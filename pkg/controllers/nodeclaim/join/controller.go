// Package join makes nodes of claimed hosts: install, unless the host has it already; a bootstrap token;
// join; then the wait for the Node, whose provider id the NodeClaim gets where the class adopts it.
//
// Every step is recorded before the next begins and asks first whether it has been done, so that a
// controller that died between any two lines, or two controllers at once, end with one joined node and
// no second run of a phase that has finished. Core is not kept waiting meanwhile: the NodeClaim was
// launched when its host was claimed.
//
// A join that fails for good says so on the NodeClaim and the host, asks for leave, and deletes the
// NodeClaim, so that core tries elsewhere.
package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/awslabs/operatorpkg/status"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	// registrationLimit is how long after its creation a NodeClaim may be without a Node, once join
	// has run. Core deletes it after 15 minutes without saying more than that.
	registrationLimit = 13*time.Minute + 30*time.Second
	// registrationGrace is how long after join a Node may be missing before that is held against the host, whose install
	// may have taken most of that time.
	registrationGrace = 2 * time.Minute
	// patience is how long a host may be out of reach before another one is tried.
	patience = 2 * time.Minute
	// turnDelay is how soon to look again at a host that this process is doing something else to, most
	// likely a probe, and busyDelay at one that says that it is busy.
	turnDelay = 100 * time.Millisecond
	busyDelay = time.Second
	// waitDelay is how often to look for the Node, should its watch miss it.
	waitDelay = 30 * time.Second
	// vanishedLimit is how long a host may be in use without a Node. A kubelet that is restarted registers
	// again well before.
	vanishedLimit = 2 * time.Minute
)

// Hosts is what this controller needs of the pool.
type Hosts interface {
	Live(ctx context.Context, name string) (*v1beta1.SSHHost, error)
	AllByClaim(uid types.UID) []*v1beta1.SSHHost
	ByProviderID(id string) (*v1beta1.SSHHost, error)
	Claimed() ([]*v1beta1.SSHHost, error)
	SetInstalled(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, marker string) (*v1beta1.SSHHost, error)
	SetBootstrapToken(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, id string) (*v1beta1.SSHHost, error)
	ForgetBootstrapToken(ctx context.Context, host *v1beta1.SSHHost, id string) (*v1beta1.SSHHost, error)
	SetProviderID(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, id string) (*v1beta1.SSHHost, error)
	SetInUse(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref) (*v1beta1.SSHHost, error)
	SetCondition(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, c status.Condition) (*v1beta1.SSHHost, error)
	OweLeave(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, owed bool) (*v1beta1.SSHHost, error)
	BumpFence(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, atLeast int64) (*v1beta1.SSHHost, error)
	RequestLeave(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, reason, message string) (*v1beta1.SSHHost, error)
}

// Phases runs what runs on hosts.
type Phases interface {
	Install(ctx context.Context, s membership.Subject) error
	Join(ctx context.Context, s membership.Subject, token string) error
	Prepares(host *v1beta1.SSHHost, held signing.Claim) bool
	Prepare(ctx context.Context, s membership.Subject, fence int64) error
	EndPreparation(ctx context.Context, s membership.Subject, fence int64) error
}

// Tokens makes bootstrap tokens.
type Tokens interface {
	Ensure(ctx context.Context, id string, owner bootstrap.Owner, remaining time.Duration) (string, error)
	Delete(ctx context.Context, id string) error
}

// Options of a Controller.
type Options struct {
	// Client may read from a cache; Live asks the API server.
	Client   client.Client
	Live     client.Reader
	Hosts    Hosts
	Phases   Phases
	Tokens   Tokens
	Turns    *membership.Turns
	Recorder events.Recorder
	Clock    clock.Clock
	// Namespace of the hosts, and how many are joined at once.
	Namespace string
	Workers   int
}

// Controller joins claimed hosts.
type Controller struct {
	Options

	// What follows only saves contacts: a restart asks the hosts again.
	mu          sync.Mutex
	joined      map[string]absence // host → since when the join of a claim has ended well
	unreachable map[string]absence // host → since when it has been out of reach
	vanished    map[string]absence // host in use → since when it has had no Node
}

// absence is of something that is waited for under a claim.
type absence struct {
	claim types.UID
	since time.Time
}

// NewController returns a Controller.
func NewController(opts Options) *Controller {
	return &Controller{Options: opts, joined: map[string]absence{}, unreachable: map[string]absence{}, vanished: map[string]absence{}}
}

// errAbandoned says that the NodeClaim no longer wants the host; whoever deleted it cleans up.
var errAbandoned = errors.New("the nodeclaim is being deleted")

// errUnnamed says that the NodeClaim does not name the host, not yet or because it has another.
var errUnnamed = errors.New("the nodeclaim does not name the host")

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, cached *v1beta1.SSHHost) (reconcile.Result, error) {
	if !c.concerned(ctx, cached) {
		return reconcile.Result{}, nil
	}
	return c.Turns.Alone(ctx, c.Hosts, cached.Name, turnDelay, func(host *v1beta1.SSHHost) (reconcile.Result, error) {
		return c.reconcileLive(ctx, host)
	})
}

// reconcileLive goes on with the host as the API server has it.
func (c *Controller) reconcileLive(ctx context.Context, host *v1beta1.SSHHost) (reconcile.Result, error) {
	if !claimed(host) {
		return reconcile.Result{}, nil
	}
	s, err := c.subject(ctx, host)
	if err != nil {
		return c.failed(ctx, s, err)
	}
	return c.drive(ctx, s)
}

// claimed says whether the host is to become or to stay a node.
func claimed(host *v1beta1.SSHHost) bool {
	return host.Status.ClaimRef != nil && !pool.HasCondition(host, v1beta1.ConditionLeaveRequested) &&
		(host.Status.State == v1beta1.HostClaimed || host.Status.State == v1beta1.HostInUse)
}

// concerned spares hosts in use a reading each time that anything about them changes: all that is left to
// do for them is to keep the NodeClaim's provider id at what was adopted, which core may overwrite from a
// stale cache, and to see that their Node is still there.
func (c *Controller) concerned(ctx context.Context, host *v1beta1.SSHHost) bool {
	if !claimed(host) || host.Status.State != v1beta1.HostInUse {
		return claimed(host)
	}
	nodeClaim := &karpenterv1.NodeClaim{}
	err := c.Client.Get(ctx, types.NamespacedName{Name: host.Status.ClaimRef.Name}, nodeClaim)
	if err != nil || nodeClaim.UID != host.Status.ClaimRef.UID {
		return false
	}
	return !c.hasNode(ctx, host) || nodeClaim.Status.ProviderID != host.Status.ProviderID
}

// subject puts together what the host is joined for. Even with an error it names host and NodeClaim.
func (c *Controller) subject(ctx context.Context, host *v1beta1.SSHHost) (membership.Subject, error) {
	s := membership.Subject{Host: host}
	nodeClaim, err := c.wanted(ctx, c.Client, host)
	if err != nil {
		return s, err
	}
	s.NodeClaim = nodeClaim
	class, profile := &v1beta1.SSHNodeClass{}, &v1beta1.SSHJoinProfile{}
	name := nodeClaim.Spec.NodeClassRef.Name
	if err := c.Client.Get(ctx, types.NamespacedName{Name: name}, class); err != nil {
		return s, missing(host, v1beta1.ReasonProfileNotFound, "SSHNodeClass", name, err)
	}
	name = class.Spec.JoinProfileRef.Name
	if err := c.Client.Get(ctx, types.NamespacedName{Name: name}, profile); err != nil {
		return s, missing(host, v1beta1.ReasonProfileNotFound, "SSHJoinProfile", name, err)
	}
	s.Class, s.Profile = class, profile
	return s, nil
}

func missing(host *v1beta1.SSHHost, reason, kind, name string, err error) error {
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading %s %q: %w", kind, name, err)
	}
	return &membership.Failure{Kind: membership.Configuration, Reason: reason, Host: host.Name, Detail: fmt.Sprintf("%s %q does not exist", kind, name)}
}

// wanted returns the NodeClaim that holds the host, or errAbandoned or errUnnamed when there is none that
// wants it.
func (c *Controller) wanted(ctx context.Context, reader client.Reader, host *v1beta1.SSHHost) (*karpenterv1.NodeClaim, error) {
	nodeClaim := &karpenterv1.NodeClaim{}
	if err := reader.Get(ctx, types.NamespacedName{Name: host.Status.ClaimRef.Name}, nodeClaim); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, errAbandoned
		}
		return nil, fmt.Errorf("reading nodeclaim %q: %w", host.Status.ClaimRef.Name, err)
	}
	if nodeClaim.UID != host.Status.ClaimRef.UID || !nodeClaim.DeletionTimestamp.IsZero() {
		return nil, errAbandoned
	}
	// Until core has written the provider id, and on a host that it does not name, nothing may run: the
	// claim may be one too many, as when two controllers claim for the same NodeClaim.
	if id := nodeClaim.Status.ProviderID; id == "" || id != host.StaticProviderID() && id != host.Status.ProviderID {
		return nil, errUnnamed
	}
	return nodeClaim, nil
}

// reconciler reconciles hosts by name, and forgets those that are gone.
func (c *Controller) reconciler() reconcile.Reconciler {
	return membership.Forgetting(c.Client, c, c.forget)
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.join").
		For(&v1beta1.SSHHost{}, membership.InNamespace(c.Namespace)).
		Watches(&karpenterv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return requests(c.Hosts.AllByClaim(o.GetUID())...)
		})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.hostsOfNode), membership.NodeChanges()).
		Watches(&corev1.Node{}, c.newNodes()).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: c.Workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, 30*time.Second),
		}).
		Complete(c.reconciler())
}

func requests(hosts ...*v1beta1.SSHHost) []reconcile.Request {
	out := make([]reconcile.Request, 0, len(hosts))
	for _, host := range hosts {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(host)})
	}
	return out
}

// hostsOfNode finds the claimed hosts that the Node may be of.
func (c *Controller) hostsOfNode(_ context.Context, o client.Object) []reconcile.Request {
	node, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	return requests(c.holders(node)...)
}

// holders are the hosts that the Node may be of: the one of its provider id, else those that wait for one.
func (c *Controller) holders(node *corev1.Node) []*v1beta1.SSHHost {
	if node.Spec.ProviderID != "" {
		if host, err := c.Hosts.ByProviderID(node.Spec.ProviderID); err == nil {
			return []*v1beta1.SSHHost{host}
		}
	}
	// A node that is awaited is young. At a start, those of the whole cluster come by here.
	if c.Clock.Since(node.CreationTimestamp.Time) > registrationLimit {
		return nil
	}
	hosts, err := c.Hosts.Claimed()
	if err != nil {
		return nil // looked for again after waitDelay
	}
	return slices.DeleteFunc(slices.Clone(hosts), func(host *v1beta1.SSHHost) bool {
		return host.Status.State != v1beta1.HostClaimed || !membership.Backs(host, node) && host.Status.ClaimRef.Name != node.Name
	})
}
