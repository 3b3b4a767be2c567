//go:build e2e

package e2e

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// intruder is somebody who has stolen the controller's SSH key and nothing else.
type intruder struct {
	t     *testing.T
	host  v1beta1.SSHHost
	key   signing.Key
	in    *wire.Reader
	out   ssh.Channel
	hello *signing.Hello
}

// intrude logs in to a host with the stolen key and reads its hello.
func intrude(t *testing.T, h *lab.Host) *intruder {
	t.Helper()
	i := &intruder{t: t}
	hosts, err := on.SSHHosts(within(t))
	must(t, err)
	for _, host := range hosts {
		if host.Name == h.Name {
			i.host = host
		}
	}
	i.key, err = signing.ParseKey(i.host.Spec.Shim.ReceiptKey)
	must(t, err)
	private, err := os.ReadFile(filepath.Join(on.TrustDir, "online", "ssh", "id_ed25519"))
	must(t, err)
	signer, err := ssh.ParsePrivateKey(private)
	must(t, err)
	conn, err := on.DialContext(within(t), "tcp", net.JoinHostPort(h.Address, "22"))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	hostKey, _, _, _, err := ssh.ParseAuthorizedKey([]byte(h.HostKeyLine()))
	must(t, err)
	client, channels, requests, err := ssh.NewClientConn(conn, h.Address, &ssh.ClientConfig{
		User: "kpssh", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.FixedHostKey(hostKey), HostKeyAlgorithms: []string{hostKey.Type()},
	})
	must(t, err)
	ssh.NewClient(client, channels, requests)
	channel, incoming, err := client.OpenChannel("session", nil)
	must(t, err)
	go ssh.DiscardRequests(incoming)
	// What an intruder asks for makes no difference: no command of theirs is ever looked at.
	if ok, err := channel.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{"touch /var/log/kpssh-e2e; id"})); err != nil || !ok {
		t.Fatalf("exec: %v, %v", ok, err)
	}
	i.out, i.in = channel, wire.NewReader(channel)
	must(t, i.in.Hello(func(envelope []byte) (err error) {
		i.hello, err = signing.OpenHello(envelope, i.key)
		return err
	}))
	return i
}

// order fills in an order that lacks nothing but the right signature.
func (i *intruder) order(script []byte) *signing.Order {
	i.t.Helper()
	list, err := os.ReadFile(filepath.Join(on.TrustDir, "public", "allowlist.json"))
	must(i.t, err)
	digest, err := signing.PayloadDigest(list)
	must(i.t, err)
	return &signing.Order{
		HostID: i.hello.HostID, Challenge: i.hello.Challenge, Allowlist: digest,
		Profile: "tls-bootstrap", Version: "1", Phase: signing.PhaseLeave, Script: signing.Digest(script),
		Claim: i.hello.Claim.UID, Fence: i.hello.Claim.Fence + 1, Parameters: signing.Digest([]byte("{}")),
		Secrets: map[string]string{}, TimeoutSeconds: 60,
	}
}

// submit sends an order and returns the receipt that answers it.
func (i *intruder) submit(envelope, script []byte) *signing.Receipt {
	i.t.Helper()
	for _, f := range []struct {
		kind    wire.Type
		payload []byte
	}{{wire.Order, envelope}, {wire.Parameters, []byte("{}")}, {wire.Script, script}, {wire.Secrets, []byte("{}")}} {
		if err := wire.Write(i.out, f.kind, f.payload); err != nil {
			break // the host has hung up on it: its answer is on the way
		}
	}
	kind, payload, err := i.in.Next()
	must(i.t, err)
	if kind != wire.Receipt {
		i.t.Fatalf("frame of type %v: %q", kind, payload)
	}
	receipt, err := signing.OpenReceipt(payload, i.key)
	must(i.t, err)
	return receipt
}

// TestAStolenSSHKeyRunsNothing is row A1 of the threat table, through the real sshd: with the SSH key alone, an order
// may be signed by anything but a key that root lists.
func TestAStolenSSHKeyRunsNothing(t *testing.T) {
	settled(t)
	h := on.Hosts()[0]
	_, err := h.Exec(within(t), "rm", "-f", witness)
	must(t, err)
	script := []byte("touch " + witness + "\n")
	_, own, err := ed25519.GenerateKey(nil)
	must(t, err)
	stolen, err := os.ReadFile(filepath.Join(on.TrustDir, "online", "ssh", "id_ed25519"))
	must(t, err)
	raw, err := ssh.ParseRawPrivateKey(stolen)
	must(t, err)
	signed := func(key ed25519.PrivateKey) func(*intruder) []byte {
		return func(i *intruder) []byte {
			signer, err := signing.NewSigner(key)
			must(i.t, err)
			envelope, err := signing.Sign(context.Background(), i.order(script), signer)
			must(i.t, err)
			return envelope
		}
	}
	tests := map[string]struct {
		order func(*intruder) []byte
		want  signing.Reason
	}{
		"an order signed by a key of their own": {signed(own), signing.ReasonUntrusted},
		"an order signed by the SSH key":        {signed(*raw.(*ed25519.PrivateKey)), signing.ReasonUntrusted},
		"an order that nobody signed": {func(i *intruder) []byte {
			payload, err := json.Marshal(i.order(script))
			must(i.t, err)
			envelope, err := json.Marshal(map[string]any{"payloadType": signing.TypeOrder, "payload": payload, "signatures": []any{}})
			must(i.t, err)
			return envelope
		}, signing.ReasonUntrusted},
	}
	before, err := h.Exec(within(t), "sha256sum", "/var/lib/kpssh/state")
	must(t, err)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			i := intrude(t, h)
			receipt := i.submit(tt.order(i), script)
			if receipt.Outcome != signing.OutcomeRefused || receipt.Reason != tt.want {
				t.Errorf("outcome %q, reason %q, want refused, %q", receipt.Outcome, receipt.Reason, tt.want)
			}
		})
	}
	after, err := h.Exec(within(t), "sh", "-c", "sha256sum /var/lib/kpssh/state; ls "+witness+" 2>/dev/null || true")
	must(t, err)
	if after != before {
		t.Errorf("the shim's state, or what ran, was %q and is %q", before, after)
	}
}
