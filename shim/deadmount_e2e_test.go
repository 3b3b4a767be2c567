//go:build e2e

package shim

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// deadMount mounts a file system whose server never answers, as of an NFS server that is gone.
func deadMount(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("opening FUSE: %v", err)
	}
	if err := unix.Mount("dead", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server)); err != nil {
		_ = unix.Close(server)
		t.Fatalf("mounting %s: %v", path, err)
	}
	t.Cleanup(func() {
		_ = unix.Close(server) // which ends what hangs
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Errorf("%s stays mounted: %v", path, err)
		}
	})
}

// kubeadm#2980, R53: what a probe asks of a mount whose server is gone must not keep it from answering, whatever the
// question. A review found the question whether programs may be run there, and that for free space.
func TestAMountThatIsDeadDoesNotHoldUpAProbe(t *testing.T) {
	t.Parallel()
	for _, dead := range []string{"/var/lib/kubelet", "/opt/cni/bin", "/usr/local/bin", "/etc/kubernetes"} {
		t.Run(dead, func(t *testing.T) {
			t.Parallel()
			root := hostTree(t, map[string]string{"/bin/bash": "", "/var/lib/containerd/x": ""})
			deadMount(t, root+dead)
			type answer struct {
				facts wire.HostFacts
				seen  bool
				free  int64
			}
			answered := make(chan answer, 1)
			go func() {
				a := answer{facts: wire.HostFacts{Cgroup: "v1"}}
				a.seen = membershipFacts(root, &a.facts)
				a.free = diskFree(root + dead)
				answered <- a
			}()
			select {
			case got := <-answered:
				noExec, unseen := slices.Contains(execDirs, dead), strings.HasPrefix(dead, "/etc") || dead == "/var/lib/kubelet"
				if slices.Contains(got.facts.NoExec, dead) != noExec || slices.Contains(got.facts.NoExec, "/var/lib/containerd") || got.seen == unseen || got.free != 0 {
					t.Errorf("%+v, seen %t, %d bytes free", got.facts, got.seen, got.free)
				}
			case <-time.After(6 * lookTime):
				t.Fatal("no answer")
			}
		})
	}
}

// Whose node a host is can be read in files that do not answer: such a host is not taken for nobody's.
func TestAHostThatCannotBeAskedWhoseNodeItIsIsNotClean(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withRoot()
	w.expect("a host that answers", []string{}...)
	deadMount(t, w.cfg.root+"/var/lib/rancher")
	w.expect("a host whose files of a control plane do not", unseen)
}
