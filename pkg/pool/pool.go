package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Errors that callers branch on.
var (
	// ErrNoHost: no host is free for the request. The cloud provider answers InsufficientCapacity.
	ErrNoHost = errors.New("no host is free")
	// ErrContended: hosts that looked free were taken or changed faster than they could be claimed. Try again.
	ErrContended = errors.New("every free host changed meanwhile")
	// ErrClaimLost: the claim that the write was issued under is gone. The caller must let go of the host.
	ErrClaimLost = errors.New("the claim on the host is gone")
	// ErrConflict: the host changed since it was read. The caller reads it again and decides afresh.
	ErrConflict = errors.New("the host changed meanwhile")
	// ErrHostNotFound: no such host, or no host for the claim or provider id.
	ErrHostNotFound = errors.New("host not found")
	// ErrCold: the cache is not filled yet, so that a short answer would be a wrong one.
	ErrCold = errors.New("the host cache is not filled yet")
	// ErrTokenRecorded: another bootstrap token is still recorded on the host; it must be deleted first, or nobody
	// would ever delete it.
	ErrTokenRecorded = errors.New("another bootstrap token is recorded on the host")
)

// Ref is the NodeClaim that holds a host, or wants to.
type Ref struct {
	Name string
	UID  types.UID
}

// RefOf is the Ref of a NodeClaim.
func RefOf(nodeClaim metav1.Object) Ref {
	return Ref{Name: nodeClaim.GetName(), UID: nodeClaim.GetUID()}
}

// RefOn is the Ref that host is held by; the zero Ref when it is free.
func RefOn(host *v1beta1.SSHHost) Ref {
	if host.Status.ClaimRef == nil {
		return Ref{}
	}
	return Ref{Name: host.Status.ClaimRef.Name, UID: host.Status.ClaimRef.UID}
}

// Held says whether ref holds host, by name and uid.
func Held(host *v1beta1.SSHHost, ref Ref) bool {
	return host.Status.ClaimRef != nil && ref.UID != "" && RefOn(host) == ref
}

// Options of a Pool.
type Options struct {
	// Namespace of the SSHHosts.
	Namespace string
	// Clock is the wall clock when nil.
	Clock clock.Clock
	// Backoff is how long a host that failed is not offered; its defaults when zero.
	Backoff Backoff
}

// Pool claims, changes and releases hosts.
type Pool struct {
	client    client.Client
	live      client.Reader
	inventory *Inventory
	namespace string
	clock     clock.Clock
	backoff   Backoff

	fresh     freshness
	turns     turns
	uncertain sync.Map // types.UID → name of the host whose claim write got no answer
}

// New makes a pool that writes with c, reads what must be true with live (a reader that asks the API server) and
// finds hosts in inventory, which the caller keeps fed.
func New(c client.Client, live client.Reader, inventory *Inventory, opts Options) *Pool {
	p := &Pool{
		client: c, live: live, inventory: inventory,
		namespace: opts.Namespace, clock: opts.Clock, backoff: opts.Backoff.complete(),
	}
	if p.clock == nil {
		p.clock = clock.RealClock{}
	}
	return p
}

// Live reads a host from the API server.
func (p *Pool) Live(ctx context.Context, name string) (*v1beta1.SSHHost, error) {
	host := &v1beta1.SSHHost{}
	known := p.inventory.get(name)
	if err := p.live.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: name}, host); err != nil {
		if apierrors.IsNotFound(err) {
			if known != nil {
				p.inventory.bury(name, known.UID)
			}
			return nil, fmt.Errorf("reading host %q: %w", name, ErrHostNotFound)
		}
		return nil, fmt.Errorf("reading host %q: %w", name, err)
	}
	p.inventory.put(host.DeepCopy())
	return host, nil
}

// Get returns a copy of a host from the inventory.
func (p *Pool) Get(name string) (*v1beta1.SSHHost, error) {
	if host := p.inventory.get(name); host != nil {
		return host.DeepCopy(), nil
	}
	return nil, fmt.Errorf("finding host %q: %w", name, ErrHostNotFound)
}

// ByClaim returns a copy of the host that a NodeClaim holds, by uid, from the inventory. Should two be held (see
// Extra), the one with the lower name is returned.
func (p *Pool) ByClaim(uid types.UID) (*v1beta1.SSHHost, error) {
	if held := p.inventory.byClaim(uid); len(held) > 0 {
		return held[0].DeepCopy(), nil
	}
	return nil, fmt.Errorf("finding the host claimed by NodeClaim uid %q: %w", uid, ErrHostNotFound)
}

// AllByClaim returns copies of all hosts that a NodeClaim holds, by uid, from the inventory: one as a rule (see Extra).
func (p *Pool) AllByClaim(uid types.UID) []*v1beta1.SSHHost {
	held := p.inventory.byClaim(uid)
	for i := range held {
		held[i] = held[i].DeepCopy()
	}
	return held
}

// ByProviderID returns a copy of the host with the provider id, its static or its adopted one, from the inventory.
// A static id names the host and not its claim: compare with Held before acting on what is returned.
func (p *Pool) ByProviderID(id string) (*v1beta1.SSHHost, error) {
	if host := p.inventory.byProviderID(id); host != nil {
		return host.DeepCopy(), nil
	}
	return nil, fmt.Errorf("finding the host with provider id %q: %w", id, ErrHostNotFound)
}

// List returns copies of all hosts, or ErrCold: never a list that is short because the cache is cold.
func (p *Pool) List() ([]*v1beta1.SSHHost, error) {
	return p.list(func(*v1beta1.SSHHost) bool { return true })
}

// Claimed returns copies of all claimed hosts, or ErrCold.
func (p *Pool) Claimed() ([]*v1beta1.SSHHost, error) {
	return p.list(func(h *v1beta1.SSHHost) bool { return h.Status.ClaimRef != nil })
}

func (p *Pool) list(keep func(*v1beta1.SSHHost) bool) ([]*v1beta1.SSHHost, error) {
	if !p.inventory.Synced() {
		return nil, ErrCold
	}
	var out []*v1beta1.SSHHost
	p.inventory.Range(func(h *v1beta1.SSHHost) {
		if keep(h) {
			out = append(out, h.DeepCopy())
		}
	})
	return out, nil
}

// Extra says whether host is claimed in excess: it and another host are held by the same NodeClaim, and that
// NodeClaim, whose status.providerID is given, is the other's. Nothing ran on the host in excess as long as phases
// are run only on the host that the NodeClaim's provider id names.
//
// An adopted provider id must be written to the host before it is written to the NodeClaim.
func (p *Pool) Extra(host *v1beta1.SSHHost, providerID string) bool {
	if providerID == "" || host.Status.ClaimRef == nil || hasProviderID(host, providerID) {
		return false
	}
	for _, other := range p.inventory.byClaim(host.Status.ClaimRef.UID) {
		if other.Name != host.Name && hasProviderID(other, providerID) {
			return true
		}
	}
	return false
}

func hasProviderID(host *v1beta1.SSHHost, id string) bool {
	return id == host.StaticProviderID() || id == host.Status.ProviderID
}

// swap writes change onto host's own resourceVersion, once. A change that changes nothing is not written.
func (p *Pool) swap(ctx context.Context, host *v1beta1.SSHHost, change func(*v1beta1.SSHHost) error) (*v1beta1.SSHHost, error) {
	next := host.DeepCopy()
	if err := change(next); err != nil {
		return nil, err
	}
	if equality.Semantic.DeepEqual(host.Status, next.Status) {
		return next, nil
	}
	err := p.client.Status().Update(ctx, next)
	switch {
	case err == nil:
		p.inventory.put(next.DeepCopy())
		return next, nil
	case apierrors.IsConflict(err):
		return nil, fmt.Errorf("writing status of host %q: %w", host.Name, ErrConflict)
	case apierrors.IsNotFound(err):
		p.inventory.bury(host.Name, host.UID)
		return nil, fmt.Errorf("writing status of host %q: %w", host.Name, ErrHostNotFound)
	default:
		return nil, fmt.Errorf("writing status of host %q: %w", host.Name, err)
	}
}

// maxAttempts bounds how often a write under a claim is tried. Few writers share a claimed host, so that running
// out means that something writes in a loop.
const maxAttempts = 8

// underClaim writes change while ref holds host: on a conflict again on a fresh read.
func (p *Pool) underClaim(ctx context.Context, host *v1beta1.SSHHost, ref Ref, change func(*v1beta1.SSHHost) error) (*v1beta1.SSHHost, error) {
	current := host
	for attempt := 1; ; attempt++ {
		if current.UID != host.UID || !Held(current, ref) {
			return nil, fmt.Errorf("host %q, NodeClaim %q: %w", host.Name, ref.Name, ErrClaimLost)
		}
		next, err := p.swap(ctx, current, change)
		switch {
		case err == nil:
			return next, nil
		case errors.Is(err, ErrHostNotFound):
			return nil, fmt.Errorf("host %q, NodeClaim %q: %w", host.Name, ref.Name, ErrClaimLost)
		case !isConflict(err) || attempt == maxAttempts:
			return nil, err
		}
		if current, err = p.Live(ctx, host.Name); errors.Is(err, ErrHostNotFound) {
			return nil, fmt.Errorf("host %q, NodeClaim %q: %w", host.Name, ref.Name, ErrClaimLost)
		} else if err != nil {
			return nil, err
		}
	}
}

func isConflict(err error) bool { return errors.Is(err, ErrConflict) }
