package probe_test

import (
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
)

func versions(root, allowlist int64) dispatch.Versions {
	return dispatch.Versions{Root: root, Allowlist: allowlist, RootDigest: "sha256:root", AllowlistDigest: "sha256:list"}
}

func (f *fixture) publish(v dispatch.Versions) { f.machines.Documents = v }

// believed is what the host's status says of its documents.
func (f *fixture) believed() dispatch.Versions {
	f.t.Helper()
	trust := f.Host("host-a").Status.Trust
	if trust == nil {
		return dispatch.Versions{}
	}
	return dispatch.Versions{Root: trust.RootVersion, Allowlist: trust.AllowlistVersion, RootDigest: trust.RootDigest, AllowlistDigest: trust.AllowlistDigest}
}

func serving(h *v1beta1.SSHHost) {
	controllertest.ClaimedBy("pool-1")(h)
	h.Status.State = v1beta1.HostInUse
}

func TestNewDocumentsReachAFreeHostAtOnce(t *testing.T) {
	f := newFixture(t, host())
	f.publish(versions(1, 1))
	f.reconcile()
	trust := f.Host("host-a").Status.Trust
	if f.probes != 1 || f.believed() != versions(1, 1) || trust.ShimVersion != "v1.0.0" || !trust.ObservedTime.Time.Equal(controllertest.Start) {
		t.Fatalf("%d probes, trust %+v", f.probes, trust)
	}
	if trust.RootDigest != "sha256:root" || trust.AllowlistDigest != "sha256:list" {
		t.Errorf("digests of trust %+v", trust)
	}
	if c := condition(f.Host("host-a"), v1beta1.ConditionTrustCurrent); c.Status != metav1.ConditionTrue {
		t.Errorf("condition %+v", c)
	}
	f.publish(versions(2, 1))
	f.reconcile()
	f.reconcile() // the probe's own write
	if f.probes != 2 || f.believed() != versions(2, 1) {
		t.Errorf("%d probes after a new root, host has %+v", f.probes, f.believed())
	}
	f.publish(versions(2, 2))
	f.machine.Probing = &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
	for range 3 {
		f.reconcile()
	}
	if f.probes != 3 {
		t.Errorf("%d probes: a host that is out of reach is tried once for a document, and then as ever", f.probes)
	}
	f.machine.Probing = nil
	f.Clock.Step(3 * time.Minute)
	f.reconcile()
	if f.probes != 4 || f.believed() != versions(2, 2) || f.Host("host-a").Status.State != v1beta1.HostAvailable {
		t.Errorf("%d probes, host has %+v and is %s", f.probes, f.believed(), f.Host("host-a").Status.State)
	}
}

func TestNewDocumentsReachAHostInUseAndChangeNothingElse(t *testing.T) {
	f := newFixture(t, host(serving))
	before := f.Host("host-a").Status
	f.publish(versions(1, 1))
	f.reconcile()
	f.reconcile() // its own write
	if f.probes != 1 || f.believed() != versions(1, 1) {
		t.Fatalf("%d contacts, host has %+v", f.probes, f.believed())
	}
	f.Clock.Step(time.Hour)
	f.reconcile()
	if f.probes != 1 {
		t.Error("a host in use that has everything was contacted")
	}
	f.publish(versions(3, 2))
	f.reconcile()
	after := f.Host("host-a").Status
	if f.probes != 2 || f.believed() != versions(3, 2) {
		t.Errorf("%d contacts, host has %+v", f.probes, f.believed())
	}
	if after.State != before.State || *after.ClaimRef != *before.ClaimRef || after.Fence != before.Fence || after.LastProbeTime != nil || after.LastProbeError != "" || len(after.Conditions) != 1 {
		t.Errorf("status was %+v and is %+v", before, after)
	}
}

func TestAHostInUseThatIsOutOfReachIsTriedAtThePaceOfProbes(t *testing.T) {
	f := newFixture(t, host(serving))
	f.publish(versions(2, 2))
	f.machine.Probing = &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
	version := f.Host("host-a").ResourceVersion
	for range 3 {
		if f.reconcile().RequeueAfter == 0 {
			t.Error("not tried again")
		}
	}
	if f.probes != 1 || f.Host("host-a").ResourceVersion != version {
		t.Fatalf("%d contacts, resource version %s was %s", f.probes, f.Host("host-a").ResourceVersion, version)
	}
	f.publish(versions(3, 2)) // an occasion of its own
	f.reconcile()
	f.Clock.Step(2*time.Minute + time.Second)
	f.machine.Probing = nil
	f.reconcile()
	if f.probes != 3 || f.believed() != versions(3, 2) || f.Host("host-a").Status.State != v1beta1.HostInUse {
		t.Errorf("%d contacts, host has %+v", f.probes, f.believed())
	}
}

func TestAHostThatIsDeletedIsForgotten(t *testing.T) {
	for name, forget := range map[string]bool{"and made anew later": true, "and made anew before anybody looked": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, host(serving))
			f.publish(versions(2, 2))
			f.machine.Probing = &dispatch.Error{Class: dispatch.Unreachable, Reason: "timeout"}
			request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(f.Host("host-a"))}
			look := func() {
				t.Helper()
				if _, err := f.probe.Reconciler().Reconcile(t.Context(), request); err != nil {
					t.Fatal(err)
				}
			}
			look()
			if f.probes != 1 || f.probe.Remembered() != 1 {
				t.Fatalf("%d contacts, %d hosts remembered", f.probes, f.probe.Remembered())
			}
			if err := f.Client.Delete(t.Context(), f.Host("host-a")); err != nil {
				t.Fatal(err)
			}
			if forget {
				look()
				if f.probe.Remembered() != 0 {
					t.Error("a host that is gone is remembered")
				}
			}
			again := host(serving)
			again.UID = "another"
			if err := f.Client.Create(t.Context(), again); err != nil {
				t.Fatal(err)
			}
			look()
			if f.probes != 2 || f.probe.Remembered() != 1 {
				t.Errorf("%d contacts, %d hosts remembered: the new host is not the old one", f.probes, f.probe.Remembered())
			}
		})
	}
}

func TestAHostThatRefusesDocumentsIsFitAndSaysSo(t *testing.T) {
	for name, change := range map[string]func(*v1beta1.SSHHost){"a free host": func(*v1beta1.SSHHost) {}, "a host in use": serving} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, host(change))
			state := f.Host("host-a").Status.State
			f.publish(versions(2, 2))
			f.machine.Trust = versions(1, 1)
			f.machine.Behind = &dispatch.Error{Class: dispatch.Untrusted, Reason: dispatch.ReasonForeignRoot}
			for range 3 {
				f.reconcile()
			}
			got := f.Host("host-a")
			c := condition(got, v1beta1.ConditionTrustCurrent)
			if f.probes != 1 || got.Status.State != state || c.Status != metav1.ConditionFalse || c.Reason != v1beta1.ReasonDispatchKeyUnknown || f.believed() != versions(1, 1) {
				t.Errorf("%d contacts, state %s, condition %+v, host has %+v", f.probes, got.Status.State, c, f.believed())
			}
		})
	}
}

func TestHostsThatOrdersAreComingForAreNotContacted(t *testing.T) {
	for name, change := range map[string]func(*v1beta1.SSHHost){
		"one that joins": controllertest.ClaimedBy("pool-1"),
		"one that leaves": func(h *v1beta1.SSHHost) {
			serving(h)
			h.Status.Conditions = []status.Condition{{Type: v1beta1.ConditionLeaveRequested, Status: metav1.ConditionTrue}}
		},
		"one in Raw mode": func(h *v1beta1.SSHHost) { serving(h); controllertest.Raw(h) },
		"one that the operator parked": func(h *v1beta1.SSHHost) {
			h.Annotations = map[string]string{apis.AnnotationMaintenance: ""}
			h.Status.State = v1beta1.HostMaintenance
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, host(change))
			f.publish(versions(2, 2))
			f.reconcile()
			if f.probes != 0 {
				t.Errorf("%d contacts", f.probes)
			}
		})
	}
}

func TestAClaimThatEndsDuringTheContactIsNotWrittenOver(t *testing.T) {
	f := newFixture(t, host(serving))
	f.publish(versions(2, 2))
	stale := f.Host("host-a")
	if _, err := f.Pool.ReleaseStale(t.Context(), f.Host("host-a"), "Gone", "gone"); err != nil {
		t.Fatal(err)
	}
	result, err := f.probe.Reconcile(t.Context(), stale)
	if err != nil || result.RequeueAfter == 0 || f.Host("host-a").Status.Trust != nil || f.Host("host-a").Status.State != v1beta1.HostPending {
		t.Errorf("result %v, error %v, status %+v", result, err, f.Host("host-a").Status)
	}
}

// The trust model, A4: a version alone does not name a document. A host in use with another content under the same version
// was taken for one that has everything, and was never contacted, so that nobody was told that it refuses ours.
func TestAnotherDocumentOfTheSameVersionIsNotTakenForOurs(t *testing.T) {
	for name, change := range map[string]func(*dispatch.Versions){
		"an allowlist": func(v *dispatch.Versions) { v.AllowlistDigest = "sha256:another" },
		"a root":       func(v *dispatch.Versions) { v.RootDigest = "sha256:another" },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, host(serving))
			f.publish(versions(2, 2))
			f.reconcile()
			has := f.believed()
			published := versions(2, 2)
			change(&published)
			f.publish(published)
			f.machine.Behind = &dispatch.Error{Class: dispatch.Config, Reason: "rollback", Detail: "another document of version 2 than the host has"}
			for range 3 {
				f.reconcile()
			}
			c := condition(f.Host("host-a"), v1beta1.ConditionTrustCurrent)
			if f.probes != 2 || c.Status != metav1.ConditionFalse || f.believed() != has {
				t.Errorf("%d contacts, %+v, host has %+v", f.probes, c, f.believed())
			}
			f.machine.Behind = nil
			f.Clock.Step(3 * time.Minute)
			f.reconcile()
			if c := condition(f.Host("host-a"), v1beta1.ConditionTrustCurrent); f.believed() != published || c.Status != metav1.ConditionTrue {
				t.Errorf("%+v, host has %+v", c, f.believed())
			}
		})
	}
}
