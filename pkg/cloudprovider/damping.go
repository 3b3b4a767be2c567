package cloudprovider

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// How long a NodePool of fixed size that found no host waits before its next NodeClaims are made: from firstPause,
// doubled each time, to lastPause. That is short because core replaces drifted nodes of such a pool from where it
// disrupts those of all others.
const (
	firstPause = time.Second
	lastPause  = 15 * time.Second
)

// Damped returns a client for core that is c but in one thing: the NodeClaims of a static NodePool, one with
// spec.replicas, are made after a pause when its last ones found no host. Core makes those without a look at what there
// is, and anew as soon as Create has answered InsufficientCapacity, which is the truth; a loop of that keeps the API
// server busy, and the scheduling of all other pools waiting, as core waits for each NodeClaim that has no provider id.
// While the pause lasts no NodeClaim is there. It ends early, after firstPause, when the free hosts are others by then.
func (c *CloudProvider) Damped(k8s client.Client, clk clock.Clock) client.Client {
	return &damped{Client: k8s, provider: c, clock: clk}
}

type damped struct {
	client.Client
	provider *CloudProvider
	clock    clock.Clock
}

// Create implements client.Client.
func (d *damped) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if nodeClaim, ok := obj.(*karpv1.NodeClaim); ok {
		if err := d.wait(ctx, nodeClaim.Labels[karpv1.NodePoolLabelKey]); err != nil {
			return err
		}
	}
	return d.Client.Create(ctx, obj, opts...)
}

func (d *damped) wait(ctx context.Context, nodePool string) error {
	began := d.clock.Now()
	pause, revision := d.provider.shortage.of(nodePool)
	if pause == 0 {
		return nil
	}
	pool := &karpv1.NodePool{}
	if err := d.Get(ctx, client.ObjectKey{Name: nodePool}, pool); err != nil || pool.Spec.Replicas == nil {
		return nil //nolint:nilerr // it is only a pause
	}
	for {
		waited := d.clock.Since(began)
		if waited >= pause || waited >= firstPause && d.provider.pool.Revision() != revision {
			d.provider.shortage.waited(nodePool)
			return nil
		}
		select {
		case <-d.clock.After(min(firstPause, pause-waited)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// shortage remembers which NodePools found no host.
type shortage struct {
	mu    sync.Mutex
	pools map[string]lack
}

// lack is what a NodePool met with: how long to pause, the revision of the pool by then, and whether it has paused since.
type lack struct {
	pause    time.Duration
	revision int64
	waited   bool
}

// of returns the pause of a NodePool, zero when it found a host last, and the pool's revision by then.
func (s *shortage) of(nodePool string) (time.Duration, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.pools[nodePool]
	return l.pause, l.revision
}

// waited says that the pause is over. What follows is another attempt, of however many NodeClaims.
func (s *shortage) waited(nodePool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, known := s.pools[nodePool]; known {
		l.waited = true
		s.pools[nodePool] = l
	}
}

func (s *shortage) met(nodePool string, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pools == nil {
		s.pools = map[string]lack{}
	}
	l := s.pools[nodePool]
	switch {
	case l.pause == 0:
		l.pause = firstPause
	case l.waited:
		l.pause = min(2*l.pause, lastPause)
	}
	s.pools[nodePool] = lack{pause: l.pause, revision: revision}
}

func (s *shortage) ended(nodePool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pools, nodePool)
}
