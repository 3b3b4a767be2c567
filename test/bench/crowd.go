package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/bench/bigpool"
)

const (
	crowdHosts = 200
	crowdPairs = 20
)

// crowd measures 200 NodeClaims that are launched at once on 200 hosts, and in turns with it as many status updates in a row.
func (b *bench) crowd(ctx context.Context) (_ []Result, err error) {
	world, err := bigpool.Start(ctx, b.detail)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, world.Close()) }()
	hosts, controller, err := b.pool(ctx, world, "pool", crowdHosts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, controller.Stop()) }()
	doubled := &sides{}
	together := func(ctx context.Context) (time.Duration, error) {
		took, wrong, err := hosts.Crowd(ctx, crowdHosts, controller)
		for _, line := range wrong {
			b.say("  %s", line)
		}
		doubled.ours, doubled.other = append(doubled.ours, 1+float64(len(wrong))), append(doubled.other, 1)
		return took, err
	}
	inARow := func(ctx context.Context) (all time.Duration, _ error) {
		for range crowdHosts {
			took, err := hosts.Update(ctx)
			if err != nil {
				return 0, err
			}
			all += took
		}
		return all, nil
	}
	s, err := b.inTurns(ctx, "crowds", crowdPairs, together, inARow)
	if err != nil {
		return nil, err
	}
	return []Result{
		goal{figure: "Q4", what: fmt.Sprintf("%d NodeClaims at once on %d hosts / as many status updates in a row", crowdHosts, crowdHosts), most: 2, required: true, quantile: 0.5, unit: "s"}.judge(s),
		goal{figure: "Q4 doubles", what: "1 and hosts that two hold, or another than who was given them / 1", most: 1, required: true, quantile: 1, unit: "hosts"}.judge(doubled),
	}, nil
}
