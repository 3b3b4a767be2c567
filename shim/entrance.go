package shim

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

const (
	socketUnit   = "kpssh.socket"
	sessionUnit  = "kpssh@.service"
	sessionUnits = "kpssh@*.service"
)

// packaged tells whether a distribution's package put the shim here: it brings units of its own.
func (s hostSystem) packaged() bool {
	_, err := os.Lstat(filepath.Join(s.paths.vendorUnits, socketUnit))
	return err == nil
}

// entry leads from user kpssh to the root stage.
func (i *installation) entry() error {
	switch {
	case i.sudo:
		if err := i.switchOff(); err != nil {
			return err
		}
		return i.sudoRule()
	case i.sys.hasSystemd():
		return i.socket()
	case i.fromPackage:
		// An image is being made, and will boot with systemd; enabling only makes a link.
		_, err := i.sys.run("systemctl", "enable", socketUnit)
		if err == nil {
			i.say("%s starts with the next boot; where systemd never runs, run %s install --sudo", socketUnit, wire.ShimPath)
		}
		if !errors.Is(err, exec.ErrNotFound) {
			return err
		}
	}
	return i.sudoRule()
}

// switchOff keeps the socket, which goes before sudo, from being used.
func (i *installation) switchOff() error {
	if !i.sys.hasSystemd() {
		return nil
	}
	return i.sys.closeSocket()
}

// closeSocket stops the socket and keeps it from the next boot. systemctl disable would also remove a link that
// somebody made in the place of the unit, a mask for one: there the socket is stopped, and only the link of our
// enabling goes.
func (s hostSystem) closeSocket() error {
	if !s.hasSocketUnit() {
		return nil
	}
	st, err := os.Lstat(filepath.Join(s.paths.units, socketUnit))
	linked := err == nil && st.Mode()&fs.ModeSymlink != 0
	if linked {
		wanted := filepath.Join(s.paths.units, "sockets.target.wants", socketUnit)
		if err := os.Remove(wanted); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	var args []string
	switch running := s.hasSystemd(); {
	case linked && !running:
		return nil
	case linked:
		args = []string{"stop", socketUnit}
	case running:
		args = []string{"disable", "--now", socketUnit}
	default:
		args = []string{"disable", socketUnit}
	}
	_, err = s.run("systemctl", args...)
	return err
}

func (s hostSystem) hasSocketUnit() bool {
	_, err := os.Lstat(filepath.Join(s.paths.units, socketUnit))
	return err == nil || s.packaged()
}

// socket leaves sessions alone: each is a service of its own, which neither a reload nor a restart
// of the socket ends.
func (i *installation) socket() error {
	anew, err := i.units()
	if err != nil {
		return err
	}
	stale, _ := i.sys.run("systemctl", "show", "--property=NeedDaemonReload", "--value", socketUnit)
	if _, err := i.sys.run("systemctl", "daemon-reload"); err != nil {
		return err
	}
	if i.fromPackage && !anew && i.switchedOff() {
		return nil
	}
	if err := i.dropSudoRule(); err != nil {
		return err
	}
	if _, err := i.sys.run("systemctl", "enable", "--now", socketUnit); err != nil {
		return err
	}
	if strings.TrimSpace(stale) != "yes" {
		return nil
	}
	_, err = i.sys.run("systemctl", "restart", socketUnit)
	return err
}

// switchedOff tells whether somebody has switched the socket off, which a package must not undo. A
// host without the drop-in is not set up yet, and there a socket that is off means nothing.
func (i *installation) switchedOff() bool {
	state, _ := i.sys.run("systemctl", "is-enabled", socketUnit)
	state = strings.TrimSpace(state)
	_, err := os.Lstat(i.sys.paths.dropIn)
	if !strings.HasPrefix(state, "masked") && (state != "disabled" || err != nil) {
		return false
	}
	i.say("%s is %s, and stays so", socketUnit, state)
	return true
}

// units puts the units in place, unless a package has brought them; then our earlier copies, which
// would hide them, go. It reports whether the socket has to be enabled anew for that.
func (i *installation) units() (anew bool, err error) {
	p := i.sys.paths
	files := []struct{ name, path string }{
		{socketUnit, filepath.Join(p.units, socketUnit)},
		{sessionUnit, filepath.Join(p.units, sessionUnit)},
		{"tmpfiles.conf", p.tmpfiles},
	}
	if !i.sys.packaged() {
		for _, f := range files {
			if err := i.packaged(f.name, f.path, 0o644); err != nil {
				return false, err
			}
		}
		return false, nil
	}
	for _, f := range files {
		ours, err := wrote(f.name, f.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return anew, err
		case !ours:
			i.say("%s hides the package's own", f.path)
			continue
		}
		if f.name == socketUnit {
			anew = true
			if _, err := i.sys.run("systemctl", "disable", socketUnit); err != nil {
				return anew, err
			}
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return anew, err
		}
	}
	return anew, nil
}

// dropSudoRule takes our rule away where the socket has come to lead to the root stage.
func (i *installation) dropSudoRule() error {
	path := i.sys.paths.sudoers
	if ours, err := wrote("sudoers", path); err != nil || !ours {
		return nil
	}
	i.say("removed %s", path)
	return os.Remove(path)
}

// sudoRule never leaves a rule behind that sudo cannot read, which would stop it for everybody.
func (i *installation) sudoRule() error {
	if _, err := i.sys.run("sudo", "-V"); errors.Is(err, exec.ErrNotFound) {
		return errors.New("neither systemd runs here, nor is there sudo")
	}
	path := i.sys.paths.sudoers
	if err := i.packaged("sudoers", path, 0o440); err != nil {
		return err
	}
	if _, err := i.sys.run("visudo", "-c", "-f", path); err != nil && !errors.Is(err, exec.ErrNotFound) {
		if ours, _ := wrote("sudoers", path); ours {
			_ = os.Remove(path)
		}
		return err
	}
	return nil
}
