package shim

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const installUsage = `usage: kpssh-shim install [--authorized-key LINE]… [--root FILE] [--sudo] [--package]

Sets this host up, as root, and changes nothing that is right already: this binary in
/usr/libexec/kpssh, user kpssh with it as login shell, the sshd drop-in (tested with sshd -t
before sshd is reloaded, taken back when it fails), and the systemd socket of the root stage, or
a sudo rule where systemd does not run. Where a distribution's package has put binary and units
in place, those stay, and so does a drop-in, unit or rule that somebody else wrote or changed.
"kpssh-shim uninstall" takes it all away again.

  --authorized-key LINE  an SSH public key that may log in as kpssh; once for each. The keys given
                         replace those that are there, so that a key can be taken away. None given
                         leaves them as they are.
  --root FILE            the root of trust, put into /etc/kpssh/root.json; - reads it from input
  --sudo                 reach the root stage through sudo even where systemd runs
  --package              for a package's own script: a socket that somebody has switched off stays
                         off, and where systemd does not run, the socket is readied for the next boot

example:
  ./kpssh-shim install --authorized-key "$(cat id_ed25519.pub)" --root root.json
`

type installation struct {
	sys  hostSystem
	log  io.Writer
	keys []string
	root []byte
	sudo bool
	// fromPackage says that a package's script asks, and not a person.
	fromPackage bool
}

// setupTime bounds each tool that sets a host up: systemd on a Raspberry Pi takes its time.
const setupTime = 2 * time.Minute

func setupTool(name string, args ...string) (string, error) {
	return toolWithin(setupTime, name, args...)
}

func install(p Process, sys hostSystem, _ Build, args []string) int {
	sys.run = setupTool
	i := &installation{sys: sys, log: p.Stderr}
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Func("authorized-key", "", func(line string) error {
		key, err := restrictedKey(line, sys.paths.shim)
		i.keys = append(i.keys, key)
		return err
	})
	root := flags.String("root", "", "")
	flags.BoolVar(&i.sudo, "sudo", false, "")
	flags.BoolVar(&i.fromPackage, "package", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return usageExit(p, err, installUsage)
	}
	if os.Geteuid() != 0 {
		return fail(p.Stderr, errors.New("setting a host up takes root"))
	}
	var err error
	if i.root, err = readRoot(*root, p.Stdin); err != nil {
		return fail(p.Stderr, err)
	}
	if err := i.all(); err != nil {
		return fail(p.Stderr, err)
	}
	return exitOK
}

func readRoot(name string, stdin io.Reader) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	var (
		data []byte
		err  error
	)
	if name == "-" {
		data, err = io.ReadAll(io.LimitReader(stdin, maxRootFile))
	} else {
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading root of trust: %w", err)
	}
	if _, err := signing.OpenFirstRoot(data); err != nil {
		return nil, fmt.Errorf("opening root of trust: %w", err)
	}
	return data, nil
}

// restrictedKey makes the line of authorized_keys for a public key line, which must be a bare one:
// options of somebody else could undo ours.
func restrictedKey(line, shim string) (string, error) {
	f := strings.Fields(line)
	if len(f) < 2 || strings.ContainsAny(line, "\n\r\x00") {
		return "", fmt.Errorf("%.60q is not a public key line", line)
	}
	switch f[0] {
	case "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa",
		"sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com":
	default:
		return "", fmt.Errorf("%.60q is not a kind of public key", f[0])
	}
	blob, err := base64.StdEncoding.DecodeString(f[1])
	if err != nil || len(blob) < 4 || !bytes.HasPrefix(blob[4:], []byte(f[0])) || binary.BigEndian.Uint32(blob) != uint32(len(f[0])) {
		return "", fmt.Errorf("%.60q is not a public key line", line)
	}
	return fmt.Sprintf("restrict,command=%q %s %s", shim, f[0], f[1]), nil
}

// all takes the steps in an order that leaves no opening when it stops halfway: the key gets in
// only once sshd holds it to the shim.
func (i *installation) all() error {
	p := i.sys.paths
	for _, step := range []struct {
		doing string
		do    func() error
	}{
		{"copying the shim", i.binary},
		{"making the home of user kpssh", func() error { return ownDirectory(p.home, 0o755) }},
		{"making user kpssh", i.user},
		{"making the state directory", func() error { return ownDirectory(p.state, 0o700) }},
		{"making the configuration directory", func() error { return ownDirectory(p.config, 0o755) }},
		{"writing the root of trust", func() error { return i.file(p.root, i.root, 0o644) }},
		{"opening the way to the root stage", i.entry},
		{"configuring sshd", i.sshd},
		{"authorizing keys", i.authorize},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.doing, explain(err))
		}
	}
	return nil
}

func (i *installation) say(format string, args ...any) {
	fmt.Fprintf(i.log, "kpssh-shim: "+format+"\n", args...)
}

// file writes a file, and says so when that changed something. No data leaves the file alone.
func (i *installation) file(path string, data []byte, mode fs.FileMode) error {
	if data == nil {
		return nil
	}
	changed, err := put(path, data, mode)
	if changed && err == nil {
		i.say("wrote %s", path)
	}
	return err
}

// packaged writes a file of packaging/host among those of others, unless somebody else put one there.
func (i *installation) packaged(name, path string, mode fs.FileMode) error {
	theirs, err := foreign(name, path)
	if err != nil {
		return err
	}
	if theirs {
		i.say("%s is not as kpssh-shim wrote it, and stays; move it away and install again to have kpssh-shim's", path)
		return nil
	}
	text, err := packagedText(name)
	if err != nil {
		return err
	}
	return i.file(path, marked(text), mode)
}

// binary leaves a package's own alone: it is the package that brings the next one.
func (i *installation) binary() error {
	if _, err := os.Stat(i.sys.paths.shim); err == nil && i.sys.packaged() {
		return nil
	}
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return i.file(i.sys.paths.shim, data, 0o755)
}

// ownDirectory makes a directory that belongs to root.
func ownDirectory(path string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%q is not a directory", path)
	}
	if err := os.Chown(path, os.Geteuid(), os.Getegid()); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func (i *installation) user() error {
	p := i.sys.paths
	u, err := i.sys.user()
	if err == nil {
		if u.home == p.home && u.shell == p.shim {
			return nil
		}
		i.say("changing home and login shell of user %s", loginUser)
		_, err = i.sys.run("usermod", "--home", p.home, "--shell", p.shim, loginUser)
		return err
	}
	if !errors.Is(err, errNoUser) {
		return err
	}
	// "*" is no password at all, and unlike a locked account it lets keys in without PAM.
	args := []string{"--system", "--no-create-home", "--home-dir", p.home, "--shell", p.shim, "--password", "*"}
	if i.sys.hasGroup(loginUser) {
		args = append(args, "--gid", loginUser)
	} else {
		args = append(args, "--user-group")
	}
	i.say("making user %s", loginUser)
	_, err = i.sys.run("useradd", append(args, loginUser)...)
	return err
}

func (i *installation) authorize() error {
	if len(i.keys) == 0 {
		return nil
	}
	data := "# Written by kpssh-shim install; sshd reads it for user kpssh.\n" + strings.Join(i.keys, "\n") + "\n"
	return i.file(i.sys.paths.keys, []byte(data), 0o644)
}
