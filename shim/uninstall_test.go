package shim

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func (h *madeHost) uninstall(purge bool) (said string) {
	h.t.Helper()
	var log bytes.Buffer
	if err := (&removal{sys: h.hostSystem, log: &log, purge: purge}).all(); err != nil {
		h.t.Fatal(err)
	}
	return log.String()
}

// everything is all that install writes and makes.
func (h *madeHost) everything() []string {
	p := h.paths
	return []string{
		p.dropIn, p.units + "/kpssh.socket", p.units + "/kpssh@.service", p.tmpfiles, p.sudoers, p.shim, p.runtime,
	}
}

func TestUninstallTakesAwayWhatInstallSetUpAndKeepsTheHost(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	h.says["systemctl"] = "active\n"
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	h.file(h.paths.state+"/host.json", "{}", 0o600)
	h.file(h.paths.sudoers, embedded(t, "sudoers"), 0o440)
	h.file(h.paths.runtime+"/doctor.json", "{}", 0o600)
	h.asked = nil
	h.uninstall(false)
	for _, path := range h.everything() {
		if h.exists(path) {
			t.Errorf("%s is still there", path)
		}
	}
	for _, path := range []string{h.paths.state + "/host.json", h.paths.root, h.paths.keys, h.paths.home} {
		if !h.exists(path) {
			t.Errorf("%s is gone", path)
		}
	}
	want := []string{
		"systemctl disable --now kpssh.socket", "sshd -t", "systemctl is-active ssh.service", "systemctl reload ssh.service",
		"systemctl daemon-reload",
	}
	if !slices.Equal(h.asked, want) {
		t.Errorf("ran\n%s\nwant\n%s", strings.Join(h.asked, "\n"), strings.Join(want, "\n"))
	}
	h.asked = nil
	if said := h.uninstall(false); said != "" || len(h.asked) > 0 {
		t.Errorf("doing it again: %q, %q", said, h.asked)
	}
}

func TestUninstallLeavesToAPackageWhatIsItsOwn(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	h.withPackage()
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	h.uninstall(false)
	if !h.exists(h.paths.shim) || !h.exists(h.paths.vendorUnits+"/kpssh.socket") {
		t.Error("files of the package are gone")
	}
	if h.exists(h.paths.dropIn) {
		t.Error("the drop-in is still there")
	}
}

func TestUninstallLeavesWhatSomebodyElsePutThere(t *testing.T) {
	for name, put := range map[string]func(h *madeHost, path string){
		"a file of theirs": func(h *madeHost, path string) { h.file(path, "# mine\n", 0o644) },
		"one of ours that they changed": func(h *madeHost, path string) {
			h.file(path, signedText("[Unit]\n")+"# mine\n", 0o644)
		},
		"a link, as a mask is one": func(h *madeHost, path string) { h.link(path, "/dev/null") },
	} {
		for _, purge := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, purge %t", name, purge), func(t *testing.T) {
				h := makeHost(t)
				h.withSystemd()
				h.withPackage()
				if err := h.install(publicKey); err != nil {
					t.Fatal(err)
				}
				theirs := []string{h.paths.dropIn, h.paths.units + "/kpssh.socket", h.paths.units + "/kpssh@.service", h.paths.sudoers, h.paths.tmpfiles}
				for _, path := range theirs {
					put(h, path)
				}
				before := map[string]string{}
				for _, path := range theirs {
					before[path] = h.content(path)
				}
				said := h.uninstall(purge)
				for _, path := range theirs {
					if !h.exists(path) || h.content(path) != before[path] || !strings.Contains(said, path+" is not as kpssh-shim wrote it, and stays") {
						t.Errorf("%s was touched, or nobody was told: %q", path, said)
					}
				}
			})
		}
	}
}

// systemctl disable would remove the mask, or the link of somebody's own unit, and start nothing in its stead.
func TestUninstallStopsASocketThatIsMaskedWithoutUnmaskingIt(t *testing.T) {
	for name, running := range map[string]bool{"where systemd runs": true, "in an image": false} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			if running {
				h.withSystemd()
			}
			h.withPackage()
			if _, err := h.installAs(true, false); err != nil {
				t.Fatal(err)
			}
			wanted := h.paths.units + "/sockets.target.wants/kpssh.socket"
			h.link(h.paths.units+"/kpssh.socket", "/dev/null")
			h.link(wanted, h.paths.vendorUnits+"/kpssh.socket")
			h.asked = nil
			h.uninstall(false)
			if h.was("systemctl stop kpssh.socket") != running || slices.ContainsFunc(h.asked, func(s string) bool { return strings.Contains(s, "disable") }) {
				t.Errorf("ran %q", h.asked)
			}
			if h.exists(wanted) || !h.exists(h.paths.units+"/kpssh.socket") {
				t.Error("the socket is wanted still, or its mask is gone")
			}
		})
	}
}

func TestUninstallPurgesIdentityConfigurationAndUser(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	h.uninstall(true)
	for _, path := range []string{h.paths.state, h.paths.config, h.paths.home, h.paths.shim} {
		if h.exists(path) {
			t.Errorf("%s is still there", path)
		}
	}
	stop, del := slices.Index(h.asked, "systemctl stop kpssh@*.service"), slices.Index(h.asked, "userdel --force kpssh")
	if stop < 0 || del < stop {
		t.Errorf("sessions end before their user goes: %q", h.asked)
	}
}

func TestUninstallTakesTheIncludeOutThatInstallAdded(t *testing.T) {
	for name, other := range map[string]bool{"and nobody else needs": false, "and somebody else needs by now": true} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			h.withSystemd()
			const old = "UsePAM yes\n"
			h.file(h.paths.sshd, old, 0o600)
			if err := h.install(publicKey); err != nil {
				t.Fatal(err)
			}
			if other {
				h.file(h.paths.sshdDropIns+"/50-other.conf", "X11Forwarding no\n", 0o644)
			}
			h.uninstall(false)
			if got := h.content(h.paths.sshd); (got == old) == other {
				t.Errorf("sshd_config is %q", got)
			}
			if st, err := os.Stat(h.paths.sshd); err != nil || st.Mode() != 0o600 {
				t.Errorf("mode %v, %v", st.Mode(), err)
			}
		})
	}
}

func TestUninstallDoesNotReloadAnSSHDWhoseConfigurationIsBroken(t *testing.T) {
	h := makeHost(t)
	h.withSystemd()
	h.says["systemctl"] = "active\n"
	if err := h.install(publicKey); err != nil {
		t.Fatal(err)
	}
	h.fails["sshd -t"] = true
	h.asked = nil
	said := h.uninstall(false)
	if h.exists(h.paths.dropIn) || h.was("systemctl reload ssh.service") {
		t.Errorf("ran %q", h.asked)
	}
	if !strings.Contains(said, "sshd was not reloaded") {
		t.Errorf("said %q", said)
	}
}
