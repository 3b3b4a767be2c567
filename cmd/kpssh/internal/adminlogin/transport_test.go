package adminlogin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
)

// host is a real SSH server that runs commands with a real shell, in which sudo is a script.
type host struct {
	*remotetest.Server
	login    Login
	identity string // private key file that may log in
	key      ssh.PublicKey
	path     string // PATH of the host
}

func newHost(t *testing.T, tools map[string]string) *host {
	t.Helper()
	dir := t.TempDir()
	for name, script := range tools {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text, key := remotetest.LoginKey(t, "")
	public := key.PublicKey()
	h := &host{identity: filepath.Join(t.TempDir(), "id"), path: dir + ":" + os.Getenv("PATH")}
	if err := os.WriteFile(h.identity, text, 0o600); err != nil {
		t.Fatal(err)
	}
	hostKey := remotetest.Key(t)
	h.key = hostKey.PublicKey()
	h.Server = remotetest.New(t, remotetest.Config{
		HostKeys: []ssh.Signer{hostKey}, AuthorizedKeys: []ssh.PublicKey{public}, Handler: h.run,
	})
	target := h.Target()
	h.login = Login{User: "admin", Host: target.Address, Port: target.Port}
	return h
}

func (h *host) run(s *remotetest.Session) int {
	cmd := exec.Command("sh", "-c", s.Command)
	cmd.Env = []string{"PATH=" + h.path}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Stdin, s.Stdout, s.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(s.Stderr, err)
		return 126
	}
	return 0
}

func environment(t *testing.T, variables map[string]string) (*cli.Env, *bytes.Buffer) {
	t.Helper()
	var stderr bytes.Buffer
	return &cli.Env{
		Prog: "kpssh", Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr,
		Getenv:     func(name string) string { return variables[name] },
		ReadSecret: func(string) ([]byte, error) { return nil, cli.ErrNoTerminal },
	}, &stderr
}

func TestDialDecidesByHostKey(t *testing.T) {
	h := newHost(t, nil)
	other := remotetest.Key(t).PublicKey()
	line := func(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }
	known := func(key ssh.PublicKey, hashed bool) string {
		address := knownhosts.Normalize(h.login.Address())
		if hashed {
			address = knownhosts.HashHostname(address)
		}
		return address + " " + line(key) + "\n"
	}
	cases := map[string]struct {
		options    Options
		knownHosts string
		want       string // part of the error, empty for none
		warns      string
	}{
		"the known key":                     {knownHosts: known(h.key, false)},
		"the known key under a hashed name": {knownHosts: known(h.key, true)},
		"one of several known keys":         {knownHosts: known(other, false) + known(h.key, false)},
		"another key is known":              {knownHosts: known(other, false), want: "expected SHA256:"},
		"no key is known":                   {want: "is not known: " + ssh.FingerprintSHA256(h.key)},
		"no key is known but may be taken":  {options: Options{AcceptNew: true}, warns: "on trust: SHA256:"},
		"a known wrong key is never taken":  {options: Options{AcceptNew: true}, knownHosts: known(other, false), want: "expected SHA256:"},
		"the pinned fingerprint":            {options: Options{HostKey: ssh.FingerprintSHA256(h.key)}},
		"the pinned line":                   {options: Options{HostKey: line(h.key)}},
		"another pinned key":                {options: Options{HostKey: line(other)}, want: "expected SHA256:"},
		"a pin beats known_hosts":           {options: Options{HostKey: line(other)}, knownHosts: known(h.key, false), want: "expected SHA256:"},
		"a pin that is none":                {options: Options{HostKey: "yes"}, want: "--host-key"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			if c.knownHosts != "" {
				if err := os.Mkdir(filepath.Join(home, ".ssh"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(home, ".ssh", "known_hosts"), []byte(c.knownHosts), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			env, stderr := environment(t, map[string]string{"HOME": home})
			c.options.Identities = []string{h.identity}
			transport, err := Dial(t.Context(), env, h.login, c.options)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got error %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer transport.Close()
			if transport.HostKey() != ssh.FingerprintSHA256(h.key) {
				t.Errorf("host key is %s", transport.HostKey())
			}
			if !strings.Contains(stderr.String(), c.warns) {
				t.Errorf("stderr is %q, want %q", stderr, c.warns)
			}
		})
	}
}

func TestDialSaysHowToLogIn(t *testing.T) {
	h := newHost(t, nil)
	env, _ := environment(t, map[string]string{"HOME": t.TempDir()})
	pin := Options{HostKey: ssh.FingerprintSHA256(h.key)}
	if _, err := Dial(t.Context(), env, h.login, pin); err == nil || !strings.Contains(err.Error(), "no key to log in with") {
		t.Errorf("without keys: %v", err)
	}
	stranger := newHost(t, nil)
	pin.Identities = []string{stranger.identity}
	if _, err := Dial(t.Context(), env, h.login, pin); err == nil || !strings.Contains(err.Error(), "accepted") {
		t.Errorf("with a key that the host does not know: %v", err)
	}
}

func TestRunCarriesInputOutputAndExitCode(t *testing.T) {
	h := newHost(t, nil)
	env, _ := environment(t, map[string]string{"HOME": t.TempDir()})
	transport, err := Dial(t.Context(), env, h.login, Options{Identities: []string{h.identity}, HostKey: ssh.FingerprintSHA256(h.key)})
	if err != nil {
		t.Fatal(err)
	}
	defer transport.Close()
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	out, err := transport.Run(t.Context(), "wc -c", large)
	if err != nil || strings.TrimSpace(string(out)) != fmt.Sprint(len(large)) {
		t.Errorf("got %q, %v", out, err)
	}
	_, err = transport.Run(t.Context(), `printf 'bad \033[31mthing'; printf 'went \033[31mwrong' >&2; exit 3`, nil)
	var failed *CommandError
	if !errors.As(err, &failed) || failed.Code != 3 || failed.Stderr != "went wrong" {
		t.Errorf("got %#v", err)
	}
	// A command that does not read what it is given.
	if _, err := transport.Run(t.Context(), "true", large); err != nil {
		t.Errorf("got %v", err)
	}
	if _, err := transport.Run(t.Context(), "head -c 2000000 /dev/zero", nil); err == nil {
		t.Error("endless output was taken")
	}
}

// The fake sudo checks its password like sudo-rs does: it reads all that is there, not only the line.
const sudoWithPassword = `
case "$*" in
"-n true") echo 'sudo: a password is required' >&2; exit 1;;
"-k -S -p  -- "*) shift 5;;
*) echo "unexpected: $*" >&2; exit 9;;
esac
[ "$(cat)" = 'open sesame' ] || { echo 'sudo: 1 incorrect password attempt' >&2; exit 1; }
exec "$@"`

func TestBecomeRoot(t *testing.T) {
	cases := map[string]struct {
		tools    map[string]string
		password string // what the user types, empty for no terminal
		want     string
	}{
		"root needs no sudo":               {tools: map[string]string{"id": "echo 0", "sudo": "exit 9"}},
		"sudo without a password":          {tools: map[string]string{"id": "echo 1000", "sudo": `[ "$1" = -n ] || exit 9; shift; [ "$1" = -- ] && shift; exec "$@"`}},
		"sudo with a password":             {tools: map[string]string{"id": "echo 1000", "sudo": sudoWithPassword}, password: "open sesame"},
		"sudo with the wrong password":     {tools: map[string]string{"id": "echo 1000", "sudo": sudoWithPassword}, password: "guess", want: "incorrect password"},
		"sudo with a password, unattended": {tools: map[string]string{"id": "echo 1000", "sudo": sudoWithPassword}, want: "no terminal"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, c.tools)
			env, _ := environment(t, map[string]string{"HOME": t.TempDir()})
			if c.password != "" {
				env.ReadSecret = func(string) ([]byte, error) { return []byte(c.password), nil }
			}
			ctx := context.Background()
			transport, err := Dial(ctx, env, h.login, Options{Identities: []string{h.identity}, HostKey: ssh.FingerprintSHA256(h.key)})
			if err != nil {
				t.Fatal(err)
			}
			defer transport.Close()
			root, err := BecomeRoot(ctx, env, transport, h.login)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			out, err := root.Run(ctx, `printf '%s|' "it's"; cat`, []byte("input\n"))
			if err != nil || string(out) != "it's|input\n" {
				t.Errorf("got %q, %v", out, err)
			}
			for _, command := range h.Commands() {
				if strings.Contains(command, "sesame") {
					t.Errorf("the password is in the command %q", command)
				}
			}
		})
	}
}

func TestProgramUsesTheOperatorsOwnSSH(t *testing.T) {
	dir := t.TempDir()
	// An ssh that shows its arguments and runs the command here.
	fake := filepath.Join(dir, "ssh")
	script := "#!/bin/sh\necho \"$*\" >>" + dir + "/args\nfor last; do :; done\ncase $last in 'no network') echo 'ssh: connect: timed out' >&2; exit 255;; esac\nexec sh -c \"$last\"\n"
	if err := os.WriteFile(fake, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	env, _ := environment(t, nil)
	transport, err := Program(env, fake+" -J bastion", Login{User: "admin", Host: "host-a", Port: 2222})
	if err != nil {
		t.Fatal(err)
	}
	out, err := transport.Run(t.Context(), "cat; exit 0", []byte("input"))
	if err != nil || string(out) != "input" {
		t.Errorf("got %q, %v", out, err)
	}
	_, err = transport.Run(t.Context(), "exit 4", nil)
	var failed *CommandError
	if !errors.As(err, &failed) || failed.Code != 4 {
		t.Errorf("got %v", err)
	}
	if _, err := transport.Run(t.Context(), "no network", nil); err == nil || errors.As(err, &failed) && failed.Code == sshFailed {
		t.Errorf("a failure of ssh itself is %v", err)
	}
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil || !strings.HasPrefix(string(args), "-J bastion -p 2222 -T -l admin -- host-a cat;") {
		t.Errorf("arguments are %q, %v", args, err)
	}
	if _, err := Program(env, dir+"/nothing", Login{}); err == nil {
		t.Error("a program that is not there was taken")
	}
}
