package shim

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	// lookTime bounds each search of what may be mounted, as for leftovers and for what a host brings: a file system whose
	// server is gone must not keep a probe from answering.
	lookTime = 3 * time.Second
	// maxLeftovers is how many a probe names, in maxLeftover bytes each at most.
	maxLeftovers, maxLeftover = 32, 256
)

// unseen stands for all that a search which did not end in time would have found.
const unseen = "unknown:the search took too long"

// trace is what memberships leave in files: its kind, and a pattern of paths.
type trace struct{ kind, pattern string }

// A host may have these of its own: they count when they were not there before the claim.
var movable = []trace{
	{"cni", "/etc/cni/net.d/*"},
	{"device", "/sys/class/net/cni0"},
	{"device", "/sys/class/net/flannel*"},
	{"device", "/sys/class/net/cilium_*"},
	{"device", "/sys/class/net/cali???????????"},
	{"device", "/sys/class/net/vxlan*.calico"},
	{"device", "/sys/class/net/kube-ipvs0"},
	{"device", "/sys/class/net/nodelocaldns"},
	{"unit", "/etc/systemd/system/*.wants/containerd.service"},
}

// These make a kubelet run, or let it in: no host has them that is nobody's node.
var certain = []trace{
	{"credential", "/var/lib/kubelet/pki/kubelet*"},
	{"credential", "/var/lib/kubelet/*kubeconfig"},
	{"credential", "/etc/kubernetes/*kubelet.conf"},
	{"credential", "/etc/kubernetes/kpssh/*kubelet.conf"},
	{"unit", "/etc/systemd/system/*.wants/kubelet.service"},
}

// podMounts is how the paths of mounts begin that kubelet, containerd for kubelet, and CNI make. An admin may have
// mounts of his own below the first two.
var podMounts = []string{
	"/var/lib/kubelet/pods/", "/var/lib/kubelet/plugins/", "/run/netns/cni-",
	"/run/containerd/io.containerd.grpc.v1.cri/", "/run/containerd/io.containerd.runtime.v2.task/k8s.io/",
}

// podUID is the pattern of the directory that kubelet makes for a pod.
const podUID = "/var/lib/kubelet/pods/????????-????-????-????-????????????"

// leftovers names what is on the host of a membership that is over, as "kind:detail"; nil while the host is claimed,
// or a script runs. When there is nothing, what the host brought need not be known any longer.
func (h *Host) leftovers() []string {
	rec, err := h.runState()
	if err != nil || rec.Claim.UID != "" || rec.Run != nil && rec.Run.State == signing.RunStarted {
		return nil
	}
	found, ended := within(func() []string { return append(remains(h.cfg.root), mounts(h.cfg.root, rec.Baseline == nil)...) })
	if ended && rec.Baseline != nil {
		var own []string
		own, ended = within(func() []string { return traces(h.cfg.root, movable) })
		found = append(found, own...)
	}
	if !ended {
		return []string{unseen}
	}
	slices.Sort(found)
	found = slices.DeleteFunc(slices.Compact(found), func(l string) bool { return slices.Contains(rec.Baseline, l) })
	for i, l := range found {
		found[i] = l[:min(len(l), maxLeftover)]
	}
	switch {
	case len(found) == 0 && rec.Baseline != nil:
		h.forgetBaseline(rec.Claim)
	case len(found) > maxLeftovers:
		found = append(found[:maxLeftovers-1], "unknown:"+strconv.Itoa(len(found)-maxLeftovers+1)+" more")
	}
	return append([]string{}, found...)
}

// within gives up on a search that hangs. What hangs ends with the process.
func within[T any](search func() T) (found T, ended bool) {
	result := make(chan T, 1)
	go func() { result <- search() }()
	select {
	case found = <-result:
		return found, true
	case <-time.After(lookTime):
		return found, false
	}
}

// traces finds files by their patterns below root, which is empty but in tests.
func traces(root string, of []trace) (found []string) {
	for _, t := range of {
		paths, _ := filepath.Glob(root + t.pattern)
		for _, path := range paths {
			path = path[len(root):]
			if t.kind == "unit" || t.kind == "device" {
				path = filepath.Base(path)
			}
			found = append(found, t.kind+":"+path)
		}
	}
	return found
}

// mounts reads paths as the kernel escapes them, and touches none of them. With sure it leaves out those that may be
// an admin's.
func mounts(root string, sure bool) (found []string) {
	table, _ := os.ReadFile(root + "/proc/self/mountinfo")
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		i := slices.IndexFunc(podMounts, func(p string) bool { return strings.HasPrefix(f[4], p) })
		if i >= 2 || i >= 0 && (!sure || ofPod(f[4])) {
			found = append(found, "mount:"+f[4])
		}
	}
	return found
}

func ofPod(path string) bool {
	ok, _ := filepath.Match(podUID, path[:min(len(path), len(podUID))])
	return ok
}

// remains finds credentials, units that a boot would start, and processes of pods, containerd and kubelet. Those of a
// container that somebody else runs, as kind does, are not the host's.
func remains(root string) []string {
	found := traces(root, certain)
	self, _ := os.Readlink("/proc/self/ns/pid")
	for _, p := range processes() {
		dir := "/proc/" + strconv.Itoa(p.pid)
		group, _ := os.ReadFile(dir + "/cgroup")
		// Not the command line, but of few: reading it waits for a process that hangs.
		name := firstLine(dir + "/comm")
		ours := strings.Contains(string(group), ":/kubepods")
		if name == "kubelet" || name == "containerd-shim" {
			space, _ := os.Readlink(dir + "/ns/pid")
			args, _ := os.ReadFile(dir + "/cmdline")
			ours = ours || space == self && (name == "kubelet" && !asked(string(args)) || kubernetesShim(string(args)))
		}
		if ours && !p.dead {
			found = append(found, "process:"+name+"["+strconv.Itoa(p.pid)+"]")
		}
	}
	return found
}

// asked tells whether the arguments of a kubelet have it say its version and end, which another probe has it do.
func asked(args string) bool { return strings.HasSuffix(args, "\x00--version\x00") }

// kubernetesShim tells whether the arguments of a shim are those of Kubernetes' containers in the system's containerd;
// Docker's are in another namespace, and other distributions of Kubernetes have another socket.
func kubernetesShim(args string) bool {
	return strings.Contains(args, "\x00-namespace\x00k8s.io\x00") && strings.Contains(args, "\x00/run/containerd/containerd.sock\x00")
}
