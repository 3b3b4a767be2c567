//go:build e2e

package transport

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// spec is an sshd to start.
type spec struct {
	suite     string // oldSuite when empty
	namespace string
	address   string
	port      int
	hostKeys  []keyFile // an ed25519 one when empty
	// authorized are lines of authorized_keys, by user.
	authorized map[string][]string
	options    []string
}

// daemon is a running sshd.
type daemon struct {
	spec
	dir string // as it sees it
	cmd *exec.Cmd
	log *logged
}

var counter atomic.Int64

// start starts an sshd that ends with the test.
func start(t *testing.T, s spec) *daemon {
	t.Helper()
	if s.suite == "" {
		s.suite = oldSuite
	}
	if len(s.hostKeys) == 0 {
		s.hostKeys = []keyFile{newKey(t, "-t", "ed25519")}
	}
	d := &daemon{spec: s, dir: fmt.Sprintf("/etc/ssh/test-%d", counter.Add(1))}
	config := []string{
		fmt.Sprintf("ListenAddress %s", bracketed(s.address)), fmt.Sprintf("Port %d", s.port), "PidFile none", "UsePAM no",
		"LogLevel VERBOSE", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
		"AuthorizedKeysFile " + d.dir + "/authorized/%u",
	}
	if err := os.MkdirAll(d.outside("authorized"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, key := range s.hostKeys {
		name := fmt.Sprintf("host-%d", i)
		d.write(t, name, 0o600, key.private(t))
		config = append(config, "HostKey "+d.dir+"/"+name)
		if certificate := key.certificate(t); certificate != "" {
			d.write(t, name+"-cert.pub", 0o644, certificate)
			config = append(config, "HostCertificate "+d.dir+"/"+name+"-cert.pub")
		}
	}
	for user, lines := range s.authorized {
		d.write(t, "authorized/"+user, 0o644, strings.Join(lines, "\n")+"\n")
	}
	d.write(t, "config", 0o644, strings.Join(append(config, s.options...), "\n")+"\n")
	d.up(t)
	t.Cleanup(func() {
		d.down()
		if t.Failed() {
			t.Logf("sshd of %s at %s port %d said:\n%s", s.namespace, s.address, s.port, d.log)
		}
	})
	return d
}

func (d *daemon) up(t *testing.T) {
	t.Helper()
	command := within(d.namespace, "chroot", places[d.suite], "/usr/sbin/sshd", "-D", "-e", "-f", d.dir+"/config")
	d.cmd, d.log = exec.Command(command[0], command[1:]...), &logged{}
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "sshd to listen", func() bool { return d.log.has("Server listening on") })
}

// down ends the listener; connections that are open go on.
func (d *daemon) down() {
	_ = d.cmd.Process.Kill()
	// Not Wait: sessions hold standard error open.
	_, _ = d.cmd.Process.Wait()
}

// outside is where this process finds a file of the sshd.
func (d *daemon) outside(name string) string { return filepath.Join(places[d.suite], d.dir, name) }

func (d *daemon) write(t *testing.T, name string, mode os.FileMode, text string) {
	t.Helper()
	if err := os.WriteFile(d.outside(name), []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// target is how to log in there.
func (d *daemon) target(t *testing.T, user string, keys ...keyFile) remote.Target {
	t.Helper()
	return remote.Target{Address: d.address, Port: d.port, User: user, Keys: signers(t, keys...), HostKey: pin(t, d.hostKeys[0].fingerprint(t))}
}

// behind is the target by way of a jump host.
func (d *daemon) behind(t *testing.T, jump remote.Target, user string, keys ...keyFile) remote.Target {
	t.Helper()
	target := d.target(t, user, keys...)
	target.Via = &jump
	return target
}

func bracketed(address string) string {
	if strings.Contains(address, ":") {
		return "[" + address + "]"
	}
	return address
}

func pin(t *testing.T, text string) remote.HostKeyPolicy {
	t.Helper()
	policy, err := remote.Pin(text)
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// keyFile is the path of a private key that ssh-keygen made.
type keyFile string

// newKey has ssh-keygen make a key, without a passphrase unless the arguments bring one.
func newKey(t *testing.T, args ...string) keyFile {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	command := []string{"ssh-keygen", "-q", "-f", path, "-C", "test"}
	if !strings.Contains(strings.Join(args, " "), "-N ") {
		command = append(command, "-N", "")
	}
	do(t, append(command, args...)...)
	return keyFile(path)
}

// signed has ssh-keygen make a certificate of ca for a copy of the key.
func (k keyFile) signed(t *testing.T, ca keyFile, args ...string) keyFile {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	do(t, "cp", string(k), path)
	do(t, "cp", string(k)+".pub", path+".pub")
	do(t, append(append([]string{"ssh-keygen", "-q", "-s", string(ca), "-I", "test"}, args...), path+".pub")...)
	return keyFile(path)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (k keyFile) private(t *testing.T) string { return read(t, string(k)) }

func (k keyFile) public(t *testing.T) string { return strings.TrimSpace(read(t, string(k)+".pub")) }

// certificate is empty when there is none.
func (k keyFile) certificate(t *testing.T) string {
	t.Helper()
	path := string(k) + "-cert.pub"
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return read(t, path)
}

// fingerprint is what ssh-keygen says it is.
func (k keyFile) fingerprint(t *testing.T) string {
	t.Helper()
	return strings.Fields(do(t, "ssh-keygen", "-lf", string(k)+".pub"))[1]
}

// secret is the key as a host's Secret has it.
func (k keyFile) secret(t *testing.T, more map[string]string) *corev1.Secret {
	t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "keys"}, Data: map[string][]byte{
		hostaccess.KeyPrivate: []byte(k.private(t)),
	}}
	if certificate := k.certificate(t); certificate != "" {
		s.Data[hostaccess.KeyCertificate] = []byte(certificate)
	}
	for name, text := range more {
		s.Data[name] = []byte(text)
	}
	return s
}

// signers are what a Secret with each key gives to log in with.
func signers(t *testing.T, keys ...keyFile) []ssh.Signer {
	t.Helper()
	var all []ssh.Signer
	for _, key := range keys {
		login, err := hostaccess.ParseLogin(key.secret(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, login.Keys...)
	}
	return all
}

// logged is what an sshd says.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) has(text string) bool { return strings.Contains(l.String(), text) }

// accepted tells whether somebody logged in with the key.
func (l *logged) accepted(user, fingerprint string) bool {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, "Accepted publickey for "+user+" ") && strings.Contains(line, fingerprint) {
			return true
		}
	}
	return false
}

// ask runs a command to its end and returns what it printed.
func ask(ctx context.Context, conn *remote.Conn, command string) (string, error) {
	stream, err := conn.Start(ctx, command)
	if err != nil {
		return "", err
	}
	defer func() { _ = stream.Close() }()
	_ = stream.CloseWrite()
	out, err := io.ReadAll(stream)
	if err != nil {
		return string(out), err
	}
	return string(out), stream.Wait()
}

// logIn dials and asks who and where one is there.
func logIn(t *testing.T, target remote.Target) (user, from string) {
	t.Helper()
	conn, err := remote.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	out, err := ask(t.Context(), conn, `echo "$(id -un) ${SSH_CONNECTION%% *}"`)
	if err != nil {
		t.Fatal(err)
	}
	user, from, _ = strings.Cut(strings.TrimSpace(out), " ")
	return user, from
}

func newPool(t *testing.T, options remote.PoolOptions) *remote.Pool {
	t.Helper()
	pool := remote.NewPool(options)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// namespace is the pool's, of the cluster.
const namespace = "kpssh-system"
