package shim

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/packaging"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAID7k9U/epmdTFQNtHrTNgOtJ/svpDLeCewdJEpf+tTKy"

func TestAuthorizedKeyIsRestricted(t *testing.T) {
	got, err := restrictedKey(publicKey+" me@example\t", "/shim")
	if want := `restrict,command="/shim" ` + publicKey; err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	for name, line := range map[string]string{
		"nothing":                    "",
		"a kind alone":               "ssh-ed25519",
		"options before it":          `command="/bin/sh" ` + publicKey,
		"two lines":                  publicKey + "\n" + publicKey,
		"a carriage return":          publicKey + "\r",
		"a kind that is none":        "ssh-evil " + strings.Fields(publicKey)[1],
		"a kind other than the blob": "ssh-rsa " + strings.Fields(publicKey)[1],
		"no base64":                  "ssh-ed25519 AAAA*",
		"a short blob":               "ssh-ed25519 AAAA",
		"a private key":              "-----BEGIN OPENSSH PRIVATE KEY-----",
		"a certificate":              "ssh-ed25519-cert-v01@openssh.com AAAA",
	} {
		if got, err := restrictedKey(line, "/shim"); err == nil {
			t.Errorf("%s: %q became %q", name, line, got)
		}
	}
}

func (h *madeHost) install(keys ...string) error {
	h.t.Helper()
	i := &installation{sys: h.hostSystem, log: new(bytes.Buffer), root: []byte("root document")}
	for _, k := range keys {
		line, err := restrictedKey(k, h.paths.shim)
		if err != nil {
			h.t.Fatal(err)
		}
		i.keys = append(i.keys, line)
	}
	return i.all()
}

// installAs installs as a package's script does when fromPackage, and as a person who asks for sudo when sudo.
func (h *madeHost) installAs(fromPackage, sudo bool) (said string, err error) {
	h.t.Helper()
	var log bytes.Buffer
	err = (&installation{sys: h.hostSystem, log: &log, fromPackage: fromPackage, sudo: sudo}).all()
	return log.String(), err
}

// answers makes a command of the system print something.
func (h *madeHost) answers(command, text string, err error) {
	others := h.run
	h.run = func(name string, args ...string) (string, error) {
		full := name + " " + strings.Join(args, " ")
		if !strings.HasPrefix(full, command) {
			return others(name, args...)
		}
		h.asked = append(h.asked, full)
		return text, err
	}
}

// withPackage puts in place what a distribution's package brings.
func (h *madeHost) withPackage() {
	h.t.Helper()
	h.file(h.paths.shim, "the package's shim", 0o755)
	for _, unit := range []string{"kpssh.socket", "kpssh@.service"} {
		h.file(h.paths.vendorUnits+"/"+unit, embedded(h.t, unit), 0o644)
	}
}

// link makes a link in a file's place.
func (h *madeHost) link(path, to string) {
	h.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.RemoveAll(path), os.Symlink(to, path)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *madeHost) was(command string) bool { return slices.Contains(h.asked, command) }

func (h *madeHost) exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (h *madeHost) withSystemd() {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Join(filepath.Dir(h.paths.runtime), "systemd/system"), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

func (h *madeHost) content(path string) string {
	h.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(data)
}

func TestInstallSetsAHostUp(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	h.says["systemctl"] = "active\n"
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	p := h.paths
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		p.shim:                      string(self),
		p.root:                      "root document",
		p.dropIn:                    signed(t, "sshd.conf"),
		p.units + "/kpssh.socket":   signed(t, "kpssh.socket"),
		p.units + "/kpssh@.service": signed(t, "kpssh@.service"),
		p.tmpfiles:                  signed(t, "tmpfiles.conf"),
	} {
		if h.content(path) != want {
			t.Errorf("%s is not what it should be", path)
		}
	}
	if !strings.HasSuffix(h.content(p.keys), "\nrestrict,command=\""+p.shim+"\" "+publicKey+"\n") {
		t.Errorf("keys: %q", h.content(p.keys))
	}
	for path, want := range map[string]fs.FileMode{
		p.shim: 0o755, p.state: 0o700 | fs.ModeDir, p.home: 0o755 | fs.ModeDir, p.keys: 0o644, p.root: 0o644, p.dropIn: 0o644,
	} {
		st, err := os.Stat(path)
		if err != nil || st.Mode() != want {
			t.Errorf("%s has mode %v, want %v (%v)", path, st.Mode(), want, err)
		}
	}
	want := []string{
		"useradd --system --no-create-home --home-dir " + p.home + " --shell " + p.shim + " --password * --user-group kpssh",
		"systemctl show --property=NeedDaemonReload --value kpssh.socket", "systemctl daemon-reload",
		"systemctl enable --now kpssh.socket", "sshd -t",
		"systemctl is-active ssh.service", "systemctl reload ssh.service",
	}
	if !slices.Equal(h.asked, want) {
		t.Errorf("ran\n%s\nwant\n%s", strings.Join(h.asked, "\n"), strings.Join(want, "\n"))
	}
	if _, err := os.Stat(p.sudoers); err == nil {
		t.Error("there is a rule of sudo beside the socket")
	}

	before := snapshot(t, strings.TrimSuffix(p.shim, "/usr/libexec/kpssh/kpssh-shim"))
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	if snapshot(t, strings.TrimSuffix(p.shim, "/usr/libexec/kpssh/kpssh-shim")) != before {
		t.Error("doing it again changed something")
	}
}

func embedded(t testing.TB, name string) string {
	t.Helper()
	data, err := packaging.Host.ReadFile("host/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// signed is a file of packaging/host with the line that says who wrote it.
func signed(t testing.TB, name string) string { return signedText(embedded(t, name)) }

func signedText(text string) string {
	return fmt.Sprintf("# Written by kpssh-shim install, which leaves it alone once the rest of it is another than sha256:%x\n%s", sha256.Sum256([]byte(text)), text)
}

func TestInstallTakesBackWhatSSHDRefuses(t *testing.T) {
	for name, old := range map[string]string{
		"where there was none": "", "where there was an earlier version's": signedText("Match User kpssh\n  PermitTTY no\n"),
		"where there was somebody else's": "Match User kpssh\n  PermitTTY no\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			h.withSystemd()
			h.fails["sshd -t"] = true
			h.file(h.paths.sshd, "UsePAM yes\n", 0o600)
			if old != "" {
				h.file(h.paths.dropIn, old, 0o644)
			}
			err := h.install(publicKey)
			if err == nil || !strings.Contains(err.Error(), "made to fail") {
				t.Errorf("got %v", err)
			}
			now, err := os.ReadFile(h.paths.dropIn)
			if old == "" && !errors.Is(err, fs.ErrNotExist) || old != string(now) {
				t.Errorf("drop-in is %q, %v", now, err)
			}
			if got := h.content(h.paths.sshd); got != "UsePAM yes\n" {
				t.Errorf("sshd_config is %q", got)
			}
			if _, err := os.Stat(h.paths.keys); err == nil {
				t.Error("the key was let in without the drop-in")
			}
			if slices.ContainsFunc(h.asked, func(s string) bool { return strings.Contains(s, "reload ssh") }) {
				t.Error("sshd was reloaded")
			}
		})
	}
}

func TestInstallReplacesOnlyWhatAShimWrote(t *testing.T) {
	for name, tc := range map[string]struct {
		old  func(now string) string
		ours bool
	}{
		"an earlier version's":                 {func(string) string { return signedText("# an earlier text\n") }, true},
		"this version's, from before the line": {func(now string) string { return now }, true},
		"one that somebody changed":            {func(now string) string { return signedText(now) + "# mine\n" }, false},
		"one whose first line somebody took":   {func(now string) string { return strings.TrimPrefix(signedText(now+"# mine\n"), "#") }, false},
		"one that somebody wrote":              {func(string) string { return "# mine\n" }, false},
		"an empty one":                         {func(string) string { return "" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			h.withSystemd()
			files := map[string]string{
				h.paths.dropIn: "sshd.conf", h.paths.units + "/kpssh.socket": "kpssh.socket",
				h.paths.units + "/kpssh@.service": "kpssh@.service", h.paths.tmpfiles: "tmpfiles.conf",
			}
			for path, file := range files {
				h.file(path, tc.old(embedded(t, file)), 0o644)
			}
			said, err := h.installAs(false, false)
			if err != nil {
				t.Fatal(err)
			}
			for path, file := range files {
				want := tc.old(embedded(t, file))
				if tc.ours {
					want = signed(t, file)
				}
				if h.content(path) != want || strings.Contains(said, path+" is not as kpssh-shim wrote it") == tc.ours {
					t.Errorf("%s is %q; said %q", path, h.content(path), said)
				}
			}
			if h.file(h.paths.sudoers, tc.old(embedded(t, "sudoers")), 0o440); tc.ours {
				return
			}
			if _, err := h.installAs(false, true); err != nil || h.content(h.paths.sudoers) != tc.old(embedded(t, "sudoers")) {
				t.Errorf("rule of sudo: %v, %q", err, h.content(h.paths.sudoers))
			}
		})
	}
}

func TestInstallLeavesALinkALink(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	elsewhere := filepath.Dir(h.paths.config) + "/kept"
	const old = "UsePAM yes\n"
	links := map[string]string{h.paths.sshd: elsewhere + "/sshd_config", h.paths.keys: elsewhere + "/keys", h.paths.units + "/kpssh.socket": "/dev/null"}
	h.file(links[h.paths.sshd], old, 0o600)
	h.file(links[h.paths.keys], "restrict ssh-ed25519 OLD\n", 0o644)
	for path, to := range links {
		h.link(path, to)
	}
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	if got := h.content(links[h.paths.sshd]); got != includeLines(h.paths)+old {
		t.Errorf("sshd_config is %q", got)
	}
	if got := h.content(links[h.paths.keys]); !strings.HasSuffix(got, publicKey+"\n") {
		t.Errorf("keys are %q", got)
	}
	if st, err := os.Stat(h.paths.sshd); err != nil || st.Mode() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	h.uninstall(false)
	if got := h.content(links[h.paths.sshd]); got != old {
		t.Errorf("after uninstall sshd_config is %q", got)
	}
	for path, to := range links {
		if now, err := os.Readlink(path); err != nil || now != to {
			t.Errorf("%s leads to %q, %v", path, now, err)
		}
	}
}

func TestInstallWritesToNothingThatOthersThanRootCanChange(t *testing.T) {
	for name, spoil := range map[string]func(h *madeHost, to string) error{
		"a file that all may write":  func(_ *madeHost, to string) error { return os.Chmod(to, 0o666) },
		"a folder that all may":      func(_ *madeHost, to string) error { return os.Chmod(filepath.Dir(to), 0o777) },
		"a link that leads nowhere":  func(_ *madeHost, to string) error { return os.Remove(to) },
		"a link that leads to a dir": func(_ *madeHost, to string) error { return errors.Join(os.Remove(to), os.Mkdir(to, 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			h.withSystemd()
			to := filepath.Dir(h.paths.config) + "/kept/sshd_config"
			h.file(to, "UsePAM yes\n", 0o644)
			h.link(h.paths.sshd, to)
			if err := spoil(h, to); err != nil {
				t.Fatal(err)
			}
			if err := h.install(publicKey); err == nil || !strings.Contains(err.Error(), "sshd") {
				t.Errorf("got %v", err)
			}
			if data, err := os.ReadFile(to); err == nil && string(data) != "UsePAM yes\n" {
				t.Errorf("written to all the same: %q", data)
			}
			if h.exists(h.paths.dropIn) || h.exists(h.paths.keys) {
				t.Error("set up halfway")
			}
		})
	}
}

func TestInstallAddsTheIncludeThatAnOldSSHDConfigLacks(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	const old = "# Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\nMatch User git\n  X11Forwarding no\n"
	h.file(h.paths.sshd, old, 0o600)
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	got := h.content(h.paths.sshd)
	if !strings.HasPrefix(got, "# Added by kpssh-shim install.\nInclude "+h.paths.sshdDropIns+"/*.conf\n") || !strings.HasSuffix(got, old) {
		t.Errorf("sshd_config is %q", got)
	}
	if st, err := os.Stat(h.paths.sshd); err != nil || st.Mode() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := h.install(publicKey); err != nil || h.content(h.paths.sshd) != got {
		t.Errorf("again: %v, %q", err, h.content(h.paths.sshd))
	}
}

func TestInstallReloadsSSHDByTheNameThatTheDistributionGivesIt(t *testing.T) {
	for running, want := range map[string]string{"ssh.service": "ssh.service", "sshd.service": "sshd.service", "": ""} {
		h := makeHost(t)
		h.withSystemd()
		h.answers("systemctl is-active", "inactive\n", errors.New("exit status 3"))
		if running != "" {
			h.answers("systemctl is-active "+running, "active\n", nil)
		}
		if err := h.install(); err != nil {
			t.Fatal(err)
		}
		for _, unit := range []string{"ssh.service", "sshd.service"} {
			if got := h.was("systemctl reload " + unit); got != (unit == want) {
				t.Errorf("with %q running, %s reloaded: %v", running, unit, got)
			}
		}
	}
}

func TestInstallLendsAHostKeyWhereThereIsNone(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	h.answers("sshd -t", "", &exec.ExitError{Stderr: []byte("sshd: no hostkeys available -- exiting.")})
	h.answers("sshd -t -h", "", nil)
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	if !h.exists(h.paths.dropIn) || !h.exists(h.paths.keys) {
		t.Errorf("not set up: %q", h.asked)
	}

	withKeys := makeHost(t)
	withKeys.withSystemd()
	withKeys.file(withKeys.paths.hostKey+"/ssh_host_ed25519_key", "key", 0o600)
	withKeys.answers("sshd -t", "", &exec.ExitError{Stderr: []byte("bad configuration")})
	withKeys.answers("sshd -t -h", "", nil)
	if err := withKeys.install(publicKey); err == nil || withKeys.exists(withKeys.paths.dropIn) {
		t.Errorf("a host with keys was lent one: %v", err)
	}
}

func TestInstallTakesSSHDsOwnConfigurationBelowUsr(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	if err := os.Remove(h.paths.sshd); err != nil {
		t.Fatal(err)
	}
	if err := h.install(publicKey); err == nil {
		t.Error("there is no configuration of sshd, and nobody minds")
	}
	const vendor = "Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\n"
	h.file(h.paths.vendorSSHD, vendor, 0o600)
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	if !h.exists(h.paths.dropIn) || h.exists(h.paths.sshd) || h.content(h.paths.vendorSSHD) != vendor {
		t.Error("the drop-in is missing, or another file was changed")
	}
}

func TestInstallLeavesWhatAPackageBrought(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	h.withPackage()
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	p := h.paths
	if got := h.content(p.shim); got != "the package's shim" {
		t.Error("the package's shim was replaced")
	}
	for _, path := range []string{p.units + "/kpssh.socket", p.units + "/kpssh@.service", p.tmpfiles} {
		if h.exists(path) {
			t.Errorf("%s hides the package's own", path)
		}
	}
	if !h.exists(p.dropIn) || !h.exists(p.keys) || !h.was("systemctl enable --now kpssh.socket") {
		t.Errorf("not set up: %q", h.asked)
	}
}

func TestAPackageTakesOverFromInstall(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	h.withPackage()
	own := h.paths.units + "/kpssh@.service"
	h.file(own, "[Service]\n", 0o644)
	h.answers("systemctl is-enabled", "disabled\n", errors.New("exit status 1")) // as it is once its link is gone
	said, err := h.installAs(true, false)
	if err != nil {
		t.Fatal(err)
	}
	if h.exists(h.paths.units+"/kpssh.socket") || h.exists(h.paths.tmpfiles) {
		t.Error("what install wrote still hides what the package brought")
	}
	if h.content(own) != "[Service]\n" || !strings.Contains(said, own+" hides the package's own") {
		t.Errorf("what somebody else wrote: %q", said)
	}
	i := slices.Index(h.asked, "systemctl disable kpssh.socket")
	if i < 0 || !slices.Contains(h.asked[i:], "systemctl enable --now kpssh.socket") {
		t.Errorf("the socket's link does not lead to the package's unit: %q", h.asked)
	}
}

func TestAPackageLeavesASocketOffThatSomebodySwitchedOff(t *testing.T) {
	for name, tc := range map[string]struct {
		state             string
		setUp, fromPerson bool
		enabled           bool
	}{
		"a host that is new":                     {state: "disabled", enabled: true},
		"a host whose socket was disabled":       {state: "disabled", setUp: true},
		"the same, when a person asks":           {state: "disabled", setUp: true, fromPerson: true, enabled: true},
		"a host whose socket is on":              {state: "enabled", setUp: true, enabled: true},
		"a new host whose socket was masked":     {state: "masked"},
		"a new host, masked until its next boot": {state: "masked-runtime"},
	} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			h.withSystemd()
			h.withPackage()
			if tc.setUp {
				h.file(h.paths.dropIn, "", 0o644)
			}
			h.answers("systemctl is-enabled", tc.state+"\n", nil)
			said, err := h.installAs(!tc.fromPerson, false)
			if err != nil {
				t.Fatal(err)
			}
			if got := h.was("systemctl enable --now kpssh.socket"); got != tc.enabled {
				t.Errorf("enabled: %v, want %v; said %q", got, tc.enabled, said)
			}
			if stays := strings.Contains(said, "kpssh.socket is "+tc.state+", and stays so"); stays == tc.enabled {
				t.Errorf("said %q", said)
			}
			if !h.exists(h.paths.dropIn) {
				t.Error("there is no drop-in")
			}
		})
	}
}

func TestInstallRestartsASocketWhoseUnitChanged(t *testing.T) {
	for stale, want := range map[string]bool{"yes\n": true, "no\n": false} {
		h := makeHost(t)
		h.withSystemd()
		h.answers("systemctl show", stale, nil)
		if err := h.install(); err != nil {
			t.Fatal(err)
		}
		if got := h.was("systemctl restart kpssh.socket"); got != want {
			t.Errorf("changed: %q, restarted: %v", stale, got)
		}
	}
}

func TestAPackageReadiesAnImage(t *testing.T) {
	h := makeHost(t)
	h.withPackage()
	said, err := h.installAs(true, false)
	if err != nil {
		t.Fatal(err)
	}
	if !h.was("systemctl enable kpssh.socket") || h.was("systemctl enable --now kpssh.socket") || h.exists(h.paths.sudoers) {
		t.Errorf("ran %q", h.asked)
	}
	if !strings.Contains(said, "next boot") {
		t.Errorf("said %q", said)
	}
}

func TestInstallFallsBackToSudoWithoutSystemd(t *testing.T) {
	missing := &exec.Error{Name: "it", Err: exec.ErrNotFound}
	for name, fromPackage := range map[string]bool{"when a person asks": false, "when a package does": true} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			h.withPackage()
			h.answers("systemctl", "", missing)
			if _, err := h.installAs(fromPackage, false); err != nil {
				t.Fatal(err)
			}
			if h.content(h.paths.sudoers) != signed(t, "sudoers") {
				t.Error("there is no rule")
			}
			h.answers("sudo", "", missing)
			if _, err := h.installAs(fromPackage, false); err == nil || !strings.Contains(err.Error(), "nor is there sudo") {
				t.Errorf("no sudo: %v", err)
			}
		})
	}
}

func TestInstallLeavesNoRuleThatSudoCannotRead(t *testing.T) {
	h := makeHost(t)
	h.fails["visudo -c"] = true
	if _, err := h.installAs(false, false); err == nil || h.exists(h.paths.sudoers) {
		t.Errorf("got %v", err)
	}
}

func TestInstallWithSudoSwitchesTheSocketOffAndBack(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	h.withPackage()
	if _, err := h.installAs(false, true); err != nil {
		t.Fatal(err)
	}
	if !h.was("systemctl disable --now kpssh.socket") || h.content(h.paths.sudoers) != signed(t, "sudoers") {
		t.Errorf("ran %q", h.asked)
	}
	if _, err := h.installAs(false, false); err != nil {
		t.Fatal(err)
	}
	if !h.was("systemctl enable --now kpssh.socket") || h.exists(h.paths.sudoers) {
		t.Errorf("ran %q", h.asked)
	}
	h.file(h.paths.sudoers, "# mine\n", 0o440)
	if _, err := h.installAs(false, false); err != nil || !h.exists(h.paths.sudoers) {
		t.Errorf("somebody else's rule is gone: %v", err)
	}
}

func TestInstallCorrectsAnExistingUser(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	h.file(h.paths.passwd, h.passwd("/home/kpssh", "/bin/bash", 999), 0o644)
	if err := h.install(); err != nil {
		t.Fatal(err)
	}
	if want := "usermod --home " + h.paths.home + " --shell " + h.paths.shim + " kpssh"; h.asked[0] != want {
		t.Errorf("ran %q, want %q", h.asked[0], want)
	}
	if _, err := os.Stat(h.paths.keys); err == nil {
		t.Error("no key was given, and there is a file of keys")
	}
}

func TestInstallReplacesKeys(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	h.file(h.paths.keys, "restrict ssh-ed25519 OLD\n", 0o644)
	if err := h.install(); err != nil || !strings.Contains(h.content(h.paths.keys), "OLD") {
		t.Fatalf("no key given: %v, %q", err, h.content(h.paths.keys))
	}
	if err := h.install(publicKey); err != nil || strings.Contains(h.content(h.paths.keys), "OLD") {
		t.Errorf("a key given: %v, %q", err, h.content(h.paths.keys))
	}
}

// The statement of a host, checked the way whoever enrolls it does.
// A host that came with the package alone has no root of trust: whoever enrolls it is told where that comes from.
func TestEnrolmentWithoutARootSaysWhereItComesFrom(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		root string
		want string
	}{
		"none":      {"", "there is no root of trust in "},
		"an empty":  {" ", "root of trust in "},
		"truncated": {string(w.Roots[1][:len(w.Roots[1])/2]), "root of trust in "},
	} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			h.complete()
			if err := os.Remove(h.paths.root); err != nil {
				t.Fatal(err)
			}
			if c.root != "" {
				h.file(h.paths.root, c.root, 0o644)
			}
			_, err := enrolled(h.hostSystem, Build{Version: "v1.0.0"}, false)
			if err == nil || !strings.HasPrefix(err.Error(), c.want+h.paths.root) {
				t.Fatalf("error %v, want one that begins with %q and the file", err, c.want)
			}
			for _, way := range []string{"kpssh-shim install --root FILE", "kpssh host enroll"} {
				if !strings.Contains(err.Error(), way) {
					t.Errorf("%v does not name %q", err, way)
				}
			}
			// With the root in place the same host enrolls: nothing of the attempt is in the way.
			h.file(h.paths.root, string(w.Roots[1]), 0o644)
			if _, err := enrolled(h.hostSystem, Build{Version: "v1.0.0"}, false); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStatementIsSignedByReceiptKeyAndHostKeys(t *testing.T) {
	h := makeHost(t)
	h.complete()
	w := newWorld(t)
	h.file(h.paths.root, string(w.Roots[1]), 0o644)
	keygen, missing := exec.LookPath("ssh-keygen")
	if missing == nil {
		if err := os.MkdirAll(h.paths.hostKey, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(keygen, "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(h.paths.hostKey, "ssh_host_ed25519_key"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	st, err := enrolled(h.hostSystem, Build{Version: "v1.0.0"}, false)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	var read wire.Statement
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	key, err := signing.ParseKey(read.ReceiptKey)
	if err != nil {
		t.Fatal(err)
	}
	hello, err := signing.OpenHello(read.Hello, key)
	if err != nil || hello.HostID != read.HostID || len(read.HostID) != 32 || hello.Root.Version != 1 || read.Root != 1 {
		t.Errorf("hello %+v, %v", hello, err)
	}
	again, err := enrolled(h.hostSystem, Build{Version: "v1.0.0"}, false)
	if err != nil || again.HostID != st.HostID || again.ReceiptKey != st.ReceiptKey {
		t.Errorf("enrolled again: %+v, %v", again, err)
	}
	if missing != nil {
		return // a host without OpenSSH's tools has no host keys either
	}
	dir := t.TempDir()
	h.file(dir+"/signers", "host "+read.HostKeys[0]+"\n", 0o644)
	h.file(dir+"/sig", read.Signatures[0], 0o644)
	for name, tc := range map[string]struct {
		message   []byte
		namespace string
		good      bool
	}{
		"as it is":          {read.Hello, wire.StatementNamespace, true},
		"another message":   {append(bytes.Clone(read.Hello), ' '), wire.StatementNamespace, false},
		"another namespace": {read.Hello, "file", false},
	} {
		cmd := exec.Command(keygen, "-Y", "verify", "-f", dir+"/signers", "-I", "host", "-n", tc.namespace, "-s", dir+"/sig")
		cmd.Stdin = bytes.NewReader(tc.message)
		if out, err := cmd.CombinedOutput(); (err == nil) != tc.good {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
