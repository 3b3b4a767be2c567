package maintenance_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/maintenance"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
)

var probed = pool.Probe{Generation: 1}

func TestTheAnnotationParksAHost(t *testing.T) {
	annotated := func(h *v1beta1.SSHHost) { h.Annotations = map[string]string{apis.AnnotationMaintenance: ""} }
	tests := map[string]struct {
		changes []func(*v1beta1.SSHHost)
		want    v1beta1.HostState
	}{
		"an Available host is parked, whatever the value":      {[]func(*v1beta1.SSHHost){annotated}, v1beta1.HostMaintenance},
		"an Unhealthy host is parked":                          {[]func(*v1beta1.SSHHost){annotated, controllertest.InState(v1beta1.HostUnhealthy)}, v1beta1.HostMaintenance},
		"a host that was never probed is parked":               {[]func(*v1beta1.SSHHost){annotated, controllertest.InState("")}, v1beta1.HostMaintenance},
		"a claimed host keeps serving":                         {[]func(*v1beta1.SSHHost){annotated, controllertest.ClaimedBy("pool-1")}, v1beta1.HostClaimed},
		"a host that is leaving ends that first":               {[]func(*v1beta1.SSHHost){annotated, controllertest.InState(v1beta1.HostLeaving)}, v1beta1.HostLeaving},
		"a parked host without the annotation is to be probed": {[]func(*v1beta1.SSHHost){controllertest.InState(v1beta1.HostMaintenance)}, v1beta1.HostPending},
		"a host without the annotation is left alone":          {nil, v1beta1.HostAvailable},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			env := controllertest.New(t, controllertest.Host("host-a", "10.0.0.1", tt.changes...))
			c := maintenance.NewController(env.Pool, env.Events, env.Clock, controllertest.Namespace)
			if _, err := c.Reconcile(context.Background(), env.Host("host-a")); err != nil {
				t.Fatal(err)
			}
			if got := env.Host("host-a").Status.State; got != tt.want {
				t.Errorf("state = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestALostRaceIsTriedAgain(t *testing.T) {
	env := controllertest.New(t, controllertest.Host("host-a", "10.0.0.1", func(h *v1beta1.SSHHost) {
		h.Annotations = map[string]string{apis.AnnotationMaintenance: "true"}
	}))
	stale := env.Host("host-a")
	if _, err := env.Pool.RecordProbe(context.Background(), env.Host("host-a"), probed); err != nil {
		t.Fatal(err)
	}
	result, err := maintenance.NewController(env.Pool, env.Events, env.Clock, controllertest.Namespace).Reconcile(context.Background(), stale)
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("result %v, error %v", result, err)
	}
}

func windows(schedule, zone string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) {
		h.Spec.MaintenanceWindows = []v1beta1.MaintenanceWindow{{Schedule: schedule, Duration: metav1.Duration{Duration: time.Hour}, TimeZone: zone}}
	}
}

// The clocks of Berlin are put forward in the night to 29 March 2026, so that half past two does not come.
func TestAWindowParksAHostAndGivesItBack(t *testing.T) {
	env := controllertest.New(t, controllertest.Host("host-a", "10.0.0.1", windows("30 2 * * *", "Europe/Berlin")))
	c := maintenance.NewController(env.Pool, env.Events, env.Clock, controllertest.Namespace)
	env.Clock.SetTime(time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC))
	opens, closes := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC), time.Date(2026, 3, 29, 2, 0, 0, 0, time.UTC)
	for env.Clock.Now().Before(closes.Add(2 * time.Hour)) {
		now := env.Clock.Now()
		open := !now.Before(opens) && now.Before(closes)
		result, err := c.Reconcile(context.Background(), env.Host("host-a"))
		if err != nil || result.RequeueAfter <= 0 {
			t.Fatalf("at %s: %v, %v", now, result, err)
		}
		host := env.Host("host-a")
		ready := host.StatusConditions().Get(v1beta1.ConditionReady)
		switch {
		case open && (host.Status.State != v1beta1.HostMaintenance || ready.Reason != v1beta1.ReasonMaintenanceWindow):
			t.Fatalf("at %s: state %q, %+v", now, host.Status.State, ready)
		case !open && host.Status.State == v1beta1.HostMaintenance:
			t.Fatalf("at %s: state %q, %+v", now, host.Status.State, ready)
		}
		for _, edge := range []time.Time{opens, closes} { // it must come in time by itself
			if now.Before(edge) && now.Add(result.RequeueAfter).After(edge) {
				t.Fatalf("at %s: the next look is in %s, after %s", now, result.RequeueAfter, edge)
			}
		}
		env.Clock.Step(result.RequeueAfter)
	}
	if got := env.Host("host-a").Status.State; got != v1beta1.HostPending {
		t.Errorf("after the window: %q, want it to be probed", got)
	}
}

func TestAWindowLeavesAHostInUseAlone(t *testing.T) {
	env := controllertest.New(t, controllertest.Host("host-a", "10.0.0.1", windows("0 12 * * *", "UTC"), controllertest.ClaimedBy("pool-1")))
	c := maintenance.NewController(env.Pool, env.Events, env.Clock, controllertest.Namespace)
	if _, err := c.Reconcile(context.Background(), env.Host("host-a")); err != nil {
		t.Fatal(err)
	}
	if got := env.Host("host-a").Status; got.State != v1beta1.HostClaimed || got.ClaimRef == nil {
		t.Fatalf("status = %+v", got)
	}
	ref := pool.Ref{Name: "pool-1", UID: "uid-pool-1"}
	out := pool.Outcome{State: v1beta1.HostPending, Reason: v1beta1.ReasonReleased, Leave: pool.LeaveEnded}
	if _, err := env.Pool.Release(context.Background(), env.Host("host-a"), ref, out); err != nil {
		t.Fatal(err)
	}
	host := env.Host("host-a")
	if ready := host.StatusConditions().Get(v1beta1.ConditionReady); host.Status.State != v1beta1.HostMaintenance || ready.Reason != v1beta1.ReasonMaintenanceWindow {
		t.Errorf("released within the window: %q, %+v", host.Status.State, ready)
	}
}

func TestAWindowThatCannotBeReadParksTheHostAndSaysSo(t *testing.T) {
	env := controllertest.New(t, controllertest.Host("host-a", "10.0.0.1", windows("0 12 * * *", "Europe/Atlantis")))
	c := maintenance.NewController(env.Pool, env.Events, env.Clock, controllertest.Namespace)
	if _, err := c.Reconcile(context.Background(), env.Host("host-a")); err != nil {
		t.Fatal(err)
	}
	host := env.Host("host-a")
	ready := host.StatusConditions().Get(v1beta1.ConditionReady)
	if host.Status.State != v1beta1.HostMaintenance || ready.Reason != v1beta1.ReasonMaintenanceWindowInvalid || !strings.Contains(ready.Message, "Europe/Atlantis") {
		t.Errorf("%q, %+v", host.Status.State, ready)
	}
	if got := env.Events.Reasons("SSHHost/host-a"); len(got) != 1 || got[0] != v1beta1.ReasonMaintenanceWindowInvalid {
		t.Errorf("events = %v", got)
	}
}

func TestAHostIsNotClaimedInTheMomentsBeforeItsStateFollowsTheWindow(t *testing.T) {
	env := controllertest.New(t, controllertest.Host("host-a", "10.0.0.1", windows("0 12 * * *", "UTC")))
	if host, err := env.Pool.Claim(context.Background(), pool.Request{Ref: pool.Ref{Name: "pool-1", UID: "uid-pool-1"}}); !errors.Is(err, pool.ErrNoHost) {
		t.Errorf("got %v, %v", host, err)
	}
	if _, err := env.Pool.RecordProbe(context.Background(), env.Host("host-a"), probed); err != nil {
		t.Fatal(err)
	}
	if got := env.Host("host-a").Status.State; got != v1beta1.HostMaintenance {
		t.Errorf("a probe within the window: %q", got)
	}
}
