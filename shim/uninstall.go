package shim

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

const uninstallUsage = `usage: kpssh-shim uninstall [--purge]

Takes away, as root, what install has set up: the socket, the sshd drop-in (sshd is reloaded), the
sudo rule, and units and binary unless a distribution's package has brought them. What somebody else
wrote or changed in their places stays, a mask of the socket for one. A run that goes on is left to
its end. Configuration in /etc/kpssh, the host's identity in /var/lib/kpssh and user
kpssh stay, so that the same host comes back when it is installed again.

  --purge  remove those too and end sessions of the socket; the host then needs a new enrolment

example:
  /usr/libexec/kpssh/kpssh-shim uninstall --purge
`

type removal struct {
	sys   hostSystem
	log   io.Writer
	purge bool
}

func uninstall(p Process, sys hostSystem, _ Build, args []string) int {
	sys.run = setupTool
	r := &removal{sys: sys, log: p.Stderr}
	flags := flag.NewFlagSet("uninstall", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&r.purge, "purge", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return usageExit(p, err, uninstallUsage)
	}
	if os.Geteuid() != 0 {
		return fail(p.Stderr, errors.New("taking the shim off a host takes root"))
	}
	if err := r.all(); err != nil {
		return fail(p.Stderr, err)
	}
	return exitOK
}

// all closes the way in before it takes anything else away, and the binary goes last: what stops
// halfway can be done again.
func (r *removal) all() error {
	steps := []struct {
		doing string
		do    func() error
	}{
		{"closing the socket", r.socket},
		{"taking the drop-in from sshd", r.sshd},
		{"removing files", r.files},
	}
	if r.purge {
		steps = append(steps, []struct {
			doing string
			do    func() error
		}{
			{"ending sessions", r.sessions},
			{"removing user kpssh", r.user},
			{"removing configuration and state", r.state},
		}...)
	}
	steps = append(steps, struct {
		doing string
		do    func() error
	}{"removing the shim", r.binary})
	for _, step := range steps {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.doing, explain(err))
		}
	}
	return nil
}

func (r *removal) say(format string, args ...any) {
	fmt.Fprintf(r.log, "kpssh-shim: "+format+"\n", args...)
}

// remove removes files that are there, and reports whether any was.
func (r *removal) remove(paths ...string) (gone bool, err error) {
	for _, path := range paths {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return gone, err
		}
		gone = true
		r.say("removed %s", path)
	}
	return gone, nil
}

// removeOurs removes files of packaging/host that install wrote, and leaves those alone that somebody else put in their
// places. It reports whether any was removed.
func (r *removal) removeOurs(files map[string]string) (gone bool, err error) {
	for _, path := range slices.Sorted(maps.Keys(files)) {
		theirs, err := foreign(files[path], path)
		if err != nil {
			return gone, err
		}
		if theirs {
			r.say("%s is not as kpssh-shim wrote it, and stays", path)
			continue
		}
		removed, err := r.remove(path)
		if err != nil {
			return gone, err
		}
		gone = gone || removed
	}
	return gone, nil
}

func (r *removal) socket() error {
	err := r.sys.closeSocket()
	if errors.Is(err, exec.ErrNotFound) {
		return nil // nothing that could have enabled it
	}
	return err
}

// sshd takes the drop-in away, and the Include that install has added when nothing else needs it.
// What sshd says to that stops nobody: without the drop-in user kpssh has no keys, and with one of somebody else's it
// has no socket.
func (r *removal) sshd() error {
	p := r.sys.paths
	changed, err := r.removeOurs(map[string]string{p.dropIn: "sshd.conf"})
	if err != nil {
		return err
	}
	main, mode, err := r.sys.sshdConfig()
	if err == nil {
		rest, ours := bytes.CutPrefix(main, []byte(includeLines(p)))
		others, _ := filepath.Glob(filepath.Join(p.sshdDropIns, "*.conf"))
		if ours && len(others) == 0 {
			if _, err := put(p.sshd, rest, mode); err != nil {
				return err
			}
			r.say("took the Include out of %s", p.sshd)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	if err := r.sys.testSSHD(); err != nil {
		r.say("sshd was not reloaded, because it does not take its configuration: %v", explain(err))
		return nil
	}
	if err := r.sys.reloadSSHD(); err != nil {
		r.say("sshd could not be reloaded: %v", explain(err))
	}
	return nil
}

func (r *removal) files() error {
	p := r.sys.paths
	gone, err := r.removeOurs(map[string]string{
		filepath.Join(p.units, socketUnit): socketUnit, filepath.Join(p.units, sessionUnit): sessionUnit,
		p.sudoers: "sudoers", p.tmpfiles: "tmpfiles.conf",
	})
	if err != nil {
		return err
	}
	if err := os.RemoveAll(p.runtime); err != nil {
		return err
	}
	if !gone || !r.sys.hasSystemd() {
		return nil
	}
	_, err = r.sys.run("systemctl", "daemon-reload")
	return err
}

func (r *removal) sessions() error {
	if !r.sys.hasSystemd() {
		return nil
	}
	_, err := r.sys.run("systemctl", "stop", sessionUnits)
	return err
}

func (r *removal) user() error {
	if _, err := r.sys.user(); err != nil {
		return nil // nobody
	}
	// A relay whose session has just ended may not be gone yet.
	_, err := r.sys.run("userdel", "--force", loginUser)
	return err
}

func (r *removal) state() error {
	p := r.sys.paths
	for _, dir := range []string{p.config, p.state, p.home} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		r.say("removed %s", dir)
	}
	return nil
}

func (r *removal) binary() error {
	if r.sys.packaged() {
		return nil
	}
	if _, err := r.remove(r.sys.paths.shim); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(r.sys.paths.shim)) // unless somebody keeps more there
	return nil
}
