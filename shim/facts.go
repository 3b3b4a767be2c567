package shim

import (
	"bufio"
	"context"
	"encoding/hex"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"golang.org/x/sys/unix"
)

// probeTime bounds each tool that a probe asks.
const probeTime = 5 * time.Second

// Facts describes the host. What cannot be found out is left zero; seen is false when that goes for whose node the host is.
// root, where files of a node are looked for, is empty but in tests.
func Facts(root string, now time.Time, bootID string) (f wire.HostFacts, seen bool) {
	f = wire.HostFacts{
		CPUs: runtime.NumCPU(), Arch: runtime.GOARCH, PageSize: os.Getpagesize(),
		MachineID: firstLine("/etc/machine-id"), BootID: bootID, OS: osName(), Clock: now.UTC(),
		Addresses: addresses(),
	}
	f.Hostname, _ = os.Hostname()
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		f.Kernel, f.KernelArch = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:])
	}
	memory := fields("/proc/meminfo")
	f.MemoryBytes, f.SwapBytes = memory["MemTotal:"]<<10, memory["SwapTotal:"]<<10
	f.DiskFreeBytes = diskFree("/var/lib")
	f.Cgroup, f.MemoryCgroup = cgroups()
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		f.UptimeSeconds = int64(info.Uptime) //nolint:unconvert // 32 bits on armhf
	}
	states := unitStates("kubelet", "containerd")
	f.KubeletState, f.ContainerdState = states["kubelet"], states["containerd"]
	return f, membershipFacts(root, &f)
}

// diskFree is nothing where a file system does not answer.
func diskFree(path string) int64 {
	free, _ := within(func() int64 {
		var disk unix.Statfs_t
		if unix.Statfs(path, &disk) != nil {
			return 0
		}
		return int64(disk.Bavail * uint64(disk.Bsize))
	})
	return free
}

func firstLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}

func osName() string {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return ""
}

// fields reads a file of lines "name number …".
func fields(path string) map[string]int64 {
	m := map[string]int64{}
	f, err := os.Open(path)
	if err != nil {
		return m
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if words := strings.Fields(s.Text()); len(words) >= 2 {
			if n, err := strconv.ParseInt(words[1], 10, 64); err == nil {
				m[words[0]] = n
			}
		}
	}
	return m
}

// addresses lists what the host answers to, without loopback and link-local.
func addresses() []string {
	trie, _ := os.ReadFile("/proc/net/fib_trie")
	six, _ := os.ReadFile("/proc/net/if_inet6")
	found := append(addresses4(string(trie)), addresses6(string(six))...)
	slices.Sort(found)
	found = slices.Compact(found)
	return found[:min(len(found), 64)]
}

// addresses4 finds the leaves of the kernel's routing trie that are addresses of this host.
func addresses4(trie string) []string {
	found := []string{}
	last := ""
	for line := range strings.Lines(trie) {
		line = strings.TrimSpace(line)
		if leaf, ok := strings.CutPrefix(line, "|-- "); ok {
			last = leaf
		} else if line == "/32 host LOCAL" {
			found = appendGlobal(found, last)
		}
	}
	return found
}

// addresses6 reads lines of "address, index, prefix length, scope, flags, device", all in hex.
func addresses6(table string) []string {
	found := []string{}
	for line := range strings.Lines(table) {
		raw, err := hex.DecodeString(strings.SplitN(line, " ", 2)[0])
		if a, ok := netip.AddrFromSlice(raw); err == nil && ok {
			found = appendGlobal(found, a.String())
		}
	}
	return found
}

func appendGlobal(found []string, address string) []string {
	if a, err := netip.ParseAddr(address); err == nil && a.IsGlobalUnicast() {
		return append(found, a.String())
	}
	return found
}

// cgroups tells how cgroups are mounted, and whether memory can be limited.
func cgroups() (version string, memory bool) {
	const cgroup2Magic = 0x63677270
	var st unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &st) != nil {
		return "", false
	}
	if st.Type == cgroup2Magic {
		data, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		return "v2", slices.Contains(strings.Fields(string(data)), "memory")
	}
	version = "v1"
	if unix.Statfs("/sys/fs/cgroup/unified", &st) == nil && st.Type == cgroup2Magic {
		version = "hybrid"
	}
	_, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes")
	return version, err == nil
}

// unitStates asks systemd for the active state of services: absent when there is no such unit.
// Where systemd does not run, a process of that name counts as active.
func unitStates(units ...string) map[string]string {
	states := map[string]string{}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		for _, u := range units {
			states[u] = processState(u)
		}
		return states
	}
	args := []string{"show", "--property=Id,LoadState,ActiveState"}
	for _, u := range units {
		args = append(args, u+".service")
		states[u] = "unknown"
	}
	out, err := tool("systemctl", args...)
	if err != nil {
		return states
	}
	for block := range strings.SplitSeq(out, "\n\n") {
		p := properties(block)
		unit, ok := strings.CutSuffix(p["Id"], ".service")
		if _, asked := states[unit]; !ok || !asked {
			continue
		}
		states[unit] = p["ActiveState"]
		if p["LoadState"] == "not-found" && p["ActiveState"] != "active" {
			states[unit] = "absent"
		}
	}
	return states
}

func properties(block string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(block) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			m[key] = value
		}
	}
	return m
}

func processState(name string) string {
	for _, p := range processes() {
		if firstLine("/proc/"+strconv.Itoa(p.pid)+"/comm") == name {
			return "active"
		}
	}
	return "absent"
}

// tool runs a program of the system with an environment of our own and returns what it prints.
func tool(name string, args ...string) (string, error) {
	return toolWithin(probeTime, name, args...)
}

func toolWithin(limit time.Duration, name string, args ...string) (string, error) {
	path, err := find(name)
	if err != nil && (name == "sudo" || name == "visudo") {
		path, err = findSudo(name)
	}
	if err != nil {
		return "", err
	}
	return runTool(limit, path, args...)
}

func runTool(limit time.Duration, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	out, err := cmd.Output()
	return string(out), err
}

// findSudo returns the first that there is of sudo and what takes its place: distributions install sudo-rs under
// its own name as well as under sudo's.
func findSudo(name string) (string, error) {
	path, err := find(name)
	if err != nil {
		if rs, rsErr := find(name + "-rs"); rsErr == nil {
			return rs, nil
		}
	}
	return path, err
}

// find looks for a program where distributions put them, never along a PATH that somebody gave us.
func find(name string) (string, error) {
	for _, d := range []string{"/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/"} {
		if st, err := os.Stat(d + name); err == nil && st.Mode().IsRegular() {
			return d + name, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}
