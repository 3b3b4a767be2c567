package dispatch

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// FuzzFacts reads what a host says of itself, which nobody signs: whatever is accepted lies within the
// schema, has no control character, and comes out as it went in when it is read again.
func FuzzFacts(f *testing.F) {
	good, err := json.Marshal(wire.HostFacts{
		CPUs: 4, MemoryBytes: 8 << 30, SwapBytes: 1, DiskFreeBytes: 20 << 30, PageSize: 4096, Arch: "arm64", KernelArch: "aarch64",
		KubeletState: "inactive", ContainerdState: "active", Cgroup: "v2", MemoryCgroup: true, Hostname: "pi-3",
		MachineID: "0123456789abcdef0123456789abcdef", BootID: "5b3f6f0e-0000-4000-8000-000000000002",
		OS: "Debian GNU/Linux 12 (bookworm)", Kernel: "6.1.0-rpi7", Addresses: []string{"10.0.0.11", "2001:db8::11"},
		Clock: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), UptimeSeconds: 3600,
		UserlandArch: "arm64", KubeletVersion: "v1.34.2+k3s1", ControlPlane: true, Servers: []string{"10.0.0.100:6443", "[fd00::1]:443"}, NoExec: []string{"/opt/cni/bin"},
		Leftovers: []string{"mount:/var/lib/kubelet/pods/a", "process:pause[7]"},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"cpus":1,"hostname":"\u001b]0;pwned\u0007","os":"\u202e","addresses":["$(id)"]}`))
	f.Add([]byte(`{"cpus":1,"leftovers":["mount:\u001b[2J","cni:` + strings.Repeat("x", 300) + `"]}`))
	f.Add([]byte(`{"cpus":1,"leftovers":["$(id)"]}`))
	f.Add([]byte(`{"cpus":-1}`))
	f.Add([]byte(`{"cpus":1e99,"memoryBytes":9007199254740993}`))
	f.Add([]byte(`{"CPUS":2,"cpus":1,"unknown":{"a":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, err := parseFacts(data)
		if err != nil {
			return
		}
		for _, text := range append(slices.Concat(facts.Leftovers, facts.Servers, facts.NoExec), facts.UserlandArch, facts.KubeletVersion,
			facts.Arch, facts.KernelArch, facts.KubeletState, facts.ContainerdState, facts.Cgroup, facts.Hostname, facts.MachineID,
			facts.BootID, facts.OS, facts.Kernel,
		) {
			for _, r := range text {
				if unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) {
					t.Fatalf("accepted %q", text)
				}
			}
		}
		for _, a := range facts.Addresses {
			if _, err := netip.ParseAddr(a); err != nil {
				t.Fatalf("accepted address %q", a)
			}
		}
		again, err := json.Marshal(facts)
		if err != nil {
			return // a year that JSON has no form for
		}
		if _, err := parseFacts(again); err != nil {
			t.Fatalf("accepted %q, and then not %q: %v", data, again, err)
		}
	})
}
