package pool_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

func TestAHostIsGivenBackToTheNodeClaimThatItServes(t *testing.T) {
	ref := pool.Ref{Name: "nc", UID: "uid-nc"}
	for name, tt := range map[string]struct {
		from, want v1beta1.HostState
		ready      bool
	}{
		"as in use when its node is ready":       {"", v1beta1.HostInUse, true},
		"as claimed when its node is not":        {"", v1beta1.HostClaimed, false},
		"when it was pending":                    {v1beta1.HostPending, v1beta1.HostInUse, true},
		"when it was out of reach before":        {v1beta1.HostUnhealthy, v1beta1.HostInUse, true},
		"when it was taken for free":             {v1beta1.HostAvailable, v1beta1.HostInUse, true},
		"but not while it is made to leave":      {v1beta1.HostLeaving, "", true},
		"nor while the operator has parked it":   {v1beta1.HostMaintenance, "", true},
		"nor when it is another NodeClaim's now": {v1beta1.HostClaimed, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			host := newHost("a", inState(tt.from))
			if tt.from == v1beta1.HostClaimed {
				host.Status.ClaimRef = &v1beta1.ClaimRef{Name: "other", UID: "uid-other"}
			}
			w := newWorld(t, host)
			_, err := w.pool.Reclaim(context.Background(), w.stored("a"), pool.Probe{Fence: 7, Arch: "arm64"},
				pool.Membership{Ref: ref, ProviderID: "kpssh://kpssh-system/a", Installed: "p@1", Ready: tt.ready, Message: "found"})
			got := w.stored("a").Status
			if tt.want == "" {
				var edge *pool.EdgeError
				if !errors.As(err, &edge) || got.State != tt.from {
					t.Fatalf("%v, state %s", err, got.State)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.State != tt.want || got.ClaimRef == nil || got.ClaimRef.UID != ref.UID || got.Fence != 7 || got.InstalledProfile != "p@1" || got.ObservedArch != "arm64" || got.ProviderID == "" {
				t.Errorf("%+v", got)
			}
			if held, err := w.pool.ByClaim(ref.UID); err != nil || held.Name != "a" {
				t.Errorf("not found by its claim: %v", err)
			}
		})
	}
}

func TestAHostThatChangedMeanwhileIsNotGivenBack(t *testing.T) {
	w := newWorld(t, newHost("a"))
	old := w.stored("a")
	if _, err := w.pool.Claim(context.Background(), pool.Request{Ref: pool.Ref{Name: "new", UID: "uid-new"}}); err != nil {
		t.Fatal(err)
	}
	_, err := w.pool.Reclaim(context.Background(), old, pool.Probe{}, pool.Membership{Ref: pool.Ref{Name: "nc", UID: "uid-nc"}})
	if !errors.Is(err, pool.ErrConflict) {
		t.Errorf("got %v", err)
	}
}

// A host without a shim cannot say itself that it is a member: given back without a debt, a release that no leave went
// before would make it available with its kubelet on it (the design of the pool, decision 2).
func TestAHostWithoutAShimThatIsGivenBackOwesALeave(t *testing.T) {
	for name, tt := range map[string]struct {
		mode v1beta1.ExecMode
		owed bool
	}{"Raw": {v1beta1.ExecModeRaw, true}, "Verified": {v1beta1.ExecModeVerified, false}} {
		t.Run(name, func(t *testing.T) {
			ref := pool.Ref{Name: "nc", UID: "uid-nc"}
			w := newWorld(t, newHost("a", func(h *v1beta1.SSHHost) { h.Spec.ExecMode = tt.mode }))
			_, err := w.pool.Reclaim(context.Background(), w.stored("a"), pool.Probe{}, pool.Membership{Ref: ref, Ready: true})
			if err != nil {
				t.Fatal(err)
			}
			got := w.stored("a")
			if pool.Owed(got) != tt.owed || tt.owed && (got.Status.Cleanup.ClaimRef == nil || got.Status.Cleanup.ClaimRef.UID != ref.UID) {
				t.Errorf("owes %+v", got.Status.Cleanup)
			}
			released, err := w.pool.Release(context.Background(), got, ref, pool.Outcome{State: v1beta1.HostPending, Reason: "Gone"})
			if err != nil || pool.Owed(released) != tt.owed {
				t.Errorf("released: %v, owes %+v", err, released.Status.Cleanup)
			}
		})
	}
}
