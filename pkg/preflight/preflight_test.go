package preflight_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/preflight"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// healthy is a host that passes.
func healthy() preflight.Input {
	return preflight.Input{
		Host: &v1beta1.SSHHost{Spec: v1beta1.SSHHostSpec{Address: "10.0.0.1"}}, Now: now, ClusterVersion: "v1.35.4",
		Facts: wire.HostFacts{
			Clock: now.Add(2 * time.Second), Cgroup: "v2", MemoryCgroup: true, KernelArch: "aarch64", UserlandArch: "arm64", Hostname: "pi-1",
			DiskFreeBytes: 20 << 30, Addresses: []string{"10.0.0.1", "fd00::1"},
		},
	}
}

func TestChecks(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*preflight.Input)
		check  string // empty: none fails
		says   []string
	}{
		"a healthy host": {func(*preflight.Input) {}, "", nil},
		"an older shim, or a host that says little": {func(in *preflight.Input) { in.Facts = wire.HostFacts{CPUs: 1} }, "", nil},
		"a clock that is behind (kubeadm#240, R34)": {func(in *preflight.Input) { in.Facts.Clock = now.Add(-90 * time.Second) },
			preflight.ClockSkew, []string{"90 s behind", "chrony"}},
		"a clock that is ahead":                      {func(in *preflight.Input) { in.Facts.Clock = now.Add(time.Hour) }, preflight.ClockSkew, []string{"3600 s ahead"}},
		"a board without a clock":                    {func(in *preflight.Input) { in.Facts.Clock = time.Unix(100, 0) }, preflight.ClockSkew, []string{"behind"}},
		"swap, zram too (karpenter-aws#4629, R47)":   {func(in *preflight.Input) { in.Facts.SwapBytes = 512 << 20 }, preflight.SwapOn, []string{"512 MiB", "swapoff"}},
		"swap that the host's kubelet may have":      {func(in *preflight.Input) { in.Facts.SwapBytes, in.Facts.KubeletTolerates = 1, []string{"swap"} }, "", nil},
		"control groups v1 and a new cluster":        {func(in *preflight.Input) { in.Facts.Cgroup = "v1" }, preflight.CgroupV1, []string{"v1.35.4", "unified_cgroup_hierarchy"}},
		"hybrid control groups and a new kubelet":    {func(in *preflight.Input) { in.Facts.Cgroup, in.Facts.KubeletVersion = "hybrid", "v1.36.0" }, preflight.CgroupV1, []string{"v1.36.0"}},
		"control groups v1 and an older kubelet":     {func(in *preflight.Input) { in.Facts.Cgroup, in.Facts.KubeletVersion = "v1", "v1.34.9" }, "", nil},
		"control groups v1 of nobody knows what":     {func(in *preflight.Input) { in.Facts.Cgroup, in.ClusterVersion = "v1", "" }, "", nil},
		"control groups v1 that the kubelet accepts": {func(in *preflight.Input) { in.Facts.Cgroup, in.Facts.KubeletTolerates = "v1", []string{"cgroupV1"} }, "", nil},
		"no memory control group (k3s#10755, raspberrypi/linux#5933, R85)": {func(in *preflight.Input) { in.Facts.MemoryCgroup = false },
			preflight.MemoryCgroupMissing, []string{"cgroup_enable=memory", "/boot/firmware/cmdline.txt", "/boot/cmdline.txt", "one line"}},
		"a kernel of 64 bits under a userland of 32": {func(in *preflight.Input) { in.Facts.UserlandArch = "arm" }, preflight.ArchMismatch, []string{"arm64", "userland arm:"}},
		"a kernel of 32 bits":                        {func(in *preflight.Input) { in.Facts.KernelArch, in.Facts.UserlandArch = "armv7l", "arm" }, "", nil},
		"noexec where it matters":                    {func(in *preflight.Input) { in.Facts.NoExec = []string{"/var/lib/containerd"} }, preflight.NoExec, []string{"/var/lib/containerd", "noexec"}},
		"a disk that is nearly full":                 {func(in *preflight.Input) { in.Facts.DiskFreeBytes = 300 << 20 }, preflight.DiskLow, []string{"300 MiB", "2048"}},
		"another host of the hostname":               {func(in *preflight.Input) { in.SameHostname = []string{"host-b"} }, preflight.HostnameConflict, []string{`"pi-1"`, "host-b", "hostnamectl"}},
		"another host of the address":                {func(in *preflight.Input) { in.SameAddress = []string{"host-b"} }, preflight.AddressConflict, []string{"10.0.0.1", "host-b", "spec.nodeAddress"}},
		"an address that the host does not have (kubernetes#44702, R37)": {func(in *preflight.Input) { in.Host.Spec.NodeAddress = "192.0.2.9" },
			preflight.NodeAddressMissing, []string{"192.0.2.9", "10.0.0.1, fd00::1", "spec.nodeAddress"}},
		"an address in another spelling": {func(in *preflight.Input) { in.Host.Spec.NodeAddress = "fd00:0::1" }, "", nil},
		"a host by a DNS name":           {func(in *preflight.Input) { in.Host.Spec.Address = "pi.example" }, "", nil},
		"less capacity than is stated":   {func(in *preflight.Input) { in.Capacity = "cpu 2 of 4" }, preflight.CapacityDrift, []string{"cpu 2 of 4", "spec.capacity"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := healthy()
			tt.change(&in)
			found := preflight.Check(in)
			if tt.check == "" {
				if len(found) > 0 {
					t.Errorf("found %+v", found)
				}
				return
			}
			if len(found) != 1 || found[0].Check != tt.check || found[0].Advisory != (tt.check == preflight.CapacityDrift) {
				t.Fatalf("found %+v", found)
			}
			for _, text := range tt.says {
				if !strings.Contains(found[0].Message, text) {
					t.Errorf("%q is not in %q", text, found[0].Message)
				}
			}
		})
	}
}

func TestFindingsFitIntoAStatusAndAreSorted(t *testing.T) {
	in := healthy()
	in.Facts.SwapBytes, in.Facts.MemoryCgroup, in.Facts.DiskFreeBytes = 1, false, 1
	for range 64 {
		in.SameHostname = append(in.SameHostname, strings.Repeat("h", 200))
	}
	found := preflight.Check(in)
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = f.Check
		if len(f.Message) > 1100 {
			t.Errorf("%s: %d bytes", f.Check, len(f.Message))
		}
	}
	if len(found) != 4 || !slices.IsSorted(names) {
		t.Errorf("found %q", names)
	}
}
