package probe_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// metal3#1163, BYOH#288, R62: the machine was dead when its NodeClaim went. It is LeavePending for as long as it is out of
// reach, and whatever it is when it comes back, it is left before it is Available.
func TestADeadHostThatComesBackIsLeftBeforeItIsAvailable(t *testing.T) {
	for name, comesBack := range map[string]func(*controllertest.Machine){
		"rebooted, with a live kubelet": func(m *controllertest.Machine) {
			m.Claim, m.Kubelet = signing.Claim{UID: "uid-pool-1", Fence: 3}, "active"
		},
		"with a live kubelet, and without the state of its shim": func(m *controllertest.Machine) { m.Kubelet = "active" },
		"with nothing to be seen on it":                          func(m *controllertest.Machine) { m.Kubelet = "inactive" },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, host(controllertest.InState(v1beta1.HostUnhealthy), owed(v1beta1.ReasonLeavePending)))
			f.machine.Probing = &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
			for range 3 {
				f.reconcile()
				got := f.Host("host-a")
				if ready := condition(got, "Ready"); ready.Reason != v1beta1.ReasonLeavePending || got.Status.State != v1beta1.HostUnhealthy || !pool.Owed(got) {
					t.Fatalf("state %q, %+v", got.Status.State, ready)
				}
				f.Clock.Step(3 * time.Minute)
			}
			f.machine.Probing = nil
			comesBack(f.machine)
			f.machine.Do = func(dispatch.Request) *dispatch.Error {
				if got := f.Host("host-a").Status; got.State != v1beta1.HostLeaving || got.Cleanup == nil || got.Cleanup.Attempts != 1 {
					t.Errorf("leave runs on %+v", got)
				}
				return nil
			}
			f.reconcile()
			if got := f.Host("host-a"); f.machine.Runs[signing.PhaseLeave] != 1 || got.Status.State != v1beta1.HostAvailable || pool.Owed(got) {
				t.Errorf("%d leaves, status %+v", f.machine.Runs[signing.PhaseLeave], got.Status)
			}
		})
	}
}

// A leave went on while its host was cut off, and ended well; meanwhile the NodeClaim was given up, with a debt. The guard
// settles the debt with the receipt, and runs leave a second time only where the host does not look like one that was left.
func TestALeaveThatEndedWhileItsHostWasCutOffIsNotRunAgain(t *testing.T) {
	for name, test := range map[string]struct {
		comesBack func(*controllertest.Machine)
		leaves    int
	}{
		"as it was left":                {comesBack: func(*controllertest.Machine) {}, leaves: 0},
		"with a kubelet that runs":      {comesBack: func(m *controllertest.Machine) { m.Kubelet = "active" }, leaves: 1},
		"with what joins leave behind":  {comesBack: func(m *controllertest.Machine) { m.Answer.Facts.Leftovers = []string{"mounts"} }, leaves: 1},
		"after a leave that failed":     {comesBack: func(m *controllertest.Machine) { m.Last.Outcome = signing.OutcomeFailed }, leaves: 1},
		"after a leave that was cut":    {comesBack: func(m *controllertest.Machine) { m.Last.State = signing.RunInterrupted }, leaves: 1},
		"after the leave of another":    {comesBack: func(m *controllertest.Machine) { m.Last.Claim = controllertest.Cluster.Claim("uid-pool-2") }, leaves: 1},
		"after a join of the one owed":  {comesBack: func(m *controllertest.Machine) { m.Last.Phase = signing.PhaseJoin }, leaves: 1},
		"as left, without a last run":   {comesBack: func(m *controllertest.Machine) { m.Last = nil }, leaves: 1},
		"in the cluster of another one": {comesBack: func(m *controllertest.Machine) { m.Last.Claim = "elsewhere/uid-pool-1" }, leaves: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, host(installed, controllertest.InState(v1beta1.HostUnhealthy), owed(v1beta1.ReasonLeavePending)))
			// The leave of the claim that is owed, as the controller ordered it.
			f.machine.Claim, f.machine.Kubelet = signing.Claim{UID: controllertest.Cluster.Claim("uid-pool-1"), Fence: 3}, "active"
			f.reconcile()
			if f.machine.Runs[signing.PhaseLeave] != 1 {
				t.Fatalf("%d leaves", f.machine.Runs[signing.PhaseLeave])
			}
			clear(f.machine.Runs)
			got := f.Host("host-a")
			controllertest.InState(v1beta1.HostUnhealthy)(got)
			owed(v1beta1.ReasonLeavePending)(got)
			if err := f.Client.Status().Update(context.Background(), got); err != nil {
				t.Fatal(err)
			}
			test.comesBack(f.machine)
			f.machine.Do = func(dispatch.Request) *dispatch.Error {
				f.machine.Answer.Facts.Leftovers = nil
				return nil
			}
			f.Clock.Step(3 * time.Minute)
			f.reconcile()
			if got := f.Host("host-a"); f.machine.Runs[signing.PhaseLeave] != test.leaves || got.Status.State != v1beta1.HostAvailable || pool.Owed(got) {
				t.Errorf("%d leaves, status %+v", f.machine.Runs[signing.PhaseLeave], got.Status)
			}
		})
	}
}

// k0smotron#1596, R58: a leave that fails is tried again, less and less often, and in the end the host is in quarantine
// with the reason.
func TestALeaveThatFailsIsTriedAgainWithBackOff(t *testing.T) {
	f := newFixture(t, host(installed, owed(v1beta1.ReasonLeaveFailed)))
	attempts := 0
	f.machine.Refuse = func(dispatch.Request) *dispatch.Error {
		attempts++
		return &dispatch.Error{Class: dispatch.ScriptFailed, Reason: dispatch.ReasonExit, ExitCode: 1, Detail: "umount: busy"}
	}
	for elapsed := time.Duration(0); elapsed < time.Hour; elapsed += 10 * time.Second {
		f.reconcile()
		f.Clock.Step(10 * time.Second)
		if got := f.Host("host-a"); got.Status.State == v1beta1.HostAvailable || !pool.Owed(got) {
			t.Fatalf("offered after %s: %+v", elapsed, got.Status)
		}
	}
	// 0, 30 s, then 1, 2, 4, 8, 16 minutes later, and 32.
	if attempts < 6 || attempts > 8 {
		t.Errorf("%d attempts within an hour", attempts)
	}
	got := f.Host("host-a")
	ready := condition(got, "Ready")
	if ready.Reason != v1beta1.ReasonQuarantined || !strings.Contains(ready.Message, "umount: busy") || int(got.Status.Cleanup.Attempts) != attempts {
		t.Errorf("%+v, debt %+v", ready, got.Status.Cleanup)
	}
	f.machine.Refuse = nil
	got.Annotations = map[string]string{apis.AnnotationReset: "now"}
	if err := f.Client.Update(context.Background(), got); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Pool.SyncMaintenance(context.Background(), f.Host("host-a")); err != nil {
		t.Fatal(err)
	}
	f.reconcile()
	if got := f.Host("host-a"); got.Status.State != v1beta1.HostAvailable || pool.Owed(got) || pool.Failed(got) {
		t.Errorf("after a reset: %+v", got.Status)
	}
}

func TestAHostThatBacksOffIsProbedWhenItMayBeOfferedAgain(t *testing.T) {
	f := newFixture(t, host())
	ref := pool.Ref{Name: "pool-1", UID: "uid-pool-1"}
	claimed, err := f.Pool.Claim(context.Background(), pool.Request{Ref: ref})
	if err != nil {
		t.Fatal(err)
	}
	out := pool.Outcome{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonJoinFailed, Leave: pool.LeaveEnded, Failure: v1beta1.ReasonJoinFailed}
	if _, err := f.Pool.Release(context.Background(), claimed, ref, out); err != nil {
		t.Fatal(err)
	}
	f.reconcile()
	if wait := f.reconcile().RequeueAfter; wait != pool.DefaultBackoffBase || f.Host("host-a").Status.State != v1beta1.HostUnhealthy {
		t.Errorf("state %q, next in %s", f.Host("host-a").Status.State, wait)
	}
	f.Clock.Step(pool.DefaultBackoffBase)
	f.reconcile()
	if got := f.Host("host-a").Status.State; got != v1beta1.HostAvailable || f.probes != 2 {
		t.Errorf("state %q after %d probes", got, f.probes)
	}
}
