//go:build e2e

package packages

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// machine is what packages are installed on.
type machine interface {
	// Exec runs a program as root and returns its standard output.
	Exec(ctx context.Context, command ...string) (string, error)
	WriteFile(ctx context.Context, path, mode string, content []byte) error
	// Dial connects to its sshd.
	Dial(ctx context.Context) (net.Conn, error)
}

// host is a machine with the keys of a cluster that it may come to trust.
type host struct {
	machine
	t     *testing.T
	ctx   context.Context
	world *dispatchtest.World
	key   ssh.Signer
	fence int64
}

const shim = "/usr/libexec/kpssh/kpssh-shim"

func newHost(ctx context.Context, t *testing.T, m machine) *host {
	t.Helper()
	key, err := remotetest.GenerateKey()
	must(t, err)
	return &host{machine: m, t: t, ctx: ctx, world: dispatchtest.NewWorld(t), key: key}
}

// run is Exec, and the test fails when the program does.
func (h *host) run(command ...string) string {
	h.t.Helper()
	out, err := h.Exec(h.ctx, command...)
	if err != nil {
		h.t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(out)
}

// sh runs a script, and what it prints to standard error is in what it returns.
func (h *host) sh(script string) string {
	h.t.Helper()
	return h.run("sh", "-c", "set -e; exec 2>&1; "+script)
}

func (h *host) exists(path string) bool {
	h.t.Helper()
	return h.sh("if [ -e "+path+" ] || [ -L "+path+" ]; then echo yes; fi") == "yes"
}

// there checks that paths are there, or that none is.
func (h *host) there(want bool, paths ...string) {
	h.t.Helper()
	for _, path := range paths {
		if h.exists(path) != want {
			h.t.Errorf("%s: there is %v, want %v", path, !want, want)
		}
	}
}

// copy puts a file of this machine onto the host and returns its path there.
func (h *host) copy(file string) string {
	h.t.Helper()
	content, err := os.ReadFile(file)
	must(h.t, err)
	path := "/root/" + filepath.Base(file)
	must(h.t, h.WriteFile(h.ctx, path, "0644", content))
	return path
}

// dpkg installs a package and returns what it printed.
func (h *host) dpkg(file string) string {
	h.t.Helper()
	out := h.sh("dpkg --install " + h.copy(file))
	if status := h.dpkgStatus(); status != "ii" {
		h.t.Errorf("dpkg says %q after: %s", status, out)
	}
	return out
}

// dpkgStatus is "ii" for a package that is installed, "rc" for one that was removed, "" for one that dpkg has forgotten.
func (h *host) dpkgStatus() string {
	h.t.Helper()
	return h.sh("dpkg-query --show --showformat '${db:Status-Abbrev}' kpssh-shim 2>/dev/null || true")
}

// authorize is what an operator does once the package is there.
func (h *host) authorize(args ...string) {
	h.t.Helper()
	roots, _, err := h.world.Documents()
	must(h.t, err)
	must(h.t, h.WriteFile(h.ctx, "/root/root.json", "0644", roots[1]))
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(h.key.PublicKey())))
	h.run(append([]string{shim, "install", "--authorized-key", key, "--root", "/root/root.json"}, args...)...)
}

// enroll has the host make its identity, or say which it has.
func (h *host) enroll() wire.Statement {
	h.t.Helper()
	var st wire.Statement
	if out := h.run(shim, "enroll", "--json"); json.Unmarshal([]byte(out), &st) != nil {
		h.t.Fatalf("the statement is %q", out)
	}
	return st
}

// healthy checks that the doctor finds nothing.
func (h *host) healthy() {
	h.t.Helper()
	if out := h.sh(shim + " doctor || true"); out != "nothing found" {
		h.t.Errorf("the doctor says: %s", out)
	}
}

// session is an SSH session as user kpssh.
type session struct {
	h      *host
	client *ssh.Client
	in     *wire.Reader
	out    io.Writer
	hello  *signing.Hello
	key    signing.Key
}

// connect logs in as user kpssh with nothing but SSH, and reads the hello.
func (h *host) connect(st wire.Statement) (*session, error) {
	h.t.Helper()
	key, err := signing.ParseKey(st.ReceiptKey)
	must(h.t, err)
	conn, err := h.Dial(h.ctx)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	c, channels, requests, err := ssh.NewClientConn(conn, "host", &ssh.ClientConfig{
		User: "kpssh", Auth: []ssh.AuthMethod{ssh.PublicKeys(h.key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	s := &session{h: h, client: ssh.NewClient(c, channels, requests), key: key}
	h.t.Cleanup(s.close)
	return s, s.start()
}

func (s *session) close() { _ = s.client.Close() }

func (s *session) start() error {
	channel, err := s.client.NewSession()
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	channel.Stderr = &stderr
	stdout, err := channel.StdoutPipe()
	if err != nil {
		return err
	}
	if s.out, err = channel.StdinPipe(); err != nil {
		return err
	}
	if err := channel.Start("whatever a client asks for"); err != nil {
		return err
	}
	s.in = wire.NewReader(stdout)
	err = s.in.Hello(func(envelope []byte) (err error) {
		s.hello, err = signing.OpenHello(envelope, s.key)
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the hello: %w: %s", err, &stderr)
	}
	return nil
}

// greets checks that the host says hello over SSH, as the one that was enrolled, with this version of the shim.
func (h *host) greets(st wire.Statement, version string) {
	h.t.Helper()
	s, err := h.connect(st)
	if err != nil {
		h.t.Error(err)
		return
	}
	defer s.close()
	if s.hello.HostID != st.HostID || s.hello.ShimVersion != version {
		h.t.Errorf("hello of host %s, shim %s; want %s, %s", s.hello.HostID, s.hello.ShimVersion, st.HostID, version)
	}
	if len(s.hello.Findings) > 0 {
		h.t.Errorf("the hello carries findings %q", s.hello.Findings)
	}
}

// lockedOut checks that sshd is there and lets user kpssh in no more.
func (h *host) lockedOut(st wire.Statement) {
	h.t.Helper()
	if _, err := h.connect(st); err == nil || !strings.Contains(err.Error(), "unable to authenticate") {
		h.t.Errorf("logging in as kpssh: %v", err)
	}
}

// order orders a script, which the cluster's author has allowed for this.
func (s *session) order(script string) {
	t, world := s.h.t, s.h.world
	t.Helper()
	s.h.fence++
	profile := fmt.Sprintf("profile-%d", s.h.fence)
	world.Allow(dispatchtest.Script(profile, "1", signing.PhaseJoin, []byte(script)))
	_, list, err := world.Documents()
	must(t, err)
	digest, err := signing.PayloadDigest(list)
	must(t, err)
	none, err := signing.EncodeParameters(map[string]string{})
	must(t, err)
	envelope, err := signing.Sign(s.h.ctx, &signing.Order{
		HostID: s.hello.HostID, Challenge: s.hello.Challenge, Allowlist: digest, Profile: profile, Version: "1",
		Phase: signing.PhaseJoin, Script: signing.Digest([]byte(script)), Claim: "claim", Fence: s.h.fence,
		Parameters: signing.Digest(none), Secrets: map[string]string{}, TimeoutSeconds: 300,
	}, world.Signer())
	must(t, err)
	for _, frame := range []struct {
		kind    wire.Type
		payload []byte
	}{{wire.Allowlist, list}, {wire.Order, envelope}, {wire.Parameters, none}, {wire.Script, []byte(script)}, {wire.Secrets, none}} {
		must(t, wire.Write(s.out, frame.kind, frame.payload))
	}
}

// receipt waits for the end of the run.
func (s *session) receipt() *signing.Receipt {
	t := s.h.t
	t.Helper()
	for {
		kind, payload, err := s.in.Next()
		must(t, err)
		if kind == wire.Receipt {
			receipt, err := signing.OpenReceipt(payload, s.key)
			must(t, err)
			return receipt
		}
	}
}

// until waits for a condition on the host.
func (h *host) until(what, script string) {
	h.t.Helper()
	for {
		_, err := h.Exec(h.ctx, "sh", "-c", script)
		if err == nil {
			return
		}
		select {
		case <-h.ctx.Done():
			h.t.Fatalf("waiting for %s: %v", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
