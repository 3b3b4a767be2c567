// Package rootfs makes the root file system of pool hosts: a small Debian with what a pre-baked host has, made once a
// machine and never changed; each host lays its own changes over it.
package rootfs

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
)

//go:embed all:files
var files embed.FS

// EnvMirror names another Debian mirror.
const EnvMirror = "KPSSH_DEBIAN_MIRROR"

// DefaultMirror is Debian's own.
const DefaultMirror = "http://deb.debian.org/debian"

// packages of a pool host. No kubelet: the lab brings it.
func packages(suite string) []string {
	all := []string{
		"systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "iproute2", "iptables", "containerd", "runc",
		"containernetworking-plugins", "conntrack", "ethtool", "socat", "procps", "kmod", "ca-certificates", "curl",
	}
	if suite != "bookworm" { // which has none that is fit for use
		all = append(all, "sudo-rs")
	}
	return all
}

// setup is run inside, with nothing mounted. A host makes its own identity when it is added. The timers would fetch
// from mirrors that cannot be reached.
const setup = `set -eu
systemctl enable ssh systemd-networkd kpssh-lab-host
systemctl disable containerd systemd-networkd-wait-online
systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-resolved
rm -f /etc/ssh/ssh_host_* /etc/hostname
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
: >/etc/machine-id
printf '# Nobody answers names here.\n' >/etc/resolv.conf
mkdir -p /etc/cni/net.d
`

// Maker makes root file systems.
type Maker struct {
	CacheDir string
	// Mirror is where debootstrap fetches from.
	Mirror string
	Log    cachedir.Logf
}

// Ensure returns the path of the root file system of a Debian release, such as "bookworm". It needs root.
func (m Maker) Ensure(ctx context.Context, suite string) (string, error) {
	key, err := m.key(suite)
	if err != nil {
		return "", err
	}
	dir, err := cachedir.Fill(ctx, m.CacheDir, key, m.Log, func(ctx context.Context, dir string) error {
		return m.make(ctx, suite, dir)
	})
	if err != nil {
		return "", fmt.Errorf("making the root file system of %s hosts: %w", suite, err)
	}
	return dir, nil
}

// key changes with everything that goes in.
func (m Maker) key(suite string) (string, error) {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%v\n%s\n", suite, packages(suite), setup)
	err := fs.WalkDir(files, "files", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := files.ReadFile(path)
		fmt.Fprintf(hash, "%s %d\n%s\n", path, len(content), content)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("reading the files of pool hosts: %w", err)
	}
	return fmt.Sprintf("rootfs/%s-%s-%s", suite, runtime.GOARCH, hex.EncodeToString(hash.Sum(nil)[:6])), nil
}

func (m Maker) make(ctx context.Context, suite, dir string) (err error) {
	var lines atomic.Int64
	done := cachedir.Step(m.Log, func() string { return fmt.Sprintf("%d steps of about 730", lines.Load()) },
		"making the root file system of %s hosts: once a machine, 1 to 3 minutes", suite)
	defer func() { done(err) }()
	mirror := m.Mirror
	if mirror == "" {
		mirror = DefaultMirror
	}
	// A mount namespace of its own: what debootstrap mounts inside goes with it, also when it is killed.
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "debootstrap", "--variant=minbase", "--include="+strings.Join(packages(suite), ","), suite, dir, mirror)
	cachedir.KillTogether(cmd)
	output := &lastLines{count: &lines}
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil { // what it printed last says nothing about why it ended
			return fmt.Errorf("running debootstrap: %w", ctx.Err())
		}
		return fmt.Errorf("running debootstrap: %w: %s", err, output)
	}
	if err := copyFiles(dir); err != nil {
		return err
	}
	script := exec.CommandContext(ctx, "chroot", dir, "/bin/sh", "-c", setup)
	script.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_OFFLINE=1"}
	if out, err := script.CombinedOutput(); err != nil {
		return fmt.Errorf("setting up the root file system: %w: %s", err, out)
	}
	return nil
}

// copyFiles writes our files; those under an sbin directory are programs.
func copyFiles(dir string) error {
	return fs.WalkDir(files, "files", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(dir, strings.TrimPrefix(path, "files"))
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		content, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if filepath.Base(filepath.Dir(path)) == "sbin" {
			mode = 0o755
		}
		return os.WriteFile(target, content, mode)
	})
}

// lastLines counts lines and keeps the end of them.
type lastLines struct {
	count *atomic.Int64
	kept  []byte
}

func (l *lastLines) Write(p []byte) (int, error) {
	const most = 2000
	for _, c := range p {
		if c == '\n' {
			l.count.Add(1)
		}
	}
	l.kept = append(l.kept, p...)
	l.kept = slices.Clone(l.kept[max(0, len(l.kept)-most):])
	return len(p), nil
}

func (l *lastLines) String() string { return string(l.kept) }
