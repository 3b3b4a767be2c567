package join

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// drive takes the host as far as it goes without waiting for the Node.
func (c *Controller) drive(ctx context.Context, s membership.Subject) (reconcile.Result, error) {
	node, err := c.findNode(ctx, s)
	if err != nil {
		return c.failed(ctx, s, err)
	}
	if node != nil {
		return c.settle(ctx, s, node)
	}
	if s.Host.Status.State == v1beta1.HostInUse {
		return c.nodeless(ctx, s)
	}
	if !c.hasJoined(s) {
		if s, err = c.run(ctx, s); err != nil {
			return c.failed(ctx, s, err)
		}
		c.setJoined(s)
		log.FromContext(ctx).Info("joined", "host", s.Host.Name, "nodeclaim", s.NodeClaim.Name)
	}
	left := max(registrationLimit-c.Clock.Since(s.NodeClaim.CreationTimestamp.Time), registrationGrace-c.sinceJoined(s))
	if left <= 0 {
		return c.failed(ctx, s, c.fault(s, membership.HostFault, reasonRegistrationTimeout,
			"join ended well, but no such node registered within %s", registrationLimit))
	}
	return reconcile.Result{RequeueAfter: min(left, waitDelay)}, nil
}

// run runs the phases that have not run yet under this claim, and returns s with the host as last written.
func (c *Controller) run(ctx context.Context, s membership.Subject) (membership.Subject, error) {
	ref := pool.RefOf(s.NodeClaim)
	if _, err := c.wanted(ctx, c.Live, s.Host); err != nil {
		return s, err
	}
	var err error
	first := s.Host.Raw() && !pool.Owed(s.Host)
	if first {
		if s.Host, err = keep(s.Host)(c.Hosts.OweLeave(ctx, s.Host, ref, true)); err != nil {
			return s, err
		}
	}
	s, err = c.phases(ctx, s)
	if first && err != nil && membership.FailureOf(err).Kind == membership.Configuration && s.Host.Status.InstalledProfile == "" {
		// Refused before anything ran.
		host, clearErr := c.Hosts.OweLeave(ctx, s.Host, ref, false)
		if clearErr != nil {
			return s, clearErr
		}
		s.Host = host
	}
	return s, err
}

func (c *Controller) phases(ctx context.Context, s membership.Subject) (membership.Subject, error) {
	ref := pool.RefOf(s.NodeClaim)
	var err error
	if marker := s.Profile.Marker(); s.Host.Status.InstalledProfile != marker {
		if err := c.Phases.Install(ctx, s); err != nil {
			return s, err
		}
		c.reached(s.Host.Name)
		if s.Host, err = keep(s.Host)(c.Hosts.SetInstalled(ctx, s.Host, ref, marker)); err != nil {
			return s, err
		}
	}
	if s, err = c.notPreparing(ctx, s); err != nil {
		return s, err
	}
	if err := c.nameIsFree(ctx, s); err != nil {
		return s, err
	}
	// Install may have taken minutes. Nobody may have a use for the node by now, or for a token.
	if _, err := c.wanted(ctx, c.Live, s.Host); err != nil {
		return s, err
	}
	s, token, err := c.token(ctx, s)
	if err != nil {
		return s, err
	}
	return s, c.Phases.Join(ctx, s, token)
}

// keep holds on to the host as it was when a write fails, so that the failure can still be recorded on it.
func keep(host *v1beta1.SSHHost) func(*v1beta1.SSHHost, error) (*v1beta1.SSHHost, error) {
	return func(next *v1beta1.SSHHost, err error) (*v1beta1.SSHHost, error) {
		if err != nil {
			return host, err
		}
		return next, nil
	}
}

const (
	// tokenMargin is what a token must live beyond the join that uses it.
	tokenMargin = 2 * time.Minute
	// tokenAttempts bounds the ids that are tried.
	tokenAttempts = 3
)

// token returns the bootstrap token of the claim. Its id is on the host before it exists, so that
// whoever releases the host can delete it.
func (c *Controller) token(ctx context.Context, s membership.Subject) (membership.Subject, string, error) {
	ref := pool.RefOf(s.NodeClaim)
	remaining := min(membership.JoinTimeout(s.Profile)+tokenMargin, bootstrap.TTL-tokenMargin)
	for range tokenAttempts {
		id := s.Host.Status.BootstrapTokenID
		if id == "" {
			id = bootstrap.NewTokenID()
			host, err := c.Hosts.SetBootstrapToken(ctx, s.Host, ref, id)
			if errors.Is(err, pool.ErrTokenRecorded) {
				if s.Host, err = keep(s.Host)(c.Hosts.Live(ctx, s.Host.Name)); err != nil {
					return s, "", err
				}
				continue
			}
			if err != nil {
				return s, "", err
			}
			s.Host = host
		}
		token, err := c.Tokens.Ensure(ctx, id, bootstrap.Owner{Name: s.NodeClaim.Name, UID: string(s.NodeClaim.UID)}, remaining)
		if !errors.Is(err, bootstrap.ErrForeign) {
			return s, token, err
		}
		// It is an earlier claim's, or nobody's of ours, which Delete leaves alone.
		if err := c.Tokens.Delete(ctx, id); err != nil {
			return s, "", err
		}
		if s.Host, err = keep(s.Host)(c.Hosts.ForgetBootstrapToken(ctx, s.Host, id)); err != nil {
			return s, "", err
		}
	}
	return s, "", fmt.Errorf("choosing a bootstrap token for host %q: ids are taken", s.Host.Name)
}

// nameIsFree refuses a join under the name of a living Node of another host, whose object the kubelet
// would take over (kubeadm#1130, R35).
func (c *Controller) nameIsFree(ctx context.Context, s membership.Subject) error {
	node := &corev1.Node{}
	if err := c.Live.Get(ctx, types.NamespacedName{Name: s.NodeClaim.Name}, node); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil
		}
		return fmt.Errorf("reading node %q: %w", s.NodeClaim.Name, err)
	}
	if membership.Backs(s.Host, node) {
		return nil
	}
	return c.nameConflict(s, node)
}

func (c *Controller) nameConflict(s membership.Subject, node *corev1.Node) error {
	return c.fault(s, membership.Configuration, reasonNodeNameConflict,
		"node %q exists and is another machine's, its provider id is %q", node.Name, node.Spec.ProviderID)
}

// settle follows up on a Node that is there.
func (c *Controller) settle(ctx context.Context, s membership.Subject, node *corev1.Node) (reconcile.Result, error) {
	ref := pool.RefOf(s.NodeClaim)
	var err error
	if s.Class.Adopts() {
		if s.Host.Status.ProviderID != node.Spec.ProviderID {
			if s.Host, err = keep(s.Host)(c.Hosts.SetProviderID(ctx, s.Host, ref, node.Spec.ProviderID)); err != nil {
				return c.failed(ctx, s, err)
			}
		}
		if err := c.adopt(ctx, s.NodeClaim, node.Spec.ProviderID); err != nil {
			return c.failed(ctx, s, err)
		}
	}
	if s.Host, err = keep(s.Host)(c.noteAddress(ctx, s, node)); err != nil {
		return c.failed(ctx, s, err)
	}
	if !membership.Ready(node) {
		c.explain(s, node)
		return reconcile.Result{RequeueAfter: waitDelay}, nil
	}
	if s.Host.Status.State == v1beta1.HostInUse {
		return reconcile.Result{}, nil
	}
	if _, err := c.Hosts.SetInUse(ctx, s.Host, ref); err != nil {
		return c.failed(ctx, s, err)
	}
	c.forget(s.Host.Name)
	log.FromContext(ctx).Info("node is ready", "host", s.Host.Name, "nodeclaim", s.NodeClaim.Name, "node", node.Name,
		"after", c.Clock.Since(s.NodeClaim.CreationTimestamp.Time).Round(time.Second).String())
	return reconcile.Result{}, nil
}

// adopt gives the NodeClaim the Node's own provider id. The host has it already, so that either of the
// two ids leads to the host at every moment.
func (c *Controller) adopt(ctx context.Context, nodeClaim *karpenterv1.NodeClaim, id string) error {
	if nodeClaim.Status.ProviderID == id {
		return nil
	}
	changed := nodeClaim.DeepCopy()
	changed.Status.ProviderID = id
	err := c.Client.Status().Patch(ctx, changed, client.MergeFromWithOptions(nodeClaim, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("adopting the provider id of nodeclaim %q: %w", nodeClaim.Name, err)
	}
	return nil
}

func (c *Controller) hasJoined(s membership.Subject) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.joined[s.Host.Name].claim == s.NodeClaim.UID
}

// sinceJoined returns how long ago join ended, as far as this process knows.
func (c *Controller) sinceJoined(s membership.Subject) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Clock.Since(c.joined[s.Host.Name].since)
}

func (c *Controller) setJoined(s membership.Subject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.joined[s.Host.Name] = absence{claim: s.NodeClaim.UID, since: c.Clock.Now()}
	delete(c.unreachable, s.Host.Name)
}

// reached ends an absence.
func (c *Controller) reached(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unreachable, host)
}

func (c *Controller) forget(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.joined, host)
	delete(c.unreachable, host)
	delete(c.vanished, host)
}
