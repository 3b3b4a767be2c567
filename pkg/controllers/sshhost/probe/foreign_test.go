package probe_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/controllertest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func TestAHostOfAnotherClusterIsLeftAlone(t *testing.T) {
	tests := map[string]struct {
		host    *v1beta1.SSHHost
		objects []client.Object
		// machine is what the host says.
		machine func(*controllertest.Machine)
		says    string
	}{
		"it holds a claim of another cluster": {
			machine: func(m *controllertest.Machine) { m.Claim = signing.Claim{UID: "other.uid-pool-1", Fence: 3} },
			says:    "other.uid-pool-1"},
		"and a phase of that cluster runs": {
			machine: func(m *controllertest.Machine) {
				m.Claim = signing.Claim{UID: "other.uid-pool-1", Fence: 3}
				m.Last = &signing.RunRef{Claim: "other.uid-pool-1", Phase: signing.PhaseJoin, State: signing.RunStarted}
			}, says: "other.uid-pool-1"},
		"and a NodeClaim here has that uid too": {
			objects: []client.Object{controllertest.NodeClaim("pool-1", hostID), controllertest.Node("pool-1", hostID, "10.0.0.1")},
			machine: func(m *controllertest.Machine) { m.Claim = signing.Claim{UID: "other.uid-pool-1", Fence: 3} },
			says:    "other.uid-pool-1"},
		"it runs a control plane (k0smotron#1309)": {
			machine: func(m *controllertest.Machine) { m.Answer.Facts.ControlPlane = true },
			says:    "control plane"},
		"it runs a control plane and holds a claim of ours": {
			machine: func(m *controllertest.Machine) {
				m.Answer.Facts.ControlPlane, m.Claim = true, signing.Claim{UID: "uid-pool-1", Fence: 3}
			}, says: "control plane"},
		"its kubelet has credentials for another API server, and we installed the host once": {
			machine: func(m *controllertest.Machine) { m.Answer.Facts.Servers = []string{"10.9.9.9:6443"} },
			says:    "API server 10.9.9.9:6443, and this cluster's is api.example:443, 10.0.0.100:6443"},
		"a node of it that is dead is there too": {
			objects: []client.Object{controllertest.Node("pool-1", hostID, "10.0.0.1", controllertest.NotReady)},
			machine: func(m *controllertest.Machine) { m.Answer.Facts.Servers = []string{"10.9.9.9:6443"} },
			says:    "10.9.9.9:6443"},
		"and it was made to leave here": {
			host:    host(controllertest.InState(v1beta1.HostLeaving)),
			machine: func(m *controllertest.Machine) { m.Claim = signing.Claim{UID: "other.uid-pool-1", Fence: 3} },
			says:    "other.uid-pool-1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.host == nil {
				tt.host = host(installed)
			}
			f := newFixture(t, append(tt.objects, tt.host, controllertest.ClusterInfo(t), elsewhere())...)
			f.machine.Kubelet = "active"
			tt.machine(f.machine)
			for range 2 {
				f.reconcile()
				ready := f.Host("host-a").StatusConditions().Get(v1beta1.ConditionReady)
				if f.Host("host-a").Status.State != v1beta1.HostUnhealthy || ready.Reason != v1beta1.ReasonForeignMember || !strings.Contains(ready.Message, tt.says) {
					t.Errorf("%s: %s: %s", f.Host("host-a").Status.State, ready.Reason, ready.Message)
				}
				f.Clock.Step(3 * time.Minute)
			}
			if len(f.machine.Requests) != 0 {
				t.Errorf("%v ran", f.machine.Runs)
			}
			if tt.host.Status.State != v1beta1.HostLeaving {
				if events := f.Events.Reasons("SSHHost/host-a"); !slices.Equal(events, []string{"ForeignMember"}) || f.zombies("parked_foreign") != 1 {
					t.Errorf("events %v", events)
				}
			}
		})
	}
}

// elsewhere is a class whose nodes reach the API server by another name.
func elsewhere() *v1beta1.SSHNodeClass {
	return controllertest.Class(func(c *v1beta1.SSHNodeClass) {
		c.Name, c.Spec.Cluster = "elsewhere", &v1beta1.ClusterSpec{Endpoint: "https://api.example"}
	})
}

func TestCredentialsThatSayNothingAboutTheCluster(t *testing.T) {
	for name, tt := range map[string]struct {
		server  string
		claim   signing.Claim
		objects []client.Object
	}{
		"those for this cluster":                        {server: "10.0.0.100:6443"},
		"those for this cluster by a class's endpoint":  {server: "api.example:443"},
		"those for a proxy on the host":                 {server: "127.0.0.1:6443"},
		"those of a claim of ours":                      {server: "10.9.9.9:6443", claim: signing.Claim{UID: "uid-pool-1", Fence: 3}},
		"those that a node which is ready proves right": {server: "10.9.9.9:6443", objects: []client.Object{controllertest.Node("pool-1", hostID, "10.0.0.1")}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, append(tt.objects, host(installed), controllertest.ClusterInfo(t), elsewhere())...)
			f.machine.Kubelet, f.machine.Claim = "active", tt.claim
			f.machine.Answer.Facts.Servers = []string{tt.server}
			f.reconcile()
			if got := f.Host("host-a"); got.Status.State != v1beta1.HostAvailable || f.machine.Runs[signing.PhaseLeave] != 1 {
				t.Errorf("state %s: %s", got.Status.State, f.Events.Text())
			}
		})
	}
}
