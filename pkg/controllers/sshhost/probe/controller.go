// Package probe looks at every host that nobody has claimed, every so often and whenever its spec
// changes, and makes it Available or Unhealthy by what it finds. It is also the zombie guard: a kubelet
// that runs on an unclaimed host, a claim that the host still holds, or a Node that it still backs, is a
// membership that nobody watches, and is left before the host can be claimed.
//
// A probe brings the signed documents that a host lacks. So that a key can be replaced under a host in use,
// which is not probed, such a host is contacted for that alone, and only while it is behind.
package probe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

const (
	// DefaultInterval is how often a host is probed.
	DefaultInterval = 2 * time.Minute
	// DefaultTimeout bounds one probe.
	DefaultTimeout = 30 * time.Second

	busyDelay = time.Second
	// nodeDelay is how often to look into the cache whether the Node of the last claim is gone, and retryDelay
	// how often to ask a host again whose run or leave is not at its end.
	nodeDelay  = time.Second
	retryDelay = 5 * time.Second
	// patience is how long a Node may take to go before the host says what it waits for.
	patience = time.Minute
	// leavingDelay spaces attempts to leave that a fault of configuration stands in the way of.
	leavingDelay = 30 * time.Second
)

// Hosts is what this controller needs of the pool.
type Hosts interface {
	Live(ctx context.Context, name string) (*v1beta1.SSHHost, error)
	ByClaim(uid types.UID) (*v1beta1.SSHHost, error)
	ByProviderID(id string) (*v1beta1.SSHHost, error)
	Peers(host *v1beta1.SSHHost, kinds ...pool.PeerKind) []string
	SetTrust(ctx context.Context, host *v1beta1.SSHHost, ref pool.Ref, trust *v1beta1.HostTrust, c status.Condition) (*v1beta1.SSHHost, error)
	RecordProbe(ctx context.Context, host *v1beta1.SSHHost, probe pool.Probe) (*v1beta1.SSHHost, error)
	Reclaim(ctx context.Context, host *v1beta1.SSHHost, probe pool.Probe, m pool.Membership) (*v1beta1.SSHHost, error)
	BeginLeaving(ctx context.Context, host *v1beta1.SSHHost, message string) (*v1beta1.SSHHost, error)
	EndLeaving(ctx context.Context, host *v1beta1.SSHHost, out pool.Outcome) (*v1beta1.SSHHost, error)
}

// Phases reaches hosts.
type Phases interface {
	Probe(ctx context.Context, host *v1beta1.SSHHost) (*dispatch.Probe, error)
	Newest() (dispatch.Versions, error)
	Leave(ctx context.Context, host *v1beta1.SSHHost, profile *v1beta1.SSHJoinProfile, vars map[string]string, claim types.UID) error
}

// Scripts finds the scripts that a host is left with.
type Scripts interface {
	ForHost(ctx context.Context, host *v1beta1.SSHHost) (*v1beta1.SSHJoinProfile, map[string]string, error)
}

// Options of a Controller.
type Options struct {
	// Client may read from a cache; Live asks the API server.
	Client client.Client
	Live   client.Reader
	// Cluster is the one that hosts are members of.
	Cluster membership.Cluster
	// ClusterVersion is the version of the API server, empty when it is not known; it may be nil.
	ClusterVersion func() string
	Hosts          Hosts
	Phases         Phases
	Scripts        Scripts
	Turns          *membership.Turns
	Recorder       events.Recorder
	Clock          clock.PassiveClock
	Metrics        *membership.Metrics
	// Interval between probes of a host and Timeout of one; the defaults when zero.
	Interval time.Duration
	Timeout  time.Duration
	// Namespace of the hosts, and how many are looked at at once.
	Namespace string
	Workers   int
	// TrustConfigMap holds the signed documents: when it changes, hosts are brought them.
	TrustConfigMap types.NamespacedName
}

// Controller probes hosts.
type Controller struct {
	Options

	// brought only saves contacts: after a restart a host that is behind is contacted once more.
	mu      sync.Mutex
	brought map[string]contact
}

// NewController returns a Controller.
func NewController(opts Options) *Controller {
	if opts.Interval <= 0 {
		opts.Interval = DefaultInterval
	}
	if opts.Timeout <= 0 {
		opts.Timeout = DefaultTimeout
	}
	return &Controller{Options: opts, brought: map[string]contact{}}
}

// Reconcile implements reconcile.ObjectReconciler.
func (c *Controller) Reconcile(ctx context.Context, cached *v1beta1.SSHHost) (reconcile.Result, error) {
	if inUse(cached) {
		return c.bring(ctx, cached)
	}
	if !concerned(cached) {
		return reconcile.Result{}, nil
	}
	if wait := c.due(cached); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	return c.Turns.Alone(ctx, c.Hosts, cached.Name, busyDelay, func(host *v1beta1.SSHHost) (reconcile.Result, error) {
		return c.reconcileLive(ctx, host)
	})
}

// reconcileLive goes on with the host as the API server has it: our own last write must not lead to another probe.
func (c *Controller) reconcileLive(ctx context.Context, host *v1beta1.SSHHost) (reconcile.Result, error) {
	if !concerned(host) {
		return reconcile.Result{}, nil
	}
	if wait := c.due(host); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	result, err := c.look(ctx, host)
	var edge *pool.EdgeError
	switch {
	case errors.Is(err, pool.ErrHostNotFound):
		return reconcile.Result{}, nil
	case errors.Is(err, pool.ErrConflict), errors.As(err, &edge):
		return reconcile.Result{RequeueAfter: busyDelay}, nil // somebody claimed or parked it meanwhile
	}
	return result, err
}

// concerned says whether the host is the probe's: nobody has claimed or parked it.
func concerned(host *v1beta1.SSHHost) bool {
	if host.Status.ClaimRef != nil || !host.DeletionTimestamp.IsZero() {
		return false
	}
	return host.Status.State == v1beta1.HostLeaving || host.Status.State != v1beta1.HostMaintenance && !host.InMaintenance()
}

// due returns how long to wait until the host is to be probed. A host whose spec changed, that is Pending
// for another reason than its last probe, whose leave is under way, or that there are newer documents for is not
// to wait.
func (c *Controller) due(host *v1beta1.SSHHost) time.Duration {
	switch {
	case host.Status.State == v1beta1.HostLeaving, host.Status.State == "",
		host.Status.LastProbeTime == nil, host.Status.ObservedGeneration != host.Generation,
		host.Status.State == v1beta1.HostPending && (!probed(host) || waits(host)),
		c.untold(host):
		return 0
	}
	wait := c.jittered(host) - c.Clock.Since(host.Status.LastProbeTime.Time)
	if f := host.Status.Failures; f != nil && host.Status.LastProbeTime.Before(f.RetryTime) {
		wait = min(wait, f.RetryTime.Sub(c.Clock.Now()))
	}
	return max(0, wait)
}

// probed says whether the host is in its state because of its last probe.
func probed(host *v1beta1.SSHHost) bool {
	ready := readyCondition(host)
	return ready.Reason != "" && strings.HasPrefix(host.Status.LastProbeError, ready.Reason)
}

// waits says whether the last probe found something that goes away by itself.
func waits(host *v1beta1.SSHHost) bool {
	reason := readyCondition(host).Reason
	return reason == reasonNodeRemains || reason == reasonRunInProgress
}

// jittered spreads the hosts over the interval, so that a restart does not have them all probed in one
// burst for ever after: up to a tenth later, at random by the time of the last probe.
func (c *Controller) jittered(host *v1beta1.SSHHost) time.Duration {
	seed := uint64(host.Status.LastProbeTime.UnixNano())
	for _, b := range []byte(host.UID) {
		seed = seed*31 + uint64(b)
	}
	share := rand.New(rand.NewPCG(seed, seed)).Float64() //nolint:gosec // spreads load, hides nothing
	return c.Interval + time.Duration(share*float64(c.Interval)/10)
}

// look probes the host and acts on what it finds.
func (c *Controller) look(ctx context.Context, host *v1beta1.SSHHost) (reconcile.Result, error) {
	if host.Status.State == v1beta1.HostPending {
		going, err := c.nodeGoing(ctx, host)
		if going || err != nil {
			return reconcile.Result{RequeueAfter: nodeDelay}, err
		}
	}
	probe, err := c.probe(ctx, host)
	if ctx.Err() != nil {
		return reconcile.Result{}, ctx.Err()
	}
	if err != nil {
		return c.notReached(ctx, host, membership.FailureOf(err))
	}
	finding, err := c.examine(ctx, host, probe)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch finding.verdict {
	case clean:
		return c.clean(ctx, host, probe)
	case waiting:
		return c.wait(ctx, host, probe, finding)
	case foreign:
		return c.park(ctx, host, probe, finding)
	case serving:
		return c.restore(ctx, host, probe, finding)
	case unproven:
		p, _ := c.observed(host, probe)
		p.Reason, p.Message, p.Configuration = finding.reason, finding.message, true
		return c.record(ctx, host, p)
	default:
		return c.guard(ctx, host, probe, finding)
	}
}

// nodeGoing says whether the Node of the last claim is being deleted, as it is for a few seconds after
// every release. There is no use in dialling the host before it is gone.
func (c *Controller) nodeGoing(ctx context.Context, host *v1beta1.SSHHost) (bool, error) {
	nodes, err := membership.NodesOf(ctx, c.Client, host)
	if err != nil {
		return false, err
	}
	for i := range nodes {
		if at := nodes[i].DeletionTimestamp; at != nil && c.Clock.Since(at.Time) < patience {
			return true, nil
		}
	}
	return false, nil
}

func (c *Controller) probe(ctx context.Context, host *v1beta1.SSHHost) (*dispatch.Probe, error) {
	bounded, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	c.noteContact(host)
	started := c.Clock.Now()
	probe, err := c.Phases.Probe(bounded, host)
	c.Metrics.Probed(c.Clock.Since(started), err)
	return probe, err
}

// notReached records that the host could not be looked at.
func (c *Controller) notReached(ctx context.Context, host *v1beta1.SSHHost, failure *membership.Failure) (reconcile.Result, error) {
	configuration := failure.Kind == membership.Configuration
	if host.Status.State == v1beta1.HostLeaving {
		if configuration {
			return reconcile.Result{RequeueAfter: leavingDelay}, nil
		}
		_, err := c.Hosts.EndLeaving(ctx, host, unleft(host, failure))
		return reconcile.Result{RequeueAfter: c.Interval}, err
	}
	if previous := readyCondition(host).Reason; failure.Reason == v1beta1.ReasonHostKeyChanged && previous != failure.Reason {
		c.warn(host, v1beta1.EventHostKeyChanged, failure.Error())
	}
	return c.record(ctx, host, pool.Probe{Reason: failure.Reason, Message: failure.Error(), Configuration: configuration, Unseen: true})
}

// record writes a probe's outcome; what is not set in p stays as it was.
func (c *Controller) record(ctx context.Context, host *v1beta1.SSHHost, p pool.Probe) (reconcile.Result, error) {
	p.Generation = host.Generation
	if _, err := c.Hosts.RecordProbe(ctx, host, p); err != nil {
		return reconcile.Result{}, fmt.Errorf("recording the probe of host %q: %w", host.Name, err)
	}
	return reconcile.Result{RequeueAfter: c.Interval}, nil
}

// clean makes a host available that nothing is left on, unless it is unfit for another membership.
func (c *Controller) clean(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe) (reconcile.Result, error) {
	if host.Status.State == v1beta1.HostLeaving {
		// The leave of an earlier process has ended well; this probe is its proof.
		return c.left(ctx, host, probe)
	}
	p, drift := c.observed(host, probe)
	unfit, err := c.unfit(ctx, host, probe, p.Machine.Preflight)
	if err != nil {
		return reconcile.Result{}, err
	}
	if unfit != nil {
		if readyCondition(host).Reason != unfit.Reason {
			c.warn(host, unfit.Reason, unfit.Error())
		}
		p.Reason, p.Message = unfit.Reason, unfit.Detail
	}
	if drift != "" && !drifted(host) {
		c.warn(host, v1beta1.EventCapacityDrift, drift)
	}
	return c.record(ctx, host, p)
}

// wait keeps the host from being claimed until what stands in the way is gone.
func (c *Controller) wait(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe, f finding) (reconcile.Result, error) {
	if f.reason == reasonNodeRemains {
		if err := membership.DeleteNodes(ctx, c.Client, f.nodes); err != nil {
			return reconcile.Result{}, err
		}
	}
	if host.Status.State != v1beta1.HostLeaving && readyCondition(host).Reason != f.reason {
		p, _ := c.observed(host, probe)
		p.Reason, p.Message, p.Configuration = f.reason, f.message, true
		p.Generation = host.Generation
		if _, err := c.Hosts.RecordProbe(ctx, host, p); err != nil {
			return reconcile.Result{}, fmt.Errorf("recording the probe of host %q: %w", host.Name, err)
		}
	}
	return reconcile.Result{RequeueAfter: retryDelay}, nil
}

// park leaves a host alone whose kubelet is somebody else's.
func (c *Controller) park(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe, f finding) (reconcile.Result, error) {
	if host.Status.State == v1beta1.HostLeaving {
		_, err := c.Hosts.EndLeaving(ctx, host, pool.Outcome{State: v1beta1.HostUnhealthy, Reason: f.reason, Message: f.message})
		return reconcile.Result{}, err
	}
	if readyCondition(host).Reason != f.reason {
		c.warn(host, parkedEvent(f.reason), f.message)
		c.Metrics.Zombie(parkedAction(f.reason))
		log.FromContext(ctx).Info("parked a host", "host", host.Name, "reason", f.reason, "detail", f.message)
	}
	p, _ := c.observed(host, probe)
	p.Reason, p.Message = f.reason, f.message
	return c.record(ctx, host, p)
}

func (c *Controller) warn(host *v1beta1.SSHHost, reason, message string) {
	c.Recorder.Publish(events.Event{
		InvolvedObject: host, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		DedupeValues: []string{string(host.UID), message},
	})
}

// reconciler reconciles hosts by name, and forgets those that are gone.
func (c *Controller) reconciler() reconcile.Reconciler {
	return membership.Forgetting(c.Client, c, c.forget)
}

// Register implements controller.Controller of operatorpkg.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("sshhost.probe").
		For(&v1beta1.SSHHost{}, membership.InNamespace(c.Namespace)).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(c.allHosts), c.onlyTrust()).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: c.Workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute),
		}).
		Complete(c.reconciler())
}
