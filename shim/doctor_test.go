package shim

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
)

// sshdSays is what `sshd -T -C user=kpssh` of OpenSSH 9.2 prints with the drop-in in place.
func sshdSays(t testing.TB, paths paths) string {
	t.Helper()
	data, err := os.ReadFile("testdata/sshd-9.2.txt")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(data), "/usr/libexec/kpssh/kpssh-shim", paths.shim)
	return strings.ReplaceAll(text, "/etc/kpssh/authorized_keys", paths.keys)
}

func TestSSHDConfigurations(t *testing.T) {
	paths := hostPaths("")
	for name, tc := range map[string]struct {
		old, new string
		want     []string
	}{
		"the drop-in takes effect":       {"", "", nil},
		"no forced command":              {"forcecommand " + paths.shim, "forcecommand none", []string{wire.FindingForceCommand}},
		"another forced command":         {"forcecommand " + paths.shim, "forcecommand /bin/bash", []string{wire.FindingForceCommand}},
		"forwarding is on":               {"disableforwarding yes", "disableforwarding no", []string{wire.FindingForwarding}},
		"tunnels are allowed":            {"permittunnel no", "permittunnel yes", []string{wire.FindingForwarding}},
		"terminals are given":            {"permittty no", "permittty yes", []string{wire.FindingTTY}},
		"~/.ssh/rc is run":               {"permituserrc no", "permituserrc yes", []string{wire.FindingUserRC}},
		"~/.ssh/environment is read":     {"permituserenvironment no", "permituserenvironment yes", []string{wire.FindingUserEnvironment}},
		"clients set BASH_ENV":           {"acceptenv KPSSH_ACCEPTS_NOTHING", "acceptenv LANG\nacceptenv BASH_ENV", []string{wire.FindingAcceptEnv}},
		"clients set everything":         {"acceptenv KPSSH_ACCEPTS_NOTHING", "acceptenv *", []string{wire.FindingAcceptEnv}},
		"clients set the locale":         {"acceptenv KPSSH_ACCEPTS_NOTHING", "acceptenv LANG LC_*", nil},
		"keys of the home are taken":     {"authorizedkeysfile " + paths.keys, "authorizedkeysfile .ssh/authorized_keys " + paths.keys, []string{wire.FindingAuthorizedKeys}},
		"a command finds keys":           {"authorizedkeyscommand none", "authorizedkeyscommand /bin/find-keys", []string{wire.FindingOtherCredentials}},
		"a CA lets keys in":              {"trustedusercakeys none", "trustedusercakeys /etc/ssh/ca.pub", []string{wire.FindingOtherCredentials}},
		"passwords are asked for":        {"authenticationmethods publickey", "authenticationmethods any", []string{wire.FindingPasswordLogin}},
		"nothing that an old sshd knows": {"disableforwarding yes\n", "", []string{wire.FindingForwarding}},
	} {
		t.Run(name, func(t *testing.T) {
			text := sshdSays(t, paths)
			if !strings.Contains(text, tc.old) {
				t.Fatalf("sshd does not say %q", tc.old)
			}
			var got []string
			examineSSHDConfig(strings.Replace(text, tc.old, tc.new, 1), paths, func(name, _ string, _ ...any) { got = append(got, name) })
			slices.Sort(got)
			if got = slices.Compact(got); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// madeHost is a host below a prefix as install leaves it, with programs that say what was asked.
type madeHost struct {
	hostSystem
	t     testing.TB
	asked []string
	says  map[string]string // by program
	fails map[string]bool   // by program and first argument
}

func makeHost(t testing.TB) *madeHost {
	t.Helper()
	prefix, err := os.MkdirTemp("", "kpssh") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(prefix) })
	h := &madeHost{t: t, says: map[string]string{}, fails: map[string]bool{}}
	h.paths = hostPaths(prefix)
	h.run = func(name string, args ...string) (string, error) {
		h.asked = append(h.asked, name+" "+strings.Join(args, " "))
		if h.fails[name+" "+args[0]] {
			return "", &exec.ExitError{Stderr: []byte("made to fail")}
		}
		if name == "useradd" {
			h.file(h.paths.passwd, h.passwd(h.paths.home, h.paths.shim, os.Getuid()+1000), 0o644)
		}
		return h.says[name], nil
	}
	h.says["sshd"] = sshdSays(t, h.paths)
	h.file(h.paths.sshd, "Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\n", 0o644)
	h.file(h.paths.passwd, "root:x:0:0::/root:/bin/bash\n", 0o644)
	h.file(h.paths.group, "root:x:0:\n", 0o644)
	return h
}

func (h *madeHost) passwd(home, shell string, uid int) string {
	return fmt.Sprintf("root:x:0:0::/root:/bin/bash\nkpssh:x:%d:%d::%s:%s\n", uid, os.Getgid(), home, shell)
}

func (h *madeHost) file(path, content string, mode os.FileMode) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		h.t.Fatal(err)
	}
}

// complete makes everything that the doctor looks at.
func (h *madeHost) complete() {
	h.t.Helper()
	p := h.paths
	h.file(p.shim, "binary", 0o755)
	h.file(p.root, "{}", 0o644)
	h.file(p.keys, "restrict,command=\"x\" ssh-ed25519 AAAA\n", 0o644)
	h.file(p.passwd, h.passwd(p.home, p.shim, os.Getuid()+1000), 0o644)
	h.file(p.group, fmt.Sprintf("kpssh:x:%d:\n", os.Getgid()), 0o644)
	for path, mode := range map[string]os.FileMode{p.home: 0o755, p.state: 0o700, p.runtime: 0o755} {
		if err := os.MkdirAll(path, mode); err != nil {
			h.t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			h.t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = l.Close() })
	if err := os.Chmod(p.socket, 0o660); err != nil {
		h.t.Fatal(err)
	}
}

func TestDoctorFindsEachFlaw(t *testing.T) {
	for name, tc := range map[string]struct {
		flaw func(*madeHost) error
		want []string
	}{
		"none":    {func(*madeHost) error { return nil }, nil},
		"no user": {func(h *madeHost) error { h.file(h.paths.passwd, "", 0o644); return nil }, []string{wire.FindingNoUser}},
		"another login shell": {func(h *madeHost) error {
			h.file(h.paths.passwd, h.passwd(h.paths.home, "/bin/bash", 999), 0o644)
			return nil
		}, []string{wire.FindingLoginShell}},
		"user kpssh is root": {func(h *madeHost) error {
			h.file(h.paths.passwd, h.passwd(h.paths.home, h.paths.shim, 0), 0o644)
			return nil
		}, []string{wire.FindingPrivilegedUser}},
		"a .bashrc in the home":    {func(h *madeHost) error { h.file(h.paths.home+"/.bashrc", "", 0o644); return nil }, []string{wire.FindingHome}},
		"a home that others write": {func(h *madeHost) error { return os.Chmod(h.paths.home, 0o777) }, []string{wire.FindingHome}},
		"a member of group sudo": {func(h *madeHost) error {
			h.file(h.paths.group, "sudo:x:27:pi,kpssh\n", 0o644)
			return nil
		}, []string{wire.FindingPrivilegedUser}},
		"a rule of sudo beside ours": {func(h *madeHost) error {
			h.says["sudo"] = "Matching Defaults entries for kpssh on h:\n    env_reset\n\nUser kpssh may run the following commands on h:\n    (root) NOPASSWD: " +
				h.paths.shim + " root-stage\n    (ALL : ALL) NOPASSWD: ALL\n"
			return nil
		}, []string{wire.FindingSudoRule}},
		"our rule of sudo alone": {func(h *madeHost) error {
			h.says["sudo"] = "User kpssh may run the following commands on h:\n    (root) NOPASSWD: " + h.paths.shim + " root-stage\n"
			return nil
		}, nil},
		"a Match block before ours": {func(h *madeHost) error {
			h.file(h.paths.sshd, "Match Address 10.0.0.1\n", 0o644)
			return nil
		}, []string{wire.FindingSSHDEarlierMatch}},
		"no home":                    {func(h *madeHost) error { return os.Remove(h.paths.home) }, []string{wire.FindingHome}},
		"a shim that others write":   {func(h *madeHost) error { return os.Chmod(h.paths.shim, 0o775) }, []string{wire.FindingShimMode}},
		"a folder that others write": {func(h *madeHost) error { return os.Chmod(filepath.Dir(h.paths.shim), 0o777) }, []string{wire.FindingShimMode}},
		"keys that others write":     {func(h *madeHost) error { return os.Chmod(h.paths.keys, 0o666) }, []string{wire.FindingAuthorizedKeyMode}},
		"a key without restrict":     {func(h *madeHost) error { h.file(h.paths.keys, "ssh-ed25519 AAAA\n", 0o644); return nil }, []string{wire.FindingUnrestrictedKey}},
		"a key that undoes restrict": {func(h *madeHost) error { h.file(h.paths.keys, "pty,restrict ssh-ed25519 A\n", 0o644); return nil }, []string{wire.FindingUnrestrictedKey}},
		"a root that others write":   {func(h *madeHost) error { return os.Chmod(h.paths.root, 0o666) }, []string{wire.FindingConfigMode}},
		"a state that others enter":  {func(h *madeHost) error { return os.Chmod(h.paths.state, 0o755) }, []string{wire.FindingStateMode}},
		"a socket for everybody":     {func(h *madeHost) error { return os.Chmod(h.paths.socket, 0o666) }, []string{wire.FindingSocketMode}},
		"no way to the root stage":   {func(h *madeHost) error { return os.Remove(h.paths.socket) }, []string{wire.FindingNoEntry}},
		"sshd that cannot be asked":  {func(h *madeHost) error { h.fails["sshd -T"] = true; return nil }, []string{wire.FindingSSHDUnreadable}},
		"the drop-in without effect": {func(h *madeHost) error { h.says["sshd"] = "port 22\n"; return nil }, []string{wire.FindingAuthorizedKeys, wire.FindingForceCommand, wire.FindingForwarding, wire.FindingPasswordLogin, wire.FindingTTY, wire.FindingUserEnvironment, wire.FindingUserRC}},
		"a rule of sudo, no socket":  {func(h *madeHost) error { h.file(h.paths.sudoers, "", 0o440); return os.Remove(h.paths.socket) }, nil},
		"a link in the shim's place": {func(h *madeHost) error { p := h.paths.shim; _ = os.Rename(p, p+".2"); return os.Symlink(p+".2", p) }, []string{wire.FindingShimMode}},
		"a comment among the keys":   {func(h *madeHost) error { h.file(h.paths.keys, "# x\n\nrestrict ssh-ed25519 A\n", 0o644); return nil }, nil},
		"no keys at all":             {func(h *madeHost) error { return os.Remove(h.paths.keys) }, nil},
		"a shim that is not there":   {func(h *madeHost) error { return os.Remove(h.paths.shim) }, []string{wire.FindingShimMode}},
		"a host without a root, yet": {func(h *madeHost) error { return os.Remove(h.paths.root) }, nil},
		"a state that is a link":     {func(h *madeHost) error { p := h.paths.state; _ = os.Rename(p, p+".2"); return os.Symlink(p+".2", p) }, []string{wire.FindingStateMode}},
		"another home than ours, bad": {func(h *madeHost) error {
			h.file(h.paths.passwd, h.passwd("/nowhere", h.paths.shim, 999), 0o644)
			return nil
		}, []string{wire.FindingHome}},
	} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			h.complete()
			if err := tc.flaw(h); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range h.examine() {
				if known := wire.FindingOf(f.Name); f.Detail == "" || f.Fix == "" || f.Fix != known.Fix || !slices.Contains(wire.Findings(), known) {
					t.Errorf("%+v is not in the closed list, or lacks a detail or what to do", f)
				}
				got = append(got, f.Name)
			}
			if got = slices.Compact(got); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPostureIsAskedAgainWhenSomethingChanged(t *testing.T) {
	h := makeHost(t)
	h.complete()
	first := posture(h.hostSystem)
	asked := len(h.asked)
	if asked == 0 || len(first.Findings) != 0 || first.ShimDigest == "" {
		t.Fatalf("%+v after asking %q", first, h.asked)
	}
	if again := posture(h.hostSystem); len(h.asked) != asked || again.ShimDigest != first.ShimDigest {
		t.Error("nothing changed, and the doctor was asked again")
	}
	h.file(h.paths.sshdDropIns+"/99-later.conf", "X11Forwarding yes\n", 0o644)
	h.says["sshd"] = strings.Replace(h.says["sshd"], "permittty no", "permittty yes", 1)
	if now := posture(h.hostSystem); !slices.Equal(now.Findings, []string{wire.FindingTTY}) {
		t.Errorf("after a new drop-in: %q", now.Findings)
	}
	h.file(h.paths.sshd, "Match Address 10.0.0.1\n"+"Include "+h.paths.sshdDropIns+"/*.conf\n", 0o644)
	if now := posture(h.hostSystem); !slices.Contains(now.Findings, wire.FindingSSHDEarlierMatch) {
		t.Errorf("after a new Match block: %q", now.Findings)
	}
	h.file(h.paths.group, "docker:x:999:kpssh\n", 0o644)
	if now := posture(h.hostSystem); !slices.Contains(now.Findings, wire.FindingPrivilegedUser) {
		t.Errorf("after joining a group: %q", now.Findings)
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(h.paths.shim)), 0o777); err != nil {
		t.Fatal(err)
	}
	if now := posture(h.hostSystem); !slices.Contains(now.Findings, wire.FindingShimMode) {
		t.Errorf("after a change of mode above the shim: %q", now.Findings)
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(h.paths.shim)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(h.paths.keys, 0o666); err != nil {
		t.Fatal(err)
	}
	if now := posture(h.hostSystem); !slices.Contains(now.Findings, wire.FindingAuthorizedKeyMode) {
		t.Errorf("after a change of mode: %q", now.Findings)
	}
	// An answer that somebody else could have written counts for nothing.
	kept := filepath.Join(h.paths.runtime, "doctor.json")
	h.file(kept, fmt.Sprintf(`{"seen":%q,"posture":{"findings":[],"shimDigest":"forged"}}`, h.seen()), 0o666)
	if now := posture(h.hostSystem); now.ShimDigest == "forged" {
		t.Error("a forged answer was believed")
	}
}

// A tool that failed once must not park the host, nor hide a finding, until some file changes.
func TestPostureIsNotKeptWhenAToolFailed(t *testing.T) {
	for program, says := range map[string]string{
		"sshd -T": "",
		"sudo -n": "User kpssh may run the following commands on host:\n    (ALL) NOPASSWD: ALL\n",
	} {
		t.Run(program, func(t *testing.T) {
			h := makeHost(t)
			h.complete()
			h.says["sudo"] = says
			h.fails[program] = true
			failed := posture(h.hostSystem)
			h.fails[program] = false
			var want []string
			for _, f := range h.examine() {
				want = append(want, f.Name)
			}
			if now := posture(h.hostSystem); !slices.Equal(now.Findings, want) || slices.Equal(failed.Findings, want) {
				t.Errorf("while it fails %q, then %q, want %q", failed.Findings, now.Findings, want)
			}
		})
	}
}

// A host without sudo, or with one that says no, is not asked in every session.
func TestPostureIsKeptWhereSudoSaysNo(t *testing.T) {
	for name, no := range map[string]error{
		"there is no sudo":       &exec.Error{Name: "sudo", Err: exec.ErrNotFound},
		"the user has no rights": exec.Command("/bin/sh", "-c", "exit 1").Run(),
	} {
		t.Run(name, func(t *testing.T) {
			h := makeHost(t)
			h.complete()
			asked, run := 0, h.run
			h.run = func(name string, args ...string) (string, error) {
				asked++
				if name == "sudo" {
					return "", no
				}
				return run(name, args...)
			}
			posture(h.hostSystem)
			if before := asked; before == 0 || len(posture(h.hostSystem).Findings) > 0 || asked != before {
				t.Errorf("asked %d times, then %d", before, asked)
			}
		})
	}
}
