// Package prepare has install run on free hosts before anybody claims them, as many as their node classes ask for, so
// that from a claim to a Ready node there is only join. A host that carries another version of the profile than its
// class names is prepared again.
//
// A preparation is a membership without a join: its fence is raised, install runs under a claim of the host itself, the
// marker is recorded, leave runs, and a probe proves the host clean. Meanwhile the host may be claimed. In this process
// the claim's join waits for the turn; in another it finds that claim on the host, waits for the run's end and collects
// it. A preparation whose process died is resumed by the next.
package prepare

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	busyDelay = time.Second
	// retry is how long a host is left alone whose last preparation did not end well. What is the host's fault is counted
	// in its status besides, and may keep it waiting for longer.
	retry = 2 * time.Minute
	// pause is how long a class is left alone for which a preparation failed by its configuration, or could not be put on
	// record.
	pause = time.Minute
	// reasonAbandoned: no class wants that any more.
	reasonAbandoned = "Abandoned"
)

// Hosts is what this controller needs of the pool.
type Hosts interface {
	Live(ctx context.Context, name string) (*v1beta1.SSHHost, error)
	BeginPreparation(ctx context.Context, host *v1beta1.SSHHost, marker string) (*v1beta1.SSHHost, error)
	SetPrepared(ctx context.Context, begun *v1beta1.SSHHost, marker string) (*v1beta1.SSHHost, error)
	EndPreparation(ctx context.Context, begun *v1beta1.SSHHost, out pool.Preparation) (*v1beta1.SSHHost, error)
}

// Inventory is the hosts in memory.
type Inventory interface {
	Range(f func(*v1beta1.SSHHost))
}

// Phases runs what runs on hosts.
type Phases interface {
	Prepare(ctx context.Context, s membership.Subject, fence int64) error
	EndPreparation(ctx context.Context, s membership.Subject, fence int64) error
}

// Options of a Controller.
type Options struct {
	// Client may read from a cache.
	Client    client.Client
	Hosts     Hosts
	Inventory Inventory
	Phases    Phases
	Turns     *membership.Turns
	Recorder  events.Recorder
	Clock     clock.PassiveClock
	// Metrics may be nil.
	Metrics *Metrics
	// Namespace of the hosts, and how many are prepared at once.
	Namespace string
	Workers   int
}

// Controller prepares hosts.
type Controller struct {
	Options

	// What follows only saves attempts: a restart begins anew.
	mu      sync.Mutex
	running map[string]job       // host → what is under way on it
	paused  map[string]time.Time // class → not before

	picked chan event.GenericEvent
	ended  chan event.GenericEvent
}

// NewController returns a Controller.
func NewController(opts Options) *Controller {
	opts.Workers = max(1, opts.Workers)
	return &Controller{
		Options: opts, running: map[string]job{}, paused: map[string]time.Time{},
		picked: make(chan event.GenericEvent, opts.Workers),
		ended:  make(chan event.GenericEvent, 1),
	}
}

// Reconcile implements reconcile.ObjectReconciler: it prepares a host that Plan picked.
func (c *Controller) Reconcile(ctx context.Context, cached *v1beta1.SSHHost) (reconcile.Result, error) {
	c.mu.Lock()
	j, picked := c.running[cached.Name]
	c.mu.Unlock()
	if !picked {
		return reconcile.Result{}, nil
	}
	looked := false
	result, err := c.Turns.Alone(ctx, c.Hosts, cached.Name, busyDelay, func(host *v1beta1.SSHHost) (reconcile.Result, error) {
		looked = true
		return reconcile.Result{}, c.prepare(ctx, host, j)
	})
	if !looked && err == nil && result.RequeueAfter > 0 {
		return result, nil // something else goes on there, most likely a probe
	}
	c.done(cached.Name, err)
	return reconcile.Result{}, err
}

// done makes room for another host. An error is one that could not be put on record.
func (c *Controller) done(host string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.paused[c.running[host].class] = c.Clock.Now().Add(pause)
	}
	delete(c.running, host)
	select {
	case c.ended <- event.GenericEvent{Object: &v1beta1.SSHHost{}}:
	default:
	}
}

// prepare prepares the host, as the API server has it.
func (c *Controller) prepare(ctx context.Context, host *v1beta1.SSHHost, j job) error {
	s, err := c.subject(ctx, host, j)
	if err != nil {
		return err
	}
	begun, err := c.begin(ctx, host, s, j)
	if begun == nil || err != nil {
		return err
	}
	s.Host = begun
	log.FromContext(ctx).Info("preparing", "host", host.Name, "nodeclass", j.class, "profile", j.marker)
	out, err := c.phases(ctx, s, j)
	if err != nil {
		return err
	}
	if _, err := c.Hosts.EndPreparation(ctx, begun, out); err != nil && !errors.Is(err, pool.ErrClaimLost) {
		return fmt.Errorf("ending the preparation of host %q: %w", host.Name, err)
	}
	log.FromContext(ctx).Info("prepared", "host", host.Name, "nodeclass", j.class, "profile", j.marker, "reason", out.Reason)
	return nil
}

// subject is what the host is prepared with; without a profile when the class does not want that any more.
func (c *Controller) subject(ctx context.Context, host *v1beta1.SSHHost, j job) (membership.Subject, error) {
	s := membership.Subject{Host: host}
	if j.class == "" {
		return s, nil
	}
	class, prof := &v1beta1.SSHNodeClass{}, &v1beta1.SSHJoinProfile{}
	err := c.Client.Get(ctx, types.NamespacedName{Name: j.class}, class)
	if err == nil {
		err = c.Client.Get(ctx, types.NamespacedName{Name: class.Spec.JoinProfileRef.Name}, prof)
	}
	if err == nil && prof.Marker() == j.marker {
		s.Class, s.Profile = class, prof
	}
	if client.IgnoreNotFound(err) != nil {
		return s, fmt.Errorf("reading node class %q and its profile: %w", j.class, err)
	}
	return s, nil
}

// begin takes the host for the preparation, or goes on with one of an earlier process. It returns nil when there is
// nothing to do any more.
func (c *Controller) begin(ctx context.Context, host *v1beta1.SSHHost, s membership.Subject, j job) (*v1beta1.SSHHost, error) {
	resumed := pool.Resumable(host)
	switch {
	case resumed && s.Profile != nil && pool.Preparing(host) == j.marker:
		return host, nil
	case resumed:
		// Nobody knows what it would be ended with: the probe has the host leave what is there.
		_, err := c.Hosts.EndPreparation(ctx, host, pool.Preparation{Reason: reasonAbandoned, Message: pool.Preparing(host) + " is not wanted any more"})
		return nil, unlessOvertaken(err)
	case s.Profile == nil || !pool.Claimable(host) || host.Status.InstalledProfile == j.marker:
		return nil, nil
	}
	begun, err := c.Hosts.BeginPreparation(ctx, host, j.marker)
	return begun, unlessOvertaken(err)
}

// unlessOvertaken drops errors that say that somebody else had the host first.
func unlessOvertaken(err error) error {
	var edge *pool.EdgeError
	if errors.Is(err, pool.ErrConflict) || errors.Is(err, pool.ErrClaimLost) || errors.Is(err, pool.ErrHostNotFound) || errors.As(err, &edge) {
		return nil
	}
	return err
}

// phases runs install, unless an earlier process has recorded it, and leave, and says how that ended. With an error it has
// not ended.
func (c *Controller) phases(ctx context.Context, s membership.Subject, j job) (pool.Preparation, error) {
	fence := s.Host.Status.Fence
	if s.Host.Status.InstalledProfile != j.marker {
		err := c.Phases.Prepare(ctx, s, fence)
		if ctx.Err() != nil {
			return pool.Preparation{}, ctx.Err() // the next process goes on
		}
		if err != nil {
			return c.notInstalled(ctx, s, j, membership.FailureOf(err)), nil
		}
		if _, err := c.Hosts.SetPrepared(ctx, s.Host, j.marker); err != nil && !errors.Is(err, pool.ErrClaimLost) {
			return pool.Preparation{}, fmt.Errorf("recording what is installed on host %q: %w", s.Host.Name, err)
		}
	}
	return c.leave(ctx, s, j)
}

func (c *Controller) notInstalled(ctx context.Context, s membership.Subject, j job, failure *membership.Failure) pool.Preparation {
	if failure.Kind == membership.HostFault {
		// Best effort: what it leaves behind is the zombie guard's.
		if err := c.Phases.EndPreparation(ctx, s, s.Host.Status.Fence); err != nil {
			log.FromContext(ctx).Info("leaving after an install that failed", "host", s.Host.Name, "detail", err.Error())
		}
	}
	return c.failed(s, j, failure)
}

func (c *Controller) leave(ctx context.Context, s membership.Subject, j job) (pool.Preparation, error) {
	err := c.Phases.EndPreparation(ctx, s, s.Host.Status.Fence)
	if ctx.Err() != nil {
		return pool.Preparation{}, ctx.Err()
	}
	if err != nil {
		return c.failed(s, j, membership.FailureOf(err)), nil
	}
	return pool.Preparation{Reason: v1beta1.ReasonPrepared, Message: j.marker + " is installed", Leave: pool.LeaveEnded}, nil
}

// failed says how the preparation ended that did not end well, and on the host, or on the class when that is to blame,
// what went wrong; and it has such a class left alone for a while.
func (c *Controller) failed(s membership.Subject, j job, failure *membership.Failure) pool.Preparation {
	out := pool.Preparation{Reason: failure.Reason, Message: failure.Error(), HostFault: failure.Kind == membership.HostFault}
	switch {
	case failure.Kind == membership.StaleFence, failure.Kind == membership.StaleClaim:
		return out // what an earlier process left there: nothing went wrong, and the probe puts it right
	case out.HostFault && failure.Phase == signing.PhaseLeave:
		out.Reason = v1beta1.ReasonLeaveFailed
	case out.HostFault:
		out.Reason = v1beta1.ReasonInstallFailed
	}
	var object client.Object = s.Host
	if failure.Kind == membership.Configuration {
		object = s.Class
		c.mu.Lock()
		c.paused[j.class] = c.Clock.Now().Add(pause)
		c.mu.Unlock()
	}
	c.Recorder.Publish(events.Event{
		InvolvedObject: object, Type: corev1.EventTypeWarning, Reason: v1beta1.EventPrepareFailed,
		Message: failure.Error(), DedupeValues: []string{string(object.GetUID()), failure.Error()},
	})
	return out
}
