//go:build e2e

package packages

import (
	"context"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rpmArch is what rpm calls this machine.
var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]

// rpm runs rpm on a root: rpm's own database, and scriptlets that the root's own shell runs. Dependencies are those of
// another family of distributions, so that rpm is told not to look for them.
func (r *root) rpm(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	argv := append([]string{"--target", strconv.Itoa(r.init), "--mount", "--pid", "--", "rpm", "--root", r.dir}, args...)
	if args[0] != "--initdb" && args[0] != "--verify" {
		argv = append(argv, "--force-debian")
	}
	out, err := exec.CommandContext(ctx, "nsenter", argv...).CombinedOutput()
	if err != nil {
		t.Fatalf("rpm %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// The root is Debian's, but for rpm: what differs on a Red Hat, SUSE or Fedora host is not seen here. It is an image that
// is being made: systemd is there and does not run, and sshd has no host keys yet.
func TestRPMInAnImageAndOnAHostWithoutSystemd(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	need(ctx, t, "rpm", "rpm")
	r := newRoot(t, labRoot(ctx, t))
	h := newHost(ctx, t, r)
	r.rpm(ctx, t, "--initdb")
	out := r.rpm(ctx, t, "--install", "--nodeps", older.rpm(rpmArch))
	if strings.Contains(out, "NOT set up") || !strings.Contains(out, "starts with the next boot") {
		t.Errorf("rpm says %s", out)
	}
	h.there(true, shim, dropIn, unit, wanted, config, state, home)
	h.there(false, sudoers)
	if out := r.rpm(ctx, t, "--verify", "--nodeps", "kpssh-shim"); out != "" {
		t.Errorf("rpm finds changed files: %s", out)
	}

	r.startSSHD(ctx, t)
	h.authorize("--sudo")
	st := h.enroll()
	h.healthy()
	h.greets(st, older.version)

	if out := r.rpm(ctx, t, "--upgrade", "--nodeps", newer.rpm(rpmArch)); strings.Contains(out, "NOT set up") {
		t.Error(out)
	}
	h.greets(st, newer.version)
	if again := h.enroll(); again.HostID != st.HostID || again.ReceiptKey != st.ReceiptKey {
		t.Errorf("it is another host: %+v", again)
	}

	r.rpm(ctx, t, "--erase", "kpssh-shim")
	h.there(false, shim, "/usr/libexec/kpssh", dropIn, unit, wanted, sudoers)
	h.there(true, config+"/root.json", config+"/authorized_keys", state+"/host.json")
	h.lockedOut(st)

	r.rpm(ctx, t, "--install", "--nodeps", newer.rpm(rpmArch))
	if again := h.enroll(); again.HostID != st.HostID {
		t.Errorf("it came back as another host: %+v", again)
	}
	h.run(shim, "uninstall", "--purge")
	h.there(false, dropIn, wanted, config, state, home)
	r.rpm(ctx, t, "--erase", "kpssh-shim")
	if got := h.sh("getent passwd kpssh || getent group kpssh || true"); got != "" {
		t.Errorf("left: %q", got)
	}
}

func TestRPMKeepsAHostWhoseSSHDIsBrokenAsItIs(t *testing.T) {
	ctx := within(t, 5*time.Minute)
	need(ctx, t, "rpm", "rpm")
	r := newRoot(t, labRoot(ctx, t))
	h := newHost(ctx, t, r)
	must(t, h.WriteFile(ctx, "/etc/ssh/sshd_config.d/50-broken.conf", "0644", []byte("NoSuchOption yes\n")))
	r.rpm(ctx, t, "--initdb")
	out := r.rpm(ctx, t, "--install", "--nodeps", older.rpm(rpmArch))
	for _, want := range []string{"NoSuchOption", "This host is NOT set up", shim + " install"} {
		if !strings.Contains(out, want) {
			t.Errorf("rpm does not say %q: %s", want, out)
		}
	}
	h.there(true, shim)
	h.there(false, dropIn)
	h.run("rm", "/etc/ssh/sshd_config.d/50-broken.conf")
	h.run(shim, "install", "--package")
	h.there(true, dropIn)
}

func TestEveryRPMIsWhatItsNameSays(t *testing.T) {
	ctx := within(t, 5*time.Minute)
	need(ctx, t, "rpm", "rpm")
	for _, arch := range []string{"x86_64", "aarch64", "armv6hl"} {
		out, err := exec.CommandContext(ctx, "rpm", "--query", "--package", "--queryformat", "%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{BUILDHOST}\n[%{REQUIRES}\n]", older.rpm(arch)).Output()
		must(t, err)
		head, requires, _ := strings.Cut(string(out), "\n")
		if head != "kpssh-shim 0.1.0 1 "+arch+" localhost" {
			t.Errorf("%s: %q", arch, head)
		}
		for _, want := range []string{"openssh-server", "/usr/sbin/useradd", "/usr/bin/ssh-keygen", "bash"} {
			if !strings.Contains("\n"+requires, "\n"+want+"\n") {
				t.Errorf("%s does not require %s: %q", arch, want, requires)
			}
		}
		if out, err := exec.CommandContext(ctx, "rpm", "--checksig", "--nosignature", older.rpm(arch)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", arch, err, out)
		}
	}
}
