//go:build e2e

package threats

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch/dispatchtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// between is somebody in between: it passes a connection on and may change what the host says.
func (e *entry) between(t *testing.T, change func([]byte) []byte) (port int, said *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	entryMust(t, err)
	t.Cleanup(func() { _ = l.Close() })
	said = &atomic.Int64{}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				server, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.port))
				if err != nil {
					return
				}
				defer server.Close()
				go func() {
					n, _ := io.Copy(server, client)
					said.Add(n)
				}()
				buf := make([]byte, 64<<10)
				for {
					n, err := server.Read(buf)
					if _, werr := client.Write(change(buf[:n])); err != nil || werr != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port, said
}

// Row C13: a host whose key exchange is not strict, or is made to look so (Terrapin), is not logged in to.
func TestC13_AHostWithoutStrictKeyExchangeIsNotLoggedInTo(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	strip := func(b []byte) []byte {
		return bytes.ReplaceAll(b, []byte("kex-strict-s-v00@openssh.com"), []byte("kex-xxxxxx-s-v00@openssh.com"))
	}
	for name, change := range map[string]func([]byte) []byte{"as it is": func(b []byte) []byte { return b }, "stripped": strip} {
		t.Run(name, func(t *testing.T) {
			host := e.target(t)
			host.Target.Port, _ = e.between(t, change)
			conn, err := remote.Dial(entryWithin(t), host.Target)
			if name == "as it is" {
				entryMust(t, err)
				entryMust(t, conn.Close())
				return
			}
			var unreachable *remote.Unreachable
			if !errors.As(err, &unreachable) || unreachable.Reason != remote.ReasonWeakCrypto {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Row C14 is out of scope, which the documents must say.
func TestC14_WhatRootOfAHostCanDoIsSaidToBeOutOfScope(t *testing.T) {
	text, err := os.ReadFile("../../docs/threat-model.md")
	entryMust(t, err)
	row := regexp.MustCompile(`(?m)^\| *C14 *\|.*$`).FindString(string(text))
	if !strings.Contains(row, "root") || !strings.Contains(strings.ToLower(row), "out of scope") {
		t.Errorf("row C14 is %q", row)
	}
}

// Row D11: a rejected key is tried at most twice in a minute, so that sshd does not ban the controller, which is let in
// again by itself once the key is taken.
func TestD11_ARejectedKeyDoesNotGetTheControllerBanned(t *testing.T) {
	e := entryHost(t, "trixie")
	e.undo(t)
	if settings := e.do(t, "sshd -T"); !strings.Contains(settings, "persourcepenalties crash:") {
		t.Fatalf("this sshd has no penalties: %s", settings)
	}
	t.Run("who tries faster is banned", func(t *testing.T) {
		e.do(t, "rm -f /root/wrong*; ssh-keygen -q -t ed25519 -N '' -f /root/wrong")
		const knock = "ssh -i /root/wrong -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null kpssh@127.0.0.1 </dev/null"
		out, _ := e.try(t, "for i in 1 2 3 4 5 6 7 8 9 10; do "+knock+"; done")
		if n := strings.Count(out, "Permission denied"); n == 0 || n == 10 { // the rest are hung up on before they show a key
			t.Errorf("ten times the wrong key, %d of them looked at: %s", n, out)
		}
	})
	wrong := remotetest.Key(t)
	d := e.dispatcher()
	host := e.target(t, wrong)
	counted := e.counting(t, &host)
	began := time.Now()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < time.Minute {
		if _, err := d.Probe(entryWithin(t), host); !entryRefused(err, dispatch.AuthRejected) {
			t.Fatalf("got %v", err)
		}
		<-tick.C
	}
	if n := counted.Load(); n < 1 || n > 2 {
		t.Errorf("%d attempts in the first minute", n)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(wrong.PublicKey())))
	e.do(t, `echo "restrict,command=\"`+entryShim+`\" $1" >>/etc/kpssh/authorized_keys`, line)
	ctx := entryWithin(t)
	for {
		probe, err := d.Probe(ctx, host)
		if err == nil {
			if probe.Unfit != nil {
				t.Error(probe.Unfit)
			}
			t.Logf("let in %s after the first attempt, by attempt %d", time.Since(began).Round(time.Second), counted.Load())
			return
		}
		if ctx.Err() != nil || !entryRefused(err, dispatch.AuthRejected) {
			t.Fatalf("not let in again: %v", err)
		}
		<-tick.C
	}
}

// counting counts the connections that are made to a host.
func (e *entry) counting(t *testing.T, host *dispatch.Host) *atomic.Int64 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	entryMust(t, err)
	t.Cleanup(func() { _ = l.Close() })
	n := &atomic.Int64{}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			go e.connect(in)
		}
	}()
	host.Target.Port = l.Addr().(*net.TCPAddr).Port
	return n
}

// honeypot is an SSH server that takes every key, says what it was told to and records all that it is sent.
type honeypot struct {
	server *remotetest.Server

	mu       sync.Mutex
	says     []byte
	heard    bytes.Buffer
	sessions int
}

func newHoneypot(t *testing.T) *honeypot {
	t.Helper()
	h := &honeypot{}
	h.server = remotetest.New(t, remotetest.Config{Handler: func(s *remotetest.Session) int {
		h.mu.Lock()
		says := h.says
		h.sessions++
		h.mu.Unlock()
		_, _ = s.Stdout.Write(says)
		buf := make([]byte, 4096)
		for {
			n, err := s.Stdin.Read(buf)
			h.mu.Lock()
			h.heard.Write(buf[:n])
			h.mu.Unlock()
			if err != nil {
				return 0
			}
		}
	}})
	return h
}

func (h *honeypot) will(says []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.says = says
	h.heard.Reset()
	h.sessions = 0
}

func (h *honeypot) got() (heard string, sessions int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heard.String(), h.sessions
}

// Row D13: an SSHHost that leads to a honeypot, with the identity of an enrolled host or with none, collects neither an
// order nor a secret. Who may also write the identity is an administrator of the pool: see the document.
func TestD13_AnSSHHostThatLeadsToAHoneypotCollectsNothing(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	script := "echo ran >>" + entryRan + " # D13"
	e.allow(script)
	pot := newHoneypot(t)
	genuine := e.open(t)
	forged := func(hostID string, by signing.Signer) []byte {
		hello := *genuine.hello
		hello.HostID = hostID
		envelope, err := signing.Sign(t.Context(), &hello, by)
		entryMust(t, err)
		return entryHello(t, envelope)
	}
	own := dispatchtest.NewSigner(entryTB{})
	_, private, err := ed25519.GenerateKey(nil)
	entryMust(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	entryMust(t, err)
	pinned := map[string]string{"to the honeypot": pot.server.Fingerprint(), "to the host": e.HostKeyLine(), "to nothing": ""}
	enrolled := &v1beta1.ShimIdentity{HostID: e.id, ReceiptKey: e.key.String()}
	for pin, key := range pinned {
		for name, tc := range map[string]struct {
			shim *v1beta1.ShimIdentity
			says []byte
		}{
			"and has no identity":                       {nil, nil},
			"and says nothing":                          {enrolled, nil},
			"and is another service":                    {enrolled, []byte("220 mail.example ESMTP\r\n$ # \n")},
			"and says a hello of its own":               {enrolled, forged(e.id, own)},
			"and is a pool host, but another":           {enrolled, forged(strings.Repeat("ab", 16), own)},
			"and says a hello with a signature missing": {enrolled, entryHello(t, []byte(`{"payloadType":"application/vnd.kpssh.hello.v1+json","payload":"e30=","signatures":[]}`))},
		} {
			t.Run("pinned "+pin+" "+name, func(t *testing.T) {
				pot.will(tc.says)
				d := e.dispatcher(func(o *dispatch.Options) { o.HelloTimeout = 2 * time.Second })
				target, err := entryAccess(t, key, pem.EncodeToMemory(block), tc.shim, pot.server.Target(remotetest.Key(t)))
				if err == nil {
					if _, probed := d.Probe(entryWithin(t), target); probed == nil {
						t.Error("a probe takes it for the host")
					}
					_, err = d.Run(entryWithin(t), target, entryRequest(script, genuine.hello.Claim.Fence+1))
				}
				if err == nil {
					t.Error("a join ended well")
				}
				heard, sessions := pot.got()
				if heard != "" {
					t.Errorf("the honeypot heard %q", heard)
				}
				if wants := pin == "to the honeypot" && tc.shim != nil; wants && sessions == 0 {
					t.Errorf("nobody came, which shows nothing: %v", err)
				}
			})
		}
	}
	t.Run("what an order would look like to it", func(t *testing.T) { // so that hearing nothing means something
		pot.will(forged(e.id, own))
		shim := &v1beta1.ShimIdentity{HostID: e.id, ReceiptKey: own.Public().String()}
		target, err := entryAccess(t, pinned["to the honeypot"], pem.EncodeToMemory(block), shim, pot.server.Target(remotetest.Key(t)))
		entryMust(t, err)
		ctx, cancel := context.WithCancel(entryWithin(t))
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = e.dispatcher().Run(ctx, target, entryRequest(script, genuine.hello.Claim.Fence+1))
		}()
		for heard := ""; !strings.Contains(heard, "abcdef.0123456789abcdef"); heard, _ = pot.got() {
			if ctx.Err() != nil {
				t.Fatal("an administrator's honeypot heard nothing either")
			}
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
		<-done
	})
}

// entryHello is a session's beginning on the wire.
func entryHello(t *testing.T, envelope []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(wire.Preamble)
	entryMust(t, wire.Write(&b, wire.Hello, envelope))
	return b.Bytes()
}

// entryAccess is what the controller makes of an SSHHost and its Secret.
func entryAccess(t *testing.T, pin string, private []byte, shim *v1beta1.ShimIdentity, at remote.Target) (dispatch.Host, error) {
	t.Helper()
	const namespace = "kpssh-system"
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "keys", UID: "u"},
		Data:       map[string][]byte{hostaccess.KeyPrivate: private, hostaccess.KeyKnownHost: []byte(pin)},
	}
	host := &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "rogue"}}
	host.Spec.Address, host.Spec.Port = at.Address, int32(at.Port)
	host.Spec.SSHKeySecretRef.Name, host.Spec.Shim = "keys", shim
	return hostaccess.New(fake.NewClientBuilder().WithObjects(secret).Build(), namespace, false).Host(t.Context(), host)
}

// Row D14: a shim below the allowlist's minShim is given no order by the controller, runs none of anybody else's, and
// its host is parked with the reason.
func TestD14_AShimThatIsTooOldIsGivenNoOrder(t *testing.T) {
	e := entryHost(t, lab.DefaultSuite)
	e.undo(t)
	script := "echo ran >>" + entryRan + " # D14"
	e.allow(script)
	fence := e.open(t).hello.Claim.Fence
	e.world.Change(func(l *signing.Allowlist) { l.MinShim = "v99.0.0" })
	t.Cleanup(func() { e.world.Change(func(l *signing.Allowlist) { l.MinShim = "" }) })
	d := e.dispatcher()
	probe, err := d.Probe(entryWithin(t), e.target(t))
	entryMust(t, err)
	unfit := membership.Unfit(&v1beta1.SSHHost{}, probe)
	if unfit == nil || unfit.Kind != membership.HostFault || unfit.Reason != v1beta1.ReasonShimTooOld || !strings.Contains(unfit.Detail, "v99.0.0") {
		t.Errorf("the host would be parked with %+v", unfit)
	}
	before := e.state(t)
	if _, err := d.Run(entryWithin(t), e.target(t), entryRequest(script, fence+1)); !entryRefused(err, dispatch.Refused) || !strings.Contains(err.Error(), "shim-too-old") {
		t.Errorf("the controller: %v", err)
	}
	s := e.open(t)
	s.submit(entryOrder{script: script})
	if r, _ := s.answer(); r.Reason != signing.ReasonShimTooOld {
		t.Errorf("the shim: %s %s", r.Outcome, r.Reason)
	}
	if after := e.state(t); after != before {
		t.Errorf("the state was\n%s\nand is\n%s", before, after)
	}
	e.nothingRan(t)
}

// The root stage is reached by the sudo of Debian 13 and by sudo-rs as by that of Debian 12.
func TestC1_TheEntryHoldsWithEachSudo(t *testing.T) {
	e := entryHost(t, "trixie")
	script := "id -u; cat /proc/$$/environ"
	e.allow(script)
	for name, prepare := range map[string]string{
		"Debian's classic sudo":   `sudo --version 2>&1 | grep -q 'Sudo version 1\.'`,
		"sudo-rs by its own name": `mv /usr/bin/sudo /usr/bin/sudo.classic; mv /usr/sbin/visudo /usr/sbin/visudo.classic; sudo-rs --version 2>&1 | grep -qi 'sudo-rs'`,
		"sudo-rs in sudo's place": `mv /usr/bin/sudo /usr/bin/sudo.classic; mv /usr/sbin/visudo /usr/sbin/visudo.classic
cp -a /usr/lib/cargo/bin/sudo /usr/bin/sudo; cp -a /usr/lib/cargo/bin/visudo /usr/sbin/visudo; sudo --version 2>&1 | grep -qi 'sudo-rs'`,
	} {
		t.Run(name, func(t *testing.T) {
			e.undo(t)
			t.Cleanup(func() {
				e.do(t, `for p in /usr/bin/sudo /usr/sbin/visudo; do [ ! -e $p.classic ] || mv -f $p.classic $p; done`)
			})
			e.do(t, prepare)
			e.do(t, entrySudo+"\nsystemctl stop kpssh.socket\ntest ! -e /run/kpssh/kpssh.sock")
			s := e.open(t)
			if len(s.hello.Findings) > 0 {
				t.Errorf("the doctor found %q", s.hello.Findings)
			}
			out, _ := s.run(entryOrder{script: script})
			if want := "0\nHOME=/root\x00LANG=C.UTF-8\x00PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\x00"; out != want {
				t.Errorf("got %q", out)
			}
			if out, code := e.try(t, "setpriv --reuid kpssh --regid kpssh --clear-groups $(command -v sudo || command -v sudo-rs) -n /bin/true </dev/null"); code == 0 {
				t.Errorf("user kpssh runs something else: %s", out)
			}
			e.do(t, `echo 'kpssh ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/more; chmod 0440 /etc/sudoers.d/more`)
			if found := e.open(t).hello.Findings; strings.Join(found, " ") != wire.FindingSudoRule {
				t.Errorf("with another rule of sudo the doctor found %q", found)
			}
		})
	}
}
