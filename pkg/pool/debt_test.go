package pool_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

func owed(h *v1beta1.SSHHost) {
	h.Status.Cleanup = &v1beta1.HostCleanup{ClaimRef: &v1beta1.ClaimRef{Name: claimA.Name, UID: claimA.UID}, Reason: v1beta1.ReasonLeavePending, Message: "no route"}
}

// metal3#1163, R62: there is no moment in which a host is free and the leave that it is owed forgotten.
func TestADebtIsOnRecordFromTheWriteThatEndsTheClaim(t *testing.T) {
	ctx := context.Background()
	stale := func(p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
		return p.ReleaseStale(ctx, h, v1beta1.ReasonStaleClaim, "gone")
	}
	released := func(out pool.Outcome) func(*pool.Pool, *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
		return func(p *pool.Pool, h *v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
			return p.Release(ctx, h, claimA, out)
		}
	}
	note := func(h *v1beta1.SSHHost) { owed(h); h.Status.Cleanup.Reason = "PhaseStarted" }
	for name, tt := range map[string]struct {
		state   v1beta1.HostState
		change  func(*v1beta1.SSHHost)
		release func(*pool.Pool, *v1beta1.SSHHost) (*v1beta1.SSHHost, error)
		want    string // the reason of the debt, empty for none
	}{
		"a release without a leave": {
			state:   v1beta1.HostInUse,
			release: released(pool.Outcome{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonLeavePending, Leave: pool.LeaveOwed}),
			want:    v1beta1.ReasonLeavePending,
		},
		"a release without a leave of a parked host": {
			state: v1beta1.HostInUse, change: parked,
			release: released(pool.Outcome{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonLeavePending, Leave: pool.LeaveOwed}),
			want:    v1beta1.ReasonLeavePending,
		},
		"a release after leave": {
			state: v1beta1.HostInUse, release: released(pool.Outcome{State: v1beta1.HostPending, Leave: pool.LeaveEnded}),
		},
		"a release after leave of a host with a note": {
			state: v1beta1.HostInUse, change: note, release: released(pool.Outcome{State: v1beta1.HostPending, Leave: pool.LeaveEnded}),
		},
		"a release by somebody who does not know keeps the note": {
			state: v1beta1.HostClaimed, change: note, release: released(pool.Outcome{State: v1beta1.HostPending}), want: "PhaseStarted",
		},
		"a stale claim of a node that ran":                     {state: v1beta1.HostInUse, release: stale, want: v1beta1.ReasonStaleClaim},
		"a stale claim under which nothing may have run":       {state: v1beta1.HostClaimed, release: stale},
		"a stale claim under which something had begun to run": {state: v1beta1.HostClaimed, change: note, release: stale, want: "PhaseStarted"},
	} {
		t.Run(name, func(t *testing.T) {
			changes := []func(*v1beta1.SSHHost){inState(tt.state)}
			if tt.change != nil {
				changes = append(changes, tt.change)
			}
			w := newWorld(t, newHost("a", changes...))
			if _, err := tt.release(w.pool, w.stored("a")); err != nil {
				t.Fatal(err)
			}
			debt := w.stored("a").Status.Cleanup
			if debt == nil {
				debt = &v1beta1.HostCleanup{}
			}
			if debt.Reason != tt.want {
				t.Errorf("debt = %+v", debt)
			}
			if tt.want != "" && (debt.ClaimRef == nil || debt.ClaimRef.UID != claimA.UID) {
				t.Errorf("the debt does not say whose it is: %+v", debt)
			}
		})
	}
}

func TestAHostWithADebtIsNotOfferedUntilItIsSettled(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a", owed, inState(v1beta1.HostUnhealthy)))
	reason := func(h *v1beta1.SSHHost) string { return h.StatusConditions().Get(v1beta1.ConditionReady).Reason }
	host := w.stored("a")
	var err error
	for name, probe := range map[string]pool.Probe{
		"that finds it well":      {},
		"that does not reach it":  {Reason: v1beta1.ReasonUnreachable, Message: "no route"},
		"that finds another flaw": {Reason: v1beta1.ReasonHostNotHardened},
	} {
		if host, err = w.pool.RecordProbe(ctx, host, probe); err != nil {
			t.Fatal(err)
		}
		if host.Status.State == v1beta1.HostAvailable || !pool.Owed(host) || pool.Claimable(host) {
			t.Fatalf("a probe %s: %+v", name, host.Status)
		}
		if probe.Reason != v1beta1.ReasonHostNotHardened && reason(host) != v1beta1.ReasonLeavePending {
			t.Errorf("a probe %s: reason %q", name, reason(host))
		}
	}
	if _, err := w.pool.Claim(ctx, pool.Request{Ref: claimB}); !errors.Is(err, pool.ErrNoHost) {
		t.Errorf("claiming: %v", err)
	}
	if host, err = w.pool.BeginLeaving(ctx, host, "owed"); err != nil || host.Status.Cleanup.Attempts != 1 {
		t.Fatalf("%+v, %v", host, err)
	}
	failed := pool.Outcome{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonZombieFailed, Message: "exit 1", Leave: pool.LeaveOwed, Failure: v1beta1.ReasonZombieFailed}
	if host, err = w.pool.EndLeaving(ctx, host, failed); err != nil || !pool.Owed(host) || host.Status.Cleanup.Reason != v1beta1.ReasonZombieFailed {
		t.Fatalf("%+v, %v", host, err)
	}
	if wait := pool.LeaveIn(host, w.clock.Now()); wait != pool.DefaultBackoffBase {
		t.Errorf("leave is tried again in %s", wait)
	}
	w.clock.Step(pool.DefaultBackoffBase)
	if host, err = w.pool.BeginLeaving(ctx, host, "owed"); err != nil || pool.LeaveIn(host, w.clock.Now()) != 0 {
		t.Fatalf("%+v, %v", host, err)
	}
	if host, err = w.pool.EndLeaving(ctx, host, left); err != nil || pool.Owed(host) || !pool.Claimable(host) {
		t.Fatalf("%+v, %v", host, err)
	}
}

func TestAnAvailableHostWithADebtThatNothingShouldWriteIsNotClaimed(t *testing.T) {
	w := newWorld(t, newHost("a", owed))
	if _, err := w.pool.Claim(context.Background(), pool.Request{Ref: claimB}); !errors.Is(err, pool.ErrNoHost) {
		t.Errorf("got %v", err)
	}
}

func TestADebtStaysTheSameDebt(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a", inState(v1beta1.HostClaimed)))
	host, err := w.pool.OweLeave(ctx, w.stored("a"), claimA, true)
	if err != nil || !pool.Owed(host) {
		t.Fatalf("%+v, %v", host, err)
	}
	w.clock.Step(time.Hour)
	out := pool.Outcome{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonLeavePending, Message: "no route", Leave: pool.LeaveOwed}
	if host, err = w.pool.Release(ctx, host, claimA, out); err != nil {
		t.Fatal(err)
	}
	if debt := host.Status.Cleanup; !debt.Since.Time.Equal(start) || debt.Reason != v1beta1.ReasonLeavePending || debt.Message != "no route" {
		t.Errorf("debt = %+v", debt)
	}
	w = newWorld(t, newHost("b", inState(v1beta1.HostClaimed), owed))
	if host, err = w.pool.OweLeave(ctx, w.stored("b"), claimA, false); err != nil || pool.Owed(host) {
		t.Errorf("nothing ran, and still %+v, %v", host, err)
	}
}
