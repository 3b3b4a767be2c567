package probe_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// lost erases the whole status of a host.
func lost(h *v1beta1.SSHHost) { h.Status = v1beta1.SSHHostStatus{} }

// A machine that is a node already is not provisioned again after its objects were moved or restored without their status
// (CAPT PR#432, R92); adopting it is declarative and runs neither install nor join (deckhouse PR#22213, R95).
func TestALostStatusIsRebuiltFromTheNodeClaimAndTheHostsOwnWord(t *testing.T) {
	const adoptedID = "eks-hybrid:///eu/c/mi-1"
	ours := signing.Claim{UID: string(controllertest.Cluster) + ".uid-pool-1", Fence: 6}
	node := func(id string, changes ...func(*corev1.Node)) *corev1.Node {
		return controllertest.Node("pool-1", id, "10.0.0.1", changes...)
	}
	deleting := func(n *karpenterv1.NodeClaim) {
		n.Finalizers, n.DeletionTimestamp = []string{"karpenter.sh/termination"}, &metav1.Time{Time: controllertest.Start}
	}
	tests := map[string]struct {
		host    *v1beta1.SSHHost
		objects []client.Object
		claim   signing.Claim
		kubelet string
		want    v1beta1.HostState
		left    int
	}{
		"its node is ready": {
			objects: []client.Object{controllertest.NodeClaim("pool-1", hostID), node(hostID)}, claim: ours, want: v1beta1.HostInUse},
		"its node is not ready: it waits, and join finds the node": {
			objects: []client.Object{controllertest.NodeClaim("pool-1", hostID), node(hostID, controllertest.NotReady)}, claim: ours, want: v1beta1.HostClaimed},
		"its node has not registered yet": {
			objects: []client.Object{controllertest.NodeClaim("pool-1", hostID)}, claim: ours, want: v1beta1.HostClaimed},
		"its claim is from before claims named a cluster": {
			objects: []client.Object{controllertest.NodeClaim("pool-1", hostID), node(hostID)}, claim: signing.Claim{UID: "uid-pool-1", Fence: 6}, want: v1beta1.HostInUse},
		"its node brought a provider id of its own": {
			objects: []client.Object{controllertest.NodeClaim("pool-1", adoptedID), node(adoptedID)}, claim: ours, want: v1beta1.HostInUse},
		"it has no shim, and its node tells": {
			host:    host(controllertest.Raw, lost),
			objects: []client.Object{controllertest.NodeClaim("pool-1", hostID), node(hostID)}, want: v1beta1.HostInUse},
		"a probe did not reach it before": {
			host:    host(lost, controllertest.InState(v1beta1.HostUnhealthy)),
			objects: []client.Object{controllertest.NodeClaim("pool-1", hostID), node(hostID)}, claim: ours, want: v1beta1.HostInUse},
		"but its NodeClaim is being deleted": {
			objects: []client.Object{controllertest.NodeClaim("pool-1", hostID, deleting), node(hostID)}, claim: ours, want: v1beta1.HostAvailable, left: 1},
		"but its NodeClaim is gone": {
			objects: []client.Object{node(hostID)}, claim: ours, want: v1beta1.HostAvailable, left: 1},
		"but its NodeClaim has its node elsewhere": {
			objects: []client.Object{controllertest.NodeClaim("pool-1", "kpssh://kpssh-system/host-b")}, claim: ours, want: v1beta1.HostAvailable, left: 1},
		"but its NodeClaim has no provider id, and an empty one matches nothing (karpenter#2505, R43)": {
			objects: []client.Object{controllertest.NodeClaim("pool-1", "")}, claim: ours, want: v1beta1.HostAvailable, left: 1},
		"but another host holds the NodeClaim": {
			objects: []client.Object{controllertest.NodeClaim("pool-1", adoptedID), node(adoptedID), controllertest.Host("host-b", "10.0.0.2", controllertest.ClaimedBy("pool-1"))},
			claim:   ours, want: v1beta1.HostAvailable, left: 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.host == nil {
				tt.host = host(lost)
			}
			f := newFixture(t, append(tt.objects, tt.host)...)
			f.machine.Kubelet, f.machine.Claim = "active", tt.claim
			f.machine.Last = &signing.RunRef{Claim: tt.claim.UID, Phase: signing.PhaseJoin, Profile: "tls-bootstrap", Version: "1", State: signing.RunFinished, Outcome: signing.OutcomeOK}
			f.reconcile()
			got := f.Host("host-a").Status
			if got.State != tt.want || f.machine.Runs[signing.PhaseLeave] != tt.left {
				t.Fatalf("state %q, %d leaves: %s", got.State, f.machine.Runs[signing.PhaseLeave], f.Events.Text())
			}
			if tt.left > 0 {
				return
			}
			if got.ClaimRef == nil || got.ClaimRef.UID != "uid-pool-1" || got.Fence != tt.claim.Fence || got.ProviderID == "" || got.HostKeyFingerprint == "" {
				t.Errorf("%+v", got)
			}
			if !tt.host.Raw() && got.InstalledProfile != "tls-bootstrap@1" {
				t.Errorf("installed %q", got.InstalledProfile)
			}
			if events := f.Events.Reasons("SSHHost/host-a"); !slices.Equal(events, []string{"ClaimRestored"}) {
				t.Errorf("events %v", events)
			}
			if len(f.machine.Requests) != 0 || f.NodeClaim("pool-1") == nil {
				t.Errorf("something ran: %v", f.machine.Runs)
			}
			probes := f.probes
			f.reconcile()
			if f.probes != probes {
				t.Error("a host in use was probed")
			}
		})
	}
}

// D8 of the trust model: what a host says of itself is not believed alone. With all statuses lost, the first host that
// claimed an adopted NodeClaim as its own was given it, and the true one was then left as one too many, under its pods.
func TestAHostThatLiesIsNotGivenAnothersAdoptedClaim(t *testing.T) {
	const id = "eks-hybrid:///eu/c/mi-1"
	claim := signing.Claim{UID: string(controllertest.Cluster) + ".uid-pool-1", Fence: 6}
	join := &signing.RunRef{Claim: claim.UID, Phase: signing.PhaseJoin, Profile: "tls-bootstrap", Version: "1", State: signing.RunFinished, Outcome: signing.OutcomeOK}
	f := newFixture(t, host(lost), controllertest.Host("host-b", "10.0.0.2", lost),
		controllertest.NodeClaim("pool-1", id), controllertest.Node("pool-1", id, "10.0.0.2"))
	liar, honest := f.machine, f.machines.Machine("host-b")
	for _, m := range []*controllertest.Machine{liar, honest} {
		m.Kubelet, m.Claim, m.Last = "active", claim, join
	}
	f.reconcile()
	got := f.Host("host-a")
	if ready := condition(got, "Ready"); got.Status.ClaimRef != nil || got.Status.State != v1beta1.HostPending || ready.Reason != "ClaimUnproven" || !strings.Contains(ready.Message, "10.0.0.1") {
		t.Fatalf("the liar: %+v", got.Status)
	}
	if _, err := f.probe.Reconcile(t.Context(), f.Host("host-b")); err != nil {
		t.Fatal(err)
	}
	if got := f.Host("host-b").Status; got.State != v1beta1.HostInUse || got.ClaimRef == nil || got.ClaimRef.UID != "uid-pool-1" {
		t.Fatalf("the true host: %+v", got)
	}
	f.Clock.Step(3 * time.Minute)
	f.reconcile()
	if liar.Runs[signing.PhaseLeave] != 1 || len(honest.Requests) != 0 {
		t.Errorf("the liar ran %v, the true host %v", liar.Runs, honest.Runs)
	}
}

func TestAnAdoptedClaimIsGivenBackOnceItsNodeShowsTheHost(t *testing.T) {
	const id = "eks-hybrid:///eu/c/mi-1"
	node := func(name, ip string, changes ...func(*corev1.Node)) *corev1.Node {
		return controllertest.Node(name, id, ip, changes...)
	}
	byName := func(h *v1beta1.SSHHost) { h.Spec.Address = "rpi-1.example" }
	for name, tt := range map[string]struct {
		host  *v1beta1.SSHHost
		nodes []client.Object
		mend  func(*fixture)
	}{
		"there is no node yet": {mend: func(f *fixture) { f.create(node("mi-1", "10.0.0.1")) }},
		"the node has no address yet": {
			nodes: []client.Object{node("mi-1", "10.0.0.1", func(n *corev1.Node) { n.Status.Addresses = nil })},
			mend: func(f *fixture) {
				f.remove(node("mi-1", ""))
				f.create(node("mi-1", "10.0.0.1"))
			}},
		"the host is known by its name only": {
			host: host(lost, byName), nodes: []client.Object{node("mi-1", "10.0.0.1")},
			mend: func(f *fixture) {
				f.edit(func(h *v1beta1.SSHHost) { h.Spec.NodeAddress, h.Generation = "10.0.0.1", h.Generation+1 })
			}},
		"two nodes say that they have the id": {
			nodes: []client.Object{node("mi-1", "10.0.0.1"), node("mi-2", "10.0.0.2")},
			mend:  func(f *fixture) { f.remove(node("mi-2", "")) }},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.host == nil {
				tt.host = host(lost)
			}
			f := newFixture(t, append(tt.nodes, tt.host, controllertest.NodeClaim("pool-1", id))...)
			f.machine.Kubelet, f.machine.Claim = "active", signing.Claim{UID: string(controllertest.Cluster) + ".uid-pool-1", Fence: 6}
			for range 3 {
				f.reconcile()
				if state, reason, text := f.ready(); state != v1beta1.HostPending || reason != "ClaimUnproven" {
					t.Fatalf("%s, %s: %s", state, reason, text)
				}
				f.reconcile()
				f.Clock.Step(3 * time.Minute)
			}
			if f.probes != 3 || len(f.machine.Requests) != 0 {
				t.Errorf("%d probes in three intervals, %v ran", f.probes, f.machine.Runs)
			}
			tt.mend(f)
			f.reconcile()
			if got := f.Host("host-a").Status; got.ClaimRef == nil || got.ClaimRef.UID != "uid-pool-1" || len(f.machine.Requests) != 0 {
				t.Errorf("%+v, %v ran", got, f.machine.Runs)
			}
		})
	}
}

func (f *fixture) create(o client.Object) {
	f.t.Helper()
	if err := f.Client.Create(f.t.Context(), o); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) remove(o client.Object) {
	f.t.Helper()
	if err := f.Client.Delete(f.t.Context(), o); err != nil {
		f.t.Fatal(err)
	}
}

func TestANodeClaimThatTheCacheDoesNotKnowYetIsAskedForLive(t *testing.T) {
	f := newFixture(t, host(lost), controllertest.Node("pool-1", hostID, "10.0.0.1"), controllertest.NodeClaim("pool-1", hostID))
	f.probe.Client = blind{f.Client}
	f.machine.Kubelet, f.machine.Claim = "active", signing.Claim{UID: string(controllertest.Cluster) + ".uid-pool-1", Fence: 6}
	f.reconcile()
	if got := f.Host("host-a"); got.Status.State != v1beta1.HostInUse {
		t.Errorf("state %q: %s", got.Status.State, f.Events.Text())
	}
}

// blind is a cache that has not seen any NodeClaim.
type blind struct{ client.Client }

func (b blind) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*karpenterv1.NodeClaimList); ok {
		return nil
	}
	return b.Client.List(ctx, list, opts...)
}
