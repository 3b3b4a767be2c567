package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
)

const (
	hangPairs = 10
	hangMost  = time.Second
)

// hanging measures from a pending pod until its NodeClaim has a provider id, while a host of another NodePool hangs in its join and
// in turns with that while none does.
func (b *bench) hanging(ctx context.Context) (_ []Result, err error) {
	c, err := newCluster(ctx, b)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	// Each claim takes a host of its own and keeps it, so that nothing has to be taken down in between.
	for pool, hosts := range map[string]int{"slow": hangPairs, "quick": 2*hangPairs + 1} {
		if err := errors.Join(c.addPool(ctx, pool), c.addHosts(ctx, pool, hosts)); err != nil {
			return nil, err
		}
	}
	if _, err := c.start(ctx, "--disable-leader-election=true", "--log-level", "error"); err != nil {
		return nil, err
	}
	if err := c.available(ctx); err != nil {
		return nil, err
	}
	if _, err := c.claimed(ctx, "quick", "first"); err != nil { // which fills what a first claim fills
		return nil, err
	}
	var extra []float64
	for i := range hangPairs {
		alone, err := c.claimed(ctx, "quick", fmt.Sprintf("alone-%d", i))
		if err != nil {
			return nil, err
		}
		beside, err := c.besideHanging(ctx, i)
		if err != nil {
			return nil, err
		}
		extra = append(extra, (beside - alone).Seconds())
		b.say("  pair %d of %d: %.2f s alone, %.2f s while a host hangs", i+1, hangPairs, alone.Seconds(), beside.Seconds())
	}
	return []Result{
		goal{figure: "Q8", what: fmt.Sprintf("one host hangs in join, extra delay of another NodePool's claim / %s", hangMost), most: 1, quantile: 0.5, unit: "s"}.judge(against(extra, hangMost.Seconds())),
	}, nil
}

// besideHanging is a claim while a host of the other pool hangs in its join.
func (c *cluster) besideHanging(ctx context.Context, i int) (time.Duration, error) {
	run := newGate()
	defer run.open()
	for name, host := range c.hosts {
		if strings.HasPrefix(name, "slow-") {
			host.Behave(func(b *dispatchtest.Behaviour) { b.Run = run.join })
		}
	}
	if err := c.pend(ctx, "slow", fmt.Sprintf("slow-%d", i)); err != nil {
		return 0, err
	}
	if err := run.entered(ctx); err != nil {
		return 0, fmt.Errorf("waiting for the join that hangs: %w%s", err, c.tails())
	}
	return c.claimed(ctx, "quick", fmt.Sprintf("beside-%d", i))
}

// claimed makes a pod pending and tells how long it takes until one more NodeClaim of the pool has a provider id.
func (c *cluster) claimed(ctx context.Context, pool, pod string) (time.Duration, error) {
	before, err := c.launched(ctx, pool)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := c.pend(ctx, pool, pod); err != nil {
		return 0, err
	}
	err = c.until(ctx, "pod "+pod+" has a NodeClaim with a provider id", time.Minute, func(ctx context.Context) (string, error) {
		now, err := c.launched(ctx, pool)
		if err == nil && now <= before {
			return fmt.Sprintf("%d have one", now), nil
		}
		return "", err
	})
	return time.Since(began), err
}

// launched is how many NodeClaims of the pool have a provider id.
func (c *cluster) launched(ctx context.Context, pool string) (n int, _ error) {
	list := &karpv1.NodeClaimList{}
	if err := c.client.List(ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: pool}); err != nil {
		return 0, err
	}
	for i := range list.Items {
		if list.Items[i].Status.ProviderID != "" {
			n++
		}
	}
	return n, nil
}
