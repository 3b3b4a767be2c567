package bigpool

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

// Crowd has n NodeClaims launched at once, by the controllers in turns, and tells how long that took and what is wrong with who
// holds which host by the word of the API server: nothing, or a line for each host held by two or given to another. Then it
// releases all of them.
func (p *Pool) Crowd(ctx context.Context, n int, controllers ...*Controller) (took time.Duration, wrong []string, err error) {
	claims := make([]*karpv1.NodeClaim, n)
	for i := range claims {
		claims[i] = nodeClaim()
	}
	began := time.Now()
	var group errgroup.Group
	for i, claim := range claims {
		group.Go(func() error {
			launched, err := controllers[i%len(controllers)].provider.Create(ctx, claim)
			for contended(err) && ctx.Err() == nil {
				launched, err = controllers[i%len(controllers)].provider.Create(ctx, claim)
			}
			if err == nil {
				claim.Status.ProviderID = launched.Status.ProviderID
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, nil, fmt.Errorf("launching %d NodeClaims at once: %w", n, err)
	}
	took = time.Since(began)
	hosts := &v1beta1.SSHHostList{}
	if err := p.world.Live.List(ctx, hosts, client.InNamespace(p.Namespace)); err != nil {
		return 0, nil, err
	}
	return took, misheld(hosts.Items, claims), p.releaseAll(ctx, hosts.Items, controllers[0])
}

// misheld compares who was given which host with who holds which.
func misheld(hosts []v1beta1.SSHHost, claims []*karpv1.NodeClaim) (wrong []string) {
	holder := map[string]pool.Ref{}
	for i := range hosts {
		if ref := pool.RefOn(&hosts[i]); ref.UID != "" {
			holder[hosts[i].StaticProviderID()] = ref
		}
	}
	given := map[string]string{}
	for _, claim := range claims {
		id := claim.Status.ProviderID
		if other, twice := given[id]; twice {
			wrong = append(wrong, fmt.Sprintf("%s was given to %s and to %s", id, other, claim.Name))
		}
		given[id] = claim.Name
		if holder[id] != pool.RefOf(claim) {
			wrong = append(wrong, fmt.Sprintf("%s was given to %s and is held by %q", id, claim.Name, holder[id].Name))
		}
	}
	for id, ref := range holder {
		if _, was := given[id]; !was {
			wrong = append(wrong, fmt.Sprintf("%s is held by %s, which was given another host", id, ref.Name))
		}
	}
	return wrong
}

func (p *Pool) releaseAll(ctx context.Context, hosts []v1beta1.SSHHost, c *Controller) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range hosts {
		if ref := pool.RefOn(&hosts[i]); ref.UID != "" {
			group.Go(func() error { return c.release(ctx, &hosts[i], ref) })
		}
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("releasing all hosts: %w", err)
	}
	return nil
}
