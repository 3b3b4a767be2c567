package probe_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const mount = "mount:/var/lib/kubelet/pods/a/volumes/b"

// dirty is a fixture whose free host of ours still has a mount.
func dirty(t *testing.T, state v1beta1.HostState) *fixture {
	f := newFixture(t, host(installed, controllertest.InState(state)))
	f.machine.Kubelet = "inactive"
	f.machine.Answer.Facts.Leftovers = []string{mount}
	return f
}

// k0smotron#1596 and PR#1597, R58: a host is given out again when it was found clean, not when its leave said so.
func TestALeaveThatLeavesSomethingIsRunAgain(t *testing.T) {
	for _, state := range []v1beta1.HostState{v1beta1.HostPending, v1beta1.HostAvailable, v1beta1.HostUnhealthy, v1beta1.HostLeaving} {
		t.Run(string(state), func(t *testing.T) {
			f := dirty(t, state)
			f.machine.Do = func(dispatch.Request) *dispatch.Error {
				f.machine.Answer.Facts.Leftovers = []string{}
				return nil
			}
			f.reconcile()
			got := f.Host("host-a")
			if got.Status.State != v1beta1.HostAvailable || f.machine.Runs[signing.PhaseLeave] != 1 || condition(got, v1beta1.ConditionClean).Status != metav1.ConditionTrue {
				t.Errorf("state %q, runs %v, conditions %+v", got.Status.State, f.machine.Runs, got.Status.Conditions)
			}
		})
	}
}

// kubeadm#2980, R53; R58: what leave cannot take away keeps the host out, with a name, and is tried ever more rarely.
func TestAHostThatStaysDirtyIsUnhealthyAndLeftEverMoreRarely(t *testing.T) {
	for name, fails := range map[string]bool{"leave ends well": false, "leave fails": true} {
		t.Run(name, func(t *testing.T) {
			f := dirty(t, v1beta1.HostPending)
			f.machine.Do = func(dispatch.Request) *dispatch.Error {
				if fails {
					return &dispatch.Error{Class: dispatch.ScriptFailed, Reason: dispatch.ReasonExit, ExitCode: 1}
				}
				return nil
			}
			f.reconcile()
			got := f.Host("host-a")
			ready, clean := condition(got, "Ready"), condition(got, v1beta1.ConditionClean)
			if got.Status.State != v1beta1.HostUnhealthy || clean.Status != metav1.ConditionFalse || clean.Reason != v1beta1.ReasonNotClean || clean.Message != mount {
				t.Errorf("state %q, condition %+v", got.Status.State, clean)
			}
			if !fails && (ready.Reason != v1beta1.ReasonNotClean || !strings.Contains(ready.Message, mount) || f.zombies("not_clean") != 1 ||
				!slices.Equal(f.Events.Reasons("SSHHost/host-a"), []string{v1beta1.EventNotClean})) {
				t.Errorf("condition %+v, events %v", ready, f.Events.Reasons("SSHHost/host-a"))
			}

			var minutes []int
			leaves := f.machine.Runs[signing.PhaseLeave]
			for minute := 2; minute <= 5*60; minute += 2 {
				f.Clock.Step(2 * time.Minute)
				if minute%60 == 0 { // a new process knows no less
					f.probe = newController(f)
				}
				f.reconcile()
				if now := f.machine.Runs[signing.PhaseLeave]; now != leaves {
					minutes, leaves = append(minutes, minute), now
				}
				if state := f.Host("host-a").Status.State; state != v1beta1.HostUnhealthy {
					t.Fatalf("minute %d: %s", minute, state)
				}
			}
			if len(minutes) < 7 || len(minutes) > 10 || minutes[0] > 6 {
				t.Errorf("it was left after %v minutes", minutes)
			}
			for i := 1; i < len(minutes); i++ {
				if wait := minutes[i] - minutes[i-1]; wait > 70 || i > 1 && wait+6 < min(60, minutes[i-1]-minutes[i-2]) {
					t.Errorf("it was left after %v minutes", minutes)
				}
			}
			// The admin's hand needs no leave.
			f.machine.Answer.Facts.Leftovers = []string{}
			f.Clock.Step(3 * time.Minute)
			f.reconcile()
			if got := f.Host("host-a"); got.Status.State != v1beta1.HostAvailable || f.machine.Runs[signing.PhaseLeave] != leaves {
				t.Errorf("cleaned by hand: state %q, %d leaves after %d", got.Status.State, f.machine.Runs[signing.PhaseLeave], leaves)
			}
		})
	}
}

func TestAnEditOfADirtyHostLeavesItAtOnce(t *testing.T) {
	f := dirty(t, v1beta1.HostPending)
	f.reconcile()
	edited := f.Host("host-a")
	edited.Generation++
	if err := f.Client.Update(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	f.reconcile()
	if got := f.machine.Runs[signing.PhaseLeave]; got != 2 {
		t.Errorf("%d leaves", got)
	}
}

func TestWhatAHostBroughtIsNotLeft(t *testing.T) {
	f := newFixture(t, host())
	f.machine.Answer.Facts.Leftovers = []string{"credential:/etc/kubernetes/kubelet.conf"}
	for range 2 {
		f.reconcile()
		f.Clock.Step(3 * time.Minute)
	}
	got := f.Host("host-a")
	if ready := condition(got, "Ready"); got.Status.State != v1beta1.HostUnhealthy || ready.Reason != v1beta1.ReasonNotClean || !strings.Contains(ready.Message, "/etc/kubernetes/kubelet.conf") {
		t.Errorf("state %q, %+v", got.Status.State, ready)
	}
	if f.machine.Runs[signing.PhaseLeave] != 0 || !slices.Equal(f.Events.Reasons("SSHHost/host-a"), []string{v1beta1.EventNotClean}) || f.zombies("parked_foreign") != 0 {
		t.Errorf("runs %v, events %v", f.machine.Runs, f.Events.Reasons("SSHHost/host-a"))
	}
	f.machine.Answer.Facts.Leftovers = []string{}
	f.reconcile()
	if got := f.Host("host-a"); got.Status.State != v1beta1.HostAvailable || condition(got, v1beta1.ConditionClean).Status != metav1.ConditionTrue {
		t.Errorf("taken away: %+v", got.Status)
	}
}

// The design of the pool, decision 4: the marker on the host names its cluster. A reviewer found that a host that was left
// well, whose status was then lost and on which something is left, was parked for good as not ours.
func TestAHostWithALostStatusIsLeftAgainWhenItsLastRunWasForThisCluster(t *testing.T) {
	own := string(controllertest.Cluster) + ".uid-pool-1"
	for name, tt := range map[string]struct {
		last    *signing.RunRef
		kubelet string
		left    bool
	}{
		"a leave of ours":                {&signing.RunRef{Claim: own, Phase: signing.PhaseLeave}, "inactive", true},
		"a join of ours":                 {&signing.RunRef{Claim: own, Phase: signing.PhaseJoin}, "inactive", true},
		"of another cluster":             {&signing.RunRef{Claim: "other.uid-pool-1", Phase: signing.PhaseLeave}, "inactive", false},
		"of nobody knows which cluster":  {&signing.RunRef{Claim: "uid-pool-1", Phase: signing.PhaseLeave}, "inactive", false},
		"nothing ever ran":               {nil, "inactive", false},
		"ours, but a kubelet runs there": {&signing.RunRef{Claim: own, Phase: signing.PhaseLeave}, "active", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, host(lost))
			if f.machine.Last, f.machine.Kubelet = tt.last, tt.kubelet; tt.last != nil {
				f.machine.Last.State, f.machine.Last.Outcome = signing.RunFinished, signing.OutcomeOK
			}
			f.machine.Answer.Facts.Leftovers = []string{mount}
			// It takes three: the first that cleans nothing is the last run then, and for no claim; and the operator resets the host.
			for range 2 {
				f.reconcile()
				f.edit(func(h *v1beta1.SSHHost) { h.Generation++ })
			}
			f.machine.Do = func(dispatch.Request) *dispatch.Error {
				f.machine.Answer.Facts.Leftovers = []string{}
				return nil
			}
			f.reconcile()
			state, reason, text := f.ready()
			if !tt.left {
				if state != v1beta1.HostUnhealthy || len(f.machine.Requests) != 0 {
					t.Errorf("%s, %s: %s; %v ran", state, reason, text, f.machine.Runs)
				}
				return
			}
			if state != v1beta1.HostAvailable || f.machine.Runs[signing.PhaseLeave] != 3 || pool.Owed(f.Host("host-a")) {
				t.Errorf("%s, %s: %s; %v ran", state, reason, text, f.machine.Runs)
			}
		})
	}
}

// The controller dies between the leave and its verification: by then nothing on the host says that it is ours.
func TestAHostThatIsBeingLeftStaysOurs(t *testing.T) {
	f := newFixture(t, host(lost, controllertest.InState(v1beta1.HostLeaving)))
	f.machine.Kubelet, f.machine.Last = "inactive", &signing.RunRef{Phase: signing.PhaseLeave, State: signing.RunFinished, Outcome: signing.OutcomeOK}
	f.machine.Answer.Facts.Leftovers = []string{mount}
	f.machine.Do = func(dispatch.Request) *dispatch.Error {
		f.machine.Answer.Facts.Leftovers = []string{}
		return nil
	}
	f.reconcile()
	if state, reason, text := f.ready(); state != v1beta1.HostAvailable || f.machine.Runs[signing.PhaseLeave] != 1 {
		t.Errorf("%s, %s: %s; %v ran", state, reason, text, f.machine.Runs)
	}
}

// Condition Preparing stayed True on a host that was left meanwhile, which only classes with the same profile claim then.
func TestALeaveEndsAPreparation(t *testing.T) {
	f := newFixture(t, host())
	if _, err := f.Pool.BeginPreparation(t.Context(), f.Host("host-a"), "tls-bootstrap@1"); err != nil {
		t.Fatal(err)
	}
	f.machine.Claim = signing.Claim{UID: string(controllertest.Cluster) + ".prepare", Fence: f.Host("host-a").Status.Fence}
	f.Clock.Step(3 * time.Minute)
	f.reconcile()
	got := f.Host("host-a")
	if preparing := condition(got, v1beta1.ConditionPreparing); got.Status.State != v1beta1.HostAvailable || f.machine.Runs[signing.PhaseLeave] != 1 ||
		preparing.Status != metav1.ConditionFalse || !strings.Contains(preparing.Message, "tls-bootstrap@1") {
		t.Errorf("state %q, %v ran, %+v", got.Status.State, f.machine.Runs, preparing)
	}
}

// There is one clock, status.failures.retryTime: a dirty host is left when that says so, neither before nor later.
func TestADirtyHostIsLeftWhenItsRetryTimeSaysSo(t *testing.T) {
	f := dirty(t, v1beta1.HostPending)
	f.reconcile()
	for n := 1; n <= 9; n++ {
		at := f.Host("host-a").Status.Failures.RetryTime.Time
		for f.Clock.Now().Before(at) {
			if leaves := f.machine.Runs[signing.PhaseLeave]; leaves != n {
				t.Fatalf("%d leaves %s before the time of number %d", leaves, at.Sub(f.Clock.Now()), n+1)
			}
			f.Clock.Step(max(time.Second, f.reconcile().RequeueAfter))
		}
		f.reconcile()
		if leaves, late := f.machine.Runs[signing.PhaseLeave], f.Clock.Now().Sub(at); leaves != n+1 || late > time.Second {
			t.Fatalf("%d leaves, %s after the time of number %d", leaves, late, n+1)
		}
	}
}
