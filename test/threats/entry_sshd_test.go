//go:build e2e

package threats

import (
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// entryPlants are the files that sshd, PAM or a shell would read before the forced command.
var entryPlants = map[string]string{
	".bashrc":              "echo noise; touch /tmp/evil-bashrc\n",
	".profile":             "echo noise; touch /tmp/evil-profile\n",
	".ssh/rc":              "echo noise; touch /tmp/evil-rc\n",
	".ssh/environment":     "BASH_ENV=/tmp/evil-env\nLD_PRELOAD=/tmp/evil.so\n",
	".pam_environment":     "BASH_ENV DEFAULT=/tmp/evil-pam\n",
	".ssh/authorized_keys": "",
}

// Row C1: nothing that user kpssh could have left in its home runs before the shim, or says a word before its hello.
func TestC1_NothingInTheHomeRunsBeforeTheShim(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	e.undo(t)
	for name := range entryPlants {
		out, code := e.try(t, `setpriv --reuid kpssh --regid kpssh --clear-groups sh -c 'mkdir -p "$(dirname "$1")"; echo x >"$1"' sh "$1"`, entryHome+"/"+name)
		if code == 0 {
			t.Errorf("user kpssh can plant %s: %s", name, out)
		}
	}
	e.ways(t, func(t *testing.T) {
		if found := e.open(t).hello.Findings; len(found) > 0 {
			t.Errorf("before anything is planted: %q", found)
		}
		// Should they get there all the same, and belong to whom they are for.
		for name, text := range entryPlants {
			e.write(t, entryHome+"/"+name, "0755", []byte(text))
		}
		e.do(t, "chown -R kpssh:kpssh "+entryHome)
		s := e.open(t) // which fails unless the hello is the first byte on the wire
		if !slices.Contains(s.hello.Findings, wire.FindingHome) {
			t.Errorf("the doctor found %q", s.hello.Findings)
		}
		e.nothingRan(t)
		e.do(t, "rm -rf "+entryHome+"; mkdir "+entryHome)
	})
}

// Row C3: a subsystem, a shell, a command and a terminal all end in the same shim.
func TestC3_EveryKindOfSessionIsTheShim(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	e.undo(t)
	for name, start := range map[string]func(*ssh.Session) error{
		"a shell":                func(s *ssh.Session) error { return s.Shell() },
		"subsystem sftp":         func(s *ssh.Session) error { return s.RequestSubsystem("sftp") },
		"subsystem nobody knows": func(s *ssh.Session) error { return s.RequestSubsystem("evil") },
		"a command":              func(s *ssh.Session) error { return s.Start("touch /tmp/evil; id") },
		"no command":             func(s *ssh.Session) error { return s.Start("") },
		"a verb of the shim":     func(s *ssh.Session) error { return s.Start("install --authorized-key x") },
		"a flag of the shim":     func(s *ssh.Session) error { return s.Start("-h") },
		"the root stage":         func(s *ssh.Session) error { return s.Start(entryShim + " root-stage --socket") },
		"a quote and a newline":  func(s *ssh.Session) error { return s.Start("'\n touch /tmp/evil $(touch /tmp/evil) `touch /tmp/evil`") },
		"bytes that are no text": func(s *ssh.Session) error { return s.Start("\x01\x1b[2J\xff") },
		"a very long command":    func(s *ssh.Session) error { return s.Start(strings.Repeat("x", 100_000)) },
		"a server of scp":        func(s *ssh.Session) error { return s.Start("scp -t /tmp/evil") },
	} {
		t.Run(name, func(t *testing.T) {
			session, err := e.login(t).NewSession()
			entryMust(t, err)
			in, err := session.StdinPipe()
			entryMust(t, err)
			out, err := session.StdoutPipe()
			entryMust(t, err)
			err = start(session)
			if name == "subsystem nobody knows" {
				if err == nil {
					t.Error("sshd knows it")
				}
				return
			}
			entryMust(t, err)
			e.greet(t, in, out)
		})
	}
	t.Run("a terminal is refused, and the session goes on without", func(t *testing.T) {
		session, err := e.login(t).NewSession()
		entryMust(t, err)
		if err := session.RequestPty("xterm", 24, 80, nil); err == nil {
			t.Error("it was given")
		}
		in, err := session.StdinPipe()
		entryMust(t, err)
		out, err := session.StdoutPipe()
		entryMust(t, err)
		entryMust(t, session.Shell())
		e.greet(t, in, out)
	})
	const options = "-i /root/stolen -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "
	e.do(t, "echo planted >/root/evil-file")
	for name, command := range map[string]string{
		"ssh alone":              "ssh " + options + "kpssh@localhost </dev/null",
		"ssh with a terminal":    "ssh -tt " + options + "kpssh@localhost id </dev/null",
		"ssh with its subsystem": "ssh -s " + options + "kpssh@localhost sftp </dev/null",
		"scp":                    "scp " + options + "/root/evil-file kpssh@localhost:/tmp/evil-scp </dev/null",
		"scp of old":             "scp -O " + options + "/root/evil-file kpssh@localhost:/tmp/evil-scp </dev/null",
		"sftp":                   "echo put /root/evil-file /tmp/evil-sftp | sftp -b - " + options + "kpssh@localhost",
	} {
		t.Run("OpenSSH's own "+name, func(t *testing.T) {
			out, code := e.try(t, "timeout 30 sh -c '"+command+"'")
			if strings.Contains(out, "uid=") || code == 124 || (strings.HasPrefix(name, "scp") || name == "sftp") && code == 0 {
				t.Errorf("ends with %d: %q", code, out)
			}
		})
	}
	e.nothingRan(t)
}

// Row C4: a login forwards nothing. The administrator's login shows that the same asked of it works.
func TestC4_NothingIsForwarded(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	e.undo(t)
	e.do(t, "sed -i 's/^X11Forwarding.*/X11Forwarding yes/' /etc/ssh/sshd_config; echo 'PermitTunnel yes' >/etc/ssh/sshd_config.d/99-open.conf; "+entryReload)
	tcp := ssh.Marshal(struct {
		Host  string
		Port  uint32
		From  string
		FromP uint32
	}{"127.0.0.1", 22, "127.0.0.1", 1})
	stream := ssh.Marshal(struct {
		Path, Reserved string
		Zero           uint32
	}{"/run/systemd/journal/stdout", "", 0})
	channel := func(kind string, payload []byte) func(*ssh.Client) bool {
		return func(c *ssh.Client) bool {
			channel, requests, err := c.OpenChannel(kind, payload)
			if err != nil {
				return false
			}
			go ssh.DiscardRequests(requests)
			_ = channel.Close()
			return true
		}
	}
	global := func(kind string, payload []byte) func(*ssh.Client) bool {
		return func(c *ssh.Client) bool {
			ok, _, err := c.SendRequest(kind, true, payload)
			return err == nil && ok
		}
	}
	inSession := func(kind string, payload []byte) func(*ssh.Client) bool {
		return func(c *ssh.Client) bool {
			s, err := c.NewSession()
			if err != nil {
				return false
			}
			defer func() { _ = s.Close() }()
			ok, err := s.SendRequest(kind, true, payload)
			return err == nil && ok
		}
	}
	for name, tc := range map[string]struct {
		ask     func(*ssh.Client) bool
		control bool // the administrator's login is given it
	}{
		"-L, -D and -W: a TCP connection": {channel("direct-tcpip", tcp), true},
		"-L: a socket of the host":        {channel("direct-streamlocal@openssh.com", stream), true},
		"-R: a listening port": {global("tcpip-forward", ssh.Marshal(struct {
			A string
			P uint32
		}{"127.0.0.1", 0})), true},
		"-R: a listening socket": {global("streamlocal-forward@openssh.com", ssh.Marshal(struct{ P string }{"/tmp/evil.sock"})), true},
		"-A: the agent":          {inSession("auth-agent-req@openssh.com", nil), true},
		"-X: a display": {inSession("x11-req", ssh.Marshal(struct {
			Single         bool
			Protocol, Data string
			Screen         uint32
		}{false, "MIT-MAGIC-COOKIE-1", "00\nadd evil", 0})), false}, // needs xauth, which is not there
		"-w: a tunnel":            {channel("tun@openssh.com", ssh.Marshal(struct{ Mode, Unit uint32 }{1, 0x7fffffff})), false}, // needs the device
		"an environment variable": {inSession("env", ssh.Marshal(struct{ N, V string }{"LC_ALL", "C"})), true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.ask(e.login(t)) {
				t.Error("it was given")
			}
			if tc.control && !tc.ask(e.loginAs(t, "root", e.admin(t))) {
				t.Error("nobody is given it, which shows nothing")
			}
		})
	}
	t.Run("-N: a session of nothing", func(t *testing.T) {
		const options = "-o ExitOnForwardFailure=yes -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -i /root/stolen"
		for _, forward := range []string{"-R 0:localhost:22", "-w 5:5"} {
			if out, code := e.try(t, "timeout 60 ssh -N "+options+" "+forward+" kpssh@localhost </dev/null"); code != 255 {
				t.Errorf("ssh -N %s ended with %d: %s", forward, code, out)
			}
		}
	})
	if found := e.open(t).hello.Findings; len(found) > 0 {
		t.Errorf("the doctor found %q on a host that forwards for others only", found)
	}
}

// entryBroken are hosts on which something undoes a wall. Each is broken by a shell script.
var entryBroken = map[string]struct {
	script string
	want   []string
}{
	"sshd_config without its Include": {
		"sed -i '/^Include/d' /etc/ssh/sshd_config; mkdir -p $HOME_/.ssh; cp /etc/kpssh/authorized_keys $HOME_/.ssh/; " + entryReload,
		[]string{wire.FindingForceCommand, wire.FindingForwarding, wire.FindingAuthorizedKeys, wire.FindingTTY, wire.FindingUserRC, wire.FindingPasswordLogin}},
	"a Match block of another file wins": {
		"printf 'Match User kpssh\\nForceCommand /bin/sh\\n' >/etc/ssh/sshd_config.d/00-aaa.conf; " + entryReload, []string{wire.FindingForceCommand}},
	"forwarding is on": {
		"printf 'Match User kpssh\\nDisableForwarding no\\n' >/etc/ssh/sshd_config.d/00-aaa.conf; " + entryReload, []string{wire.FindingForwarding}},
	"tunnels are allowed": {
		"printf 'Match User kpssh\\nPermitTunnel yes\\n' >/etc/ssh/sshd_config.d/00-aaa.conf; " + entryReload, []string{wire.FindingForwarding}},
	"terminals are given": {
		"printf 'Match Group kpssh\\nPermitTTY yes\\n' >/etc/ssh/sshd_config.d/00-aaa.conf; " + entryReload, []string{wire.FindingTTY}},
	"~/.ssh/rc is run": {
		"sed -i '1i PermitUserRC yes' /etc/ssh/sshd_config; printf 'Match User kpssh\\nPermitUserRC yes\\n' >/etc/ssh/sshd_config.d/00-aaa.conf; " + entryReload, []string{wire.FindingUserRC}},
	"~/.ssh/environment is read": {
		"sed -i '1i PermitUserEnvironment yes' /etc/ssh/sshd_config; " + entryReload, []string{wire.FindingUserEnvironment}},
	"clients set the environment": {
		"printf 'Match User kpssh\\nAcceptEnv *\\n' >/etc/ssh/sshd_config.d/00-aaa.conf; " + entryReload, []string{wire.FindingAcceptEnv}},
	"authorized_keys2 counts too": {
		"printf 'Match User kpssh\\nAuthorizedKeysFile /etc/kpssh/authorized_keys .ssh/authorized_keys2\\n' >/etc/ssh/sshd_config.d/00-aaa.conf; " + entryReload, []string{wire.FindingAuthorizedKeys}},
	"a command lets keys in": {
		"printf 'Match User kpssh\\nAuthorizedKeysCommand /bin/cat /etc/kpssh/more\\nAuthorizedKeysCommandUser nobody\\n' >/etc/ssh/sshd_config.d/00-aaa.conf; " + entryReload, []string{wire.FindingOtherCredentials}},
	"a CA lets keys in": {
		"cp /etc/ssh/ssh_host_ed25519_key.pub /etc/ssh/ca.pub; printf 'Match User kpssh\\nTrustedUserCAKeys /etc/ssh/ca.pub\\n' >/etc/ssh/sshd_config.d/00-aaa.conf; " + entryReload, []string{wire.FindingOtherCredentials}},
	"passwords are asked for": {
		"printf 'Match User kpssh\\nAuthenticationMethods any\\nPasswordAuthentication yes\\n' >/etc/ssh/sshd_config.d/00-aaa.conf; " + entryReload, []string{wire.FindingPasswordLogin}},
	"a Match block that asks for the address": {
		"sed -i '1i Match Address 10.99.0.0/16\\nPermitTTY yes\\nMatch all' /etc/ssh/sshd_config; " + entryReload, []string{wire.FindingSSHDEarlierMatch}},
	"a key without restrict":        {"sed -i 's/^restrict,//' /etc/kpssh/authorized_keys", []string{wire.FindingUnrestrictedKey}},
	"keys that are somebody else's": {"chown kpssh /etc/kpssh/authorized_keys", []string{wire.FindingAuthorizedKeyMode}},
	"bash as login shell":           {"usermod --shell /bin/bash kpssh", []string{wire.FindingLoginShell}},
	"user kpssh in group sudo":      {"usermod -aG sudo kpssh", []string{wire.FindingPrivilegedUser}},
	"a rule of sudo for everything": {"echo 'kpssh ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/more; chmod 0440 /etc/sudoers.d/more", []string{wire.FindingSudoRule}},
	"a file in the home":            {"touch $HOME_/.bashrc", []string{wire.FindingHome}},
	"a home of its own":             {"chown kpssh $HOME_", []string{wire.FindingHome}},
	"a folder of the shim for all":  {"chmod 0777 /usr/libexec/kpssh", []string{wire.FindingShimMode}},
	"a shim of user kpssh":          {"chown kpssh /usr/libexec/kpssh/kpssh-shim", []string{wire.FindingShimMode}},
	"/etc/kpssh of user kpssh":      {"chown kpssh /etc/kpssh", []string{wire.FindingConfigMode, wire.FindingAuthorizedKeyMode}},
	"a socket for everybody":        {"chmod 0666 /run/kpssh/kpssh.sock", []string{wire.FindingSocketMode}},
	"a socket of another group, by an override": {
		"mkdir -p /etc/systemd/system/kpssh.socket.d; printf '[Socket]\\nSocketGroup=nogroup\\nSocketMode=0666\\n' >/etc/systemd/system/kpssh.socket.d/x.conf; systemctl daemon-reload; systemctl restart kpssh.socket", []string{wire.FindingSocketMode}},
}

// Row C5: whatever undoes a wall is found, stands in the next hello, and keeps orders away.
func TestC5_WhatUndoesTheEntryIsFoundAndRefused(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	script := "echo ran >>" + entryRan + " # C5"
	e.allow(script)
	if found := e.open(t).hello.Findings; len(found) > 0 {
		t.Fatalf("a host as it is set up has %q", found)
	}
	strict, err := dispatch.ParseTolerance("none")
	entryMust(t, err)
	for name, tc := range entryBroken {
		t.Run(name, func(t *testing.T) {
			e.undo(t)
			e.do(t, strings.ReplaceAll(tc.script, "$HOME_", entryHome))
			hello := e.open(t).hello
			for _, want := range tc.want {
				if !slices.Contains(hello.Findings, want) {
					t.Errorf("hello has %q, not %q", hello.Findings, want)
				}
			}
			if out, code := e.try(t, entryShim+" doctor"); code != 1 || !strings.Contains(out, tc.want[0]+" ") || !strings.Contains(out, "to mend it: "+wire.FindingOf(tc.want[0]).Fix) {
				t.Errorf("doctor ends with %d: %s", code, out)
			}
			for policy, d := range map[string]*dispatch.Dispatcher{
				"by default":         e.dispatcher(),
				"tolerating nothing": e.dispatcher(func(o *dispatch.Options) { o.Tolerated = strict }),
			} {
				bypass := slices.ContainsFunc(tc.want, func(f string) bool { return wire.FindingOf(f).Bypass })
				if policy == "by default" && !bypass {
					continue
				}
				_, err := d.Run(entryWithin(t), e.target(t), entryRequest(script, hello.Claim.Fence+1))
				if !entryRefused(err, dispatch.NotHardened) || !strings.Contains(err.Error(), tc.want[0]) {
					t.Errorf("%s: %v", policy, err)
				}
			}
			e.nothingRan(t)
		})
	}
	t.Run("mended, it is given orders again", func(t *testing.T) {
		e.undo(t)
		s := e.open(t)
		if len(s.hello.Findings) > 0 {
			t.Fatalf("it still has %q", s.hello.Findings)
		}
		_, err := e.dispatcher(func(o *dispatch.Options) { o.Tolerated = strict }).Run(entryWithin(t), e.target(t), entryRequest(script, s.hello.Claim.Fence+1))
		entryMust(t, err)
	})
}

func entryRefused(err error, class dispatch.Class) bool {
	var e *dispatch.Error
	return errors.As(err, &e) && e.Class == class
}

// entryHostile is what a starter of the shim may have in its environment.
var entryHostile = map[string]string{
	"BASH_ENV": "/tmp/evil.sh", "ENV": "/tmp/evil.sh", "SHELLOPTS": "xtrace", "PS4": "$(touch /tmp/evil-ps4)",
	"BASH_FUNC_env%%": "() { touch /tmp/evil-func; }", "LD_PRELOAD": "/tmp/evil.so", "LD_LIBRARY_PATH": "/tmp", "IFS": "e",
	"PATH": "/tmp:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de", "TZ": "/tmp/evil", "HOME": "/tmp", "TMPDIR": "/tmp",
	"GODEBUG": "madvdontneed=1", "GOTRACEBACK": "crash", "GOGC": "1", "GOMEMLIMIT": "1", "PROMPT_COMMAND": "touch /tmp/evil-prompt",
	"KPSSH_NODE_NAME": "evil", "KPSSH_ALLOWED_SIGNERS": "/tmp/evil", "SUDO_COMMAND": "x", "NOTIFY_SOCKET": "/tmp/evil.sock",
}

// Row C6: a script's environment is the shim's own and its parameters, whatever the environment of who starts the shim.
func TestC6_AScriptSeesAnEnvironmentMadeFromNothing(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	e.undo(t)
	script := "cat /proc/$$/environ; printf '\\n'; env -0"
	e.allow(script)
	e.do(t, `printf '#!/bin/sh\ntouch /tmp/evil-sh\n' >/tmp/evil.sh; chmod 0755 /tmp/evil.sh; cp /tmp/evil.sh /tmp/env; cp /tmp/evil.sh /tmp/cat`)
	params := map[string]string{"KPSSH_NODE_NAME": "node-a"}
	secrets := map[string]string{entrySecret: "abcdef.0123456789abcdef"}
	want := []string{
		"HOME=/root", "KPSSH_BOOTSTRAP_TOKEN=[redacted]", "KPSSH_NODE_NAME=node-a", "LANG=C.UTF-8",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}
	bash := append(slices.Clone(want), "PWD=/", "SHLVL=1", "_=/usr/bin/env") // the last three are bash's own
	check := func(t *testing.T, s *entrySession) {
		t.Helper()
		out, _ := s.run(entryOrder{script: script, params: params, secrets: secrets})
		given, seen, _ := strings.Cut(out, "\n")
		for what, pair := range map[string][2][]string{"given": {entryLines(given), want}, "seen": {entryLines(seen), bash}} {
			slices.Sort(pair[1])
			if !slices.Equal(pair[0], pair[1]) {
				t.Errorf("%s: %q, want %q", what, pair[0], pair[1])
			}
		}
		if out, code := e.try(t, "ls /tmp/evil-*"); code == 0 {
			t.Errorf("something ran: %s", out)
		}
	}
	var hostile []string
	for _, name := range slices.Sorted(maps.Keys(entryHostile)) {
		hostile = append(hostile, name+"="+entryHostile[name])
	}
	e.ways(t, func(t *testing.T) {
		session, err := e.login(t).NewSession()
		entryMust(t, err)
		for _, name := range []string{"BASH_ENV", "LD_PRELOAD", "LC_ALL", "GODEBUG"} {
			if session.Setenv(name, entryHostile[name]) == nil {
				t.Errorf("sshd takes %s", name)
			}
		}
		check(t, e.open(t))
		// Code that runs as user kpssh starts the relay itself.
		check(t, e.as(t, "kpssh", hostile, entryShim))
	})
	t.Run("by user kpssh's own sudo", func(t *testing.T) {
		e.undo(t)
		e.do(t, entrySudo)
		check(t, e.as(t, "kpssh", hostile, "/usr/bin/sudo", "-n", entryShim, "root-stage"))
	})
	t.Run("by a sudo that resets nothing", func(t *testing.T) {
		e.undo(t)
		e.do(t, entrySudo+"\necho 'Defaults !env_reset' >/etc/sudoers.d/00-keep; chmod 0440 /etc/sudoers.d/00-keep")
		check(t, e.as(t, "kpssh", hostile, "/usr/bin/sudo", "-n", entryShim, "root-stage"))
	})
	t.Run("by root", func(t *testing.T) { check(t, e.as(t, "root", hostile, entryShim, "root-stage")) })
	t.Run("nor its signals, and the root stage itself has none of it", func(t *testing.T) {
		const script = `sed -n 's/^Sig\(Blk\|Ign\):\t//p' /proc/self/status; wc -c </proc/$PPID/environ`
		e.allow(script)
		words := append(slices.Clone(hostile), "/usr/bin/env", "--block-signal=TERM,HUP,USR1", "--ignore-signal=INT,PIPE,TSTP,TTIN,TTOU,RTMIN,RTMAX", entryShim, "root-stage")
		out, _ := e.as(t, "root", nil, append([]string{"/usr/bin/env"}, words...)...).run(entryOrder{script: script})
		if want := "0000000000000000\n0000000000000000\n0\n"; out != want {
			t.Errorf("got %q", out)
		}
	})
}

func entryLines(text string) []string {
	lines := strings.Split(strings.TrimRight(text, "\x00"), "\x00")
	slices.Sort(lines)
	return lines
}

// as starts a program on the host as a user with an environment, and speaks to it as to a session.
func (e *entry) as(t *testing.T, user string, env []string, argv ...string) *entrySession {
	t.Helper()
	session, err := e.loginAs(t, "root", e.admin(t)).NewSession()
	entryMust(t, err)
	t.Cleanup(func() { _ = session.Close() })
	in, err := session.StdinPipe()
	entryMust(t, err)
	out, err := session.StdoutPipe()
	entryMust(t, err)
	words := append([]string{"setpriv", "--reuid", user, "--regid", user, "--clear-groups", "env", "-i"}, append(env, argv...)...)
	entryMust(t, session.Start(entryQuote(words)))
	return e.greet(t, in, out)
}

func entryQuote(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// Row C8: another user of the host does not get as far as the root stage, and user kpssh gains nothing by getting there.
func TestC8_TheRootStageIsForUserKpsshAndRunsNothingWithoutAnOrder(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	e.undo(t)
	script := "echo ran >>" + entryRan + " # C8"
	e.allow(script)
	e.open(t).run(entryOrder{script: script}) // so that there is a state to change
	e.do(t, "rm "+entryRan)
	before := e.state(t)
	const connect = `setpriv --reuid "$1" --regid nogroup --clear-groups socat -t 5 - UNIX-CONNECT:/run/kpssh/kpssh.sock </dev/null`
	t.Run("another user is not let in", func(t *testing.T) {
		if out, code := e.try(t, connect, "nobody"); code == 0 || !strings.Contains(out, "Permission denied") {
			t.Errorf("%d: %q", code, out)
		}
	})
	t.Run("another user is not served where somebody opened the socket", func(t *testing.T) {
		e.undo(t)
		e.do(t, "chmod 0666 /run/kpssh/kpssh.sock")
		if out, _ := e.try(t, connect, "nobody"); !strings.HasPrefix(out, "kpssh-shim: refused: untrusted: ") || strings.Contains(out, wire.Preamble) {
			t.Errorf("%q", out)
		}
	})
	t.Run("another user has no sudo", func(t *testing.T) {
		e.undo(t)
		e.do(t, entrySudo)
		if out, code := e.try(t, "setpriv --reuid nobody --regid nogroup --clear-groups sudo -n "+entryShim+" root-stage </dev/null"); code == 0 || strings.Contains(out, wire.Preamble) {
			t.Errorf("%d: %q", code, out)
		}
		// And user kpssh has no other command of it.
		for _, command := range []string{"/bin/true", entryShim, entryShim + " install", entryShim + " root-stage --socket"} {
			if out, code := e.try(t, "setpriv --reuid kpssh --regid kpssh --clear-groups sudo -n "+command+" </dev/null"); code == 0 || strings.Contains(out, wire.Preamble) {
				t.Errorf("sudo %s: %d: %q", command, code, out)
			}
		}
	})
	signed := func(key signing.Signer) func(*testing.T, *entrySession) {
		return func(t *testing.T, s *entrySession) {
			good := s.e.world.Signer()
			s.e.world.SetSigner(key)
			defer s.e.world.SetSigner(good)
			s.submit(entryOrder{script: script})
		}
	}
	attempts := map[string]func(*testing.T, *entrySession){
		"bytes that are no frame":     func(_ *testing.T, s *entrySession) { _, _ = io.WriteString(s.out, strings.Repeat("install\n", 100)) },
		"a script without an order":   func(_ *testing.T, s *entrySession) { s.frame(wire.Script, []byte(script)) },
		"an order of a key of theirs": signed(dispatchtest.NewSigner(entryTB{})),
		"an order for another host": func(_ *testing.T, s *entrySession) {
			s.submit(entryOrder{script: script, change: func(o *signing.Order) { o.HostID = strings.Repeat("0", 32) }})
		},
	}
	for name, attempt := range attempts {
		t.Run("user kpssh brings "+name, func(t *testing.T) {
			s := e.as(t, "kpssh", nil, "/usr/bin/socat", "-t", "5", "-", "UNIX-CONNECT:/run/kpssh/kpssh.sock")
			attempt(t, s)
			if r, _ := s.answer(); r.Outcome != signing.OutcomeRefused {
				t.Errorf("%s: %s", r.Outcome, r.Reason)
			}
		})
	}
	if after := e.state(t); after != before {
		t.Errorf("the state was\n%s\nand is\n%s", before, after)
	}
	e.nothingRan(t)
}
