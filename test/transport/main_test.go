//go:build e2e

package transport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/netns"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/rootfs"
)

// Suites of which sshd is tested. The one of bookworm is 9.2, that of trixie 10.0, which has PerSourcePenalties.
const (
	oldSuite = "bookworm"
	newSuite = "trixie"
)

// envInside marks the process that runs the tests, inside namespaces.
const envInside = "KPSSH_TRANSPORT_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(envInside) == "" {
		os.Exit(outside())
	}
	if err := setUp(); err != nil {
		fmt.Printf("setting up: %v\n", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// outside makes what hosts are made of and runs this program again, in namespaces that end with it.
func outside() int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cache, err := cachedir.Default()
	if err != nil {
		fmt.Printf("finding the cache: %v\n", err)
		return 1
	}
	say := func(format string, args ...any) { fmt.Printf("  "+format+"\n", args...) }
	maker := rootfs.Maker{CacheDir: cache, Mirror: os.Getenv(rootfs.EnvMirror), Log: say}
	env := append(os.Environ(), envInside+"=1")
	for _, suite := range []string{oldSuite, newSuite} {
		root, err := maker.Ensure(ctx, suite)
		if err != nil {
			fmt.Printf("%v\n", err)
			return 1
		}
		env = append(env, rootEnv(suite)+"="+root)
	}
	runtime.LockOSThread() // the child dies with the thread that started it
	command := []string{"--net", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", os.Args[0]}
	cmd := exec.Command("unshare", append(command, os.Args[1:]...)...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case err != nil:
		fmt.Printf("running in namespaces: %v\n", err)
		return 1
	}
	return 0
}

func rootEnv(suite string) string { return "KPSSH_TRANSPORT_ROOT_" + suite }

// The network. The test itself is where the controller would be. Each place is a namespace; from the test only gate
// can be reached, from gate also relay, and hosts only from relay.
//
//	test .1 -- 10.77.0.0/24 -- .2 gate .1 -- 10.77.1.0/24 -- .2 relay .1 -- 10.77.2.0/24 -- .2 hosts
const (
	gate  = "gate"
	relay = "relay"
	hosts = "hosts"

	gateAddress  = "10.77.0.2"
	relayAddress = "10.77.1.2"
	hostAddress  = "10.77.2.2"
	// linkLocal is gate's, on the link that the test has as outerLink.
	linkLocal = "fe80::77:2"
	outerLink = "outer"
)

// places are the root file systems, by suite.
var places = map[string]string{}

// users are the accounts that tests log in to.
var users = []string{"ops", "relay", "kpssh", "restricted", "stranger", "noisy"}

func setUp() error {
	if err := run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run"); err != nil {
		return err
	}
	if err := layNetwork(); err != nil {
		return err
	}
	for _, suite := range []string{oldSuite, newSuite} {
		if err := makePlace(suite, os.Getenv(rootEnv(suite))); err != nil {
			return fmt.Errorf("making a place of %s: %w", suite, err)
		}
	}
	return nil
}

func layNetwork() error {
	for _, name := range []string{gate, relay, hosts} {
		if err := run("ip", "netns", "add", name); err != nil {
			return err
		}
	}
	for _, command := range []string{
		"ip link set lo up",
		"ip link add " + outerLink + " type veth peer name outer netns gate",
		"ip -n gate link add inner type veth peer name outer netns relay",
		"ip -n relay link add inner type veth peer name outer netns hosts",
		"ip address add 10.77.0.1/24 dev " + outerLink,
		"ip link set " + outerLink + " up",
		"ip -n gate address add 10.77.0.2/24 dev outer",
		"ip -n gate address add " + linkLocal + "/64 dev outer nodad",
		"ip -n gate address add 10.77.1.1/24 dev inner",
		"ip -n relay address add 10.77.1.2/24 dev outer",
		"ip -n relay address add 10.77.1.3/24 dev outer",
		"ip -n relay address add 10.77.1.4/24 dev outer",
		"ip -n relay address add 10.77.2.1/24 dev inner",
		"ip -n hosts address add 10.77.2.2/24 dev outer",
		"ip -n gate link set lo up", "ip -n relay link set lo up", "ip -n hosts link set lo up",
		"ip -n gate link set outer up", "ip -n gate link set inner up",
		"ip -n relay link set outer up", "ip -n relay link set inner up",
		"ip -n hosts link set outer up",
	} {
		if err := run(strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

// makePlace lays changes over the root file system, which is not ours to change.
func makePlace(suite, root string) error {
	dir := filepath.Join("/run/places", suite)
	merged := filepath.Join(dir, "root")
	for _, path := range []string{"upper", "work", "root"} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", root, dir, dir)
	if err := run("mount", "-t", "overlay", "-o", options, "overlay", merged); err != nil {
		return err
	}
	if err := errors.Join(
		run("mount", "-t", "proc", "proc", filepath.Join(merged, "proc")),
		run("mount", "--rbind", "/dev", filepath.Join(merged, "dev")),
		run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", filepath.Join(merged, "run")),
		os.Mkdir(filepath.Join(merged, "run/sshd"), 0o755),
	); err != nil {
		return err
	}
	for _, user := range users {
		if err := run("chroot", merged, "useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", user); err != nil {
			return err
		}
	}
	places[suite] = merged
	return nil
}

// run runs a program to its end.
func run(command ...string) error {
	_, err := output(command...)
	return err
}

func output(command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("running %q: %w: %s", command, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// do is run in a test that cannot go on without.
func do(t *testing.T, command ...string) string {
	t.Helper()
	out, err := output(command...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// within is a command inside a namespace.
func within(namespace string, command ...string) []string {
	return append(netns.Enter(namespace), command...)
}

// until waits for what another process brings about.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
