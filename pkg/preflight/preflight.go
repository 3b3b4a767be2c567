// Package preflight holds what a probe found out about a host against what a node needs, as checks with a name. It asks
// nobody and keeps nothing: facts in, findings out. A fact that is missing fails no check. docs/preflight.md lists them.
package preflight

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// Names of the checks. SSHNodeClasses name them in ignoredPreflightChecks, whose schema lists them.
const (
	ClockSkew           = "ClockSkew"
	SwapOn              = "SwapOn"
	CgroupV1            = "CgroupV1"
	MemoryCgroupMissing = "MemoryCgroupMissing"
	ArchMismatch        = "ArchMismatch"
	NoExec              = "NoExec"
	DiskLow             = "DiskLow"
	HostnameConflict    = "HostnameConflict"
	AddressConflict     = "AddressConflict"
	NodeAddressMissing  = "NodeAddressMissing"
	// CapacityDrift only warns.
	CapacityDrift = "CapacityDrift"
)

const (
	// MaxClockSkew is how far a host's clock may be from the controller's. Certificates and tokens allow for some minutes.
	MaxClockSkew = time.Minute
	// minDisk is what /var/lib must have free, in bytes, for the images and logs of a node to begin with.
	minDisk = 2 << 30
	// allAddresses is how many addresses facts hold at most: the one that is looked for may have been left out.
	allAddresses = 64
	// cgroupV2Minor is the first minor version of a kubelet that does not start on control groups v1 unless it is told to.
	cgroupV2Minor = 35
)

// Input is what the checks go by.
type Input struct {
	Host  *v1beta1.SSHHost
	Facts wire.HostFacts
	// Now is the controller's time when the facts came.
	Now time.Time
	// ClusterVersion is the API server's, "v1.35.2", which a kubelet that is not installed yet is taken to have; it may be
	// empty.
	ClusterVersion string
	// SameHostname and SameAddress name other hosts that have the hostname, or that are dialled or advertised at the address.
	SameHostname, SameAddress []string
	// Capacity says what the host has less of than its spec states; empty when nothing.
	Capacity string
}

type check struct {
	name string
	of   func(Input) string
}

func checks() []check {
	return []check{
		{AddressConflict, addressConflict}, {ArchMismatch, archMismatch}, {CgroupV1, cgroupV1}, {ClockSkew, clockSkew},
		{DiskLow, diskLow}, {HostnameConflict, hostnameConflict}, {MemoryCgroupMissing, memoryCgroupMissing}, {NoExec, noExec},
		{NodeAddressMissing, nodeAddressMissing}, {SwapOn, swapOn},
	}
}

// Check returns what does not pass, by name.
func Check(in Input) []v1beta1.PreflightFinding {
	var out []v1beta1.PreflightFinding
	for _, check := range checks() {
		if message := check.of(in); message != "" {
			out = append(out, v1beta1.PreflightFinding{Check: check.name, Message: message})
		}
	}
	if in.Capacity != "" {
		out = append(out, v1beta1.PreflightFinding{Check: CapacityDrift, Message: in.Capacity + "; mend spec.capacity", Advisory: true})
	}
	return out
}

// Skew says how far a clock is from ours and what to do about it; empty while that is within MaxClockSkew.
func Skew(clock, now time.Time) string {
	skew := clock.Sub(now)
	if skew.Abs() <= MaxClockSkew {
		return ""
	}
	way := "ahead of"
	if skew < 0 {
		way = "behind"
	}
	return fmt.Sprintf("the host's clock is %.0f s %s the controller's, at most %.0f s will do: let chrony or systemd-timesyncd set it",
		skew.Abs().Seconds(), way, MaxClockSkew.Seconds())
}

func clockSkew(in Input) string {
	if in.Facts.Clock.IsZero() {
		return ""
	}
	return Skew(in.Facts.Clock, in.Now)
}

func swapOn(in Input) string {
	if in.Facts.SwapBytes <= 0 || slices.Contains(in.Facts.KubeletTolerates, wire.TolerateSwap) {
		return ""
	}
	return fmt.Sprintf("the host has %d MiB of swap (zram counts), with which a kubelet does not start: turn it off (swapoff -a, and /etc/fstab or the "+
		"zram unit), or have the shipped profile do so or allow it (its var swap) and ignore this check", in.Facts.SwapBytes>>20)
}

func cgroupV1(in Input) string {
	if in.Facts.Cgroup != "v1" && in.Facts.Cgroup != "hybrid" || slices.Contains(in.Facts.KubeletTolerates, wire.TolerateCgroupV1) {
		return ""
	}
	version := in.Facts.KubeletVersion
	if version == "" {
		version = in.ClusterVersion
	}
	if minor, ok := minorOf(version); !ok || minor < cgroupV2Minor {
		return ""
	}
	return fmt.Sprintf("the host has control groups %s, on which kubelet %s does not start: boot with systemd.unified_cgroup_hierarchy=1, or tell the "+
		"kubelet to run there (fail_cgroup_v1 of the shipped profile) and ignore this check", in.Facts.Cgroup, version)
}

// minorOf is the minor version of "v1.35.2".
func minorOf(version string) (int, bool) {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 2 || parts[0] != "1" {
		return 0, false
	}
	minor, err := strconv.Atoi(strings.TrimRight(parts[1], "+"))
	return minor, err == nil
}

func memoryCgroupMissing(in Input) string {
	if in.Facts.Cgroup == "" || in.Facts.MemoryCgroup {
		return ""
	}
	return "the kernel does not limit memory by control group: add \"cgroup_enable=memory cgroup_memory=1\" to the one line of " +
		"/boot/firmware/cmdline.txt (/boot/cmdline.txt on older images) and reboot"
}

// kernelArches are Go's names for what uname calls a machine.
var kernelArches = map[string]string{
	"x86_64": "amd64", "i686": "386", "i586": "386", "aarch64": "arm64", "armv7l": "arm", "armv6l": "arm", "riscv64": "riscv64",
	"s390x": "s390x", "ppc64le": "ppc64le",
}

func archMismatch(in Input) string {
	kernel, userland := kernelArches[in.Facts.KernelArch], in.Facts.UserlandArch
	if kernel == "" || userland == "" || kernel == userland {
		return ""
	}
	return fmt.Sprintf("the kernel is %s and the userland %s: images and binaries of neither run for sure; install a system of one architecture", kernel, userland)
}

func noExec(in Input) string {
	if len(in.Facts.NoExec) == 0 {
		return ""
	}
	return fmt.Sprintf("programs cannot be run from %s, whose file system is mounted noexec, or does not answer: mount it without, or mend its server", strings.Join(in.Facts.NoExec, ", "))
}

func diskLow(in Input) string {
	if free := in.Facts.DiskFreeBytes; free <= 0 || free >= minDisk {
		return ""
	}
	return fmt.Sprintf("/var/lib has %d MiB free, and a node needs %d to begin with: make room", in.Facts.DiskFreeBytes>>20, minDisk>>20)
}

func hostnameConflict(in Input) string {
	if in.Facts.Hostname == "" || len(in.SameHostname) == 0 {
		return ""
	}
	return fmt.Sprintf("the hostname %q is also that of %s: give each a name of its own (hostnamectl set-hostname)", in.Facts.Hostname, others(in.SameHostname))
}

func addressConflict(in Input) string {
	if len(in.SameAddress) == 0 {
		return ""
	}
	return fmt.Sprintf("spec.address or the address of the node, %s, is also that of %s: two nodes cannot share one; set spec.nodeAddress",
		in.Host.AdvertisedAddress(), others(in.SameAddress))
}

func nodeAddressMissing(in Input) string {
	want, err := netip.ParseAddr(in.Host.AdvertisedAddress())
	if err != nil || want.IsLoopback() || len(in.Facts.Addresses) == 0 || len(in.Facts.Addresses) >= allAddresses {
		return ""
	}
	has := func(address string) bool {
		ip, err := netip.ParseAddr(address)
		return err == nil && ip.Unmap() == want.Unmap()
	}
	if slices.ContainsFunc(in.Facts.Addresses, has) {
		return ""
	}
	return fmt.Sprintf("%s is not an address of the host, which has %s, and a kubelet does not start with it: set spec.nodeAddress to one of them", want,
		others(in.Facts.Addresses))
}

// others joins a few of the names.
func others(names []string) string {
	const most = 3
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
