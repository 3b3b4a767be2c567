package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha512"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// poolHost is a host for enrolment that needs no root: a real SSH server and a real shell, in which
// /usr/libexec/kpssh is a folder of the test, and a kpssh-shim that makes real statements but sets
// nothing up. What it misbehaves in is named by faults. The real shim is enrolled end to end in test/.
type poolHost struct {
	dir     string
	faults  []string
	hostKey ssh.Signer
	receipt signing.Signer

	mu         sync.Mutex
	root       []byte // what install was given
	authorized string
}

const libexec = "/usr/libexec/kpssh"

// startHost is the script command "sshhost [FAULT…]": it starts a host and tells the script where.
func startHost(ts *testscript.TestScript, neg bool, faults []string) {
	if neg {
		ts.Fatalf("sshhost cannot fail")
	}
	h := &poolHost{dir: ts.MkAbs("host"), faults: faults}
	ts.Check(os.RemoveAll(h.dir))
	ts.Check(h.tools())
	for _, fault := range faults {
		if version, ok := strings.CutPrefix(fault, "package="); ok {
			ts.Check(h.packaged(version))
		}
	}
	var err error
	h.hostKey, err = remotetest.GenerateKey()
	ts.Check(err)
	h.receipt, err = newSigner()
	ts.Check(err)
	client, err := newClientKey(ts.MkAbs("id_admin"))
	ts.Check(err)
	server, err := remotetest.Start(remotetest.Config{HostKeys: []ssh.Signer{h.hostKey}, Handler: h.handle})
	ts.Check(err)
	ts.Defer(server.Close)
	target := server.Target()
	ts.Setenv("PORT", fmt.Sprint(target.Port))
	ts.Setenv("HOSTKEY", ssh.FingerprintSHA256(h.hostKey.PublicKey()))
	ts.Setenv("ADMINKEY", ssh.FingerprintSHA256(client))
}

func newSigner() (signing.Signer, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return signing.NewSigner(private)
}

func newClientKey(path string) (ssh.PublicKey, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	return ssh.NewPublicKey(private.Public())
}

// tools makes the programs of the host: whoever is not root needs sudo, and uname tells a name.
func (h *poolHost) tools() error {
	for name, script := range map[string]string{
		"root/id":     "echo 0",
		"admin/id":    "echo 1000",
		"admin/sudo":  `[ "$1" = -n ] || exit 9; shift; [ "$1" = -- ] && shift; PATH=` + h.dir + `/root:$PATH exec "$@"`,
		"admin/uname": `case $1 in -n) echo Host-B.example.org;; *) exec /bin/uname "$@";; esac`,
		"root/uname":  `case $1 in -n) echo host-a;; *) exec /bin/uname "$@";; esac`,
	} {
		path := filepath.Join(h.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// packaged puts on the host what a distribution's package does.
func (h *poolHost) packaged(version string) error {
	for path, content := range map[string]string{
		"units/kpssh.socket": "", "libexec/kpssh-shim": "#!/bin/sh\necho kpssh-shim " + version + " sha256:00\n",
	} {
		path = filepath.Join(h.dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (h *poolHost) broken(fault string) bool { return slices.Contains(h.faults, fault) }

func (h *poolHost) handle(s *remotetest.Session) int {
	var err error
	switch {
	case s.User == "kpssh":
		err = h.shim(s)
	case strings.Contains(s.Command, " install --authorized-key "):
		err = h.install(s)
	case strings.Contains(s.Command, "kpssh-shim enroll --json"):
		err = h.enroll(s)
	case strings.Contains(s.Command, "kpssh-shim doctor"):
		fmt.Fprintln(s.Stdout, "tty                  user kpssh gets a terminal")
		return 1
	default:
		return h.shell(s)
	}
	if err != nil {
		fmt.Fprintln(s.Stderr, err)
		return 1
	}
	return 0
}

func (h *poolHost) shell(s *remotetest.Session) int {
	command := strings.NewReplacer(libexec, filepath.Join(h.dir, "libexec"), "/var/lib/kpssh/", h.dir+"/",
		"/usr/lib/systemd/system", h.dir+"/units").Replace(s.Command)
	cmd := exec.Command("sh", "-c", command)
	cmd.Env = []string{"PATH=" + filepath.Join(h.dir, s.User) + ":" + os.Getenv("PATH")}
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Stdin, &out, s.Stderr
	err := cmd.Run()
	_, _ = io.WriteString(s.Stdout, strings.ReplaceAll(out.String(), filepath.Join(h.dir, "libexec"), libexec))
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return 126
	}
	return 0
}

func (h *poolHost) install(s *remotetest.Session) error {
	if h.broken("install-fails") {
		return errors.New("kpssh-shim: error: making user kpssh: useradd: \x1b[31mno space left")
	}
	root, err := io.ReadAll(s.Stdin)
	if err != nil {
		return err
	}
	if _, err := signing.OpenFirstRoot(root); err != nil {
		return err
	}
	uploaded, err := filepath.Glob(filepath.Join(h.dir, "libexec", ".upload.*"))
	packaged := strings.Contains(s.Command, libexec+"/kpssh-shim install")
	if err != nil || len(uploaded) != 1 && !packaged || packaged && len(uploaded) > 0 {
		return fmt.Errorf("uploaded are %q, %v", uploaded, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.root == nil || !h.broken("other-root") {
		h.root = root
	}
	_, rest, _ := strings.Cut(s.Command, "--authorized-key ")
	h.authorized = strings.Join(strings.Fields(strings.NewReplacer("'", "", `\`, "").Replace(rest))[:2], " ")
	if packaged {
		return nil
	}
	return os.Rename(uploaded[0], filepath.Join(h.dir, "kpssh-shim"))
}

func (h *poolHost) hello() ([]byte, error) {
	digest, err := signing.PayloadDigest(h.root)
	if err != nil {
		return nil, err
	}
	if h.broken("other-root") {
		digest = signing.Digest([]byte("another root"))
	}
	hello := &signing.Hello{
		Protocol: wire.Protocol, ShimVersion: "1.2.3", HostID: "0123456789abcdef0123456789abcdef",
		Challenge: make([]byte, signing.ChallengeSize), Root: signing.DocumentRef{Version: 1, Digest: digest},
	}
	if h.broken("findings") {
		hello.Findings = []string{"tty"}
	}
	return signing.Sign(context.Background(), hello, h.receipt)
}

func (h *poolHost) enroll(s *remotetest.Session) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	hello, err := h.hello()
	if err != nil {
		return err
	}
	signature, err := sshSign(h.hostKey, hello)
	if err != nil {
		return err
	}
	st := wire.Statement{
		HostID: "0123456789abcdef0123456789abcdef", ReceiptKey: h.receipt.Public().String(), ShimVersion: "1.2.3",
		HostKeys: []string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(h.hostKey.PublicKey())))},
		Findings: []string{}, Root: 1, Hello: hello, Signatures: []string{signature},
	}
	switch {
	case h.broken("findings"):
		st.Findings = []string{"tty"}
	case h.broken("another-receipt-key"):
		other, err := newSigner()
		if err != nil {
			return err
		}
		st.ReceiptKey = other.Public().String()
	case h.broken("another-host-id"):
		st.HostID = "ffffffffffffffffffffffffffffffff"
	case h.broken("another-host-key"):
		other, err := remotetest.GenerateKey()
		if err != nil {
			return err
		}
		st.HostKeys[0] = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(other.PublicKey())))
	case h.broken("no-signature"):
		st.Signatures[0] = ""
	}
	fmt.Fprintln(s.Stdout, "Welcome to host-a")
	return json.NewEncoder(s.Stdout).Encode(st)
}

// shim answers the login of the controller.
func (h *poolHost) shim(s *remotetest.Session) error {
	if h.broken("no-entry") {
		return errors.New("kpssh-shim: refused: not-enrolled")
	}
	h.mu.Lock()
	hello, err := h.hello()
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(s.Stdout, "motd\n"+wire.Preamble); err != nil {
		return err
	}
	return wire.Write(s.Stdout, wire.Hello, hello)
}

// sshSign is what ssh-keygen -Y sign does.
func sshSign(key ssh.Signer, message []byte) (string, error) {
	sum := sha512.Sum512(message)
	signed := ssh.Marshal(struct {
		Namespace, Reserved, Hash string
		Sum                       []byte
	}{wire.StatementNamespace, "", "sha512", sum[:]})
	sig, err := key.Sign(rand.Reader, append([]byte("SSHSIG"), signed...))
	if err != nil {
		return "", err
	}
	blob := ssh.Marshal(struct {
		Version                   uint32
		Key                       []byte
		Namespace, Reserved, Hash string
		Signature                 []byte
	}{1, key.PublicKey().Marshal(), wire.StatementNamespace, "", "sha512", ssh.Marshal(sig)})
	return string(pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE", Bytes: append([]byte("SSHSIG"), blob...)})), nil
}

// closedPort is the script command "closedport": a port on which nobody listens.
func closedPort(ts *testscript.TestScript, _ bool, _ []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Setenv("PORT", fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	ts.Check(l.Close())
}
