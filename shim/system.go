package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// loginUser is who SSH logs in as.
const loginUser = "kpssh"

// paths are the places of a host's files. They are fixed: nothing sets them from outside.
type paths struct {
	shim, state, config, root, keys, runtime, socket, home       string
	sshd, sshdDropIns, dropIn, sudoers, tmpfiles, units, hostKey string
	vendorSSHD, vendorUnits                                      string
	passwd, group                                                string
}

// hostPaths are the places below a prefix, which is empty except in tests.
func hostPaths(prefix string) paths {
	return paths{
		shim: prefix + wire.ShimPath, state: prefix + "/var/lib/kpssh",
		config: prefix + "/etc/kpssh", root: prefix + "/etc/kpssh/root.json",
		keys: prefix + "/etc/kpssh/authorized_keys", runtime: prefix + "/run/kpssh",
		socket: prefix + "/run/kpssh/kpssh.sock", home: prefix + "/var/lib/kpssh-home",
		sshd: prefix + "/etc/ssh/sshd_config", sshdDropIns: prefix + "/etc/ssh/sshd_config.d",
		dropIn:  prefix + "/etc/ssh/sshd_config.d/00-kpssh.conf",
		sudoers: prefix + "/etc/sudoers.d/kpssh", tmpfiles: prefix + "/etc/tmpfiles.d/kpssh.conf",
		units: prefix + "/etc/systemd/system", hostKey: prefix + "/etc/ssh",
		vendorSSHD: prefix + "/usr/etc/ssh/sshd_config", vendorUnits: prefix + "/usr/lib/systemd/system",
		passwd: prefix + "/etc/passwd", group: prefix + "/etc/group",
	}
}

// hostSystem is the host that a command works on.
type hostSystem struct {
	paths paths
	// run runs a program of the system and returns what it prints.
	run func(name string, args ...string) (string, error)
}

// account is an entry of passwd.
type account struct {
	uid, gid    int
	home, shell string
}

var errNoUser = errors.New("there is no user " + loginUser)

// user looks the login user's account up in the host's own file: it is there or it is nobody.
func (s hostSystem) user() (account, error) {
	f, err := entry(s.paths.passwd, loginUser, 7)
	if err != nil {
		return account{}, err
	}
	uid, err1 := strconv.Atoi(f[2])
	gid, err2 := strconv.Atoi(f[3])
	if err1 != nil || err2 != nil {
		return account{}, fmt.Errorf("reading entry of %q in %q: not numbers", loginUser, s.paths.passwd)
	}
	return account{uid: uid, gid: gid, home: f[5], shell: f[6]}, nil
}

func (s hostSystem) hasGroup(name string) bool {
	_, err := entry(s.paths.group, name, 4)
	return err == nil
}

// groupsOf are the names of the groups that an account is in.
func (s hostSystem) groupsOf(name string, gid int) []string {
	data, err := os.ReadFile(s.paths.group)
	if err != nil {
		return nil
	}
	var in []string
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 4 {
			continue
		}
		if f[2] == strconv.Itoa(gid) || slices.Contains(strings.Split(f[3], ","), name) {
			in = append(in, f[0])
		}
	}
	return in
}

func entry(path, name string, width int) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Split(strings.TrimRight(line, "\n"), ":"); f[0] == name && len(f) == width {
			return f, nil
		}
	}
	return nil, errNoUser
}

// hasSystemd tells whether systemd runs this host.
func (s hostSystem) hasSystemd() bool {
	st, err := os.Stat(filepath.Join(filepath.Dir(s.paths.runtime), "systemd/system"))
	return err == nil && st.IsDir()
}

// explain adds what a program printed to why it failed.
func explain(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %.400q", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}

// guarded tells whether only root can change a file, which includes every directory above it.
func guarded(path string, uid int) error {
	for first := true; ; first = false {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		link := st.Mode&unix.S_IFMT == unix.S_IFLNK
		sticky := !first && st.Mode&unix.S_ISVTX != 0
		switch {
		case link && first:
			return fmt.Errorf("%q is a link", path)
		case int(st.Uid) != uid && st.Uid != 0:
			return fmt.Errorf("%q is owned by uid %d", path, st.Uid)
		case !link && !sticky && st.Mode&0o022 != 0:
			return fmt.Errorf("%q has mode %#o", path, st.Mode&0o7777)
		}
		if path == "/" {
			return nil
		}
		path = filepath.Dir(path)
	}
}

// ours tells whether a regular file is this user's and has a mode.
func ours(path string, mode fs.FileMode) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Mode == unix.S_IFREG|uint32(mode.Perm()) && int(st.Uid) == os.Geteuid()
}

// put makes a file of this user's have a content and a mode, atomically, and reports whether it had to. A link stays a
// link, and what it leads to is written.
func put(path string, data []byte, mode fs.FileMode) (changed bool, err error) {
	if path, err = target(path); err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, data) && ours(path, mode) {
		return false, nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".kpssh-*")
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return false, err
	}
	if err := f.Chmod(mode); err != nil {
		return false, err
	}
	if err := f.Sync(); err != nil {
		return false, err
	}
	return true, os.Rename(f.Name(), path)
}
