package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

var allStates = []v1beta1.HostState{
	v1beta1.HostPending, v1beta1.HostAvailable, v1beta1.HostClaimed, v1beta1.HostInUse,
	v1beta1.HostUnhealthy, v1beta1.HostLeaving, v1beta1.HostMaintenance,
}

// an action is something that moves a host, named by what happened.
type action struct {
	edges []string // "From→To"
	do    func(context.Context, *pool.Pool, *v1beta1.SSHHost) (*v1beta1.SSHHost, error)
	setUp func(*v1beta1.SSHHost)
}

func edge(from, to v1beta1.HostState) string { return string(from) + "→" + string(to) }

func release(to v1beta1.HostState) func(context.Context, *pool.Pool, *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
	return func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
		return p.Release(ctx, h, claimA, pool.Outcome{State: to, Reason: "Because", Message: "of this"})
	}
}

func probe(result pool.Probe) func(context.Context, *pool.Pool, *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
	return func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
		return p.RecordProbe(ctx, h, result)
	}
}

var left = pool.Outcome{State: v1beta1.HostAvailable, Reason: v1beta1.ReasonZombieLeft}

func actions() map[string]action {
	return map[string]action{
		"a probe that finds the host fit": {
			edges: []string{"Pending→Available", "Available→Available", "Unhealthy→Available"},
			do:    probe(pool.Probe{}),
		},
		"a probe that finds the host unfit": {
			edges: []string{"Pending→Unhealthy", "Available→Unhealthy", "Unhealthy→Unhealthy"},
			do:    probe(pool.Probe{Reason: v1beta1.ReasonUnreachable}),
		},
		"a probe that a fault of configuration prevents": {
			edges: []string{"Pending→Pending", "Available→Pending", "Unhealthy→Pending"},
			do:    probe(pool.Probe{Reason: v1beta1.ReasonSSHKeyMissing, Configuration: true}),
		},
		"a claim": {
			edges: []string{"Available→Claimed"},
			do: func(ctx context.Context, p *pool.Pool, _ *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
				return p.Claim(ctx, pool.Request{Ref: claimB})
			},
		},
		"a node that is Ready": {
			edges: []string{"Claimed→InUse"},
			do: func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
				return p.SetInUse(ctx, h, claimA)
			},
		},
		"a release after leave": {
			edges: []string{"Claimed→Available", "InUse→Available"}, do: release(v1beta1.HostAvailable),
		},
		"a release after a failure for good": {
			edges: []string{"Claimed→Unhealthy", "InUse→Unhealthy"}, do: release(v1beta1.HostUnhealthy),
		},
		"a release of a stale claim": {
			edges: []string{"Claimed→Pending", "InUse→Pending"},
			do: func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
				return p.ReleaseStale(ctx, h, v1beta1.ReasonStaleClaim, "its NodeClaim is gone")
			},
		},
		"a release of a parked host": {
			edges: []string{"Claimed→Maintenance", "InUse→Maintenance"}, do: release(v1beta1.HostAvailable), setUp: parked,
		},
		"the zombie guard": {
			edges: []string{"Pending→Leaving", "Available→Leaving", "Unhealthy→Leaving", "Maintenance→Leaving"},
			do: func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
				return p.BeginLeaving(ctx, h, "a kubelet runs")
			},
		},
		"a leave of the zombie guard that ended well": {
			edges: []string{"Leaving→Available"},
			do: func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
				return p.EndLeaving(ctx, h, left)
			},
		},
		"a leave of the zombie guard that failed": {
			edges: []string{"Leaving→Unhealthy"},
			do: func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
				return p.EndLeaving(ctx, h, pool.Outcome{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonZombieFailed, Leave: pool.LeaveOwed})
			},
		},
		"a leave of the zombie guard on a host parked meanwhile": {
			edges: []string{"Leaving→Maintenance"}, setUp: parked,
			do: func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
				return p.EndLeaving(ctx, h, left)
			},
		},
		"the maintenance annotation set": {
			edges: []string{"Pending→Maintenance", "Available→Maintenance", "Unhealthy→Maintenance"}, setUp: parked,
			do: func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
				return p.SyncMaintenance(ctx, h)
			},
		},
		"the maintenance annotation removed": {
			edges: []string{"Maintenance→Pending"},
			do: func(ctx context.Context, p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
				return p.SyncMaintenance(ctx, h)
			},
		},
	}
}

func TestEveryActionTakesItsEdgesAndNoOther(t *testing.T) {
	taken := map[string]bool{}
	for name, a := range actions() {
		t.Run(name, func(t *testing.T) {
			for _, from := range allStates {
				changes := []func(*v1beta1.SSHHost){inState(from)}
				if a.setUp != nil {
					changes = append(changes, a.setUp)
				}
				w := newWorld(t, newHost("host", changes...))
				before := w.stored("host")
				_, err := a.do(context.Background(), w.pool, before.DeepCopy())
				after := w.stored("host")
				step := edge(from, after.Status.State)
				switch {
				case slices.Contains(a.edges, step):
					taken[step] = true
					if err != nil {
						t.Errorf("%s: %v", step, err)
					}
				case after.ResourceVersion != before.ResourceVersion && after.Status.State == from:
					// why it is there is told anew
				case after.ResourceVersion != before.ResourceVersion:
					t.Errorf("from %s: wrote %s", from, step)
				}
				if held := after.Status.ClaimRef != nil; held != (after.Status.State == v1beta1.HostClaimed || after.Status.State == v1beta1.HostInUse) {
					t.Errorf("%s: claimRef is %v", step, after.Status.ClaimRef)
				}
			}
			for _, e := range a.edges {
				if !taken[e] {
					t.Errorf("%s was not taken", e)
				}
			}
		})
	}
	for _, from := range allStates {
		for _, to := range allStates {
			if pool.Allowed(from, to) && !taken[edge(from, to)] {
				t.Errorf("the table allows %s, which nothing takes", edge(from, to))
			}
		}
	}
}

// The table as the contract has it, written down a second time.
func TestTheTableIsTheContract(t *testing.T) {
	want := map[string]bool{}
	add := func(from v1beta1.HostState, to ...v1beta1.HostState) {
		for _, s := range to {
			want[edge(from, s)] = true
		}
	}
	add("Pending", "Available", "Unhealthy", "Pending", "Leaving", "Maintenance")
	add("Available", "Claimed", "Unhealthy", "Leaving", "Maintenance", "Available", "Pending")
	add("Claimed", "InUse", "Unhealthy", "Pending", "Available", "Maintenance")
	add("InUse", "Available", "Unhealthy", "Pending", "Maintenance")
	add("Unhealthy", "Available", "Leaving", "Maintenance", "Unhealthy", "Pending")
	add("Leaving", "Available", "Unhealthy", "Maintenance")
	add("Maintenance", "Pending", "Leaving")
	for _, from := range allStates {
		for _, to := range allStates {
			if got := pool.Allowed(from, to); got != want[edge(from, to)] {
				t.Errorf("Allowed(%s) = %v", edge(from, to), got)
			}
		}
	}
	for _, to := range allStates {
		if pool.Allowed("", to) != pool.Allowed(v1beta1.HostPending, to) {
			t.Errorf("a host without a state is not treated as Pending: →%s", to)
		}
		if pool.Allowed("Nonsense", to) {
			t.Errorf("an unknown state may become %s", to)
		}
	}
}

func TestReadyFollowsTheState(t *testing.T) {
	want := map[v1beta1.HostState]metav1.ConditionStatus{
		v1beta1.HostAvailable: metav1.ConditionTrue, v1beta1.HostClaimed: metav1.ConditionTrue, v1beta1.HostInUse: metav1.ConditionTrue,
		v1beta1.HostPending: metav1.ConditionFalse, v1beta1.HostUnhealthy: metav1.ConditionFalse,
		v1beta1.HostLeaving: metav1.ConditionFalse, v1beta1.HostMaintenance: metav1.ConditionFalse,
	}
	for name, a := range actions() {
		for _, from := range allStates {
			changes := []func(*v1beta1.SSHHost){inState(from)}
			if a.setUp != nil {
				changes = append(changes, a.setUp)
			}
			w := newWorld(t, newHost("host", changes...))
			before := w.stored("host")
			if _, err := a.do(context.Background(), w.pool, before); err != nil {
				continue
			}
			after := w.stored("host")
			if after.ResourceVersion == before.ResourceVersion {
				continue
			}
			ready := after.StatusConditions().Get(v1beta1.ConditionReady)
			if ready.Status != want[after.Status.State] || ready.Reason == "" {
				t.Errorf("%s, %s: Ready is %s, reason %q", name, edge(from, after.Status.State), ready.Status, ready.Reason)
			}
		}
	}
}

func TestAnEdgeErrorSaysWhichEdge(t *testing.T) {
	w := newWorld(t, newHost("host", inState(v1beta1.HostInUse)))
	_, err := w.pool.RecordProbe(context.Background(), w.stored("host"), pool.Probe{})
	var refused *pool.EdgeError
	if !errors.As(err, &refused) || fmt.Sprint(*refused) != "{host InUse Available}" {
		t.Fatalf("got %v", err)
	}
}
