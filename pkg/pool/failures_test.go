package pool_test

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

var joinFailed = pool.Outcome{
	State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonJoinFailed, Message: "exit 3", Leave: pool.LeaveEnded, Failure: v1beta1.ReasonJoinFailed,
}

func TestAHostThatFailsIsOfferedLessAndLessOften(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a"))
	want := []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 32 * time.Minute, time.Hour, time.Hour}
	for i, wait := range want {
		host, err := w.pool.Claim(ctx, pool.Request{Ref: claimA})
		if err != nil {
			t.Fatalf("claim %d: %v", i, err)
		}
		if host, err = w.pool.Release(ctx, host, claimA, joinFailed); err != nil {
			t.Fatal(err)
		}
		count := int32(i + 1)
		if f := host.Status.Failures; f.Count != count || f.Reason != v1beta1.ReasonJoinFailed || !f.RetryTime.Time.Equal(w.clock.Now().Add(wait)) {
			t.Errorf("failure %d: %+v at %s", count, f, w.clock.Now())
		}
		w.clock.Step(wait - time.Second)
		if host, err = w.pool.RecordProbe(ctx, host, pool.Probe{Generation: 1}); err != nil {
			t.Fatal(err)
		}
		ready := host.StatusConditions().Get(v1beta1.ConditionReady)
		retry := host.Status.Failures.RetryTime.UTC().Format(time.RFC3339)
		if host.Status.State != v1beta1.HostUnhealthy || !strings.Contains(ready.Message, retry) || !strings.Contains(ready.Message, "exit 3") {
			t.Errorf("failure %d, a second early: %s, %s", count, host.Status.State, ready.Message)
		}
		quarantined := count >= pool.DefaultQuarantineAfter
		wantReason := v1beta1.ReasonJoinFailed
		if quarantined {
			wantReason = v1beta1.ReasonQuarantined
		}
		if ready.Reason != wantReason || pool.HasCondition(host, v1beta1.ConditionQuarantined) != quarantined {
			t.Errorf("failure %d: reason %q, %+v", count, ready.Reason, host.Status.Conditions)
		}
		w.clock.Step(time.Second)
		if host, err = w.pool.RecordProbe(ctx, host, pool.Probe{Generation: 1}); err != nil || !pool.Claimable(host) {
			t.Fatalf("failure %d, after the wait: %+v, %v", count, host.Status, err)
		}
	}
	host, err := w.pool.Claim(ctx, pool.Request{Ref: claimA})
	if err != nil {
		t.Fatal(err)
	}
	if host, err = w.pool.SetInUse(ctx, host, claimA); err != nil || pool.Failed(host) || pool.HasCondition(host, v1beta1.ConditionQuarantined) {
		t.Errorf("after a join that ended well: %+v, %v", host, err)
	}
}

func TestWhatForgivesAHost(t *testing.T) {
	ctx := context.Background()
	reset := func(value string) func(*v1beta1.SSHHost) {
		return func(h *v1beta1.SSHHost) { metav1.SetMetaDataAnnotation(&h.ObjectMeta, apis.AnnotationReset, value) }
	}
	for name, tt := range map[string]struct {
		change func(*v1beta1.SSHHost)
		want   v1beta1.HostState
	}{
		"nothing happened":                     {func(*v1beta1.SSHHost) {}, v1beta1.HostUnhealthy},
		"its spec was edited":                  {func(h *v1beta1.SSHHost) { h.Generation++ }, v1beta1.HostAvailable},
		"its operator asked for it":            {reset("2026-11-29"), v1beta1.HostAvailable},
		"its operator asked for it before":     {reset("before"), v1beta1.HostUnhealthy},
		"a value that status cannot hold":      {reset(strings.Repeat("x", 1000)), v1beta1.HostAvailable},
		"another annotation was set meanwhile": {labelled("a", "b"), v1beta1.HostUnhealthy},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newHost("a", reset("before"), func(h *v1beta1.SSHHost) { h.Status.ObservedReset = "before" }))
			host, err := w.pool.Claim(ctx, pool.Request{Ref: claimA})
			if err != nil {
				t.Fatal(err)
			}
			if _, err = w.pool.Release(ctx, host, claimA, joinFailed); err != nil {
				t.Fatal(err)
			}
			host = w.stored("a")
			tt.change(host)
			if err := w.client.Update(ctx, host); err != nil {
				t.Fatal(err)
			}
			host = w.stored("a")
			if host, err = w.pool.RecordProbe(ctx, host, pool.Probe{Generation: host.Generation}); err != nil {
				t.Fatal(err)
			}
			if host.Status.State != tt.want || pool.Failed(host) != (tt.want == v1beta1.HostUnhealthy) {
				t.Errorf("state %s, failures %+v", host.Status.State, host.Status.Failures)
			}
			if again, err := w.pool.RecordProbe(ctx, host, pool.Probe{Generation: host.Generation}); err != nil || again.Status.State != tt.want {
				t.Errorf("the next probe: %+v, %v", again, err)
			}
		})
	}
}

func TestALeaveThatFailsDoesNotHideAnEarlierFailure(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, newHost("a", inState(v1beta1.HostLeaving), owed, func(h *v1beta1.SSHHost) {
		h.Status.Failures = &v1beta1.HostFailures{
			Count: 5, Reason: v1beta1.ReasonJoinFailed, Generation: 1, RetryTime: &metav1.Time{Time: start.Add(time.Hour)},
		}
	}))
	host, err := w.pool.EndLeaving(ctx, w.stored("a"), left)
	if err != nil || pool.Owed(host) || host.Status.State != v1beta1.HostUnhealthy {
		t.Errorf("a host that is to wait for an hour was left, and is %+v, %v", host.Status, err)
	}
	if wait := pool.LeaveIn(host, start); wait != 0 {
		t.Errorf("a join that failed keeps the host from being left for %s", wait)
	}
}
