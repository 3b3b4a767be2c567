package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Request says which host a NodeClaim wants.
type Request struct {
	Ref Ref
	// Selector must match the host's labels; everything when nil.
	Selector labels.Selector
	// Shapes are the shapes that will do, the best first; any when nil.
	Shapes []string
	// Fits must hold; everything does when nil. It must neither change nor keep the host, nor call the pool.
	Fits func(*v1beta1.SSHHost) bool
	// Prefer is an install marker, "<profile>@<version>": of equally good hosts one that carries it is taken.
	Prefer string
}

// Claim makes a host the NodeClaim's and raises its fence in the same write. A NodeClaim that holds a host already
// is answered with that one. Hosts that failed recently come last, whatever they have installed, lest the host that
// just failed be the first choice for the next attempt.
//
// Errors: ErrNoHost, ErrContended, ErrCold, or what the API server said.
func (p *Pool) Claim(ctx context.Context, req Request) (*v1beta1.SSHHost, error) {
	if req.Ref.UID == "" || req.Ref.Name == "" {
		return nil, fmt.Errorf("claiming a host: NodeClaim %q has no uid", req.Ref.Name)
	}
	if !p.inventory.Synced() {
		return nil, fmt.Errorf("claiming a host: %w", ErrCold)
	}
	if err := p.Prime(ctx); err != nil {
		return nil, err
	}
	done, err := p.turns.take(ctx, req.Ref.UID)
	if err != nil {
		return nil, err
	}
	defer done()
	if host, err := p.existing(ctx, req.Ref); host != nil || err != nil {
		return host, err
	}
	fits := req.Fits
	req.Fits = func(host *v1beta1.SSHHost) bool {
		return p.parked(host).Reason == "" && (fits == nil || fits(host)) // its state may not follow a window yet
	}
	return p.claimNew(ctx, req)
}

// existing returns the host that ref holds already, as the API server has it; nil when there is none.
func (p *Pool) existing(ctx context.Context, ref Ref) (*v1beta1.SSHHost, error) {
	var names []string
	if name, ok := p.uncertain.Load(ref.UID); ok {
		names = append(names, name.(string))
	}
	for _, host := range p.inventory.byClaim(ref.UID) {
		names = append(names, host.Name)
	}
	for _, name := range names {
		host, err := p.Live(ctx, name)
		switch {
		case errors.Is(err, ErrHostNotFound):
		case err != nil:
			return nil, err
		case Held(host, ref):
			p.uncertain.Delete(ref.UID)
			return host, nil
		}
	}
	p.uncertain.Delete(ref.UID)
	return nil, nil
}

// maxRounds bounds how often the hosts that were lost to others are read again.
const maxRounds = 3

func (p *Pool) claimNew(ctx context.Context, req Request) (*v1beta1.SSHHost, error) {
	for round := 0; round < maxRounds; round++ {
		var lost []*v1beta1.SSHHost
		for {
			candidate := p.inventory.take(req)
			if candidate == nil {
				break
			}
			host, err := p.swap(ctx, candidate, func(h *v1beta1.SSHHost) error { return p.setClaim(h, req.Ref) })
			p.inventory.give(candidate, err != nil)
			switch {
			case err == nil:
				return host, nil
			case isConflict(err):
				lost = append(lost, candidate)
			case errors.Is(err, ErrHostNotFound):
			default:
				// Whether the write arrived is not known. The next attempt asks this host first.
				p.uncertain.Store(req.Ref.UID, candidate.Name)
				return nil, err
			}
		}
		if len(lost) == 0 && round == 0 {
			return nil, fmt.Errorf("claiming a host for NodeClaim %q: %w", req.Ref.Name, ErrNoHost)
		}
		if len(lost) == 0 {
			break
		}
		// A conflict need not mean that the host was taken: a label may have changed. Look again before saying that
		// there is none.
		for _, host := range lost {
			if _, err := p.Live(ctx, host.Name); err != nil && !errors.Is(err, ErrHostNotFound) {
				return nil, err
			}
		}
	}
	return nil, fmt.Errorf("claiming a host for NodeClaim %q: %w", req.Ref.Name, ErrContended)
}

func (p *Pool) setClaim(host *v1beta1.SSHHost, ref Ref) error {
	if err := p.move(host, v1beta1.HostClaimed, v1beta1.ReasonClaimed, "claimed by NodeClaim "+ref.Name); err != nil {
		return err
	}
	host.Status.ClaimRef = &v1beta1.ClaimRef{Name: ref.Name, UID: ref.UID}
	host.Status.Fence++
	host.Status.ProviderID = host.StaticProviderID()
	clearCondition(host, v1beta1.ConditionLeaveRequested)
	return nil
}

// pageSize bounds one answer of the API server to a list.
const pageSize = 500

// Refresh reads all hosts from the API server into the inventory.
func (p *Pool) Refresh(ctx context.Context) error {
	list := &v1beta1.SSHHostList{}
	for {
		opts := &client.ListOptions{Namespace: p.namespace, Limit: pageSize, Continue: list.Continue}
		list = &v1beta1.SSHHostList{}
		if err := p.live.List(ctx, list, opts); err != nil {
			return fmt.Errorf("listing hosts: %w", err)
		}
		for i := range list.Items {
			p.inventory.put(&list.Items[i])
		}
		if list.Continue == "" {
			return nil
		}
	}
}

type freshness struct {
	mu   sync.Mutex
	done bool
}

// Prime refreshes the inventory once in the life of the pool, so that it knows what an earlier process wrote. Claim
// does so before the first claim; a new leader does it earlier, so that no claim has to wait for it.
func (p *Pool) Prime(ctx context.Context) error {
	p.fresh.mu.Lock()
	defer p.fresh.mu.Unlock()
	if p.fresh.done {
		return nil
	}
	if err := p.Refresh(ctx); err != nil {
		return err
	}
	p.fresh.done = true
	return nil
}

// turns lets one caller in at a time for each uid.
type turns struct {
	mu      sync.Mutex
	waiting map[types.UID]*turn
}

type turn struct {
	token chan struct{}
	users int
}

func (t *turns) take(ctx context.Context, uid types.UID) (done func(), err error) {
	t.mu.Lock()
	if t.waiting == nil {
		t.waiting = map[types.UID]*turn{}
	}
	mine := t.waiting[uid]
	if mine == nil {
		mine = &turn{token: make(chan struct{}, 1)}
		t.waiting[uid] = mine
	}
	mine.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(t.waiting, uid)
		}
	}
	select {
	case mine.token <- struct{}{}:
		return func() { <-mine.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
