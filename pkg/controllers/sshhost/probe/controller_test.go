package probe_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/probe"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const hostID = "kpssh://kpssh-system/host-a"

type fixture struct {
	*controllertest.Env
	t        *testing.T
	registry *prometheus.Registry
	probes   int
	metrics  *membership.Metrics
	machines *controllertest.Machines
	machine  *controllertest.Machine
	probe    *probe.Controller
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	f := &fixture{Env: controllertest.New(t, append(objects, controllertest.Class(), controllertest.Profile())...), t: t, registry: prometheus.NewRegistry()}
	machines := controllertest.NewMachines()
	f.machines, f.machine = machines, machines.Machine("host-a")
	var err error
	if f.metrics, err = membership.NewMetrics(f.registry); err != nil {
		t.Fatal(err)
	}
	f.probe = newController(f)
	return f
}

// newController is the controller of a process that has just started.
func newController(f *fixture) *probe.Controller {
	return probe.NewController(probe.Options{
		Client: f.Client, Live: f.Client, Cluster: controllertest.Cluster, Hosts: f.Pool, Phases: counting{f.Phases(f.machines), &f.probes}, Scripts: membership.NewScripts(f.Client),
		Turns: f.Turns, Recorder: f.Events, Clock: f.Clock, Metrics: f.metrics, Namespace: controllertest.Namespace,
	})
}

type counting struct {
	*membership.Phases
	probes *int
}

func (c counting) Probe(ctx context.Context, host *v1beta1.SSHHost) (*dispatch.Probe, error) {
	*c.probes++
	return c.Phases.Probe(ctx, host)
}

func (f *fixture) reconcile() reconcile.Result {
	f.t.Helper()
	result, err := f.probe.Reconcile(context.Background(), f.Host("host-a"))
	if err != nil {
		f.t.Fatal(err)
	}
	return result
}

func (f *fixture) zombies(action string) float64 {
	f.t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "kpssh_host_zombie_actions_total" && metric.GetLabel()[0].GetValue() == action {
				return metric.GetCounter().GetValue()
			}
		}
	}
	f.t.Fatalf("no counter for %q", action)
	return 0
}

func host(changes ...func(*v1beta1.SSHHost)) *v1beta1.SSHHost {
	return controllertest.Host("host-a", "10.0.0.1", changes...)
}

func condition(h *v1beta1.SSHHost, kind string) status.Condition {
	for _, c := range h.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return status.Condition{}
}

// owed is a host that a leave is owed to.
func owed(reason string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) {
		h.Status.Cleanup = &v1beta1.HostCleanup{
			ClaimRef: &v1beta1.ClaimRef{Name: "pool-1", UID: "uid-pool-1"}, Reason: reason, Since: &metav1.Time{Time: controllertest.Start},
		}
	}
}

func installed(h *v1beta1.SSHHost) { h.Status.InstalledProfile = "tls-bootstrap@1" }

func TestAProbeDecidesWhetherAHostIsAvailable(t *testing.T) {
	for _, state := range []v1beta1.HostState{"", v1beta1.HostPending, v1beta1.HostAvailable, v1beta1.HostUnhealthy} {
		tests := map[string]struct {
			err        *dispatch.Error
			want       v1beta1.HostState
			wantReason string
		}{
			"it answers":                   {nil, v1beta1.HostAvailable, v1beta1.ReasonProbed},
			"it does not":                  {&dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}, v1beta1.HostUnhealthy, v1beta1.ReasonUnreachable},
			"its key changed":              {&dispatch.Error{Class: dispatch.HostKeyMismatch, Reason: "host-key"}, v1beta1.HostUnhealthy, v1beta1.ReasonHostKeyChanged},
			"it takes no key of ours":      {&dispatch.Error{Class: dispatch.AuthRejected, Reason: "auth"}, v1beta1.HostUnhealthy, v1beta1.ReasonAuthRejected},
			"its hello does not verify":    {&dispatch.Error{Class: dispatch.Untrusted, Reason: dispatch.ReasonWrongIdentity}, v1beta1.HostUnhealthy, v1beta1.ReasonShimUntrusted},
			"it may not be reached in Raw": {&dispatch.Error{Class: dispatch.Config, Reason: dispatch.ReasonRawNotAllowed}, v1beta1.HostPending, v1beta1.ReasonRawExecDisabled},
			"it was never enrolled":        {&dispatch.Error{Class: dispatch.Config, Reason: dispatch.ReasonIdentityMissing}, v1beta1.HostPending, v1beta1.ReasonHostNotEnrolled},
		}
		for name, tt := range tests {
			t.Run(string(state)+" and "+name, func(t *testing.T) {
				f := newFixture(t, host(controllertest.InState(state)))
				f.machine.Probing = tt.err
				f.reconcile()
				got := f.Host("host-a")
				if got.Status.State != tt.want || condition(got, "Ready").Reason != tt.wantReason || got.Status.LastProbeTime == nil {
					t.Errorf("state %q, reason %q", got.Status.State, condition(got, "Ready").Reason)
				}
				if (got.Status.LastProbeError == "") != (tt.err == nil) {
					t.Errorf("last error %q", got.Status.LastProbeError)
				}
			})
		}
	}
}

func TestWhatAProbeFindsOutIsKept(t *testing.T) {
	f := newFixture(t, host())
	facts := &f.machine.Answer.Facts
	facts.CPUs, facts.MemoryBytes, facts.Arch = 2, 7<<30, "arm64"
	f.machine.Claim.Fence = 9
	f.reconcile()
	got := f.Host("host-a")
	if got.Status.ObservedArch != "arm64" || got.Status.HostKeyFingerprint != "SHA256:host-a" || got.Status.Fence != 9 {
		t.Errorf("status = %+v", got.Status)
	}
	if cpu := got.Status.ObservedCapacity[corev1.ResourceCPU]; cpu.Cmp(resource.MustParse("2")) != 0 {
		t.Errorf("cpu = %s", cpu.String())
	}
	drift := condition(got, v1beta1.ConditionCapacityMatches)
	if drift.Status != metav1.ConditionFalse || !strings.Contains(drift.Message, "cpu 2 of 4") || !strings.Contains(drift.Message, "memory 7Gi of 8Gi") {
		t.Errorf("condition = %+v", drift)
	}
	if got.Status.State != v1beta1.HostAvailable {
		t.Errorf("state = %q", got.Status.State)
	}
	f.Clock.Step(3 * time.Minute)
	f.reconcile()
	if events := f.Events.Reasons("SSHHost/host-a"); !slices.Equal(events, []string{v1beta1.EventCapacityDrift}) {
		t.Errorf("events = %v, want one for the change", events)
	}
}

// k0smotron#1495, R64: while a host cannot be reached all that is known of it stays, no condition decays, and Stale says
// since when that is old; what answers again is not stale.
func TestWhatIsKnownOfAHostThatIsOutOfReachIsKeptAndSaidToBeStale(t *testing.T) {
	f := newFixture(t, host())
	f.reconcile()
	before := f.Host("host-a")
	if len(before.Status.Conditions) < 4 || condition(before, v1beta1.ConditionStale).Type != "" {
		t.Fatalf("a host that was seen: %+v", before.Status.Conditions)
	}
	for _, err := range []*dispatch.Error{
		{Class: dispatch.Unreachable, Reason: "timeout"}, {Class: dispatch.Unreachable, Reason: "timeout"}, {Class: dispatch.AuthRejected, Reason: "auth"},
	} {
		f.Clock.Step(10 * time.Minute)
		f.machine.Probing = err
		f.reconcile()
	}
	got := f.Host("host-a")
	stale := condition(got, v1beta1.ConditionStale)
	since := stale.LastTransitionTime.Time
	if stale.Status != metav1.ConditionTrue || stale.Reason != v1beta1.ReasonAuthRejected || !since.Equal(controllertest.Start.Add(10*time.Minute)) {
		t.Errorf("after half an hour: %+v", stale)
	}
	of := func(h *v1beta1.SSHHost) v1beta1.SSHHostStatus {
		known := *h.Status.DeepCopy()
		known.State, known.LastProbeTime, known.LastProbeError = "", nil, ""
		known.Conditions = slices.DeleteFunc(known.Conditions, func(c status.Condition) bool {
			return c.Type == v1beta1.ConditionStale || c.Type == v1beta1.ConditionReady
		})
		return known
	}
	if diff := cmp.Diff(of(before), of(got)); diff != "" {
		t.Errorf("what was known has changed:\n%s", diff)
	}
	f.Clock.Step(10 * time.Minute)
	f.machine.Probing = nil
	f.reconcile()
	if got := condition(f.Host("host-a"), v1beta1.ConditionStale); got.Type != "" {
		t.Errorf("seen again: %+v", got)
	}
}

func TestNothingIsStaleOfAHostThatNobodyHasSeen(t *testing.T) {
	f := newFixture(t, host(controllertest.InState(""), func(h *v1beta1.SSHHost) { h.Status.ObservedArch = "" }))
	f.machine.Probing = &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
	f.reconcile()
	if got := f.Host("host-a"); got.Status.State != v1beta1.HostUnhealthy || condition(got, v1beta1.ConditionStale).Type != "" {
		t.Errorf("state %q, %+v", got.Status.State, got.Status.Conditions)
	}
}

func TestAHostileArchitectureIsNotBelieved(t *testing.T) {
	f := newFixture(t, host())
	f.machine.Answer.Facts.Arch = "amd64\",\"x\":\""
	f.reconcile()
	if got := f.Host("host-a").Status.ObservedArch; got != "amd64" {
		t.Errorf("arch = %q", got)
	}
}

func TestWhenAHostIsProbed(t *testing.T) {
	f := newFixture(t, host(controllertest.InState("")))
	wait := f.reconcile().RequeueAfter
	if f.probes != 1 || wait < 2*time.Minute || wait > 2*time.Minute+12*time.Second {
		t.Fatalf("%d probes, next in %s", f.probes, wait)
	}
	f.reconcile() // its own status write
	if f.probes != 1 {
		t.Fatal("a probe's own write led to another")
	}
	f.Clock.Step(time.Minute)
	if left := f.reconcile().RequeueAfter; f.probes != 1 || left < time.Minute || left > 72*time.Second {
		t.Errorf("%d probes, next in %s", f.probes, left)
	}
	f.Clock.Step(73 * time.Second)
	f.reconcile()
	if f.probes != 2 {
		t.Errorf("%d probes after the interval", f.probes)
	}
	edited := f.Host("host-a")
	edited.Generation++
	edited.Spec.Port = 2222
	if err := f.Client.Update(context.Background(), edited); err != nil {
		t.Fatal(err)
	}
	f.reconcile()
	if f.probes != 3 {
		t.Error("an edit of the spec was not followed by a probe")
	}
	if _, err := f.Pool.SyncMaintenance(context.Background(), f.annotate(true)); err != nil {
		t.Fatal(err)
	}
	f.Clock.Step(time.Hour)
	f.reconcile()
	if f.probes != 3 {
		t.Error("a parked host was probed")
	}
	if _, err := f.Pool.SyncMaintenance(context.Background(), f.annotate(false)); err != nil {
		t.Fatal(err)
	}
	f.reconcile()
	if f.probes != 4 || f.Host("host-a").Status.State != v1beta1.HostAvailable {
		t.Errorf("%d probes, state %q", f.probes, f.Host("host-a").Status.State)
	}
}

func (f *fixture) annotate(maintenance bool) *v1beta1.SSHHost {
	f.t.Helper()
	h := f.Host("host-a")
	h.Annotations = nil
	if maintenance {
		h.Annotations = map[string]string{apis.AnnotationMaintenance: ""}
	}
	if err := f.Client.Update(context.Background(), h); err != nil {
		f.t.Fatal(err)
	}
	return h
}

func TestAClaimedHostIsNotProbed(t *testing.T) {
	f := newFixture(t, host(controllertest.ClaimedBy("pool-1")))
	f.reconcile()
	if f.probes != 0 {
		t.Errorf("%d probes", f.probes)
	}
}

func TestAClaimDuringTheProbeWins(t *testing.T) {
	f := newFixture(t, host())
	stale := f.Host("host-a")
	f.machine.Kubelet = "absent"
	// The claim is made after the probe has read the host.
	f.probe.Hosts = claiming{Hosts: f.probe.Hosts, env: f.Env}
	result, err := f.probe.Reconcile(context.Background(), stale)
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("result %v, error %v", result, err)
	}
	if got := f.Host("host-a").Status; got.State != v1beta1.HostClaimed || got.ClaimRef == nil {
		t.Errorf("status = %+v", got)
	}
}

func TestTheZombieGuard(t *testing.T) {
	node := func(changes ...func(*corev1.Node)) *corev1.Node {
		return controllertest.Node("pool-1", hostID, "10.0.0.1", changes...)
	}
	other := func(changes ...func(*corev1.Node)) *corev1.Node {
		return controllertest.Node("pool-1", "eks-hybrid:///mi-1", "10.0.0.1", changes...)
	}
	tests := map[string]struct {
		host    *v1beta1.SSHHost
		nodes   []client.Object
		kubelet string
		claim   signing.Claim
		// wantLeave is how often leave runs, and wantClaim the claim that it ends.
		wantLeave int
		wantState v1beta1.HostState
		wantEvent []string
		wantNode  bool
	}{
		"a reboot brought the kubelet back (its node is still there)": {
			host: host(), nodes: []client.Object{node()}, kubelet: "active",
			wantLeave: 1, wantState: v1beta1.HostAvailable, wantEvent: []string{"ZombieKubelet", "ZombieLeft"}},
		"a reboot brought the kubelet back (nothing but the install marker says that it is ours)": {
			host: host(installed), kubelet: "activating",
			wantLeave: 1, wantState: v1beta1.HostAvailable, wantEvent: []string{"ZombieKubelet", "ZombieLeft"}},
		"a NodeClaim lost its finalizers while its node ran": {
			host: host(installed, controllertest.InState(v1beta1.HostPending)), nodes: []client.Object{other()}, kubelet: "active", claim: signing.Claim{UID: "uid-pool-1", Fence: 6},
			wantLeave: 1, wantState: v1beta1.HostAvailable, wantEvent: []string{"ZombieKubelet", "ZombieLeft"}},
		"a host that was out of reach at its release still holds the claim (metal3#1163, R62)": {
			host: host(installed, controllertest.InState(v1beta1.HostUnhealthy)), kubelet: "failed", claim: signing.Claim{UID: "uid-pool-1", Fence: 6},
			wantLeave: 1, wantState: v1beta1.HostAvailable, wantEvent: []string{"ZombieLeft"}},
		"a kubelet of somebody else is not touched": {
			host: host(), kubelet: "active",
			wantState: v1beta1.HostUnhealthy, wantEvent: []string{"ForeignKubelet"}},
		"a node with another address is none of the host's": {
			host: host(), nodes: []client.Object{controllertest.Node("x", "kpssh://kpssh-system/host-b", "10.0.0.2")}, kubelet: "inactive",
			wantState: v1beta1.HostAvailable},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, append(tt.nodes, tt.host)...)
			f.machine.Kubelet, f.machine.Claim = tt.kubelet, tt.claim
			f.machine.Do = func(r dispatch.Request) *dispatch.Error {
				h := f.Host("host-a")
				if h.Status.State != v1beta1.HostLeaving {
					t.Errorf("leave runs on a host that is %q, which may be claimed", h.Status.State)
				}
				if r.Claim != tt.claim.UID || r.Fence <= tt.claim.Fence || r.Fence != h.Status.Fence {
					t.Errorf("leave of claim %q under fence %d", r.Claim, r.Fence)
				}
				if len(tt.nodes) > 0 && f.Node("pool-1") == nil {
					t.Error("the node went before the kubelet")
				}
				return nil
			}
			f.reconcile()
			got := f.Host("host-a")
			if got.Status.State != tt.wantState || f.machine.Runs[signing.PhaseLeave] != tt.wantLeave {
				t.Errorf("state %q, %d leaves", got.Status.State, f.machine.Runs[signing.PhaseLeave])
			}
			if events := f.Events.Reasons("SSHHost/host-a"); !slices.Equal(events, tt.wantEvent) {
				t.Errorf("events = %v, want %v", events, tt.wantEvent)
			}
			if f.Node("pool-1") != nil {
				t.Error("the node is still there")
			}
			if left := f.zombies("left"); left != float64(tt.wantLeave) {
				t.Errorf("counted %v leaves", left)
			}
			runs := f.machine.Runs[signing.PhaseLeave]
			f.Clock.Step(3 * time.Minute)
			f.reconcile()
			if f.machine.Runs[signing.PhaseLeave] != runs || f.Host("host-a").Status.State != tt.wantState {
				t.Error("the next probe did it again")
			}
			if tt.wantState == v1beta1.HostUnhealthy && f.zombies("parked_foreign") != 1 {
				t.Errorf("counted %v times", f.zombies("parked_foreign"))
			}
		})
	}
}

func TestAHostThatIsNotHardenedIsUnhealthyUntilSomebodyMendsIt(t *testing.T) {
	f := newFixture(t, host())
	f.machine.Answer.Unfit = &dispatch.Error{Class: dispatch.NotHardened, Reason: dispatch.ReasonFindings, Detail: "the host's doctor found forwarding"}
	for range 2 {
		f.reconcile()
		f.Clock.Step(3 * time.Minute)
	}
	got := f.Host("host-a")
	if ready := condition(got, "Ready"); got.Status.State != v1beta1.HostUnhealthy || ready.Reason != v1beta1.ReasonHostNotHardened || !strings.Contains(ready.Message, "forwarding") {
		t.Errorf("state %q, %+v", got.Status.State, ready)
	}
	if events := f.Events.Reasons("SSHHost/host-a"); !slices.Equal(events, []string{v1beta1.ReasonHostNotHardened}) {
		t.Errorf("events = %v", events)
	}
	if f.probes != 2 || got.Status.ObservedArch != "amd64" {
		t.Errorf("%d probes, arch %q", f.probes, got.Status.ObservedArch)
	}
	f.machine.Answer.Unfit = nil
	f.reconcile()
	if got := f.Host("host-a"); got.Status.State != v1beta1.HostAvailable {
		t.Errorf("mended, it is %q", got.Status.State)
	}
}

func TestAZombieOnAHostThatIsNotHardenedIsLeftAllTheSame(t *testing.T) {
	for name, h := range map[string]*v1beta1.SSHHost{
		"by the host's word": host(installed),
		"by the note on a host": host(installed, func(h *v1beta1.SSHHost) {
			h.Status.Cleanup = &v1beta1.HostCleanup{}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, h)
			f.machine.Kubelet, f.machine.Claim = "active", signing.Claim{UID: "uid-pool-1", Fence: 6}
			f.machine.Answer.Unfit = &dispatch.Error{Class: dispatch.Refused, Reason: string(signing.ReasonShimTooOld), Detail: "too old"}
			for range 2 {
				f.reconcile()
				f.Clock.Step(3 * time.Minute)
			}
			got := f.Host("host-a")
			if got.Status.State != v1beta1.HostUnhealthy || condition(got, "Ready").Reason != v1beta1.ReasonShimTooOld || f.machine.Runs[signing.PhaseLeave] != 1 {
				t.Errorf("state %q, reason %q, %d leaves", got.Status.State, condition(got, "Ready").Reason, f.machine.Runs[signing.PhaseLeave])
			}
		})
	}
}

func TestALeaveOfTheGuardThatFails(t *testing.T) {
	tests := map[string]struct {
		err  dispatch.Error
		want v1beta1.HostState
	}{
		"is the host's fault, and tried again at the next probe": {dispatch.Error{Class: dispatch.ScriptFailed, Reason: dispatch.ReasonExit, ExitCode: 1}, v1beta1.HostUnhealthy},
		"is the configuration's: the host stays fenced":          {dispatch.Error{Class: dispatch.Config, Reason: "not-allowed"}, v1beta1.HostLeaving},
		"has to wait for another run":                            {dispatch.Error{Class: dispatch.Busy, Reason: "busy"}, v1beta1.HostLeaving},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, host(installed), controllertest.Node("pool-1", hostID, "10.0.0.1"))
			f.machine.Kubelet = "active"
			f.machine.Refuse = func(dispatch.Request) *dispatch.Error { return &tt.err }
			if f.reconcile().RequeueAfter == 0 {
				t.Error("not tried again")
			}
			if got := f.Host("host-a").Status.State; got != tt.want {
				t.Fatalf("state = %q, want %q", got, tt.want)
			}
			if f.Node("pool-1") == nil {
				t.Error("the node was deleted under a living kubelet")
			}
			f.machine.Refuse = nil
			f.Clock.Step(3 * time.Minute)
			f.reconcile()
			if got := f.Host("host-a").Status.State; got != v1beta1.HostAvailable || f.Node("pool-1") != nil {
				t.Errorf("after it was mended: state %q", got)
			}
		})
	}
}

func TestALeaveThatOnlySaysThatItEndedWellIsNotBelieved(t *testing.T) {
	f := newFixture(t, host(installed))
	f.machine.Kubelet = "active"
	lying := f.probe.Phases
	f.probe.Phases = liar{lying}
	f.reconcile()
	if got := f.Host("host-a"); got.Status.State != v1beta1.HostUnhealthy || f.zombies("leave_failed") != 1 {
		t.Errorf("state %q, reason %q", got.Status.State, condition(got, "Ready").Reason)
	}
}

func TestAGuardThatDiedHalfWay(t *testing.T) {
	t.Run("before leave, leaves", func(t *testing.T) {
		f := newFixture(t, host(installed, controllertest.InState(v1beta1.HostLeaving)))
		f.machine.Kubelet = "active"
		f.reconcile()
		if got := f.Host("host-a").Status.State; got != v1beta1.HostAvailable || f.machine.Runs[signing.PhaseLeave] != 1 {
			t.Errorf("state %q, runs %v", got, f.machine.Runs)
		}
	})
	t.Run("after leave, deletes the node and does not leave again", func(t *testing.T) {
		f := newFixture(t, host(installed, controllertest.InState(v1beta1.HostLeaving)), controllertest.Node("pool-1", hostID, "10.0.0.1", controllertest.NotReady))
		f.machine.Kubelet = "inactive"
		f.reconcile()
		f.reconcile()
		if got := f.Host("host-a").Status.State; got != v1beta1.HostAvailable || f.machine.Runs[signing.PhaseLeave] != 0 || f.Node("pool-1") != nil {
			t.Errorf("state %q, runs %v, node %v", got, f.machine.Runs, f.Node("pool-1"))
		}
	})
}

func TestASecondObjectForAMachineInUseCostsNoNode(t *testing.T) {
	inUse := controllertest.Host("host-b", "10.0.0.1", controllertest.ClaimedBy("pool-1"), controllertest.InState(v1beta1.HostInUse))
	f := newFixture(t, host(installed), inUse, controllertest.Node("pool-1", "kpssh://kpssh-system/host-b", "10.0.0.1"))
	f.machine.Kubelet, f.machine.Claim = "active", signing.Claim{UID: "uid-pool-1", Fence: 1}
	f.reconcile()
	got := f.Host("host-a")
	if f.machine.Runs[signing.PhaseLeave] != 0 || f.Node("pool-1") == nil || got.Status.State != v1beta1.HostUnhealthy || condition(got, "Ready").Reason != "DuplicateHost" {
		t.Errorf("state %q, reason %q, runs %v", got.Status.State, condition(got, "Ready").Reason, f.machine.Runs)
	}
}

func TestAHostThatWasAnExtraOfALivingClaimIsLeft(t *testing.T) {
	f := newFixture(t, host(installed, controllertest.InState(v1beta1.HostPending)),
		controllertest.Host("host-b", "10.0.0.2", controllertest.ClaimedBy("pool-1"), func(h *v1beta1.SSHHost) {
			h.Spec.Shim.HostID = "fedcba9876543210fedcba9876543210"
		}))
	f.machine.Claim = signing.Claim{UID: "uid-pool-1", Fence: 1}
	f.reconcile()
	if got := f.Host("host-a"); f.machine.Runs[signing.PhaseLeave] != 1 || got.Status.State != v1beta1.HostAvailable {
		t.Errorf("state %q, reason %q, runs %v", got.Status.State, condition(got, "Ready").Reason, f.machine.Runs)
	}
}

func TestAHostWaitsForTheNodeOfItsLastClaimToGo(t *testing.T) {
	released := func(h *v1beta1.SSHHost) {
		installed(h)
		h.Status.State = v1beta1.HostPending
	}
	going := controllertest.Node("pool-1", hostID, "10.0.0.1", controllertest.NotReady, func(n *corev1.Node) {
		n.Finalizers = []string{"karpenter.sh/termination"}
		n.DeletionTimestamp = &metav1.Time{Time: controllertest.Start}
	})
	f := newFixture(t, host(released), going)
	f.machine.Kubelet = "inactive"
	if f.reconcile().RequeueAfter != time.Second || f.probes != 0 || f.Host("host-a").Status.State != v1beta1.HostPending {
		t.Errorf("%d probes, state %q", f.probes, f.Host("host-a").Status.State)
	}
	f.Clock.Step(2 * time.Minute)
	f.reconcile()
	if got := f.Host("host-a"); got.Status.State != v1beta1.HostPending || condition(got, "Ready").Reason != "NodeRemains" {
		t.Errorf("state %q, reason %q", got.Status.State, condition(got, "Ready").Reason)
	}
	node := f.Node("pool-1")
	node.Finalizers = nil
	if err := f.Client.Update(context.Background(), node); err != nil {
		t.Fatal(err)
	}
	f.reconcile()
	if got := f.Host("host-a").Status.State; got != v1beta1.HostAvailable || f.zombies("left") != 0 {
		t.Errorf("state %q", got)
	}
}

// k0smotron#1596, R58: core takes the Node with the provider id for the successor's.
func TestAZombieIsNotAvailableBeforeItsNodeIsGone(t *testing.T) {
	drained := controllertest.Node("pool-1", hostID, "10.0.0.1", func(n *corev1.Node) { n.Finalizers = []string{"karpenter.sh/termination"} })
	f := newFixture(t, host(installed), drained)
	f.machine.Kubelet, f.machine.Claim = "active", signing.Claim{UID: "uid-pool-1", Fence: 1}
	f.machine.Do = func(dispatch.Request) *dispatch.Error {
		f.machine.Kubelet = "inactive"
		return nil
	}
	for range 2 {
		if f.reconcile().RequeueAfter == 0 || f.Host("host-a").Status.State != v1beta1.HostLeaving {
			t.Fatalf("state %q while the Node is being drained", f.Host("host-a").Status.State)
		}
	}
	node := f.Node("pool-1")
	node.Finalizers = nil
	if err := f.Client.Update(context.Background(), node); err != nil {
		t.Fatal(err)
	}
	f.reconcile()
	if got := f.Host("host-a").Status.State; got != v1beta1.HostAvailable || f.machine.Runs[signing.PhaseLeave] != 1 || f.zombies("left") != 1 {
		t.Errorf("state %q, runs %v", got, f.machine.Runs)
	}
}

func TestARunOfAnEarlierClaimIsWaitedFor(t *testing.T) {
	f := newFixture(t, host(installed, controllertest.InState(v1beta1.HostPending)))
	f.machine.Claim = signing.Claim{UID: "uid-pool-1", Fence: 1}
	f.machine.Last = &signing.RunRef{Claim: "uid-pool-1", Phase: signing.PhaseInstall, State: signing.RunStarted}
	if f.reconcile().RequeueAfter == 0 || f.machine.Runs[signing.PhaseLeave] != 0 || f.Host("host-a").Status.State != v1beta1.HostPending {
		t.Errorf("runs %v, state %q", f.machine.Runs, f.Host("host-a").Status.State)
	}
	f.machine.Last.State = signing.RunFinished
	f.reconcile()
	if f.machine.Runs[signing.PhaseLeave] != 1 || f.Host("host-a").Status.State != v1beta1.HostAvailable {
		t.Errorf("runs %v, state %q", f.machine.Runs, f.Host("host-a").Status.State)
	}
}

func TestARawHostIsLeftByTheNoteOnIt(t *testing.T) {
	f := newFixture(t, host(controllertest.Raw, controllertest.InState(v1beta1.HostPending), owed(v1beta1.ReasonStaleClaim)))
	f.machine.Kubelet = "inactive"
	f.reconcile()
	if got := f.Host("host-a"); f.machine.Runs[signing.PhaseLeave] != 1 || pool.Owed(got) || got.Status.State != v1beta1.HostAvailable {
		t.Errorf("runs %v, status %+v", f.machine.Runs, got.Status)
	}
}

func TestAHostWithoutAScriptToLeaveWithStaysFenced(t *testing.T) {
	f := newFixture(t, host(func(h *v1beta1.SSHHost) { h.Status.InstalledProfile = "gone@1" }))
	f.machine.Kubelet = "active"
	f.reconcile()
	if got := f.Host("host-a").Status.State; got != v1beta1.HostLeaving {
		t.Errorf("state = %q", got)
	}
	if text := f.Events.Text(); !strings.Contains(text, `SSHJoinProfile "gone" does not exist`) {
		t.Errorf("events: %s", text)
	}
}

func TestProbesAreCountedByOutcome(t *testing.T) {
	f := newFixture(t, host())
	f.reconcile()
	f.Clock.Step(3 * time.Minute)
	f.machine.Probing = &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
	f.reconcile()
	families, err := f.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var outcomes []string
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "kpssh_host_probe_duration_seconds" && metric.GetHistogram().GetSampleCount() > 0 {
				outcomes = append(outcomes, metric.GetLabel()[0].GetValue())
			}
		}
	}
	if !slices.Equal(outcomes, []string{"ok", "unreachable"}) {
		t.Errorf("outcomes = %v", outcomes)
	}
}
