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
