package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/setup"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/truststate"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// What a rotation waits for in the cluster.

// poll is how often the cluster is looked at while something is waited for.
const poll = 2 * time.Second

func (r *rotator) trustManifest() string { return r.dir.Manifest(setup.TrustManifest) }

// await looks at the cluster until missing says nothing any more, or for as long as it may take.
func (r *rotator) await(ctx context.Context, missing func(published *documents.Set) string) (bool, error) {
	deadline := time.Now().Add(r.wait)
	for {
		if err := r.look(ctx); err != nil {
			if !cluster.Temporary(err) || r.pool == nil || r.dryRun || time.Now().Add(poll).After(deadline) {
				return false, err
			}
			// It answered before, and whoever waits does not give up because it starts anew.
			if err := pause(ctx, poll); err != nil {
				return false, err
			}
			continue
		}
		published, err := truststate.Published(r.pool)
		if err != nil {
			return false, err
		}
		if r.note = missing(published); r.note == "" {
			return true, nil
		}
		if time.Now().Add(poll).After(deadline) || r.dryRun {
			return false, nil
		}
		if err := pause(ctx, poll); err != nil {
			return false, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *rotator) look(ctx context.Context) error {
	pool, err := cluster.Look(ctx, r.Access)
	if err != nil {
		return cli.Hint(err, "where this machine reaches no cluster, use --offline")
	}
	if err := r.checkChain(pool); err != nil {
		return err
	}
	r.pool = pool
	return nil
}

// checkChain refuses to go on where the cluster has other roots than the folder, or more: a successor made from an old
// backup is another document of a version that hosts may have, and these would believe neither key then.
func (r *rotator) checkChain(pool *cluster.Pool) error {
	published, err := truststate.Published(pool)
	if err != nil || published == nil {
		return err
	}
	forked, err := truststate.Forked(r.set, published)
	if err != nil {
		return err
	}
	const hint = "bring the folder up to date first, from the copy that the newest root was made in; the roots that the cluster has: kubectl -n %s get configmap %s -o yaml"
	switch {
	case forked > 0:
		return cli.Hint(fmt.Errorf("root %d of %s is another document than the cluster's root %d", forked, r.dir.Path, forked), hint, r.dir.ControllerNamespace, manifest.TrustName)
	case published.Root.Version > r.set.Root.Version:
		return cli.Hint(fmt.Errorf("%s ends with root %d, the cluster has root %d: is it an old backup?", r.dir.Path, r.set.Root.Version, published.Root.Version), hint, r.dir.ControllerNamespace, manifest.TrustName)
	}
	return nil
}

// spread says whether every host has the root that lists both keys.
func (r *rotator) spread(ctx context.Context) (bool, error) {
	if r.confirmed(stepSpread) {
		return true, nil
	}
	if r.offline {
		r.note = fmt.Sprintf("have %s applied, see that each host has root %d or a later one ('kubectl -n %s get sshhosts -o custom-columns=HOST:.metadata.name,ROOT:.status.trust.rootVersion'), then add --confirm spread",
			r.trustManifest(), r.state.Version, r.dir.PoolNamespace)
		return false, nil
	}
	return r.await(ctx, func(published *documents.Set) string {
		if published == nil || published.Root.Version < r.state.Version {
			return fmt.Sprintf("root %d is not in the cluster: kubectl apply -f %s", r.state.Version, r.trustManifest())
		}
		return r.hostsBehind(func(has *v1beta1.HostTrust) bool { return has.RootVersion < r.state.Version }, fmt.Sprintf("root %d", r.state.Version))
	})
}

// hostsBehind says which hosts have not what they should, and what to do about it; nothing when there are none.
func (r *rotator) hostsBehind(behind func(has *v1beta1.HostTrust) bool, what string) string {
	var names []string
	for i := range r.pool.Hosts {
		host := &r.pool.Hosts[i]
		if host.Raw() || slices.Contains(r.without, host.Name) {
			continue
		}
		if trust := host.Status.Trust; trust == nil || truststate.Foreign(host) || behind(trust) {
			names = append(names, host.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("not yet on %s: %s; a host that is away catches up on its next contact, to go on before that: --without HOST", what, strings.Join(names, ", "))
}
