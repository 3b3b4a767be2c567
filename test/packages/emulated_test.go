//go:build e2e

package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/cachedir"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/rootfs"
)

// need installs a program that this machine lacks.
func need(ctx context.Context, t *testing.T, program, pkg string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	done := cachedir.Step(progress, nil, "installing %s", pkg)
	install := func() ([]byte, error) {
		cmd := exec.CommandContext(ctx, "apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "--yes", "--no-install-recommends", pkg)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		return cmd.CombinedOutput()
	}
	out, err := install()
	if err != nil {
		_, _ = exec.CommandContext(ctx, "apt-get", "-o", "DPkg::Lock::Timeout=300", "update").CombinedOutput()
		out, err = install()
	}
	done(err)
	if err != nil {
		t.Fatalf("installing %s: %v: %s", pkg, err, out)
	}
}

// emulation has this kernel run programs of another architecture, until the test ends.
func emulation(ctx context.Context, t *testing.T, arch string) {
	t.Helper()
	e, ok := emulators[arch]
	if !ok || arch == runtime.GOARCH {
		return
	}
	need(ctx, t, e.program, "qemu-user-static")
	const dir = "/proc/sys/fs/binfmt_misc"
	cache, err := cachedir.Default()
	must(t, err)
	must(t, os.MkdirAll(cache, 0o755))
	unlock, err := cachedir.Lock(ctx, filepath.Join(cache, "binfmt-"+arch+".lock"), progress) // it is the whole machine's
	must(t, err)
	t.Cleanup(unlock)
	if _, err := os.Stat(dir + "/register"); err != nil {
		must(t, exec.CommandContext(ctx, "mount", "-t", "binfmt_misc", "none", dir).Run())
		t.Cleanup(func() { must(t, exec.Command("umount", dir).Run()) })
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, entry := range entries {
		content, _ := os.ReadFile(filepath.Join(dir, entry.Name()))
		if strings.HasPrefix(string(content), "enabled\n") && strings.Contains(string(content), "magic "+e.magicHex()+"\n") {
			return // somebody else's
		}
	}
	path, err := exec.LookPath(e.program)
	must(t, err)
	name := "kpssh-test-" + arch
	// F: the emulator is opened now, so that roots need not have it. C: sudo may become root.
	must(t, os.WriteFile(dir+"/register", []byte(":"+name+":M::"+e.magic+":"+e.mask+":"+path+":FC"), 0o200))
	t.Cleanup(func() { must(t, os.WriteFile(filepath.Join(dir, name), []byte("-1"), 0o200)) })
}

// emulator is one of QEMU's, and how its programs are recognised: magic and mask over the header of an ELF file.
type emulator struct{ program, magic, mask string }

const elfMask = `\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff`

var emulators = map[string]emulator{
	"arm64": {"qemu-aarch64-static", `\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00`, elfMask},
	"armhf": {"qemu-arm-static", `\x7fELF\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x28\x00`, elfMask},
}

// magicHex is the magic as the kernel shows it.
func (e emulator) magicHex() string {
	text := strings.ReplaceAll(strings.Replace(e.magic, "ELF", `\x45\x4c\x46`, 1), `\x`, "")
	return text
}

// rootPackages of a Raspberry Pi, as far as the package is concerned.
const rootPackages = "openssh-server,sudo"

// emulatedRoot is the path of a cached root file system of another architecture: minutes once a machine.
func emulatedRoot(ctx context.Context, t *testing.T, arch string) string {
	t.Helper()
	need(ctx, t, "debootstrap", "debootstrap")
	cache, err := cachedir.Default()
	must(t, err)
	sum := sha256.Sum256([]byte(rootPackages))
	key := fmt.Sprintf("rootfs/bookworm-%s-bare-%s", arch, hex.EncodeToString(sum[:6]))
	path, err := cachedir.Fill(ctx, cache, key, progress, func(ctx context.Context, dir string) (err error) {
		lines := &lineCounter{}
		done := cachedir.Step(progress, func() string { return fmt.Sprintf("%d steps of about 560", lines.n.Load()) },
			"making a root file system for %s under emulation: once a machine, 3 to 6 minutes", arch)
		defer func() { done(err) }()
		mirror := os.Getenv(rootfs.EnvMirror)
		if mirror == "" {
			mirror = rootfs.DefaultMirror
		}
		// A mount namespace of its own: what debootstrap mounts inside goes with it, also when it is killed.
		cmd := exec.CommandContext(ctx, "unshare", "--mount", "debootstrap", "--arch="+arch, "--variant=minbase", "--include="+rootPackages, "bookworm", dir, mirror)
		cachedir.KillTogether(cmd)
		cmd.Stdout, cmd.Stderr = lines, lines
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("running debootstrap: %w: %s", err, lines.last)
		}
		return nil
	})
	must(t, err)
	return path
}

// lineCounter counts lines and keeps the last of what it was told.
type lineCounter struct {
	n    atomic.Int64
	last string
}

func (l *lineCounter) Write(p []byte) (int, error) {
	l.n.Add(int64(strings.Count(string(p), "\n")))
	l.last += string(p)
	l.last = l.last[max(0, len(l.last)-2000):]
	return len(p), nil
}

func TestDebOnAnARM64HostWithoutSystemd(t *testing.T) {
	ctx := within(t, 20*time.Minute)
	emulation(ctx, t, "arm64")
	r := newRoot(t, emulatedRoot(ctx, t, "arm64"))
	r.startSSHD(ctx, t)
	h := newHost(ctx, t, r)
	if got := h.run("uname", "-m"); got != "aarch64" {
		t.Fatalf("this is an %s", got)
	}
	if out := h.dpkg(older.deb("arm64")); strings.Contains(out, "NOT set up") {
		t.Fatal(out)
	}
	h.there(true, shim, dropIn, sudoers, config, state, home)
	h.there(false, socket)
	h.authorize()
	st := h.enroll()
	h.healthy()
	h.greets(st, older.version)

	h.dpkg(newer.deb("arm64"))
	h.greets(st, newer.version)

	h.run("dpkg", "--remove", "kpssh-shim")
	h.there(false, shim, dropIn, sudoers, unit)
	h.there(true, config, state)
	h.lockedOut(st)
	h.run("dpkg", "--purge", "kpssh-shim")
	h.there(false, config, state, home)
	if got := h.sh("getent passwd kpssh || getent group kpssh || true") + h.dpkgStatus(); got != "" {
		t.Errorf("left: %q", got)
	}
}

// The armhf package says armhf for Raspberry Pi OS's sake, and has to run on the CPU of the first Raspberry Pi and of the Zero.
func TestArmhfShimRunsOnTheCPUOfARaspberryPiZero(t *testing.T) {
	ctx := within(t, 5*time.Minute)
	need(ctx, t, "qemu-arm-static", "qemu-user-static")
	dir := t.TempDir()
	out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", older.deb("armhf"), dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, cpu := range []string{"arm1176", "cortex-a7", "max"} {
		out, err := exec.CommandContext(ctx, "qemu-arm-static", "-cpu", cpu, dir+shim, "version").CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "kpssh-shim "+older.version+" sha256:") {
			t.Errorf("on %s: %v: %s", cpu, err, out)
		}
	}
}

// An armhf root would cost another quarter of an hour on a machine's first run. dpkg installs packages of a second
// architecture, though, which runs this one's scripts and shim for real.
func TestDebForArmhfOnAHostOfAnotherArchitecture(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	emulation(ctx, t, "armhf")
	r := newRoot(t, labRoot(ctx, t))
	h := newHost(ctx, t, r)
	h.run("dpkg", "--add-architecture", "armhf")
	r.startSSHD(ctx, t)
	if out := h.dpkg(older.deb("armhf")); strings.Contains(out, "NOT set up") {
		t.Fatal(out)
	}
	h.authorize("--sudo")
	st := h.enroll()
	h.healthy()
	h.greets(st, older.version)
	h.run("dpkg", "--purge", "kpssh-shim:armhf")
	h.there(false, shim, dropIn, sudoers, config, state, home)
}
