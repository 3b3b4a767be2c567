//go:build e2e

package packages

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/rootfs"
)

// root is a root file system without systemd: an overlay over a cached one, in namespaces of its own. What is mounted,
// written or started in it ends with it, also when the test is killed.
type root struct {
	dir  string // inside its mount namespace
	init int    // its process 1
	port int    // of its sshd on loopback

	ended chan error // how its sshd ended
}

// labRoot is the cached root file system of the lab's hosts: this machine's architecture, with systemd in it.
func labRoot(ctx context.Context, t *testing.T) string {
	t.Helper()
	need(ctx, t, "debootstrap", "debootstrap")
	cache, err := cachedir.Default()
	must(t, err)
	path, err := rootfs.Maker{CacheDir: cache, Mirror: os.Getenv(rootfs.EnvMirror), Log: progress}.Ensure(ctx, lab.DefaultSuite)
	must(t, err)
	return path
}

// hold makes the mounts, says so, and stays: it is the root's process 1.
const hold = `set -eu
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
mount -t proc proc "$1/root/proc"
mount -t tmpfs tmpfs "$1/root/run"
echo ready
exec sleep infinity`

func newRoot(t *testing.T, base string) *root {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--", "sh", "-c", hold, "sh", dir, base)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("making a root over %s: %v: %s", base, err, &stderr)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", cmd.Process.Pid))
	must(t, err)
	r := &root{dir: filepath.Join(dir, "root")}
	r.init, err = strconv.Atoi(strings.TrimSpace(string(children)))
	must(t, err)
	return r
}

// command runs a program as root inside.
func (r *root) command(ctx context.Context, command ...string) *exec.Cmd {
	argv := append([]string{
		"--target", strconv.Itoa(r.init), "--mount", "--pid", "--", "chroot", r.dir,
		"/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
	}, command...)
	cmd := exec.CommandContext(ctx, "nsenter", argv...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Exec runs a program as root inside and returns its standard output.
func (r *root) Exec(ctx context.Context, command ...string) (string, error) {
	cmd := r.command(ctx, command...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("running %q: %w: %s", command, errors.Join(ctx.Err(), err), bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// outside is a path of the root as this process reaches it.
func (r *root) outside(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", r.init), r.dir, path)
}

func (r *root) WriteFile(_ context.Context, path, mode string, content []byte) error {
	bits, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.outside(path), content, os.FileMode(bits)); err != nil {
		return err
	}
	return os.Chmod(r.outside(path), os.FileMode(bits))
}

// Dial waits for an sshd that starts, or starts anew because it was told to read its configuration.
func (r *root) Dial(ctx context.Context) (net.Conn, error) {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", r.port))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case err := <-r.ended:
			return nil, fmt.Errorf("sshd ended: %w", err)
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// startSSHD starts its sshd on a port of loopback and waits until it answers.
func (r *root) startSSHD(ctx context.Context, t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r.port = l.Addr().(*net.TCPAddr).Port
	must(t, l.Close())
	_, err = r.Exec(ctx, "sh", "-c", "mkdir -p /run/sshd; ls /etc/ssh/ssh_host_ed25519_key || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key")
	must(t, err)
	cmd := r.command(ctx, "/usr/sbin/sshd", "-D", "-e", "-p", strconv.Itoa(r.port), "-o", "ListenAddress=127.0.0.1")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	r.ended = make(chan error, 1)
	go func() { r.ended <- fmt.Errorf("%w: %s", cmd.Wait(), &log) }()
	conn, err := r.Dial(ctx)
	must(t, err)
	must(t, conn.Close())
}
