//go:build e2e

package packages

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// booted is a machine of the lab: its own systemd, its own sshd.
type booted struct {
	*lab.Host
	lab *lab.Lab
}

// patient tries again while sshd starts anew because it was told to read its configuration: then nothing has happened yet.
func patient(ctx context.Context, try func() error) error {
	for {
		err := try()
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (b booted) Exec(ctx context.Context, command ...string) (out string, err error) {
	err = patient(ctx, func() error { out, err = b.Host.Exec(ctx, command...); return err })
	return out, err
}

func (b booted) WriteFile(ctx context.Context, path, mode string, content []byte) error {
	return patient(ctx, func() error { return b.Host.WriteFile(ctx, path, mode, content) })
}

func (b booted) Dial(ctx context.Context) (conn net.Conn, err error) {
	err = patient(ctx, func() error {
		conn, err = b.lab.DialContext(ctx, "tcp", net.JoinHostPort(b.Address, "22"))
		return err
	})
	return conn, err
}

const (
	dropIn  = "/etc/ssh/sshd_config.d/00-kpssh.conf"
	sudoers = "/etc/sudoers.d/kpssh"
	socket  = "/run/kpssh/kpssh.sock"
	unit    = "/usr/lib/systemd/system/kpssh.socket"
	wanted  = "/etc/systemd/system/sockets.target.wants/kpssh.socket"
	state   = "/var/lib/kpssh"
	config  = "/etc/kpssh"
	home    = "/var/lib/kpssh-home"
)

// TestDebOnAHostThatSystemdBooted goes through the life of the package on one host, in the order in which a host's
// operator may come to each part of it.
func TestDebOnAHostThatSystemdBooted(t *testing.T) {
	ctx := within(t, 8*time.Minute)
	l, err := lab.Start(ctx, lab.Options{Log: progress, HostsOnly: true})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	machine, err := l.AddHost(ctx, lab.HostOptions{Name: "host-a"})
	must(t, err)
	p := &debLife{host: newHost(ctx, t, booted{machine, l}), lab: l, machine: machine, arch: runtime.GOARCH}
	for _, part := range []struct {
		name string
		play func(*debLife)
	}{
		{"a broken sshd at install keeps sshd as it is, and the package installed", (*debLife).brokenSSHD},
		{"install makes a host that can be enrolled, and greets", (*debLife).install},
		{"installing the same again changes nothing", (*debLife).again},
		{"kpssh host enroll uses the package's shim", (*debLife).cli},
		{"an upgrade keeps the identity, and lets a run go on", (*debLife).upgrade},
		{"an upgrade leaves a socket off that was switched off", (*debLife).switchedOff},
		{"removal closes the way in, keeps the identity, and lets a run go on", (*debLife).remove},
		{"after a reboot nothing of it is left but configuration and identity", (*debLife).reboot},
		{"purge leaves a shim that was installed by hand since", (*debLife).byHand},
		{"installing it again brings the same host back", (*debLife).comeBack},
		{"a socket that was masked stays masked, whatever becomes of the package", (*debLife).masked},
		{"purge removes all of it, and ends a run that goes on", (*debLife).purge},
		{"what kpssh-shim install has set up, the package takes over", (*debLife).takeOver},
	} {
		if !t.Run(part.name, func(t *testing.T) { p.t = t; part.play(p) }) {
			t.Fatal("each part needs the one before")
		}
	}
}

type debLife struct {
	*host
	lab       *lab.Lab
	machine   *lab.Host
	arch      string
	statement wire.Statement
}

func (p *debLife) sshdPID() string {
	return p.run("systemctl", "show", "--property=MainPID", "--value", "ssh.service")
}

// reloads is how often systemd has reloaded sshd.
func (p *debLife) reloads() string {
	return p.sh("journalctl --unit ssh.service --output cat | grep -c 'Reloaded ssh.service' || true")
}

func (p *debLife) brokenSSHD() {
	must(p.t, p.WriteFile(p.ctx, "/etc/ssh/sshd_config.d/50-broken.conf", "0644", []byte("NoSuchOption yes\n")))
	before, reloads := p.sshdPID(), p.reloads()
	out := p.dpkg(older.deb(p.arch))
	for _, want := range []string{"NoSuchOption", "This host is NOT set up", shim + " install"} {
		if !strings.Contains(out, want) {
			p.t.Errorf("dpkg does not say %q: %s", want, out)
		}
	}
	p.there(false, dropIn)
	if now := p.sshdPID(); now != before || p.reloads() != reloads {
		p.t.Errorf("sshd was process %s and is %s, reloads %s and %s", before, now, reloads, p.reloads())
	}
	if out := p.sh("apt-get check"); strings.Contains(out, "not fully installed") {
		p.t.Errorf("apt says %s", out)
	}
	p.run("rm", "/etc/ssh/sshd_config.d/50-broken.conf")
	p.run(shim, "install")
	p.there(true, dropIn)
	if p.reloads() == reloads {
		p.t.Error("sshd was not reloaded for a drop-in that it takes")
	}
	p.run("dpkg", "--purge", "kpssh-shim")
}

func (p *debLife) install() {
	out := p.dpkg(older.deb(p.arch))
	if strings.Contains(out, "NOT set up") {
		p.t.Fatal(out)
	}
	p.there(true, shim, dropIn, unit, wanted, socket, config, state, home, "/usr/share/man/man8/kpssh-shim.8.gz",
		"/usr/lib/tmpfiles.d/kpssh.conf", "/usr/share/doc/kpssh-shim/copyright")
	p.there(false, sudoers, "/etc/systemd/system/kpssh.socket", "/etc/tmpfiles.d/kpssh.conf")
	if got := p.sh("getent passwd kpssh | cut -d: -f6,7; getent shadow kpssh | cut -d: -f2; stat -c '%U %a' " + home + "; ls -A " + home); got !=
		home+":"+shim+"\n*\nroot 755" {
		p.t.Errorf("the user is %q", got)
	}
	if got := p.sh("dpkg --verify kpssh-shim"); got != "" {
		p.t.Errorf("dpkg finds changed files: %s", got)
	}
	p.authorize()
	p.statement = p.enroll()
	p.healthy()
	p.greets(p.statement, older.version)
}

func (p *debLife) again() {
	const look = "find " + config + " " + dropIn + " " + wanted + " -newer /root/mark; systemctl show --property=ActiveEnterTimestamp kpssh.socket"
	before := p.sh("touch /root/mark; " + look)
	p.dpkg(older.deb(p.arch))
	p.run(shim, "install")
	if now := p.sh(look); now != before {
		p.t.Errorf("it was\n%s\nand is\n%s", before, now)
	}
}

func (p *debLife) cli() {
	bin, err := filepath.Abs("../../bin")
	must(p.t, err)
	trust := filepath.Join(p.t.TempDir(), "trust")
	kpssh := func(args ...string) (string, error) {
		return p.lab.Run(p.ctx, append([]string{filepath.Join(bin, "kpssh")}, args...)...)
	}
	_, err = kpssh("init", "--dir", trust, "--no-passphrase")
	must(p.t, err)
	digest := p.run("sha256sum", shim)
	manifest, err := kpssh("host", "enroll", "--dir", trust, "--reset-trust", "--name", "host-a", "--identity", p.lab.AdminKeyPath(),
		"--host-key", p.machine.HostKeyLine(), "--shim", bin, "root@"+p.machine.Address)
	must(p.t, err)
	if !strings.Contains(manifest, p.statement.HostID) {
		p.t.Errorf("the manifest names another host: %s", manifest)
	}
	if now := p.run("sha256sum", shim); now != digest {
		p.t.Errorf("the package's shim was %s and is %s", digest, now)
	}
	if got := p.sh("dpkg --verify kpssh-shim; ls -A /usr/libexec/kpssh"); got != "kpssh-shim" {
		p.t.Errorf("the package's files: %s", got)
	}
	// Back to the keys of this test.
	p.authorize()
	p.run(shim, "enroll", "--json", "--reset-trust")
}

// waiting is a script that ends when it is told to.
const waiting = "set -eu\necho started >/root/started\nwhile [ ! -e /root/go-on ]; do sleep 0.1; done\necho ended >/root/ended\n"

// during does something while a script runs, which must end well after it.
func (p *debLife) during(something func()) {
	p.t.Helper()
	p.run("rm", "-f", "/root/started", "/root/go-on", "/root/ended")
	s, err := p.connect(p.statement)
	must(p.t, err)
	defer s.close()
	s.order(waiting)
	p.until("the script to run", "test -e /root/started")
	something()
	p.there(false, "/root/ended")
	p.run("touch", "/root/go-on")
	if r := s.receipt(); r.Outcome != "ok" {
		p.t.Errorf("the run ended as %s (%s)", r.Outcome, r.Reason)
	}
	p.there(true, "/root/ended")
}

func (p *debLife) upgrade() {
	if out, err := p.Exec(p.ctx, "dpkg", "--compare-versions", newer.packageVersion()+"-1", "gt", older.packageVersion()+"-1"); err != nil {
		p.t.Fatalf("dpkg does not think it an upgrade: %s", out)
	}
	before := p.sh("cat " + config + "/* | sha256sum; sha256sum " + state + "/host.json " + state + "/receipt.key")
	p.during(func() {
		if out := p.dpkg(newer.deb(p.arch)); strings.Contains(out, "NOT set up") {
			p.t.Error(out)
		}
		p.greets(p.statement, newer.version)
	})
	if now := p.sh("cat " + config + "/* | sha256sum; sha256sum " + state + "/host.json " + state + "/receipt.key"); now != before {
		p.t.Errorf("configuration or identity was\n%s\nand is\n%s", before, now)
	}
	if st := p.enroll(); st.HostID != p.statement.HostID || st.ReceiptKey != p.statement.ReceiptKey {
		p.t.Errorf("it is another host: %+v", st)
	}
	p.healthy()
	p.greets(p.statement, newer.version)
}

func (p *debLife) switchedOff() {
	p.run("systemctl", "disable", "--now", "kpssh.socket")
	if out := p.dpkg(newer.deb(p.arch)); !strings.Contains(out, "kpssh.socket is disabled, and stays so") {
		p.t.Errorf("dpkg says %s", out)
	}
	p.there(false, wanted, socket)
	p.run(shim, "install")
	p.greets(p.statement, newer.version)
}

func (p *debLife) remove() {
	p.during(func() {
		p.run("dpkg", "--remove", "kpssh-shim")
		p.there(false, shim, "/usr/libexec/kpssh", dropIn, unit, wanted, socket, sudoers)
		p.lockedOut(p.statement)
	})
	p.there(true, config+"/root.json", config+"/authorized_keys", state+"/host.json", home)
	if got := p.dpkgStatus(); got != "rc" {
		p.t.Errorf("dpkg says %q", got)
	}
	if out := p.sh("sshd -T -C user=kpssh,host=localhost,addr=127.0.0.1 | grep -i kpssh || true"); out != "" {
		p.t.Errorf("sshd still has %s", out)
	}
}

func (p *debLife) reboot() {
	must(p.t, p.machine.Reboot(p.ctx))
	p.there(false, "/run/kpssh")
	if out := p.sh("systemctl list-units --all --no-legend kpssh.socket 'kpssh@*'"); out != "" {
		p.t.Errorf("systemd has %s", out)
	}
}

// byHand: whoever goes on with a shim of his own must not lose the host to the rest of the package.
func (p *debLife) byHand() {
	look := "cat " + config + "/* | sha256sum; sha256sum " + state + "/host.json " + state + "/receipt.key; getent passwd kpssh"
	p.run("cp", p.copy(filepath.Join(older.dir, "kpssh-shim-linux-"+p.arch)), "/root/kpssh-shim")
	p.sh("chmod 755 /root/kpssh-shim; /root/kpssh-shim install")
	before := p.sh(look)
	p.run("dpkg", "--purge", "kpssh-shim")
	if now := p.sh(look); now != before {
		p.t.Errorf("identity and user were\n%s\nand are\n%s", before, now)
	}
	p.there(true, shim, dropIn, socket, home)
	p.greets(p.statement, older.version)
}

func (p *debLife) comeBack() {
	p.dpkg(newer.deb(p.arch))
	p.there(true, socket)
	p.greets(p.statement, newer.version)
	must(p.t, p.machine.Reboot(p.ctx))
	p.greets(p.statement, newer.version)
}

func (p *debLife) masked() {
	const mask = "/etc/systemd/system/kpssh.socket"
	p.run("systemctl", "mask", "--now", "kpssh.socket")
	p.run("dpkg", "--remove", "kpssh-shim")
	p.there(false, wanted, socket, dropIn)
	if to := p.run("readlink", mask); to != "/dev/null" {
		p.t.Errorf("the mask leads to %q", to)
	}
	if out := p.dpkg(newer.deb(p.arch)); !strings.Contains(out, "kpssh.socket is masked, and stays so") {
		p.t.Errorf("dpkg says %s", out)
	}
	p.there(false, wanted, socket)
	p.run("systemctl", "unmask", "kpssh.socket")
	p.run(shim, "install")
	p.greets(p.statement, newer.version)
}

func (p *debLife) purge() {
	p.run("rm", "-f", "/root/started", "/root/go-on", "/root/ended")
	s, err := p.connect(p.statement)
	must(p.t, err)
	defer s.close()
	s.order(waiting)
	p.until("the script to run", "test -e /root/started")
	p.run("dpkg", "--purge", "kpssh-shim")
	if out := p.sh("systemctl list-units --all --no-legend 'kpssh@*'; pgrep -f 'sleep 0[.]1' || true"); out != "" {
		p.t.Errorf("a run went on: %s", out)
	}
	p.there(false, shim, "/usr/libexec/kpssh", dropIn, unit, wanted, "/run/kpssh", sudoers, config, state, home)
	if got := p.sh("getent passwd kpssh || getent group kpssh || true") + p.dpkgStatus(); got != "" {
		p.t.Errorf("left: %q", got)
	}
}

func (p *debLife) takeOver() {
	p.run("cp", p.copy(filepath.Join(older.dir, "kpssh-shim-linux-"+p.arch)), "/root/kpssh-shim")
	p.sh("chmod 755 /root/kpssh-shim; /root/kpssh-shim install")
	p.there(true, "/etc/systemd/system/kpssh.socket", "/etc/tmpfiles.d/kpssh.conf", wanted, socket)
	p.dpkg(newer.deb(p.arch))
	p.there(false, "/etc/systemd/system/kpssh.socket", "/etc/systemd/system/kpssh@.service", "/etc/tmpfiles.d/kpssh.conf")
	p.authorize()
	p.statement = p.enroll()
	p.healthy()
	p.greets(p.statement, newer.version)
	userdel := p.sh("command -v userdel")
	p.run("mv", userdel, "/root/userdel") // not every host has one
	p.run("dpkg", "--purge", "kpssh-shim")
	p.there(false, config, state, home, shim)
	p.run("mv", "/root/userdel", userdel)
	p.run("userdel", "--force", "kpssh")

	p.sh("/root/kpssh-shim install && " + shim + " uninstall --purge")
	p.there(false, shim, "/usr/libexec/kpssh", dropIn, wanted, "/run/kpssh", "/etc/systemd/system/kpssh.socket", config, state, home)
}
