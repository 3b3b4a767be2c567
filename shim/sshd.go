package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// includes finds an Include of the directory that the drop-in goes to. It is made on demand: every session starts a
// process, and few of them ask.
func includes() *regexp.Regexp {
	return regexp.MustCompile(`(?mi)^\s*include\s.*sshd_config\.d/\*\.conf`)
}

// sshd puts the drop-in in place, has sshd check its whole configuration, and only then reloads
// it. A configuration that sshd does not take is put back as it was.
func (i *installation) sshd() error {
	p := i.sys.paths
	main, mode, err := i.sys.sshdConfig()
	if err != nil {
		return err
	}
	theirs, err := foreign("sshd.conf", p.dropIn)
	if err != nil {
		return err
	}
	old, _ := os.ReadFile(p.dropIn)
	included := includes().Match(main)
	if !included {
		if err := i.file(p.sshd, append([]byte(includeLines(p)), main...), mode); err != nil {
			return err
		}
	}
	err = i.packaged("sshd.conf", p.dropIn, 0o644)
	if err == nil {
		if err = i.sys.testSSHD(); err == nil {
			return i.sys.reloadSSHD()
		}
		err = fmt.Errorf("sshd does not take its configuration with the drop-in, and has it as it was: %w", explain(err))
	}
	if !theirs {
		err = errors.Join(err, restore(p.dropIn, old, 0o644))
	}
	if !included {
		err = errors.Join(err, restore(p.sshd, main, mode))
	}
	return err
}

// restore has a file be what it was; nil is none.
func restore(path string, data []byte, mode fs.FileMode) error {
	if data != nil {
		_, err := put(path, data, mode)
		return err
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// includeLines are what a configuration without an Include of the drop-ins gets as its first lines.
func includeLines(p paths) string {
	return "# Added by kpssh-shim install.\nInclude " + p.sshdDropIns + "/*.conf\n\n"
}

// sshdConfig reads sshd's main configuration. Where a distribution keeps its own below /usr and the
// host has none in /etc, that one has to include the drop-ins by itself.
func (s hostSystem) sshdConfig() ([]byte, fs.FileMode, error) {
	path := s.paths.sshd
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if vendor, err := os.ReadFile(s.paths.vendorSSHD); err == nil && includes().Match(vendor) {
			return vendor, 0, nil
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading configuration of sshd: %w", err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, 0, fmt.Errorf("reading configuration of sshd: %w", err)
	}
	return data, st.Mode().Perm(), nil
}

// testSSHD has sshd check its configuration. In an image that is being made sshd has no host keys
// yet, without which it checks nothing; it is lent one.
func (s hostSystem) testSSHD() error {
	// sshd -t wants the directory that only a running sshd makes.
	if err := os.MkdirAll(filepath.Join(filepath.Dir(s.paths.runtime), "sshd"), 0o755); err != nil {
		return err
	}
	_, err := s.run("sshd", "-t")
	if keys, _ := filepath.Glob(filepath.Join(s.paths.hostKey, "ssh_host_*_key")); err == nil || len(keys) > 0 {
		return err
	}
	dir, err := os.MkdirTemp("", "kpssh-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	key := filepath.Join(dir, "key")
	if _, err := s.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key); err != nil {
		return err
	}
	_, err = s.run("sshd", "-t", "-h", key)
	return err
}

// reloadSSHD makes a running sshd read its configuration. An sshd that is started for each connection
// reads it anyway.
func (s hostSystem) reloadSSHD() error {
	if s.hasSystemd() {
		for _, unit := range []string{"ssh.service", "sshd.service"} {
			if state, _ := s.run("systemctl", "is-active", unit); strings.TrimSpace(state) == "active" {
				_, err := s.run("systemctl", "reload", unit)
				return err
			}
		}
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(s.paths.runtime), "sshd.pid"))
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 || firstLine("/proc/"+strconv.Itoa(pid)+"/comm") != "sshd" {
		return nil
	}
	return unix.Kill(pid, unix.SIGHUP)
}
