//go:build e2e

package threats

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// entryShim is where the shim is on a host, entryHome the home of user kpssh, and entryRan what scripts write to when
// they run.
const (
	entryShim = "/usr/libexec/kpssh/kpssh-shim"
	entryHome = "/var/lib/kpssh-home"
	entryRan  = "/root/ran"
)

// entry is a real machine with its own systemd and sshd, set up with the built shim as a pool host. Its tests are
// attackers who hold the controller's SSH key, who are user kpssh on the host, or who are another user there.
type entry struct {
	*lab.Host
	world *dispatchtest.World
	// allowed are the scripts that the author allows.
	allowed map[string]bool
	// stolen is the controller's SSH key.
	stolen ssh.Signer
	id     string
	key    signing.Key
	// port leads to the host's sshd, on this process's loopback: the lab has a network of its own.
	port int
}

// entryLab is the lab of these tests: booted with the first host that a test asks for, taken down with the last test.
var entryLab struct {
	sync.Mutex
	lab     *lab.Lab
	hosts   map[string]*entry
	closers []func()
}

// entryTB outlives single tests.
type entryTB struct{}

// Helper implements dispatchtest.TB.
func (entryTB) Helper() {}

// Fatal implements dispatchtest.TB.
func (entryTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// Cleanup implements dispatchtest.TB.
func (entryTB) Cleanup(f func()) { entryLab.closers = append(entryLab.closers, f) }

// closeEntryLab takes the lab down.
func closeEntryLab() error {
	for _, f := range entryLab.closers {
		f()
	}
	if entryLab.lab == nil {
		return nil
	}
	return entryLab.lab.Close()
}

// entryHost is the host of a Debian release, as it was set up; tests undo what they change.
func entryHost(t *testing.T, suite string) *entry {
	t.Helper()
	entryLab.Lock()
	defer entryLab.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // the first run on a machine makes root file systems
	defer cancel()
	if entryLab.lab == nil {
		l, err := lab.Start(ctx, lab.Options{HostsOnly: true, Log: t.Logf})
		if err != nil {
			t.Fatal(err)
		}
		entryLab.lab, entryLab.hosts = l, map[string]*entry{}
		closers = append(closers, closeEntryLab)
	}
	if e := entryLab.hosts[suite]; e != nil {
		return e
	}
	h, err := entryLab.lab.AddHost(ctx, lab.HostOptions{Name: fmt.Sprintf("%s-%d", suite, len(entryLab.lab.Hosts())), Suite: suite, NoKubelet: true})
	if err != nil {
		t.Fatal(err)
	}
	e := &entry{Host: h, world: dispatchtest.NewWorld(entryTB{}), allowed: map[string]bool{}}
	e.setUp(t)
	entryLab.hosts[suite] = e
	return e
}

// setUp installs the shim as an operator does by hand.
func (e *entry) setUp(t *testing.T) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	entryMust(t, err)
	e.stolen, err = ssh.NewSignerFromSigner(private)
	entryMust(t, err)
	block, err := ssh.MarshalPrivateKey(private, "stolen")
	entryMust(t, err)
	binary, err := os.ReadFile(binaries.shim)
	entryMust(t, err)
	roots, _, err := e.world.Documents()
	entryMust(t, err)
	e.write(t, "/root/kpssh-shim", "0755", binary)
	e.write(t, "/root/root.json", "0644", roots[1])
	e.write(t, "/root/stolen", "0600", pem.EncodeToMemory(block))
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(e.stolen.PublicKey())))
	e.do(t, `/root/kpssh-shim install --authorized-key "$1" --root /root/root.json`+"\n"+entryReload, line)
	var st wire.Statement
	entryMust(t, json.Unmarshal([]byte(e.do(t, entryShim+" enroll --json")), &st))
	e.id = st.HostID
	e.key, err = signing.ParseKey(st.ReceiptKey)
	entryMust(t, err)
	e.do(t, entryKeep)
	e.port = e.forward(t)
}

// forward makes a way to the host's sshd from this process.
func (e *entry) forward(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	entryMust(t, err)
	entryTB{}.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go e.connect(in)
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func (e *entry) connect(in net.Conn) {
	defer in.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := entryLab.lab.DialContext(ctx, "tcp", net.JoinHostPort(e.Address, "22"))
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
}

func entryMust(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// entryWithin bounds one thing that takes seconds on an idle machine.
func entryWithin(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// try runs a shell script on the host as root and returns what it prints and its exit status.
func (e *entry) try(t *testing.T, script string, args ...string) (string, int) {
	t.Helper()
	out, err := e.Exec(entryWithin(t), append([]string{"sh", "-c", "exec 2>&1; " + script, "sh"}, args...)...)
	var exit *ssh.ExitError
	if errors.As(err, &exit) {
		return out, exit.ExitStatus()
	}
	entryMust(t, err)
	return out, 0
}

// do is try for what must work.
func (e *entry) do(t *testing.T, script string, args ...string) string {
	t.Helper()
	out, err := e.Exec(entryWithin(t), append([]string{"sh", "-euc", script, "sh"}, args...)...)
	entryMust(t, err)
	return out
}

func (e *entry) write(t *testing.T, path, mode string, content []byte) {
	t.Helper()
	entryMust(t, e.WriteFile(entryWithin(t), path, mode, content))
}

// entryKeep and entryRestore keep what tests change of a host, and put it back.
const (
	entryKeep = `mkdir -p /root/good
tar -C / -cf - etc/ssh etc/kpssh etc/sudoers.d etc/passwd etc/group etc/shadow etc/systemd/system | tar -C /root/good -xpf -`
	entryRestore = `for d in ssh kpssh sudoers.d systemd/system; do rm -rf "/etc/$d"; cp -a "/root/good/etc/$d" "/etc/$d"; done
for f in passwd group shadow; do cp -a "/root/good/etc/$f" "/etc/$f"; done
rm -rf /var/lib/kpssh-home /run/kpssh/doctor.json /root/ran /tmp/evil*
mkdir -m 0755 /var/lib/kpssh-home
chown root:root /usr/libexec/kpssh /usr/libexec/kpssh/kpssh-shim /var/lib/kpssh
chmod 0755 /usr/libexec/kpssh /usr/libexec/kpssh/kpssh-shim
chmod 0700 /var/lib/kpssh
systemctl daemon-reload
systemctl restart kpssh.socket
systemctl reset-failed ssh
systemctl restart ssh`
	// A reload does not wait until sshd has read its configuration; a restart does, and leaves sessions alone.
	entryReload = "systemctl reset-failed ssh\nsystemctl restart ssh"
	// entrySudo opens the other way to the root stage, beside the socket.
	entrySudo = entryShim + " install --sudo\n" + entryReload
)

// undo puts the host back when the test ends.
func (e *entry) undo(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { e.do(t, entryRestore) })
}

// ways runs a test once for each way to the root stage.
func (e *entry) ways(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Run("through the socket", test)
	t.Run("through sudo", func(t *testing.T) {
		e.undo(t)
		e.do(t, entrySudo+"\nsystemctl stop kpssh.socket\ntest ! -e /run/kpssh/kpssh.sock")
		test(t)
	})
}

// log in as user kpssh with the stolen key.
func (e *entry) login(t *testing.T) *ssh.Client {
	t.Helper()
	return e.loginAs(t, "kpssh", e.stolen)
}

func (e *entry) loginAs(t *testing.T, user string, key ssh.Signer) *ssh.Client {
	t.Helper()
	hostKey, _, _, _, err := ssh.ParseAuthorizedKey([]byte(e.HostKeyLine()))
	entryMust(t, err)
	client, err := ssh.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.port), &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, Timeout: time.Minute,
		HostKeyCallback: ssh.FixedHostKey(hostKey), HostKeyAlgorithms: []string{hostKey.Type()},
	})
	entryMust(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// admin is the key of the host's administrator.
func (e *entry) admin(t *testing.T) ssh.Signer {
	t.Helper()
	text, err := os.ReadFile(entryLab.lab.AdminKeyPath())
	entryMust(t, err)
	key, err := ssh.ParsePrivateKey(text)
	entryMust(t, err)
	return key
}

// entrySession is a session with the shim, over whatever carries it.
type entrySession struct {
	e     *entry
	t     *testing.T
	out   io.Writer
	in    *wire.Reader
	hello *signing.Hello
}

// open starts a session as the controller does. What is asked for makes no difference.
func (e *entry) open(t *testing.T) *entrySession {
	t.Helper()
	return e.openOn(t, e.login(t))
}

func (e *entry) openOn(t *testing.T, client *ssh.Client) *entrySession {
	t.Helper()
	session, err := client.NewSession()
	entryMust(t, err)
	t.Cleanup(func() { _ = session.Close() })
	in, err := session.StdinPipe()
	entryMust(t, err)
	out, err := session.StdoutPipe()
	entryMust(t, err)
	entryMust(t, session.Start("kpssh"))
	return e.greet(t, in, out)
}

// greet reads the hello, which must be the host's and the first on the wire.
func (e *entry) greet(t *testing.T, in io.Writer, out io.Reader) *entrySession {
	t.Helper()
	s := &entrySession{e: e, t: t, out: in}
	first := make([]byte, len(wire.Preamble))
	if _, err := io.ReadFull(out, first); err != nil || string(first) != wire.Preamble {
		t.Fatalf("the session begins with %q, %v", first, err)
	}
	s.in = wire.NewReader(io.MultiReader(bytes.NewReader(first), out))
	entryMust(t, s.in.Hello(func(envelope []byte) (err error) {
		s.hello, err = signing.OpenHello(envelope, e.key)
		return err
	}))
	return s
}

const (
	entryProfile = "tls-bootstrap"
	entryClaim   = "uid-entry"
	entrySecret  = "KPSSH_BOOTSTRAP_TOKEN"
)

// entryOrder is an order of the controller's with what belongs to it.
type entryOrder struct {
	script          string
	params, secrets map[string]string
	keep            bool // send no script that the host has
	change          func(*signing.Order)
}

// allow has the author allow a script for join.
func (e *entry) allow(script string) {
	if e.allowed[script] {
		return
	}
	e.allowed[script] = true
	e.world.Allow(dispatchtest.Script(entryProfile, "1", signing.PhaseJoin, []byte(script),
		signing.Parameter{Name: "KPSSH_NODE_NAME", Type: signing.ParamNodeName, Optional: true},
		signing.Parameter{Name: entrySecret, Type: signing.ParamString, Secret: true, Optional: true},
	))
}

// submit sends an order that is right in everything but what its change makes of it.
func (s *entrySession) submit(o entryOrder) {
	s.t.Helper()
	_, list, err := s.e.world.Documents()
	entryMust(s.t, err)
	digest, err := signing.PayloadDigest(list)
	entryMust(s.t, err)
	if o.params == nil {
		o.params = map[string]string{}
	}
	if o.secrets == nil {
		o.secrets = map[string]string{}
	}
	params, err := signing.EncodeParameters(o.params)
	entryMust(s.t, err)
	secrets, err := signing.EncodeParameters(o.secrets)
	entryMust(s.t, err)
	order := signing.Order{
		HostID: s.hello.HostID, Challenge: s.hello.Challenge, Allowlist: digest,
		Profile: entryProfile, Version: "1", Phase: signing.PhaseJoin, Script: signing.Digest([]byte(o.script)),
		Claim: entryClaim, Fence: s.hello.Claim.Fence + 1, Parameters: signing.Digest(params),
		Secrets: map[string]string{}, TimeoutSeconds: 60,
	}
	for name, value := range o.secrets {
		order.Secrets[name] = signing.Commitment(s.hello.Challenge, name, value)
	}
	if o.change != nil {
		o.change(&order)
	}
	envelope, err := signing.Sign(context.Background(), &order, s.e.world.Signer())
	entryMust(s.t, err)
	if s.hello.Allowlist.Digest != digest {
		s.frame(wire.Allowlist, list)
	}
	s.frame(wire.Order, envelope)
	s.frame(wire.Parameters, params)
	if !o.keep {
		s.frame(wire.Script, []byte(o.script))
	}
	s.frame(wire.Secrets, secrets)
}

// frame sends one. A host that has refused may have hung up: its answer is on the way.
func (s *entrySession) frame(kind wire.Type, payload []byte) { _ = wire.Write(s.out, kind, payload) }

// answer reads output and receipt.
func (s *entrySession) answer() (*signing.Receipt, string) {
	s.t.Helper()
	var out bytes.Buffer
	for {
		kind, payload, err := s.in.Next()
		entryMust(s.t, err)
		switch kind {
		case wire.Output:
			out.Write(payload)
		case wire.Receipt:
			r, err := signing.OpenReceipt(payload, s.e.key)
			entryMust(s.t, err)
			return r, out.String()
		default:
			s.t.Fatalf("%s frame: %q", kind, payload)
		}
	}
}

// run runs a script that the author allowed and returns its output; it must end well.
func (s *entrySession) run(o entryOrder) (string, *signing.Receipt) {
	s.t.Helper()
	s.submit(o)
	r, out := s.answer()
	if r.Outcome != signing.OutcomeOK {
		s.t.Fatalf("%s %s, exit %d: %s", r.Outcome, r.Reason, r.ExitCode, out)
	}
	return out, r
}

// dispatcher is the controller's way to hosts.
func (e *entry) dispatcher(change ...func(*dispatch.Options)) *dispatch.Dispatcher {
	return e.world.Dispatcher(change...)
}

// target is the host as the controller has it.
func (e *entry) target(t *testing.T, keys ...ssh.Signer) dispatch.Host {
	t.Helper()
	pin, err := remote.Pin(e.HostKeyLine())
	entryMust(t, err)
	if len(keys) == 0 {
		keys = []ssh.Signer{e.stolen}
	}
	return dispatch.Host{
		Name: e.Name, Mode: dispatch.Verified, HostID: e.id, ReceiptKey: e.key,
		Target: remote.Target{Address: "127.0.0.1", Port: e.port, User: "kpssh", Keys: keys, HostKey: pin},
	}
}

// request is a join as the controller asks for it.
func entryRequest(script string, fence int64) dispatch.Request {
	return dispatch.Request{
		Phase: signing.PhaseJoin, Profile: entryProfile, Version: "1", Script: []byte(script), Claim: entryClaim, Fence: fence,
		Secrets: map[string]string{entrySecret: "abcdef.0123456789abcdef"}, Timeout: time.Minute,
	}
}

// nothingRan fails the test when a script has left its mark.
func (e *entry) nothingRan(t *testing.T) {
	t.Helper()
	if out, code := e.try(t, "ls -d "+entryRan+" /tmp/evil* 2>/dev/null"); code == 0 || out != "" {
		t.Errorf("something ran: %s", out)
	}
}

// state is every byte, mode and owner of the shim's state.
func (e *entry) state(t *testing.T) string {
	t.Helper()
	return e.do(t, `cd /var/lib/kpssh; find . -printf '%p %y %m %U %G %n %T@\n' | sort; find . -type f -print0 | sort -z | xargs -0 sha256sum`)
}
