package main

import (
	"context"
	"errors"

	"github.com/kpssh/karpenter-provider-ssh/test/bench/bigpool"
)

const (
	largeHosts  = 10000
	smallHosts  = 100
	growthPairs = 300
)

// growth measures Create with a pool of 10 000 hosts and in turns with it one with a pool of 100, in namespaces of one API server.
func (b *bench) growth(ctx context.Context) (_ []Result, err error) {
	world, err := bigpool.Start(ctx, b.detail)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, world.Close()) }()
	_, small, err := b.pool(ctx, world, "small", smallHosts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, small.Stop()) }()
	_, large, err := b.pool(ctx, world, "large", largeHosts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, large.Stop()) }()
	s, err := b.inTurns(ctx, "claims in both pools", growthPairs, large.Create, small.Create)
	if err != nil {
		return nil, err
	}
	return []Result{
		goal{figure: "Q3", what: "Create, 10 000 hosts / 100 hosts", most: 1.5, required: true, quantile: 0.5, unit: "s"}.judge(s),
	}, nil
}
