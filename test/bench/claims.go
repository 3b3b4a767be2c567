package main

import (
	"context"
	"errors"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/bench/bigpool"
)

const (
	poolHosts  = 1000
	claimPairs = 500
)

// pool makes a pool of so many hosts and a controller on it.
func (b *bench) pool(ctx context.Context, world *bigpool.World, namespace string, hosts int) (*bigpool.Pool, *bigpool.Controller, error) {
	p, err := world.NewPool(ctx, namespace, hosts)
	if err != nil {
		return nil, nil, err
	}
	b.say("  a pool of %d hosts is filled", hosts)
	c, err := p.NewController(ctx)
	return p, c, err
}

// step does something and tells how long that took, without what it does not count.
type step func(context.Context) (time.Duration, error)

// inTurns times both sides again and again, one right after the other, and every other time in the other order.
func (b *bench) inTurns(ctx context.Context, what string, pairs int, ours, other step) (*sides, error) {
	s := &sides{}
	for i := range warmUp + pairs {
		var took [2]time.Duration
		for j := range took {
			if i%2 == 1 {
				j = 1 - j
			}
			var err error
			if took[j], err = []step{ours, other}[j](ctx); err != nil {
				return nil, err
			}
		}
		if i >= warmUp {
			s.add(took[0], took[1])
		}
		b.progress(what, i+1, warmUp+pairs)
	}
	return s, nil
}

// claims measures, on an API server of its own with a pool of 1 000 hosts, karpenter's call of Create, which returns
// with a provider id, and in turns with it one status update of an object of the same kind and size.
func (b *bench) claims(ctx context.Context) (_ []Result, err error) {
	world, err := bigpool.Start(ctx, b.detail)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, world.Close()) }()
	hosts, controller, err := b.pool(ctx, world, "pool", poolHosts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, controller.Stop()) }()
	s, err := b.inTurns(ctx, "claims", claimPairs, controller.Create, hosts.Update)
	if err != nil {
		return nil, err
	}
	g := goal{figure: "Q1", what: "Create, 1 000 hosts / a status update, p99 of each", most: 2, required: true, quantile: 0.99, unit: "s"}
	typical := goal{figure: "Q1 typical", what: "the same, medians", most: 2, quantile: 0.5, unit: "s"}
	return []Result{g.judge(s), typical.judge(s)}, nil
}
