//go:build e2e

package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/images"
)

// envOwner makes the test binary the owner of a lab that a test kills.
const envOwner = "KPSSH_LAB_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(envOwner) != "" {
		own()
	}
	os.Exit(m.Run())
}

// own starts a lab, says so, and waits to be killed.
func own() {
	ctx := context.Background()
	l, err := lab.Start(ctx, lab.Options{})
	if err == nil {
		_, err = l.AddHost(ctx, lab.HostOptions{Name: "host-a"})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.ID())
	select {}
}

func start(t *testing.T, opts lab.Options) *lab.Lab {
	t.Helper()
	opts.Log = t.Logf
	l, err := lab.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		assertNothingLeft(t, l.ID())
	})
	return l
}

func addHost(t *testing.T, l *lab.Lab) *lab.Host {
	t.Helper()
	h, err := l.AddHost(t.Context(), lab.HostOptions{Name: "host-a"})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func execute(t *testing.T, h *lab.Host, command ...string) string {
	t.Helper()
	out, err := h.Exec(t.Context(), command...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func bootID(t *testing.T, h *lab.Host) string {
	t.Helper()
	id, err := h.BootID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// leftovers are all traces of a lab on this machine.
func leftovers(t *testing.T, id string) []string {
	t.Helper()
	var found []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(mounts)) {
		if strings.Contains(l, id) {
			found = append(found, "mount "+strings.TrimSpace(l))
		}
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range commands {
		if command, err := os.ReadFile(path); err == nil && strings.Contains(string(command), id) {
			found = append(found, "process "+strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	for _, root := range []string{"/sys/fs/cgroup", "/run/netns", "/run/systemd/nspawn", "/run/kpssh-lab", "/var/lib/kpssh-lab"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.Contains(filepath.Base(path), id) {
				found = append(found, path)
			}
			return nil // others' things come and go beside us
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func assertNothingLeft(t *testing.T, id string) {
	t.Helper()
	for _, trace := range leftovers(t, id) {
		t.Errorf("left behind: %s", trace)
	}
}

func TestAHostIsARealMachine(t *testing.T) {
	l := start(t, lab.Options{})
	h := addHost(t, l)
	if len(leftovers(t, l.ID())) == 0 {
		t.Fatal("a running lab leaves no trace, so looking for traces proves nothing")
	}

	if got := execute(t, h, "hostname"); got != "host-a" {
		t.Errorf("it is called %q", got)
	}
	if got := execute(t, h, "systemctl", "is-system-running"); got != "running" {
		t.Errorf("it is %q: %s", got, execute(t, h, "systemctl", "--failed"))
	}
	machineID := execute(t, h, "cat", "/etc/machine-id")
	if got := execute(t, h, "kubelet", "--version"); !strings.HasPrefix(got, "Kubernetes v") {
		t.Errorf("kubelet says %q", got)
	}
	for _, unit := range []string{"containerd", "kubelet"} {
		out, err := h.Exec(t.Context(), "systemctl", "is-active", unit)
		if exit := new(ssh.ExitError); !errors.As(err, &exit) || strings.TrimSpace(out) != "inactive" {
			t.Errorf("%s is %q, %v", unit, out, err)
		}
	}

	t.Run("containers run", func(t *testing.T) {
		execute(t, h, "systemctl", "start", "containerd")
		execute(t, h, "ctr", "-n", "k8s.io", "run", "--detach", lab.SandboxImage, "x")
		if got := execute(t, h, "ctr", "-n", "k8s.io", "tasks", "list"); !strings.Contains(got, "RUNNING") {
			t.Errorf("tasks: %s", got)
		}
		execute(t, h, "ctr", "-n", "k8s.io", "tasks", "kill", "x")
	})
	t.Run("another process can give it an image", func(t *testing.T) {
		const ref = "registry.test/x:1"
		image, err := images.Archive(ref, runtime.GOARCH, "x", []byte("program"))
		if err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(t.TempDir(), "image.tar")
		if err := os.WriteFile(archive, image, 0o600); err != nil {
			t.Fatal(err)
		}
		load := exec.CommandContext(t.Context(), "go", "run", "./cmd/kpssh-lab", "image-load", "-lab", l.ID(), "-node", "host-a", "-archive", archive)
		if out, err := load.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if got := execute(t, h, "ctr", "-n", "k8s.io", "images", "list", "-q"); !slices.Contains(strings.Fields(got), ref) {
			t.Errorf("it has %s", got)
		}
	})
	t.Run("a reboot is one", func(t *testing.T) {
		execute(t, h, "sh", "-c", "echo kept >/root/kept")
		before := bootID(t, h)
		if err := h.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		if bootID(t, h) == before {
			t.Error("the boot id is the same")
		}
		if got := execute(t, h, "cat", "/root/kept"); got != "kept" {
			t.Errorf("the disk holds %q", got)
		}
	})
	t.Run("power can be cut and come back", func(t *testing.T) {
		before := bootID(t, h)
		h.PowerCut()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := h.Exec(ctx, "true"); err == nil {
			t.Error("it still answers")
		}
		if err := h.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if bootID(t, h) == before {
			t.Error("the boot id is the same")
		}
	})
	t.Run("it can be shut down and started", func(t *testing.T) {
		if err := h.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := h.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("it stays the same machine over all of this", func(t *testing.T) {
		if got := execute(t, h, "cat", "/etc/machine-id"); len(got) != 32 || got != machineID {
			t.Errorf("its id was %q and is %q", machineID, got)
		}
	})
	t.Run("its network can be cut", func(t *testing.T) {
		if err := h.CutNetwork(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := h.Exec(ctx, "true")
		// The socket's deadline is the context's, and may strike first.
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v, want silence", err)
		}
		if err := h.RestoreNetwork(t.Context()); err != nil {
			t.Fatal(err)
		}
		execute(t, h, "true")
	})
}

func TestTheControlPlaneIsReachedFromBothSidesAndComesBack(t *testing.T) {
	settings := map[string]string{}
	for _, path := range []string{"/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/panic", "/proc/sys/net/ipv4/ip_forward"} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		settings[path] = string(content)
	}
	l := start(t, lab.Options{})
	addHost(t, l)
	for path, before := range settings {
		if after, err := os.ReadFile(path); err != nil || string(after) != before {
			t.Errorf("%s of the machine was %q and is %q, %v", path, before, after, err)
		}
	}

	assertReachable := func() {
		t.Helper()
		out, err := l.Kubectl(t.Context(), "get", "--raw", "/api/v1/namespaces/kube-public/configmaps/cluster-info")
		if err != nil || !strings.Contains(out, l.Endpoint()) {
			t.Errorf("from inside: %s, %v", out, err)
		}
		kubeconfig, err := l.ForwardedKubeconfig(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		outside, err := exec.CommandContext(t.Context(), filepath.Join(l.BinDir(), "kubectl"), "--kubeconfig", kubeconfig, "get", "--raw", "/readyz").CombinedOutput()
		if err != nil || string(outside) != "ok" {
			t.Errorf("from outside: %s, %v", outside, err)
		}
	}
	assertReachable()
	if err := l.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	assertReachable()
	if err := l.RestartEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	assertReachable()

	if out, err := l.Run(t.Context(), "ip", "route", "show", "default"); err != nil || out != "" {
		t.Errorf("there is a way out of the lab: %q, %v", out, err)
	}
	p, err := l.Command(t.Context(), "sleeper", "sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	p.Kill9()
	if err := p.Wait(t.Context()); err == nil {
		t.Error("a killed process ended well")
	}
}

func TestTwoLabsDoNotCollide(t *testing.T) {
	one, two := start(t, lab.Options{}), start(t, lab.Options{})
	a, b := addHost(t, one), addHost(t, two)
	if a.Address != b.Address {
		t.Errorf("%s and %s: the addresses differ, so the test shows nothing", a.Address, b.Address)
	}
	if execute(t, a, "cat", "/etc/machine-id") == execute(t, b, "cat", "/etc/machine-id") {
		t.Error("two hosts share a machine id")
	}
	if a.HostKeyLine() == b.HostKeyLine() {
		t.Error("two hosts share a host key")
	}
	execute(t, a, "sh", "-c", "echo one >/root/lab")
	execute(t, b, "sh", "-c", "echo two >/root/lab")
	if got := execute(t, a, "cat", "/root/lab"); got != "one" {
		t.Errorf("the host of lab one says %q", got)
	}
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if got := execute(t, b, "cat", "/root/lab"); got != "two" {
		t.Errorf("the host of lab two says %q once lab one is gone", got)
	}
}

func TestWhatAKilledOwnerLeavesIsCollected(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), envOwner+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	id = strings.TrimSpace(id)
	if err := lab.CollectGarbage(t.Logf); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join("/run/kpssh-lab", id+".json")); err != nil {
		t.Fatalf("a lab whose owner lives was collected: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if len(leftovers(t, id)) == 0 {
		t.Fatal("nothing to collect")
	}
	for range 2 {
		if err := lab.CollectGarbage(t.Logf); err != nil {
			t.Fatal(err)
		}
	}
	assertNothingLeft(t, id)
}

func TestAHostOfTheNextDebianBootsToo(t *testing.T) {
	l := start(t, lab.Options{})
	h, err := l.AddHost(t.Context(), lab.HostOptions{Name: "host-a", Suite: "trixie", NoKubelet: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := execute(t, h, "sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME"); got != "trixie" {
		t.Errorf("it runs %q", got)
	}
	if got := execute(t, h, "systemctl", "is-system-running"); got != "running" {
		t.Errorf("it is %q: %s", got, execute(t, h, "systemctl", "--failed"))
	}
	if out, err := h.Exec(t.Context(), "test", "!", "-e", "/usr/local/bin/kubelet"); err != nil {
		t.Errorf("it has a kubelet: %s, %v", out, err)
	}
	if err := h.Reboot(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAnAPIServerAlone(t *testing.T) {
	s, err := lab.StartAPIServer(t.Context(), lab.APIServerOptions{Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: b}\n"); err != nil {
		t.Error(err)
	}
	if err := s.RestartEtcd(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.RestartAPIServer(t.Context()); err != nil {
		t.Error(err)
	}
	if out, err := s.Kubectl(t.Context(), "get", "configmap", "x", "-o", "jsonpath={.data.a}"); err != nil || out != "b" {
		t.Errorf("got %q, %v", out, err)
	}
	dir := s.LogDir()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %s", dir)
	}
}
