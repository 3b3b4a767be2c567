package remote_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
)

// certified is a key with a certificate of ca.
func certified(t *testing.T, key, ca ssh.Signer, certType uint32, change func(*ssh.Certificate), names ...string) ssh.Signer {
	t.Helper()
	certificate := &ssh.Certificate{
		Key: key.PublicKey(), CertType: certType, ValidPrincipals: names,
		ValidAfter: uint64(time.Now().Add(-time.Hour).Unix()), ValidBefore: uint64(time.Now().Add(time.Hour).Unix()),
	}
	if change != nil {
		change(certificate)
	}
	if err := certificate.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewCertSigner(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func TestHostCAs(t *testing.T) {
	ca, foreign, key := remotetest.Key(t), remotetest.Key(t), remotetest.Key(t)
	expired := func(c *ssh.Certificate) { c.ValidBefore = uint64(time.Now().Add(-time.Minute).Unix()) }
	line := func(hosts string) string { return "@cert-authority " + hosts + " " + authorizedLine(ca.PublicKey()) }
	for name, test := range map[string]struct {
		host []ssh.Signer
		pin  string
		says string // empty: accepted
	}{
		"a certificate for the address": {
			host: []ssh.Signer{certified(t, key, ca, ssh.HostCert, nil, "127.0.0.1")}, pin: line("*")},
		"a certificate for a name that the line has": {
			host: []ssh.Signer{certified(t, key, ca, ssh.HostCert, nil, "rpi-3.example")}, pin: line("rpi-3.example")},
		"an RSA key's certificate": {
			host: []ssh.Signer{certified(t, rsaKey(t), ca, ssh.HostCert, nil, "127.0.0.1")}, pin: line("*")},
		"an ECDSA key's certificate, beside a plain key": {
			host: []ssh.Signer{key, certified(t, ecdsaKey(t), ca, ssh.HostCert, nil, "127.0.0.1")}, pin: line("*")},
		"a plain key that is pinned beside the CA": {
			host: []ssh.Signer{key}, pin: line("*") + "\n" + authorizedLine(key.PublicKey())},
		"another host's certificate": {
			host: []ssh.Signer{certified(t, key, ca, ssh.HostCert, nil, "127.0.0.2")}, pin: line("*"), says: "127.0.0.2"},
		"another host's name": {
			host: []ssh.Signer{certified(t, key, ca, ssh.HostCert, nil, "127.0.0.1")}, pin: line("rpi-3.example"), says: "rpi-3.example"},
		"a certificate that has expired": {
			host: []ssh.Signer{certified(t, key, ca, ssh.HostCert, expired, "127.0.0.1")}, pin: line("*"), says: "expired"},
		"a certificate of another CA": {
			host: []ssh.Signer{certified(t, key, foreign, ssh.HostCert, nil, "127.0.0.1")}, pin: line("*"), says: ssh.FingerprintSHA256(foreign.PublicKey())},
		"a user's certificate": {
			host: []ssh.Signer{certified(t, key, ca, ssh.UserCert, nil, "127.0.0.1")}, pin: line("*"), says: "user's certificate"},
		"no certificate at all": {
			host: []ssh.Signer{key}, pin: line("*"), says: "expected a certificate of CA " + ssh.FingerprintSHA256(ca.PublicKey())},
	} {
		t.Run(name, func(t *testing.T) {
			server := remotetest.New(t, remotetest.Config{HostKeys: test.host, Handler: echo})
			target := server.Target(remotetest.Key(t))
			var err error
			if target.HostKey, err = remote.Pin(test.pin); err != nil {
				t.Fatal(err)
			}
			conn, err := remote.Dial(t.Context(), target)
			if test.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				_ = conn.Close()
				return
			}
			if remote.Class(err) != remote.ClassHostKeyMismatch || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v", err)
			}
			if server.Rejected() != 0 {
				t.Error("a user key was offered")
			}
		})
	}
}

// Field report R2 (k0smotron#1421, hetzner-k3s#3, cluster-api#247, deckhouse PR#7360): a reimaged host on the same address is
// refused with both fingerprints, also when its new key is of another type, and comes back by a pin that is stated.
func TestR2AReimagedHostShowsBothFingerprintsUntilItsNewOneIsPinned(t *testing.T) {
	for name, made := range map[string]ssh.Signer{"of the same type": remotetest.Key(t), "of another type": rsaKey(t)} {
		t.Run(name, func(t *testing.T) {
			old := remotetest.Key(t)
			server := remotetest.New(t, remotetest.Config{HostKeys: []ssh.Signer{old}, Handler: echo})
			pool := newPool(t, remote.PoolOptions{})
			target := server.Target(remotetest.Key(t))
			target.HostKey, _ = remote.Pin(authorizedLine(old.PublicKey()))
			_, release := get(t, pool, target)
			release()
			server.SetHostKeys(made)
			server.Cut()
			stated := ssh.FingerprintSHA256(made.PublicKey())
			waitFor(t, "the connection to be noticed as lost", func() bool { return pool.Stats().Open == 0 })
			_, _, err := pool.Get(t.Context(), target)
			if remote.Class(err) != remote.ClassHostKeyMismatch || !strings.Contains(err.Error(), stated) || !strings.Contains(err.Error(), ssh.FingerprintSHA256(old.PublicKey())) {
				t.Errorf("got %v", err)
			}
			if len(server.Commands()) != 0 {
				t.Errorf("it was sent %q", server.Commands())
			}
			target.HostKey, _ = remote.Pin(stated)
			_, release = get(t, pool, target)
			release()
		})
	}
}

// Field report R6 (pulumi-command#824, terraform#23441, golang/go#54027, golang/go#52930): a certificate beside the key is used,
// and a renewed one at once.
func TestR6AUserCertificateLogsIn(t *testing.T) {
	ca := remotetest.Key(t)
	for name, key := range map[string]ssh.Signer{"ed25519": remotetest.Key(t), "ECDSA": ecdsaKey(t), "RSA": rsaKey(t)} {
		t.Run(name, func(t *testing.T) {
			server := remotetest.New(t, remotetest.Config{AuthorizedKeys: []ssh.PublicKey{}, UserCA: ca.PublicKey()})
			expired := func(c *ssh.Certificate) { c.ValidBefore = uint64(time.Now().Add(-time.Minute).Unix()) }
			pool := newPool(t, remote.PoolOptions{})
			if _, _, err := pool.Get(t.Context(), server.Target(certified(t, key, ca, ssh.UserCert, expired, "kpssh"), key)); remote.Class(err) != remote.ClassAuthRejected {
				t.Errorf("expired: got %v", err)
			}
			conn, release := get(t, pool, server.Target(certified(t, key, ca, ssh.UserCert, nil, "kpssh"), key))
			defer release()
			if conn.UserKeyFingerprint() != ssh.FingerprintSHA256(key.PublicKey()) {
				t.Errorf("logged in with %s, want the fingerprint of the key", conn.UserKeyFingerprint())
			}
		})
	}
}
