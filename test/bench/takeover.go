package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	takeovers = 5
	// resumeMost is how long a new leader may take to ask the host for the run that its predecessor ordered.
	resumeMost = 2 * time.Second
	leaseName  = "karpenter-provider-ssh"
	// leaseWait is more than the lease is for, and the pause between two tries to get it.
	leaseWait = time.Minute
)

// takeover measures, while one join runs, how long after it has the lease a controller that stood by asks that host for the run of
// the leader which was killed. The join is ordered once, however many leaders there were.
func (b *bench) takeover(ctx context.Context) (_ []Result, err error) {
	c, err := newCluster(ctx, b)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := errors.Join(c.addPool(ctx, "pool"), c.addHosts(ctx, "pool", 1)); err != nil {
		return nil, err
	}
	host := c.hosts["pool-0000"]
	run := newGate()
	defer run.open()
	host.Behave(func(b *dispatchtest.Behaviour) { b.Run = run.join })
	seen := watchSessions(host)
	leader, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(c.available(ctx), c.pend(ctx, "pool", "pod")); err != nil {
		return nil, err
	}
	if err := run.entered(ctx); err != nil {
		return nil, fmt.Errorf("waiting for the join: %w%s", err, c.tails())
	}
	var took []float64
	for i := range takeovers {
		next, err := c.start(ctx)
		if err != nil {
			return nil, err
		}
		killed := time.Now()
		if err := leader.kill(); err != nil {
			return nil, err
		}
		acquired, err := c.acquired(ctx, killed)
		if err != nil {
			return nil, err
		}
		var resumed time.Time
		err = c.until(ctx, "the host is asked for the run", time.Minute, func(context.Context) (string, error) {
			var ok bool
			if resumed, ok = seen.after(killed); !ok {
				return "no session began", nil
			}
			return "", nil
		})
		if err != nil {
			return nil, err
		}
		took = append(took, resumed.Sub(acquired).Seconds())
		b.say("  takeover %d of %d: the lease %.1f s after the kill, the run %.2f s after the lease", i+1, takeovers, acquired.Sub(killed).Seconds(), took[i])
		leader = next
	}
	joins := 0
	for _, order := range host.Orders() {
		if order.Phase == signing.PhaseJoin {
			joins++
		}
	}
	if joins != 1 {
		return nil, fmt.Errorf("%d joins were ordered by %d leaders", joins, takeovers+1)
	}
	return []Result{
		goal{figure: "Q9", what: fmt.Sprintf("killed mid-join, from the new leader's lease until it asks the host / %s", resumeMost), most: 1, quantile: 0.5, unit: "s"}.judge(against(took, resumeMost.Seconds())),
	}, nil
}

// acquired waits until somebody got the lease after the moment, and tells when.
func (c *cluster) acquired(ctx context.Context, after time.Time) (at time.Time, err error) {
	err = c.until(ctx, "another controller has the lease", leaseWait, func(ctx context.Context) (string, error) {
		lease := &coordinationv1.Lease{}
		if err := c.client.Get(ctx, client.ObjectKey{Namespace: clusterNamespace, Name: leaseName}, lease); err != nil {
			return "", err
		}
		if lease.Spec.AcquireTime != nil {
			at = lease.Spec.AcquireTime.Time
		}
		if !at.After(after) {
			return "the one that was killed has it", nil
		}
		return "", nil
	})
	return at, err
}

// sessionTimes are when a host's sessions began.
type sessionTimes struct {
	mu  sync.Mutex
	all []time.Time
}

func watchSessions(host *dispatchtest.Host) *sessionTimes {
	t := &sessionTimes{}
	host.Server.SetHandler(func(s *remotetest.Session) int {
		t.mu.Lock()
		t.all = append(t.all, time.Now())
		t.mu.Unlock()
		return host.Serve(s)
	})
	return t
}

// after is the first one that began after the moment.
func (t *sessionTimes) after(moment time.Time) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, at := range t.all {
		if at.After(moment) {
			return at, true
		}
	}
	return time.Time{}, false
}

// gate is what a join waits at.
type gate struct {
	arrived chan struct{}
	opened  chan struct{}
	open    func()
}

func newGate() *gate {
	g := &gate{arrived: make(chan struct{}, 1), opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	return g
}

// join is the script's part: it waits where it is a join.
func (g *gate) join(o dispatchtest.Order) dispatchtest.Exit {
	if o.Phase == signing.PhaseJoin {
		select {
		case g.arrived <- struct{}{}:
		default:
		}
		<-g.opened
	}
	return dispatchtest.Exit{}
}

// entered waits for a join that waits.
func (g *gate) entered(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case <-g.arrived:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
