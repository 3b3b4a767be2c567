package dispatch

import (
	"bytes"
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// rawFacts asks for what a shim tells of itself, with no more than bash, coreutils and systemctl. It
// takes the way of the phases, so that what bars them shows in a probe.
const rawFacts = `say() { printf '%s=%s\n' "$1" "$2"; }
unit() {
  if ! command -v systemctl >/dev/null; then say "$1" unknown; return; fi
  if [ "$(systemctl show -p LoadState --value "$2" 2>/dev/null)" = not-found ]; then say "$1" absent; return; fi
  state=$(systemctl show -p ActiveState --value "$2" 2>/dev/null)
  say "$1" "${state:-unknown}"
}
say cpus "$(nproc)"
while read -r key value _; do
  case $key in MemTotal:) say memoryBytes $((value * 1024));; SwapTotal:) say swapBytes $((value * 1024));; esac
done </proc/meminfo
say kernelArch "$(uname -m)"
say kernel "$(uname -r)"
say hostname "$(uname -n)"
say pageSize "$(getconf PAGESIZE)"
say machineID "$(cat /etc/machine-id 2>/dev/null)"
say bootID "$(cat /proc/sys/kernel/random/boot_id)"
say os "$(. /etc/os-release 2>/dev/null; printf %s "$PRETTY_NAME")"
say clock "$(date +%s)"
read -r up _ </proc/uptime; say uptimeSeconds "${up%%.*}"
say diskFreeBytes "$(($(stat -f -c '%a * %S' /var/lib)))"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  say cgroup v2
  case " $(cat /sys/fs/cgroup/cgroup.controllers) " in *' memory '*) say memoryCgroup true;; esac
else
  say cgroup v1
  [ -d /sys/fs/cgroup/memory ] && say memoryCgroup true
fi
unit kubeletState kubelet.service
unit containerdState containerd.service
for address in $(hostname -I 2>/dev/null); do say address "$address"; done
` + rawMembership + rawLeftovers + `exit 0
`

// rawMembership finds what tells whose node a host is.
const rawMembership = `for file in /etc/kubernetes/manifests/kube-apiserver.y*ml /etc/kubernetes/manifests/etcd.y*ml /etc/kubernetes/admin.conf \
  /var/lib/rancher/k3s/server/tls /var/lib/rancher/rke2/server/tls /var/lib/k0s/pki/ca.key; do
  if [ -e "$file" ]; then say controlPlane true; fi
done
for file in /etc/kubernetes/kubelet.conf /etc/kubernetes/bootstrap-kubelet.conf /etc/kubernetes/kpssh/kubelet.conf /var/lib/kubelet/kubeconfig \
  /var/lib/rancher/k3s/agent/kubelet.kubeconfig /var/lib/rancher/rke2/agent/kubelet.kubeconfig /var/lib/k0s/kubelet.conf; do
  [ -f "$file" ] || continue
  head -c 65536 "$file" | grep -oE "server: *[\"']?https://[^] \"',}/]+\]?(:[0-9]+)?" | while read -r line; do say server "${line##*//}"; done
done
for file in /etc/kubernetes/kubelet.conf.d/*.conf /var/lib/kubelet/config.yaml; do
  if grep -qsE '^failSwapOn: *false' "$file"; then say tolerates swap; fi
  if grep -qsE '^failCgroupV1: *false' "$file"; then say tolerates cgroupV1; fi
done
say userland "$(od -An -tu1 -j4 -N1 /bin/bash | tr -d ' ')-$(od -An -tu1 -j18 -N1 /bin/bash | tr -d ' ')"
if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && command -v kubelet >/dev/null; then say kubeletVersion "$(kubelet --version | cut -d' ' -f2)"; fi
`

// rawLeftovers looks for what the shim calls leftovers. What a host of this mode had before a claim is not known: only
// what no host has that is nobody's node counts, and no device or configuration of CNI.
const rawLeftovers = `left() { say leftover "$1:$2"; }
for file in /var/lib/kubelet/pki/kubelet* /var/lib/kubelet/*kubeconfig /etc/kubernetes/*kubelet.conf /etc/kubernetes/kpssh/*kubelet.conf; do
  if [ -e "$file" ] || [ -L "$file" ]; then left credential "$file"; fi
done
while read -r _ _ _ _ path _; do
  case $path in
    /var/lib/kubelet/pods/????????-????-????-????-????????????/* | /run/netns/cni-* | /run/containerd/io.containerd.grpc.v1.cri/* | \
      /run/containerd/io.containerd.runtime.v2.task/k8s.io/*) left mount "$path" ;;
  esac
done </proc/self/mountinfo
for file in $(grep -ls ':/kubepods' /proc/[0-9]*/cgroup); do
  pid=${file#/proc/}
  left process "pod[${pid%/cgroup}]"
done
for file in /proc/[0-9]*/comm; do
  { read -r name <"$file"; } 2>/dev/null || continue
  pid=${file#/proc/} pid=${pid%/comm}
  [ "/proc/$pid/ns/pid" -ef /proc/self/ns/pid ] || continue
  case $name in
    kubelet) left process "kubelet[$pid]" ;;
    containerd-shim) case " $(tr '\0' ' ' <"/proc/$pid/cmdline") " in
      *' -namespace k8s.io '*' /run/containerd/containerd.sock '*) left process "containerd-shim[$pid]" ;;
    esac ;;
  esac
done
case $(systemctl is-enabled kubelet.service 2>/dev/null) in enabled*) left unit kubelet.service ;; esac
`

const rawProbeTimeout = 25 * time.Second

func (d *Dispatcher) probeRaw(ctx context.Context, host Host) (*Probe, error) {
	var out boundedBuffer
	var fingerprint, userKey string
	request := Request{Script: []byte(rawFacts), Timeout: rawProbeTimeout}
	err := d.raw(ctx, host, &request, &out, func(conn *remote.Conn) {
		fingerprint, userKey = conn.HostKeyFingerprint(), conn.UserKeyFingerprint()
	})
	if err != nil {
		return nil, err
	}
	facts := readRawFacts(out.String())
	if err := checkFacts(&facts); err != nil {
		return nil, violation("%v", err)
	}
	return &Probe{Facts: facts, HostKeyFingerprint: fingerprint, UserKeyFingerprint: userKey}, nil
}

// readRawFacts reads the lines that rawFacts prints. What is no number stays zero and is found by
// checkFacts where that is no fact.
func readRawFacts(text string) wire.HostFacts { //nolint:gocyclo // one case a fact
	f := wire.HostFacts{Leftovers: []string{}}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		number, _ := strconv.ParseInt(value, 10, 64)
		switch key {
		case "cpus":
			f.CPUs = int(number)
		case "memoryBytes":
			f.MemoryBytes = number
		case "swapBytes":
			f.SwapBytes = number
		case "diskFreeBytes":
			f.DiskFreeBytes = number
		case "pageSize":
			f.PageSize = int(number)
		case "uptimeSeconds":
			f.UptimeSeconds = number
		case "clock":
			f.Clock = time.Unix(number, 0).UTC()
		case "memoryCgroup":
			f.MemoryCgroup = value == "true"
		case "address":
			f.Addresses = append(f.Addresses, value)
		case "controlPlane":
			f.ControlPlane = value == "true"
		case "server":
			addServer(&f, value)
		case "tolerates":
			f.KubeletTolerates = append(f.KubeletTolerates, value)
		case "userland":
			f.UserlandArch = rawUserlands[value]
		case "leftover":
			if len(f.Leftovers) < maxLeftovers {
				f.Leftovers = append(f.Leftovers, value)
			}
		case "kernelArch":
			f.KernelArch, f.Arch = value, goArch(value)
		default:
			setFactText(&f, key, value)
		}
	}
	return f
}

// rawUserlands are ELF's class and machine of a shell, and Go's name for them.
var rawUserlands = map[string]string{
	"2-62": "amd64", "2-183": "arm64", "1-3": "386", "1-40": "arm", "2-243": "riscv64", "2-21": "ppc64le", "2-0": "s390x",
}

// addServer notes an API server, HOST or HOST:PORT, once.
func addServer(f *wire.HostFacts, server string) {
	server = strings.ToLower(server)
	if _, _, err := net.SplitHostPort(server); err != nil {
		server += ":443"
	}
	if len(f.Servers) < maxServers && !slices.Contains(f.Servers, server) {
		f.Servers = append(f.Servers, server)
	}
}

func setFactText(f *wire.HostFacts, key, value string) {
	fields := map[string]*string{
		"kernel": &f.Kernel, "hostname": &f.Hostname, "machineID": &f.MachineID, "bootID": &f.BootID, "os": &f.OS,
		"cgroup": &f.Cgroup, "kubeletVersion": &f.KubeletVersion, "kubeletState": &f.KubeletState, "containerdState": &f.ContainerdState,
	}
	if field := fields[key]; field != nil {
		*field = value
	}
}

// goArch is Go's name for what uname calls a machine.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	case "riscv64", "s390x", "ppc64le":
		return machine
	}
	if strings.HasPrefix(machine, "arm") {
		return "arm"
	}
	return machine
}

// boundedBuffer keeps the beginning of what is written to it.
type boundedBuffer struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if room := wire.Facts.Cap() - b.Len(); room > 0 {
		_, _ = b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
