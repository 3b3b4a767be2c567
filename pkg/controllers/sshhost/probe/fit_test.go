package probe_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func (f *fixture) ready() (v1beta1.HostState, string, string) {
	f.t.Helper()
	h := f.Host("host-a")
	c := h.StatusConditions().Get(v1beta1.ConditionReady)
	return h.Status.State, c.Reason, c.Message
}

// again probes once more.
func (f *fixture) again() {
	f.t.Helper()
	f.Clock.Step(3 * time.Minute)
	f.machine.Answer.Facts.Clock = f.Clock.Now()
	f.reconcile()
}

func (f *fixture) edit(change func(*v1beta1.SSHHost)) {
	f.t.Helper()
	h := f.Host("host-a")
	change(h)
	if err := f.Client.Update(context.Background(), h); err != nil {
		f.t.Fatal(err)
	}
}

// A reboot is another boot of the same machine (caph#393, R91); another machine at the address is not touched.
func TestAMachineThatBecameAnotherIsLeftAlone(t *testing.T) {
	for name, mend := range map[string]func(*v1beta1.SSHHost){
		"until the spec is edited": func(h *v1beta1.SSHHost) { h.Spec.Port, h.Generation = 2222, h.Generation+1 },
		"until the host is reset":  func(h *v1beta1.SSHHost) { h.Annotations = map[string]string{apis.AnnotationReset: "1"} },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, host(installed))
			facts := &f.machine.Answer.Facts
			facts.MachineID, facts.BootID = "first", "boot-1"
			f.reconcile()
			facts.BootID = "boot-2"
			f.again()
			if state, reason, _ := f.ready(); state != v1beta1.HostAvailable || f.Host("host-a").Status.Identity.BootID != "boot-2" {
				t.Fatalf("after a reboot: %s, %s", state, reason)
			}
			facts.MachineID = ""
			f.again()
			if state, reason, _ := f.ready(); state != v1beta1.HostAvailable || f.Host("host-a").Status.Identity.MachineID != "first" {
				t.Fatalf("without a machine id: %s, %s", state, reason)
			}
			facts.MachineID, f.machine.Kubelet = "second", "active"
			for range 2 {
				f.again()
				if state, reason, text := f.ready(); state != v1beta1.HostUnhealthy || reason != v1beta1.ReasonIdentityChanged || !strings.Contains(text, "was first and is second") {
					t.Fatalf("%s, %s: %s", state, reason, text)
				}
			}
			if len(f.machine.Requests) != 0 || !slices.Equal(f.Events.Reasons("SSHHost/host-a"), []string{"IdentityChanged"}) {
				t.Errorf("%v ran, %s", f.machine.Runs, f.Events.Text())
			}
			f.machine.Kubelet = "inactive"
			f.edit(mend)
			f.again()
			if state, reason, _ := f.ready(); state != v1beta1.HostAvailable || f.Host("host-a").Status.Identity.MachineID != "second" {
				t.Errorf("afterwards: %s, %s", state, reason)
			}
		})
	}
}

func TestAFreeCloneNamesTheOtherAndIsLeftAlone(t *testing.T) {
	sameShim := func(h *v1beta1.SSHHost) { h.Spec.Shim.HostID = host().Spec.Shim.HostID }
	sameID := func(h *v1beta1.SSHHost) { h.Status.Identity = &v1beta1.HostIdentity{MachineID: "m"} }
	for name, other := range map[string]*v1beta1.SSHHost{
		"by the shim's id":                       controllertest.Host("host-b", "10.0.0.2", sameShim),
		"by the machine id":                      controllertest.Host("host-b", "10.0.0.2", sameID),
		"by the machine id, and the other works": controllertest.Host("host-b", "10.0.0.2", sameID, controllertest.ClaimedBy("pool-9"), controllertest.InState(v1beta1.HostInUse)),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, host(installed), other)
			f.machine.Answer.Facts.MachineID = "m"
			f.reconcile()
			if state, reason, text := f.ready(); state != v1beta1.HostUnhealthy || reason != v1beta1.ReasonIdentityChanged || !strings.Contains(text, "host-b") {
				t.Errorf("%s, %s: %s", state, reason, text)
			}
			if got := f.Host("host-b"); got.Status.State != other.Status.State {
				t.Errorf("the other is %s", got.Status.State)
			}
			if err := f.Client.Delete(context.Background(), f.Host("host-b")); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Pool.Live(context.Background(), "host-b"); err == nil {
				t.Fatal("the other is still there")
			}
			f.again()
			if state, reason, _ := f.ready(); state != v1beta1.HostAvailable {
				t.Errorf("alone: %s, %s", state, reason)
			}
		})
	}
}

func TestAFailingCheckKeepsTheHostOut(t *testing.T) {
	ignoring := func(checks ...string) *v1beta1.SSHNodeClass {
		return controllertest.Class(func(c *v1beta1.SSHNodeClass) { c.Name, c.Spec.IgnoredPreflightChecks = "lenient", checks })
	}
	elsewhere := ignoring("SwapOn")
	elsewhere.Spec.HostSelector.MatchLabels = map[string]string{"zone": "x"}
	for name, tt := range map[string]struct {
		classes []client.Object
		swap    int64
		skew    time.Duration
		cpus    int
		state   v1beta1.HostState
		says    string
		checks  []string
		reason  string
	}{
		"with its name and what to do about it": {swap: 1 << 30, cpus: 4, state: v1beta1.HostUnhealthy, says: "SwapOn: the host has 1024 MiB", checks: []string{"SwapOn"}, reason: "SwapOn"},
		"by its clock (kubeadm#1988, R34)":      {skew: -2 * time.Minute, cpus: 4, state: v1beta1.HostUnhealthy, says: "ClockSkew: the host's clock is 120 s behind", checks: []string{"ClockSkew"}, reason: "ClockSkew"},
		"unless a class that selects it ignores it": {classes: []client.Object{ignoring("SwapOn")}, swap: 1, cpus: 4,
			state: v1beta1.HostAvailable, checks: []string{"SwapOn"}, reason: "SwapOn"},
		"when that class ignores one of two": {classes: []client.Object{ignoring("SwapOn")}, swap: 1, skew: time.Hour, cpus: 4,
			state: v1beta1.HostUnhealthy, says: "ClockSkew", checks: []string{"ClockSkew", "SwapOn"}, reason: "ChecksFailed"},
		"when that class is of other hosts": {classes: []client.Object{elsewhere}, swap: 1, cpus: 4, state: v1beta1.HostUnhealthy, says: "SwapOn", checks: []string{"SwapOn"}, reason: "SwapOn"},
		"but less capacity only warns":      {cpus: 2, state: v1beta1.HostAvailable, checks: []string{"CapacityDrift"}, reason: "Passed"},
		"and nothing is said of a good one": {cpus: 4, state: v1beta1.HostAvailable, reason: "Passed"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, append(tt.classes, host(installed))...)
			facts := &f.machine.Answer.Facts
			facts.SwapBytes, facts.CPUs, facts.PageSize, facts.Clock = tt.swap, tt.cpus, 16384, f.Clock.Now().Add(tt.skew)
			f.reconcile()
			state, reason, text := f.ready()
			if state != tt.state || (reason == v1beta1.ReasonPreflightFailed) != (state == v1beta1.HostUnhealthy) || !strings.Contains(text, tt.says) {
				t.Errorf("%s, %s: %s", state, reason, text)
			}
			got := f.Host("host-a")
			var checks []string
			for _, finding := range got.Status.Preflight {
				checks = append(checks, finding.Check)
			}
			if !slices.Equal(checks, tt.checks) || got.StatusConditions().Get(v1beta1.ConditionPreflight).Reason != tt.reason {
				t.Errorf("checks %q, condition %+v", checks, got.StatusConditions().Get(v1beta1.ConditionPreflight))
			}
			if got.Status.ObservedPageSize != 16384 {
				t.Errorf("page size %d", got.Status.ObservedPageSize)
			}
			if len(f.machine.Requests) != 0 || f.machine.Runs[signing.PhaseLeave] != 0 {
				t.Errorf("%v ran", f.machine.Runs)
			}
			facts.SwapBytes, facts.CPUs = 0, 4
			f.again()
			if state, reason, _ := f.ready(); state != v1beta1.HostAvailable || len(f.Host("host-a").Status.Preflight) != 0 {
				t.Errorf("mended: %s, %s", state, reason)
			}
		})
	}
}

// Two bounds cut the annotation to two values, and one that was cut within a character never equalled what was stored: each
// probe took another machine for the one that the operator meant.
func TestALongResetCountsOnce(t *testing.T) {
	value := "x" + strings.Repeat("ü", 300)
	f := newFixture(t, host(installed, func(h *v1beta1.SSHHost) { h.Annotations = map[string]string{apis.AnnotationReset: value} }))
	f.machine.Answer.Facts.MachineID = "first"
	f.reconcile()
	got := f.Host("host-a").Status
	if got.ObservedReset != got.Identity.Reset || got.ObservedReset == "" || len(got.ObservedReset) > 128 || !strings.HasPrefix(value, got.ObservedReset) {
		t.Fatalf("observed %q, with the identity %q", got.ObservedReset, got.Identity.Reset)
	}
	f.machine.Answer.Facts.MachineID = "second"
	f.again()
	if state, reason, _ := f.ready(); reason != v1beta1.ReasonIdentityChanged {
		t.Errorf("%s, %s", state, reason)
	}
}
