package leave_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclaim/leave"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const hostID = "kpssh://kpssh-system/host-a"

type fixture struct {
	*controllertest.Env
	t       *testing.T
	machine *controllertest.Machine
	leave   *leave.Controller
}

// newFixture has host-a in use by NodeClaim pool-1, and asked back for the reason.
func newFixture(t *testing.T, reason string, changes []func(*v1beta1.SSHHost), objects ...client.Object) *fixture {
	t.Helper()
	host := controllertest.Host("host-a", "10.0.0.1", append([]func(*v1beta1.SSHHost){controllertest.ClaimedBy("pool-1"), func(h *v1beta1.SSHHost) {
		h.Status.State = v1beta1.HostInUse
		h.Status.InstalledProfile = "tls-bootstrap@1"
		h.Status.Conditions = []status.Condition{{
			Type: v1beta1.ConditionLeaveRequested, Status: metav1.ConditionTrue, Reason: reason, Message: "why it was asked",
			LastTransitionTime: metav1.NewTime(controllertest.Start),
		}}
	}}, changes...)...)
	objects = append(objects, controllertest.Class(), controllertest.Profile(), host)
	if !slices.ContainsFunc(objects, func(o client.Object) bool { _, ok := o.(*karpenterv1.NodeClaim); return ok }) {
		objects = append(objects, controllertest.NodeClaim("pool-1", hostID, func(n *karpenterv1.NodeClaim) {
			n.Finalizers = []string{"karpenter.sh/termination"}
		}))
	}
	f := &fixture{Env: controllertest.New(t, objects...), t: t}
	machines := controllertest.NewMachines()
	f.machine = machines.Machine("host-a")
	f.machine.Claim = signing.Claim{UID: "uid-pool-1", Fence: 1}
	f.machine.Kubelet = "active"
	f.leave = leave.NewController(leave.Options{
		Client: f.Client, Live: f.Client, Cluster: controllertest.Cluster, Hosts: f.Pool, Phases: f.Phases(machines), Scripts: membership.NewScripts(f.Client),
		Tokens: bootstrap.NewTokens(f.Client, f.Client, f.Clock), Turns: f.Turns, Recorder: f.Events, Clock: f.Clock, Namespace: controllertest.Namespace,
	})
	return f
}

func (f *fixture) reconcile() (reconcile.Result, error) {
	f.t.Helper()
	return f.leave.Reconcile(context.Background(), f.Host("host-a"))
}

func (f *fixture) mustReconcile() reconcile.Result {
	f.t.Helper()
	result, err := f.reconcile()
	if err != nil {
		f.t.Fatal(err)
	}
	return result
}

func ready(host *v1beta1.SSHHost) status.Condition {
	for _, c := range host.Status.Conditions {
		if c.Type == v1beta1.ConditionReady {
			return c
		}
	}
	return status.Condition{}
}

func claimed(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostClaimed }

func TestAHostThatLeftWellIsReleased(t *testing.T) {
	parked := func(h *v1beta1.SSHHost) { h.Annotations = map[string]string{apis.AnnotationMaintenance: ""} }
	tests := map[string]struct {
		reason  string
		changes []func(*v1beta1.SSHHost)
		want    v1beta1.HostState
	}{
		"to a probe, when its NodeClaim was deleted": {reason: "NodeClaimDeleted", want: v1beta1.HostPending},
		"as Unhealthy, when its join failed":         {reason: v1beta1.ReasonJoinFailed, changes: []func(*v1beta1.SSHHost){claimed}, want: v1beta1.HostUnhealthy},
		"as Unhealthy, when its install failed":      {reason: v1beta1.ReasonInstallFailed, changes: []func(*v1beta1.SSHHost){claimed}, want: v1beta1.HostUnhealthy},
		"to a probe, when the configuration was bad": {reason: v1beta1.ReasonScriptNotSigned, changes: []func(*v1beta1.SSHHost){claimed}, want: v1beta1.HostPending},
		"to the operator, who parked it meanwhile":   {reason: "NodeClaimDeleted", changes: []func(*v1beta1.SSHHost){parked}, want: v1beta1.HostMaintenance},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tt.reason, tt.changes)
			f.machine.Do = func(r dispatch.Request) *dispatch.Error {
				if len(r.Secrets) != 0 || len(r.Parameters) != 2 || r.Parameters["KPSSH_HOST_ADDRESS"] != "10.0.0.1" || r.Parameters["KPSSH_NODE_ADDRESS"] != "10.0.0.1" {
					t.Errorf("leave was given %v", r.Parameters)
				}
				if r.Claim != "uid-pool-1" || r.Fence != 1 {
					t.Errorf("claim %q, fence %d", r.Claim, r.Fence)
				}
				return nil
			}
			f.mustReconcile()
			host := f.Host("host-a")
			if host.Status.State != tt.want || host.Status.ClaimRef != nil || host.Status.InstalledProfile != "tls-bootstrap@1" {
				t.Errorf("status = %+v", host.Status)
			}
			f.mustReconcile()
			if f.machine.Runs[signing.PhaseLeave] != 1 {
				t.Errorf("leave ran %d times", f.machine.Runs[signing.PhaseLeave])
			}
		})
	}
}

func TestTheNodeGoesAfterTheKubelet(t *testing.T) {
	held := func(n *corev1.Node) {
		n.Finalizers = []string{"karpenter.sh/termination"}
		n.DeletionTimestamp = &metav1.Time{Time: controllertest.Start}
	}
	t.Run("a node that core never registered is deleted, once leave has run", func(t *testing.T) {
		f := newFixture(t, "NodeClaimDeleted", nil, controllertest.Node("pool-1", hostID, "10.0.0.1"))
		f.machine.Do = func(dispatch.Request) *dispatch.Error {
			if f.Node("pool-1") == nil {
				t.Error("the node went before the kubelet")
			}
			return nil
		}
		f.mustReconcile()
		if f.Node("pool-1") != nil {
			t.Error("the node is still there")
		}
	})
	t.Run("a node that core is deleting is core's", func(t *testing.T) {
		f := newFixture(t, "NodeClaimDeleted", nil, controllertest.Node("pool-1", hostID, "10.0.0.1", held))
		f.mustReconcile()
		if f.Node("pool-1") == nil || f.Host("host-a").Status.ClaimRef != nil {
			t.Error("the finalizer of core was not respected, or the host not released")
		}
	})
}

func TestANodeClaimThatNobodyDeletedYetIsDeleted(t *testing.T) {
	// The join controller died between asking for leave and deleting the NodeClaim.
	f := newFixture(t, v1beta1.ReasonJoinFailed, []func(*v1beta1.SSHHost){claimed})
	f.mustReconcile()
	if f.NodeClaim("pool-1").DeletionTimestamp.IsZero() {
		t.Error("nobody deletes the nodeclaim")
	}
}

func TestAClaimOfANodeClaimThatIsGoneIsNotOurs(t *testing.T) {
	f := newFixture(t, "NodeClaimDeleted", nil, controllertest.NodeClaim("pool-1", "", func(n *karpenterv1.NodeClaim) { n.UID = "another" }))
	f.mustReconcile()
	if f.machine.Runs[signing.PhaseLeave] != 0 || f.Host("host-a").Status.ClaimRef == nil || f.NodeClaim("pool-1") == nil {
		t.Error("acted on another nodeclaim's behalf")
	}
}

func TestAClaimUnderWhichNothingRanNeedsNoLeave(t *testing.T) {
	tests := map[string]struct {
		changes []func(*v1beta1.SSHHost)
		claim   signing.Claim
	}{
		"by the word of the host":          {[]func(*v1beta1.SSHHost){claimed}, signing.Claim{Fence: 1}},
		"by the note on a host in Raw":     {[]func(*v1beta1.SSHHost){claimed, controllertest.Raw}, signing.Claim{}},
		"when the host is another claim's": {[]func(*v1beta1.SSHHost){claimed}, signing.Claim{UID: "other", Fence: 9}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1beta1.ReasonDispatchKeyUnknown, tt.changes)
			f.machine.Claim = tt.claim
			f.machine.Refuse = func(dispatch.Request) *dispatch.Error {
				return &dispatch.Error{Class: dispatch.Refused, Reason: "untrusted"}
			}
			f.mustReconcile()
			if got := f.Host("host-a").Status; got.State != v1beta1.HostPending || got.ClaimRef != nil {
				t.Errorf("status = %+v", got)
			}
		})
	}
}

func TestARawHostIsLeftAndNoLongerOwed(t *testing.T) {
	f := newFixture(t, "NodeClaimDeleted", []func(*v1beta1.SSHHost){controllertest.Raw, func(h *v1beta1.SSHHost) {
		h.Status.Cleanup = &v1beta1.HostCleanup{Reason: "PhaseStarted"}
	}})
	f.mustReconcile()
	if host := f.Host("host-a"); f.machine.Runs[signing.PhaseLeave] != 1 || pool.Owed(host) || host.Status.ClaimRef != nil {
		t.Errorf("runs %v, status %+v", f.machine.Runs, host.Status)
	}
}

func TestLeavesThatFail(t *testing.T) {
	tests := map[string]struct {
		err dispatch.Error
		// atOnce and late are the states after the first attempt and after the grace.
		atOnce, late v1beta1.HostState
		// reason is that of Ready in the end, when the host is released, and of the debt; failures are what counts.
		reason   string
		failures int32
	}{
		"the script fails": {
			dispatch.Error{Class: dispatch.ScriptFailed, Reason: dispatch.ReasonExit, ExitCode: 1},
			v1beta1.HostUnhealthy, v1beta1.HostUnhealthy, v1beta1.ReasonLeaveFailed, 1,
		},
		"the script hangs (kubeadm#2980, R53)": {
			dispatch.Error{Class: dispatch.Timeout, Reason: dispatch.ReasonDeadline},
			v1beta1.HostUnhealthy, v1beta1.HostUnhealthy, v1beta1.ReasonLeaveFailed, 1,
		},
		"the host is dead (metal3#1163, R62)": {
			dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"},
			v1beta1.HostInUse, v1beta1.HostUnhealthy, v1beta1.ReasonLeavePending, 0,
		},
		"the script is no longer signed": {
			dispatch.Error{Class: dispatch.Config, Reason: "not-allowed"},
			v1beta1.HostInUse, v1beta1.HostPending, v1beta1.ReasonLeavePending, 0,
		},
		"another phase still runs": {
			dispatch.Error{Class: dispatch.Busy, Reason: "busy"}, v1beta1.HostInUse, v1beta1.HostInUse, "", 0,
		},
		"the host is another claim's by now": {
			dispatch.Error{Class: dispatch.StaleClaim, Reason: dispatch.ReasonHostClaimed}, v1beta1.HostPending, v1beta1.HostPending, "", 0,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "NodeClaimDeleted", nil, controllertest.Node("pool-1", hostID, "10.0.0.1"))
			f.machine.Refuse = func(dispatch.Request) *dispatch.Error { return &tt.err }
			result, err := f.reconcile()
			if got := f.Host("host-a").Status.State; got != tt.atOnce {
				t.Fatalf("state = %q, want %q", got, tt.atOnce)
			}
			if tt.atOnce == v1beta1.HostInUse && err == nil && result.RequeueAfter == 0 {
				t.Error("not tried again")
			}
			f.Clock.Step(leave.DefaultGrace)
			_, _ = f.reconcile() // an error asks for another attempt
			host := f.Host("host-a")
			if host.Status.State != tt.late || (host.Status.ClaimRef == nil) != (tt.late != v1beta1.HostInUse) {
				t.Errorf("after the grace: %+v", host.Status)
			}
			if tt.err.Class != dispatch.StaleClaim && f.Node("pool-1") == nil {
				t.Error("the node was deleted while its kubelet may live")
			}
			if tt.err.Class != dispatch.StaleClaim && tt.late != v1beta1.HostInUse {
				if ready(host).Reason != tt.reason {
					t.Errorf("reason = %q", ready(host).Reason)
				}
				if debt := host.Status.Cleanup; debt == nil || debt.ClaimRef.UID != "uid-pool-1" || debt.Reason != tt.reason || debt.Message == "" {
					t.Errorf("debt = %+v", debt)
				}
				if pool.Failed(host) != (tt.failures > 0) {
					t.Errorf("failures = %+v", host.Status.Failures)
				}
				want := []string{"LeaveFailed"}
				if tt.err.Class == dispatch.Config { // nobody but the operator can end that before the grace does
					want = []string{"LeaveBlocked", "LeaveFailed"}
				}
				if got := f.Events.Reasons("SSHHost/host-a"); !slices.Equal(got, want) {
					t.Errorf("events = %v, want %v", got, want)
				}
			}
		})
	}
}

// metal3#1163, R62: how long a dead host may hold up its NodeClaim is the operator's to say, and what is waited for is
// on the host meanwhile (aws#9238, R79).
func TestADeadHostIsGivenUpAfterTheGraceOfItsClass(t *testing.T) {
	for name, grace := range map[string]time.Duration{"at once": 0, "after a while": 40 * time.Second, "late": 2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v1beta1.ReasonJoinFailed, []func(*v1beta1.SSHHost){claimed})
			class := f.Class(controllertest.ClassName)
			class.Spec.UnreachableGracePeriod = &metav1.Duration{Duration: grace}
			if err := f.Client.Update(context.Background(), class); err != nil {
				t.Fatal(err)
			}
			f.machine.Probing = &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
			for waited := time.Duration(0); waited < grace; {
				result := f.mustReconcile()
				if result.RequeueAfter <= 0 || waited+result.RequeueAfter > grace {
					t.Fatalf("after %s: looked at again in %s", waited, result.RequeueAfter)
				}
				blocked := f.Host("host-a").StatusConditions().Get(v1beta1.ConditionLeaveBlocked)
				if until := controllertest.Start.Add(grace).Format(time.RFC3339); !blocked.IsTrue() || blocked.Reason != v1beta1.ReasonUnreachable || !strings.Contains(blocked.Message, until) {
					t.Fatalf("the host says %+v", blocked)
				}
				f.Clock.Step(result.RequeueAfter)
				waited += result.RequeueAfter
			}
			f.mustReconcile()
			host := f.Host("host-a")
			if host.Status.ClaimRef != nil || !pool.Owed(host) || host.Status.State != v1beta1.HostUnhealthy {
				t.Errorf("status = %+v", host.Status)
			}
			if failures := host.Status.Failures; failures == nil || failures.Reason != v1beta1.ReasonJoinFailed {
				t.Errorf("the join that failed is forgotten: %+v", failures)
			}
			if pool.HasCondition(host, v1beta1.ConditionLeaveBlocked) {
				t.Error("a released host still says that leave waits")
			}
		})
	}
}

// BYOH#104, R61: of many hosts that are asked back at once each is left.
func TestThirtyHostsAreAllLeft(t *testing.T) {
	var objects []client.Object
	for i := range 30 {
		name := fmt.Sprint("host-", i)
		objects = append(objects,
			controllertest.Host(name, fmt.Sprint("10.0.1.", i), controllertest.ClaimedBy("nc-"+name), func(h *v1beta1.SSHHost) {
				h.Status.State = v1beta1.HostInUse
				h.Status.Conditions = []status.Condition{{Type: v1beta1.ConditionLeaveRequested, Status: metav1.ConditionTrue, Reason: "NodeClaimDeleted",
					LastTransitionTime: metav1.NewTime(controllertest.Start)}}
			}),
			controllertest.NodeClaim("nc-"+name, "kpssh://kpssh-system/"+name))
	}
	f := newFixture(t, "NodeClaimDeleted", nil, objects...)
	for round := 0; ; round++ {
		left := 0
		for i := range 30 {
			host := f.Host(fmt.Sprint("host-", i))
			if _, err := f.leave.Reconcile(context.Background(), host); err != nil {
				t.Fatal(err)
			}
			if host = f.Host(host.Name); host.Status.ClaimRef == nil && host.Status.State == v1beta1.HostPending {
				left++
			}
		}
		if left == 30 {
			return
		}
		if round == 3 {
			t.Fatalf("%d of 30 hosts were left", left)
		}
	}
}

func TestAHostWithALaterFenceIsLeftAllTheSame(t *testing.T) {
	f := newFixture(t, "NodeClaimDeleted", nil)
	f.machine.Claim.Fence = 12
	f.mustReconcile()
	f.mustReconcile()
	if host := f.Host("host-a"); host.Status.ClaimRef != nil || host.Status.Fence != 13 || f.machine.Runs[signing.PhaseLeave] != 1 {
		t.Errorf("status %+v, runs %v", host.Status, f.machine.Runs)
	}
}

func TestTheTokenOfANodeThatNeverCameIsDeleted(t *testing.T) {
	f := newFixture(t, v1beta1.ReasonJoinFailed, []func(*v1beta1.SSHHost){claimed, func(h *v1beta1.SSHHost) { h.Status.BootstrapTokenID = "abc123" }})
	tokens := bootstrap.NewTokens(f.Client, f.Client, f.Clock)
	if _, err := tokens.Ensure(context.Background(), "abc123", bootstrap.Owner{Name: "pool-1", UID: "uid-pool-1"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	f.mustReconcile()
	if f.Tokens() != 0 || f.Host("host-a").Status.BootstrapTokenID != "" {
		t.Errorf("%d Secrets, id %q", f.Tokens(), f.Host("host-a").Status.BootstrapTokenID)
	}
}

func TestAPhaseOfThisProcessIsWaitedFor(t *testing.T) {
	f := newFixture(t, "NodeClaimDeleted", nil)
	done, _ := f.Turns.Try("host-a")
	defer done()
	if f.mustReconcile().RequeueAfter == 0 || f.machine.Runs[signing.PhaseLeave] != 0 {
		t.Error("leave ran beside another phase")
	}
}

func TestTheProfileIsTheOneOfNow(t *testing.T) {
	// k0smotron#1596, R58: a leave that was mended counts for the nodes that are there.
	f := newFixture(t, "NodeClaimDeleted", nil)
	profile := &v1beta1.SSHJoinProfile{}
	if err := f.Client.Get(context.Background(), client.ObjectKey{Name: controllertest.ProfileName}, profile); err != nil {
		t.Fatal(err)
	}
	profile.Spec.Version, profile.Spec.Scripts.Leave = "2", "echo mended {{.Vars.mirror}}\n"
	if err := f.Client.Update(context.Background(), profile); err != nil {
		t.Fatal(err)
	}
	f.mustReconcile()
	if got := f.machine.Requests[0]; string(got.Script) != "echo mended m.example\n" || got.Version != "2" {
		t.Errorf("ran %q of version %s", got.Script, got.Version)
	}
}
