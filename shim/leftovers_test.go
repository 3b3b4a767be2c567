package shim

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// probe asks for the leftovers as a controller does, without the processes of the machine that the test runs on.
func (w *world) probe() []string {
	w.t.Helper()
	c := w.connect()
	c.write(wire.Probe, nil)
	kind, payload, err := c.r.Next()
	_ = c.end()
	var f wire.HostFacts
	if err == nil {
		err = json.Unmarshal(payload, &f)
	}
	if err != nil || kind != wire.Facts {
		w.t.Fatalf("%s frame, %v", kind, err)
	}
	for _, l := range f.Leftovers {
		if kind, _, _ := strings.Cut(l, ":"); !slices.Contains(wire.LeftoverKinds, kind) {
			w.t.Errorf("%q is of no known kind", l)
		}
	}
	if f.Leftovers == nil {
		return nil
	}
	return append([]string{}, slices.DeleteFunc(f.Leftovers, func(l string) bool { return strings.HasPrefix(l, "process:") })...)
}

// withRoot gives the host a file system of its own.
func (w *world) withRoot() {
	w.cfg.root = tempDir(w.t)
	w.mount("/")
}

func (w *world) put(path string) {
	w.t.Helper()
	path = w.cfg.root + path
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// mount makes the table of mounts.
func (w *world) mount(paths ...string) {
	w.t.Helper()
	w.put("/proc/self/mountinfo")
	var table strings.Builder
	for i, path := range paths {
		fmt.Fprintf(&table, "%d 1 0:1 / %s rw - tmpfs t rw\n", i+2, path)
	}
	if err := os.WriteFile(w.cfg.root+"/proc/self/mountinfo", []byte(table.String()), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) expect(when string, want ...string) {
	w.t.Helper()
	if got := w.probe(); !slices.Equal(got, want) || (got == nil) != (want == nil) {
		w.t.Errorf("%s: %#v, want %#v", when, got, want)
	}
}

// kubernetes#69973, R44; kube-router#496, R45; kubeadm#2247, R54; k0smotron#1596, R58: what a host brought is no
// leftover, what came with a claim is one until it is gone.
func TestLeftoversAreWhatCameWithAClaim(t *testing.T) {
	const mine = "/var/lib/kubelet/plugins/admin"
	w := newWorld(t, "join: "+noop, "leave: "+noop)
	w.withRoot()
	w.put("/etc/cni/net.d/10-mine.conflist")
	w.put("/sys/class/net/cilium_mine/address")
	w.put("/etc/systemd/system/multi-user.target.wants/containerd.service")
	w.expect("a host that nobody ever claimed", []string{}...)

	w.mount("/", mine)
	w.expect("a host with a mount of its admin's", []string{}...)
	const pods = "/var/lib/kubelet/pods/0d7c3ab2-0000-4000-8000-000000000001/volumes/v"
	w.mount("/", mine, pods)
	w.expect("a host of which nothing is known but that no admin makes such paths", "mount:"+pods)
	w.mount("/", mine)
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	w.put("/etc/cni/net.d/05-theirs.conflist")
	w.put("/sys/class/net/cni0/address")
	w.put("/sys/class/net/calif0123456789/address")
	w.put("/sys/class/net/lxdbr0/address")
	w.put("/var/lib/kubelet/pki/kubelet-client-current.pem")
	w.put("/etc/kubernetes/kpssh/bootstrap-kubelet.conf")
	w.put("/etc/systemd/system/multi-user.target.wants/kubelet.service")
	w.mount("/", "/var/lib/kubelet", mine, `/var/lib/kubelet/pods/a/v\040w`, "/run/netns/cni-1")
	w.expect("a host that is claimed", nil...)

	w.mustRun(signing.PhaseLeave, noop, "uid-1", 1)
	dirty := []string{
		"cni:/etc/cni/net.d/05-theirs.conflist",
		"credential:/etc/kubernetes/kpssh/bootstrap-kubelet.conf", "credential:/var/lib/kubelet/pki/kubelet-client-current.pem",
		"device:calif0123456789", "device:cni0",
		"mount:/run/netns/cni-1", `mount:/var/lib/kubelet/pods/a/v\040w`, "unit:kubelet.service",
	}
	w.expect("a host that was not cleaned", dirty...)
	w.expect("a host that was looked at before", dirty...)
	// A claim that is taken all the same does not make them the host's own.
	w.mustRun(signing.PhaseJoin, noop, "uid-2", 2)
	w.mustRun(signing.PhaseLeave, noop, "uid-2", 2)
	w.expect("a host that was claimed while it was dirty", dirty...)

	for _, path := range []string{
		"/etc/cni/net.d/05-theirs.conflist", "/sys/class/net/cni0", "/sys/class/net/calif0123456789", "/var/lib/kubelet",
		"/etc/kubernetes", "/etc/systemd/system/multi-user.target.wants/kubelet.service",
	} {
		if err := os.RemoveAll(w.cfg.root + path); err != nil {
			t.Fatal(err)
		}
	}
	w.mount("/", "/var/lib/kubelet", mine)
	w.expect("a host that was cleaned", []string{}...)
	w.expect("a host that was found clean before", []string{}...)
	w.put("/etc/cni/net.d/87-podman.conflist")
	w.expect("a host that its admin worked on after it was clean", []string{}...)
	w.put("/etc/kubernetes/kubelet.conf")
	w.expect("a host that its admin made a node of", "credential:/etc/kubernetes/kubelet.conf")
}

// kubeadm#2980, R53: a file system whose server is gone keeps a look from ending, and not a probe.
func TestALookThatHangsIsALeftover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withRoot()
	if err := os.Remove(w.cfg.root + "/proc/self/mountinfo"); err != nil {
		t.Fatal(err)
	}
	// Opening it waits for a writer, as a stat waits for a server.
	if err := unix.Mkfifo(w.cfg.root+"/proc/self/mountinfo", 0o600); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	w.expect("a host that hangs", unseen)
	if took := time.Since(begin); took > 3*lookTime {
		t.Errorf("the probe took %s", took)
	}
	writer, err := os.OpenFile(w.cfg.root+"/proc/self/mountinfo", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
}

func TestManyLeftoversAreCounted(t *testing.T) {
	w := newWorld(t)
	w.withRoot()
	paths := []string{"/"}
	for i := range 40 {
		paths = append(paths, fmt.Sprintf("/var/lib/kubelet/pods/0d7c3ab2-0000-4000-8000-0000000000%02d/%s", i, strings.Repeat("x", 300)))
	}
	w.mount(paths...)
	got := w.probe()
	if len(got) != maxLeftovers || got[maxLeftovers-1] != "unknown:9 more" || len(got[0]) != maxLeftover {
		t.Errorf("%d: %q", len(got), got)
	}
}

// A host that brings more than the state file has room for is looked at as one of which nothing is known.
func TestAHostThatBringsMuch(t *testing.T) {
	w := newWorld(t, "join: "+noop, "leave: "+noop)
	w.withRoot()
	for i := range 100 {
		w.put(fmt.Sprintf("/etc/cni/net.d/%03d-a-name-of-some-length.conflist", i))
	}
	w.mustRun(signing.PhaseJoin, noop, "uid-1", 1)
	w.mustRun(signing.PhaseLeave, noop, "uid-1", 1)
	w.expect("a host with a hundred files", []string{}...)
}

// k3s#1590, R55: containerd's shims outlive it. What Docker runs, or another Kubernetes, is none of ours. Nor is the
// kubelet that a probe asks for its version: on a busy machine two probes met, the one parked the host for the other's,
// and the zombie guard ran leave on it (test/faults).
func TestProcessesThatOutliveAMembership(t *testing.T) {
	run := func(name string, args ...string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho\nread -r _\n"), 0o700); err != nil { //nolint:gosec // is run
			t.Fatal(err)
		}
		cmd := exec.Command(path, args...)
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = in.Close()
			_ = cmd.Wait()
		})
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // it has its name by now
			t.Fatal(err)
		}
		return fmt.Sprintf("[%d]", cmd.Process.Pid)
	}
	const socket = "/run/containerd/containerd.sock"
	found := map[string]string{
		"process:containerd-shim" + run("containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "a", "-address", socket):    "",
		"process:containerd-shim" + run("containerd-shim-runc-v2", "-namespace", "moby", "-id", "a", "-address", socket):      "Docker's",
		"process:containerd-shim" + run("containerd-shim-runc-v2", "-namespace", "k8s.io", "-address", "/run/k3s/containerd"): "another Kubernetes'",
		"process:kubelet" + run("kubelet"):              "",
		"process:kubelet" + run("kubelet", "--version"): "a probe's",
	}
	got := remains(t.TempDir())
	for l, whose := range found {
		if slices.Contains(got, l) != (whose == "") {
			t.Errorf("%q, which is %q, among %q", l, whose, got)
		}
	}
}
