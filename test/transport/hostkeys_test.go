//go:build e2e

package transport

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

func TestAHostIsKnownByWhatOpenSSHsToolsSayOfIt(t *testing.T) {
	login := newKey(t, "-t", "ed25519")
	ed, ec, rs := newKey(t, "-t", "ed25519"), newKey(t, "-t", "ecdsa"), newKey(t, "-t", "rsa", "-b", "2048")
	ca, foreign := newKey(t, "-t", "ed25519"), newKey(t, "-t", "ed25519")
	authorized := map[string][]string{"kpssh": {login.public(t)}}
	const port = 2401
	plain := start(t, spec{namespace: gate, address: gateAddress, port: port, hostKeys: []keyFile{ed, ec, rs}, authorized: authorized})
	scan := do(t, "ssh-keyscan", "-p", fmt.Sprint(port), gateAddress)
	hashed := do(t, "ssh-keyscan", "-H", "-t", "ecdsa", "-p", fmt.Sprint(port), gateAddress)
	if strings.Count(scan, "\n") < 3 || !strings.Contains(hashed, "|1|") {
		t.Fatalf("ssh-keyscan says %q and %q", scan, hashed)
	}
	certified := func(port int, key keyFile, args ...string) *daemon {
		return start(t, spec{namespace: gate, address: gateAddress, port: port, hostKeys: []keyFile{key.signed(t, ca, append([]string{"-h"}, args...)...)}, authorized: authorized})
	}
	byAddress := certified(2402, ed, "-n", gateAddress, "-V", "+1h")
	byName := certified(2403, rs, "-n", "gate.example,other.example", "-V", "+1h")
	expired := certified(2404, ec, "-n", gateAddress, "-V", "-2h:-1h")
	authority := func(hosts string, ca keyFile) string { return "@cert-authority " + hosts + " " + ca.public(t) }

	for name, test := range map[string]struct {
		of   *daemon
		pin  string
		says string // empty: it is the host
	}{
		"the fingerprint of ssh-keygen -l":            {of: plain, pin: ed.fingerprint(t)},
		"the fingerprint of its RSA key":              {of: plain, pin: rs.fingerprint(t)},
		"the file of its public key":                  {of: plain, pin: ec.public(t)},
		"all that ssh-keyscan says":                   {of: plain, pin: scan},
		"a hashed line of ssh-keyscan":                {of: plain, pin: hashed},
		"a CA, by address":                            {of: byAddress, pin: authority("*", ca)},
		"a CA, by a name that the line has":           {of: byName, pin: authority("gate.example", ca)},
		"a CA, by a name and a port":                  {of: byName, pin: authority("[gate.example]:2403", ca)},
		"a CA, by an address and a port":              {of: byAddress, pin: authority("[10.77.0.2]:2402", ca)},
		"the plain key that the certificate is for":   {of: byAddress, pin: ed.fingerprint(t)},
		"another fingerprint":                         {of: plain, pin: ca.fingerprint(t), says: "got SHA256:"},
		"another key of a type that it has":           {of: plain, pin: ca.public(t), says: "got " + ed.fingerprint(t)},
		"a CA, with no certificate":                   {of: plain, pin: authority("*", ca), says: "expected a certificate of CA " + ca.fingerprint(t)},
		"another CA":                                  {of: byAddress, pin: authority("*", foreign), says: "its certificate is of CA " + ca.fingerprint(t)},
		"a CA, by a name that another host has":       {of: byName, pin: authority("relay.example", ca), says: "relay.example"},
		"a CA, by another name and a port":            {of: byName, pin: authority("[relay.example]:2403", ca), says: "relay.example"},
		"a CA, whose certificate is for another host": {of: byName, pin: authority("*", ca), says: gateAddress},
		"a CA, whose certificate has expired":         {of: expired, pin: authority("*", ca), says: "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			target := test.of.target(t, "kpssh", login)
			target.HostKey = pin(t, test.pin)
			conn, err := remote.Dial(t.Context(), target)
			if err == nil {
				_ = conn.Close()
			}
			switch {
			case test.says == "" && err != nil:
				t.Error(err)
			case test.says != "" && (remote.Class(err) != remote.ClassHostKeyMismatch || !strings.Contains(err.Error(), test.says)):
				t.Errorf("got %v", err)
			}
		})
	}
}

// Field report R2 (k0smotron#1421, hetzner-k3s#3, cluster-api#247, deckhouse PR#7360): a reinstalled host is refused with both
// fingerprints, nothing is sent, and it comes back by the one that is stated, put where the first one was.
func TestR2AReinstalledHostComesBackByTheFingerprintThatIsStated(t *testing.T) {
	login := newKey(t, "-t", "ed25519")
	before := start(t, spec{namespace: gate, address: gateAddress, port: 2411, authorized: map[string][]string{"kpssh": {login.public(t)}}})
	pinned := before.hostKeys[0].fingerprint(t)
	objects, reach := newAccess(t, before, login, map[string]string{hostaccess.KeyKnownHost: pinned})
	to, err := reach()
	if err != nil {
		t.Fatal(err)
	}
	logIn(t, to.Target)
	before.down()
	after := start(t, spec{
		namespace: gate, address: gateAddress, port: 2411, hostKeys: []keyFile{newKey(t, "-t", "ecdsa")},
		authorized: map[string][]string{"kpssh": {login.public(t)}},
	})
	stated := after.hostKeys[0].fingerprint(t)
	for range 2 { // it is not taken the second time either
		_, err = remote.Dial(t.Context(), to.Target)
		if remote.Class(err) != remote.ClassHostKeyMismatch || !strings.Contains(err.Error(), "expected "+pinned+", got "+stated) {
			t.Errorf("got %v", err)
		}
	}
	if after.log.has("Accepted publickey") || after.log.has("Failed publickey") {
		t.Error("the host was shown a user key")
	}
	replace(t, objects, login, map[string]string{hostaccess.KeyKnownHost: stated})
	if to, err = reach(); err != nil {
		t.Fatal(err)
	}
	logIn(t, to.Target)
}

func TestFirstUseIsForProbesOfHostsInRawModeOnly(t *testing.T) {
	login := newKey(t, "-t", "ed25519")
	d := start(t, spec{namespace: gate, address: gateAddress, port: 2421, authorized: map[string][]string{"kpssh": {login.public(t)}}})
	access := hostaccess.New(fake.NewClientBuilder().WithObjects(login.secret(t, nil)).Build(), namespace, true)
	host := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "host-a"},
		Spec: v1beta1.SSHHostSpec{
			Address: d.address, Port: int32(d.port), User: "kpssh", ExecMode: v1beta1.ExecModeRaw, SSHKeySecretRef: v1beta1.SecretRef{Name: "keys"},
		},
	}
	reach, err := access.Host(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := remote.Dial(t.Context(), reach.Target)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if conn.HostKeyFingerprint() != d.hostKeys[0].fingerprint(t) {
		t.Errorf("it was told of %s", conn.HostKeyFingerprint())
	}
	refused := func(what string, change func(*v1beta1.SSHHost)) {
		t.Helper()
		spoilt := host.DeepCopy()
		change(spoilt)
		if _, err := access.Host(t.Context(), spoilt); err == nil || !strings.Contains(err.Error(), hostaccess.ReasonHostKeyUnpinned) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	refused("for a join", func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostClaimed })
	refused("in Verified mode", func(h *v1beta1.SSHHost) {
		h.Spec.ExecMode = v1beta1.ExecModeVerified
		h.Spec.Shim = &v1beta1.ShimIdentity{HostID: "0123456789abcdef", ReceiptKey: receiptKey(t)}
	})
	refused("for a jump host", func(h *v1beta1.SSHHost) {
		h.Spec.Jumps = []v1beta1.JumpHost{{Address: gateAddress, Port: 2421, User: "kpssh", SSHKeySecretRef: v1beta1.SecretRef{Name: "keys"}}}
	})
	// Pinned by the first use, it is the one that counts.
	host.Status.HostKeyFingerprint = login.fingerprint(t)
	if reach, err = access.Host(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Dial(t.Context(), reach.Target); remote.Class(err) != remote.ClassHostKeyMismatch {
		t.Errorf("pinned to another key: got %v", err)
	}
}
