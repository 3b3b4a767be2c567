//go:build e2e

package hosts

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// world is what an admin has on the host: rules of the packet filter, without counters and tables that hold none, files
// with digests and times, links and mounts.
func world(t *testing.T) string {
	t.Helper()
	return sh(t, `
for save in iptables-save ip6tables-save; do
  echo "== $save"
  $save 2>/dev/null | sed 's/ \[[0-9]*:[0-9]*\]//; /^#/d' | awk '
    /^\*/ { block = ""; rules = 0 }
    { block = block $0 "\n" }
    /^-A/ || /^:[^ ]+ -/ || /^:[^ ]+ DROP/ { rules = 1 }
    /^COMMIT/ { if (rules) printf "%s", block }'
done
echo "== files"
find /etc/cni/net.d /etc/containerd /etc/systemd/system /etc/sysctl.d /etc/modules-load.d -type f -printf '%p %T@ ' -exec sha256sum {} \;
echo "== links"
ip -o link show | awk -F': ' '{print $2}'
echo "== mounts"
awk '{print $5}' /proc/self/mountinfo | sort
`)
}

func same(t *testing.T, before, after string) {
	t.Helper()
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(after, "\n")); diff != "" {
		t.Errorf("what the admin had is not as it was (-before +after):\n%s", diff)
	}
}

// kubespray#6119, #12232, R56: no flush, no policy, no rule of the admin's. kubeadm#2247, R54: a mount from before
// join stays. kubernetes#39557, R45: configuration and bridges from before join stay, also if an add-on renamed them.
func TestWhatTheAdminHasIsAsItWas(t *testing.T) {
	mustRun(t, scripts.Install)
	sh(t, `
iptables -N ADMIN
iptables -A ADMIN -s 192.0.2.0/24 -m comment --comment 'KUBE-like "quoted" text' -j DROP
iptables -A INPUT -i lo -j ACCEPT
iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
iptables -A INPUT -p tcp --dport 22 -j ACCEPT
iptables -A INPUT -s 10.77.0.0/24 -j ACCEPT
iptables -A INPUT -j ADMIN
iptables -P INPUT DROP
iptables -t nat -N DOCKER
iptables -t nat -A POSTROUTING -s 198.51.100.0/24 ! -o docker9 -j MASQUERADE
iptables -t nat -N KUBE-ADMIN
iptables -t nat -A KUBE-ADMIN -j RETURN
mkdir -p /var/lib/kubelet/plugins/admin /var/lib/kubelet/mine
mount -t tmpfs admin /var/lib/kubelet/plugins/admin
mount -t tmpfs admin /var/lib/kubelet/mine
echo kept | tee /var/lib/kubelet/plugins/admin/file >/var/lib/kubelet/mine/file
echo '{"name": "admin"}' >/etc/cni/net.d/99-admin.conflist
ip link add flannel.admin type bridge
`)
	t.Cleanup(func() {
		sh(t, `umount /var/lib/kubelet/plugins/admin /var/lib/kubelet/mine; rm -f /etc/cni/net.d/99-admin.conflist; ip link delete flannel.admin
iptables -P INPUT ACCEPT; iptables -F INPUT; iptables -F ADMIN; iptables -X ADMIN
iptables -t nat -F KUBE-ADMIN; iptables -t nat -X KUBE-ADMIN; iptables -t nat -X DOCKER; iptables -t nat -F POSTROUTING`)
	})
	before := world(t)
	pod(t, cluster)
	mustRun(t, scripts.Join)
	running(t)
	// What add-ons do: a file renamed, one of theirs, a chain, and a link.
	sh(t, `cd /etc/cni/net.d; mv 99-admin.conflist 99-admin.conflist.cilium_bak; echo '{}' >05-addon.conflist; mkdir -p /var/lib/cni/addon; touch /var/lib/cni/addon/state
iptables -N CILIUM_INPUT; iptables -A CILIUM_INPUT -j ACCEPT; iptables -I INPUT -m comment --comment "cilium-feeder: CILIUM_INPUT" -j CILIUM_INPUT
iptables -A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT
ip link add cilium_host type bridge`)
	// k0smotron#1247, R28: install again on a host in use changes nothing.
	state := `systemctl show -p MainPID,ActiveEnterTimestamp kubelet containerd; find /etc/systemd/system /etc/containerd /etc/sysctl.d -type f -printf '%p %T@ %i\n'`
	inUse := sh(t, state)
	mustRun(t, scripts.Install)
	same(t, inUse, sh(t, state))

	mustRun(t, scripts.Leave)
	clean(t, "after leave")
	same(t, before, world(t))
	if kept := sh(t, "cat /var/lib/kubelet/plugins/admin/file /var/lib/kubelet/mine/file"); kept != "kept\nkept" {
		t.Errorf("the admin's volumes hold %q", kept)
	}
}

// shim-spin#195, R55: a foreign Docker's containers live on, in the containerd that it shares with kubelet.
func TestAForeignDockersContainersLiveOn(t *testing.T) {
	mustRun(t, scripts.Install)
	sh(t, `
printf '[Unit]\nRequires=containerd.service\nAfter=containerd.service\n[Service]\nExecStart=/bin/sleep infinity\n' >/etc/systemd/system/docker.service
systemctl daemon-reload; systemctl start docker
ctr -n k8s.io images export /tmp/image.tar kpssh.lab/pause:1 || ctr -n k8s.io images export /tmp/image.tar "$(ctr -n k8s.io images ls -q | head -n 1)"
ctr -n moby images import /tmp/image.tar >/dev/null
ctr -n moby run -d --cgroup /docker/theirs "$(ctr -n moby images ls -q | head -n 1)" theirs`)
	t.Cleanup(func() {
		sh(t, `ctr -n moby tasks rm -f theirs; ctr -n moby containers rm theirs; systemctl stop docker containerd; rm -f /etc/systemd/system/docker.service /tmp/image.tar; systemctl daemon-reload`)
	})
	theirs := sh(t, "ctr -n moby tasks ls; systemctl show -p MainPID containerd")
	pod(t, cluster)
	mustRun(t, scripts.Join)
	running(t)
	mustRun(t, scripts.Leave)
	if now := sh(t, "ctr -n moby tasks ls; systemctl show -p MainPID containerd"); now != theirs {
		t.Errorf("before:\n%s\nafter:\n%s", theirs, now)
	}
	if tasks := sh(t, "ctr -n k8s.io tasks ls -q; pgrep -a containerd-shim | grep k8s.io || true"); tasks != "" {
		t.Errorf("of the membership there is still:\n%s", tasks)
	}
}
