package probe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	reasonCurrent = "Current"
	// contactTime bounds a contact with a host in use: shorter than a probe, as nothing waits for it.
	contactTime = 15 * time.Second
)

// contact is the last time that a host was to be brought documents, and which. Each version is an occasion to contact
// a host at once; after that it is tried again at the pace of probes, whatever comes of it.
type contact struct {
	host   types.UID // one that was made anew under the same name has heard nothing yet
	newest dispatch.Versions
	at     time.Time
}

// inUse says whether the host serves a node and will go on to: one that is being joined or left has orders coming,
// which bring documents too.
func inUse(host *v1beta1.SSHHost) bool {
	return host.Status.ClaimRef != nil && host.Status.State == v1beta1.HostInUse && !host.Raw() &&
		host.DeletionTimestamp.IsZero() && !pool.HasCondition(host, v1beta1.ConditionLeaveRequested)
}

// behind says whether the host has other documents by its last word than it should have, and which it should. One with
// the version and another content counts: nobody but the host can tell that it will not take ours.
func (c *Controller) behind(host *v1beta1.SSHHost) (dispatch.Versions, bool) {
	if host.Raw() {
		return dispatch.Versions{}, false
	}
	newest, err := c.Phases.Newest()
	if err != nil {
		return dispatch.Versions{}, false // the node classes say so
	}
	root, allowlist := membership.Lacks(host.Status.Trust, newest)
	// A host that is ahead takes no list before its root is published.
	ahead := host.Status.Trust != nil && host.Status.Trust.RootVersion > newest.Root
	return newest, root || allowlist && !ahead
}

// untold says whether the host is behind on documents that this process has not tried to bring it yet.
func (c *Controller) untold(host *v1beta1.SSHHost) bool {
	newest, behind := c.behind(host)
	if !behind {
		return false
	}
	last, known := c.lastContact(host)
	return !known || !last.newest.Same(newest)
}

func (c *Controller) lastContact(host *v1beta1.SSHHost) (contact, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, known := c.brought[host.Name]
	if last.host != host.UID {
		return contact{}, false
	}
	return last, known
}

func (c *Controller) forget(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.brought, host)
}

func (c *Controller) noteContact(host *v1beta1.SSHHost) {
	newest, behind := c.behind(host)
	c.mu.Lock()
	defer c.mu.Unlock()
	if behind {
		c.brought[host.Name] = contact{host: host.UID, newest: newest, at: c.Clock.Now()}
	} else {
		delete(c.brought, host.Name)
	}
}

// bring contacts a host in use that is behind, so that it takes the documents, and records what it says then. It takes
// no turn and changes no state: a leave must not wait for it, and a host that does not answer is the node's matter.
func (c *Controller) bring(ctx context.Context, host *v1beta1.SSHHost) (reconcile.Result, error) {
	if _, behind := c.behind(host); !behind {
		return reconcile.Result{}, nil
	}
	if last, _ := c.lastContact(host); !c.untold(host) {
		if wait := c.Interval - c.Clock.Since(last.at); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
	}
	c.noteContact(host)
	bounded, cancel := context.WithTimeout(ctx, contactTime)
	defer cancel()
	probe, err := c.Phases.Probe(bounded, host)
	if ctx.Err() != nil {
		return reconcile.Result{}, ctx.Err()
	}
	if err != nil {
		log.FromContext(ctx).V(1).Info("a host in use could not be brought the signed documents", "host", host.Name, "detail", err.Error())
		return reconcile.Result{RequeueAfter: c.Interval}, nil
	}
	if probe.Hello == nil {
		return reconcile.Result{}, nil
	}
	next, err := c.Hosts.SetTrust(ctx, host, pool.RefOn(host), c.trust(probe.Hello), trustCondition(probe))
	switch {
	case errors.Is(err, pool.ErrClaimLost), errors.Is(err, pool.ErrConflict):
		return reconcile.Result{RequeueAfter: busyDelay}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("recording what host %q believes: %w", host.Name, err)
	}
	if _, still := c.behind(next); still {
		return reconcile.Result{RequeueAfter: c.Interval}, nil
	}
	return reconcile.Result{}, nil
}

// trust is what is kept of a hello.
func (c *Controller) trust(hello *signing.Hello) *v1beta1.HostTrust {
	return &v1beta1.HostTrust{
		RootVersion: hello.Root.Version, RootDigest: hello.Root.Digest,
		AllowlistVersion: hello.Allowlist.Version, AllowlistDigest: hello.Allowlist.Digest,
		ShimVersion: hello.ShimVersion, Findings: hello.Findings, ObservedTime: &metav1.Time{Time: c.Clock.Now()},
	}
}

func trustCondition(probe *dispatch.Probe) status.Condition {
	if probe.Behind == nil {
		return status.Condition{Type: v1beta1.ConditionTrustCurrent, Status: metav1.ConditionTrue, Reason: reasonCurrent}
	}
	failure := membership.FailureOf(probe.Behind)
	return status.Condition{Type: v1beta1.ConditionTrustCurrent, Status: metav1.ConditionFalse, Reason: failure.Reason, Message: failure.Error()}
}

func (c *Controller) onlyTrust() builder.Predicates {
	return builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		return client.ObjectKeyFromObject(o) == c.TrustConfigMap
	}))
}

// allHosts are those that a new document concerns.
func (c *Controller) allHosts(ctx context.Context, _ client.Object) []reconcile.Request {
	list := &v1beta1.SSHHostList{}
	if err := c.Client.List(ctx, list, client.InNamespace(c.Namespace)); err != nil {
		return nil // brought by the next probe
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}
