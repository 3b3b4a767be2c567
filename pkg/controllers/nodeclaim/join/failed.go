package join

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func (c *Controller) fault(s membership.Subject, kind membership.Kind, reason, format string, args ...any) *membership.Failure {
	return &membership.Failure{Kind: kind, Reason: reason, Host: s.Host.Name, Phase: signing.PhaseJoin, Detail: fmt.Sprintf(format, args...)}
}

// failed decides whether to try again, to let go, or to give up.
func (c *Controller) failed(ctx context.Context, s membership.Subject, err error) (reconcile.Result, error) {
	switch {
	case ctx.Err() != nil:
		return reconcile.Result{}, ctx.Err() // we are being stopped, which says nothing about the host
	case errors.Is(err, errAbandoned), errors.Is(err, pool.ErrClaimLost), errors.Is(err, pool.ErrHostNotFound):
		c.forget(s.Host.Name)
		return reconcile.Result{}, nil
	case errors.Is(err, errUnnamed):
		return reconcile.Result{RequeueAfter: waitDelay}, nil // should the NodeClaim's watch miss it
	case apierrors.IsConflict(err), errors.Is(err, pool.ErrConflict), apierrors.IsAlreadyExists(err):
		return reconcile.Result{RequeueAfter: busyDelay}, nil
	}
	var failure *membership.Failure
	if !errors.As(err, &failure) {
		return reconcile.Result{}, err
	}
	switch failure.Kind {
	case membership.Busy:
		return reconcile.Result{RequeueAfter: busyDelay}, nil
	case membership.StaleFence:
		return c.raiseFence(ctx, s, failure)
	case membership.StaleClaim:
		if c.Phases.Prepares(s.Host, failure.HostClaim) {
			return c.takeOver(ctx, s, failure)
		}
		// Nothing is wrong with the host, and none of ours ran: the probe has it leave the other claim.
		failure.Kind = membership.Configuration
	case membership.Transient:
		if absent := c.absentFor(s); absent < patience {
			return reconcile.Result{}, failure
		}
		failure.Kind = membership.HostFault
	}
	return reconcile.Result{}, c.giveUp(ctx, s, failure)
}

// absentFor notes that the host is out of reach and returns for how long it has been.
func (c *Controller) absentFor(s membership.Subject) time.Duration {
	return c.since(c.unreachable, s.Host)
}

// since notes in one of the maps that something of the host is missing, and returns for how long it has
// been under this claim.
func (c *Controller) since(missing map[string]absence, host *v1beta1.SSHHost) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := missing[host.Name]
	if !ok || a.claim != host.Status.ClaimRef.UID {
		a = absence{claim: host.Status.ClaimRef.UID, since: c.Clock.Now()}
		missing[host.Name] = a
	}
	return c.Clock.Since(a.since)
}

// raiseFence answers a host that has seen a later fence: after a restore of etcd the fences in the API
// are behind those on the hosts.
func (c *Controller) raiseFence(ctx context.Context, s membership.Subject, failure *membership.Failure) (reconcile.Result, error) {
	if _, err := c.Hosts.BumpFence(ctx, s.Host, pool.RefOf(s.NodeClaim), failure.HostClaim.Fence+1); err != nil {
		return c.failed(ctx, s, err)
	}
	return reconcile.Result{RequeueAfter: time.Millisecond}, nil
}

// giveUp ends the join for good. What is recorded on the host first, together with who deletes the
// NodeClaim if we die before we do, is up to the leave controller.
func (c *Controller) giveUp(ctx context.Context, s membership.Subject, failure *membership.Failure) error {
	log.FromContext(ctx).Info("join failed", "host", s.Host.Name, "nodeclaim", s.NodeClaim.Name, "reason", failure.Reason, "phase", string(failure.Phase), "detail", failure.Detail)
	c.announce(s, failure)
	if _, err := c.Hosts.RequestLeave(ctx, s.Host, pool.RefOf(s.NodeClaim), leaveReason(failure), failure.Error()); err != nil {
		if errors.Is(err, pool.ErrClaimLost) {
			return nil
		}
		return err
	}
	c.forget(s.Host.Name)
	uid := s.NodeClaim.UID
	if err := c.Client.Delete(ctx, s.NodeClaim, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting nodeclaim %q: %w", s.NodeClaim.Name, err)
	}
	return nil
}

// leaveReason is what the leave controller goes by: only InstallFailed and JoinFailed are the host's own.
func leaveReason(failure *membership.Failure) string {
	switch {
	case failure.Kind != membership.HostFault:
		return failure.Reason
	case failure.Phase == signing.PhaseInstall:
		return v1beta1.ReasonInstallFailed
	default:
		return v1beta1.ReasonJoinFailed
	}
}

func (c *Controller) announce(s membership.Subject, failure *membership.Failure) {
	reason := v1beta1.EventJoinFailed
	if failure.Reason == v1beta1.EventNodeVanished {
		reason = v1beta1.EventNodeVanished
	}
	if s.Class != nil && s.Class.Adopts() && (failure.Reason == reasonProviderIDTaken || failure.Reason == reasonRegistrationTimeout) {
		reason = v1beta1.EventAdoptFailed
	}
	c.Recorder.Publish(
		events.Event{InvolvedObject: s.NodeClaim, Type: corev1.EventTypeWarning, Reason: reason, Message: failure.Error(), DedupeValues: []string{string(s.NodeClaim.UID)}},
		events.Event{InvolvedObject: s.Host, Type: corev1.EventTypeWarning, Reason: reason, Message: "NodeClaim " + s.NodeClaim.Name + ": " + failure.Error(),
			DedupeValues: []string{string(s.Host.UID), string(s.NodeClaim.UID)}},
	)
}
