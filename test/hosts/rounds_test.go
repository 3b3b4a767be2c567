//go:build e2e

package hosts

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// rounds is what a warm host should take in its life at least.
const rounds = 50

// kubernetes#69973, sealos#3966, k3s#7797, R44; kube-router#496, R45; k3s#1590, R55: each membership finds the host as the first one
// did, and one of another cluster does too. Chains, mounts and processes of a pod are there to be removed each time.
func TestMembershipsInARow(t *testing.T) {
	mustRun(t, scripts.Install)
	pod(t, cluster)
	before := world(t)
	began := time.Now()
	for i := range rounds {
		mustRun(t, scripts.Join)
		if i%5 == 0 { // in the others leave comes while containerd is starting it
			running(t)
		}
		out := mustRun(t, scripts.Leave)
		if i == 0 {
			t.Logf("the first: %s", out)
		}
		clean(t, fmt.Sprintf("after round %d", i+1))
	}
	t.Logf("%d rounds took %s", rounds, time.Since(began).Round(time.Second))
	same(t, before, world(t))

	// A certificate that has expired, and one of a cluster that is no more, of a leave that never ran.
	sh(t, `mkdir -p /var/lib/kubelet/pki /etc/kubernetes/kpssh; echo old | tee /var/lib/kubelet/pki/kubelet-client-current.pem /etc/kubernetes/kpssh/kubelet.conf >/dev/null`)
	mustRun(t, scripts.Join)
	mustRun(t, scripts.Leave)
	clean(t, "after a membership over the rest of another")

	// systemd.unit(5), StartLimitBurst=: a fast host is joined and left more often than systemd lets a unit start.
	sh(t, `systemctl start containerd; for _ in 1 2 3 4 5 6 7 8; do systemctl restart containerd || exit 0; done; systemctl show -p StartLimitBurst containerd; exit 1`)
	mustRun(t, scripts.Join)
	mustRun(t, scripts.Leave)
	clean(t, "after a membership with no starts left")

	other := moveToAnotherCluster(t)
	out, err := phase(t, other, scripts.Join)
	if err != nil {
		t.Fatalf("joining another cluster: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := other.Kubectl(ctx, "wait", "--for=create", "--timeout=50s", "node/"+host.Name); err != nil {
		t.Errorf("the other cluster has no node: %v", err)
	}
	if out, err = phase(t, other, scripts.Leave); err != nil {
		t.Fatalf("leaving another cluster: %v\n%s", err, out)
	}
	clean(t, "after a membership of another cluster")
}

// moveToAnotherCluster plugs the host's network into that of another lab, whose control plane has the same address and
// another certificate authority, until the test ends.
func moveToAnotherCluster(t *testing.T) *lab.Lab {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	other, err := lab.Start(ctx, lab.Options{ControlPlaneOnly: true, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := admit(ctx, other); err != nil {
		t.Fatal(err)
	}
	if string(other.CA()) == string(cluster.CA()) {
		t.Fatal("both clusters have one certificate authority")
	}
	ip := func(l *lab.Lab, command string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := l.Run(ctx, strings.Fields("ip "+command)...); err != nil {
			t.Fatal(err)
		}
	}
	ip(cluster, "address del "+lab.Address+"/24 dev kpssh0")
	ip(cluster, "address add 10.77.0.2/24 dev kpssh0") // for SSH
	ip(cluster, "link add trunk type veth peer name trunk netns kpssh-"+other.ID())
	for _, l := range []*lab.Lab{cluster, other} {
		ip(l, "link set trunk master kpssh0 up")
	}
	t.Cleanup(func() {
		ip(cluster, "link delete trunk")
		ip(cluster, "address del 10.77.0.2/24 dev kpssh0")
		ip(cluster, "address add "+lab.Address+"/24 dev kpssh0")
		sh(t, "ip neigh flush all")
	})
	sh(t, "ip neigh flush all")
	return other
}
