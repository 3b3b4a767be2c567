package probe_test

import (
	"context"
	"slices"
	"testing"

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
			objects: []client.Object{controllertest.NodeClaim("pool-1", adoptedID), controllertest.Host("host-b", "10.0.0.2", controllertest.ClaimedBy("pool-1"))},
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
