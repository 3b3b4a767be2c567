package shim

import (
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
)

func TestFactsOfThisHost(t *testing.T) {
	now := time.Now()
	f, seen := Facts("", now, "boot")
	if !seen || f.CPUs != runtime.NumCPU() || f.MemoryBytes < 1<<20 || f.PageSize != os.Getpagesize() || f.Arch != runtime.GOARCH ||
		f.KernelArch == "" || f.Kernel == "" || f.Hostname == "" || f.UptimeSeconds < 1 || f.BootID != "boot" || !f.Clock.Equal(now) {
		t.Errorf("%+v", f)
	}
	if f.KubeletState == "" || f.ContainerdState == "" {
		t.Errorf("no state of units: %+v", f)
	}
}

func TestAddressesOfTheKernel(t *testing.T) {
	const trie = `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 10.20.0.7
        /32 host LOCAL
     |-- 10.20.0.255
        /32 link BROADCAST
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 169.254.1.1
        /32 host LOCAL
     |-- 192.168.1.9
        /32 host LOCAL
`
	const six = `fe8000000000000000fc00fffe000001 04 40 20 80     eth0
fd000000000000000000000000000002 04 40 00 82     eth0
00000000000000000000000000000001 01 80 10 80       lo
nonsense
`
	if got, want := addresses4(trie), []string{"10.20.0.7", "192.168.1.9"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := addresses6(six), []string{"fd00::2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
