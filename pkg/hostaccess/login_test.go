package hostaccess_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
)

// certificate is a line for key that ends at a time; CAs of this test last no longer than it.
func certificate(t *testing.T, key ssh.PublicKey, kind uint32, from, until time.Time) []byte {
	t.Helper()
	c := &ssh.Certificate{Key: key, CertType: kind, ValidPrincipals: []string{"kpssh"}, ValidAfter: uint64(from.Unix()), ValidBefore: ssh.CertTimeInfinity}
	if !until.IsZero() {
		c.ValidBefore = uint64(until.Unix())
	}
	if err := c.SignCert(rand.Reader, remotetest.Key(t)); err != nil {
		t.Fatal(err)
	}
	return ssh.MarshalAuthorizedKey(c)
}

func TestLogins(t *testing.T) {
	now := time.Now()
	earlier, later := now.Add(-time.Hour), now.Add(time.Hour)
	ec, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	rs, _ := rsa.GenerateKey(rand.Reader, 2048)
	login, public := privateKey(t, "")
	old, oldPublic := privateKey(t, "")
	locked, _ := privateKey(t, "correct horse")
	ecPEM, _ := remotetest.PEM(t, ec, "")
	rsaPEM, rsaKey := remotetest.PEM(t, rs, "")
	rsaLocked, _ := remotetest.PEM(t, rs, "correct horse")
	for name, tc := range map[string]struct {
		data     map[string][]byte
		reason   string
		keys     int
		retiring string
	}{
		"ed25519":                  {data: map[string][]byte{hostaccess.KeyPrivate: login}, keys: 1},
		"ECDSA":                    {data: map[string][]byte{hostaccess.KeyPrivate: ecPEM}, keys: 1},
		"RSA":                      {data: map[string][]byte{hostaccess.KeyPrivate: rsaPEM}, keys: 1},
		"a key beside the new one": {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyRetiring: old}, keys: 2, retiring: ssh.FingerprintSHA256(oldPublic)},
		// Field report R8 (rke#2224, rke#192, kubeone#152, k3sup#8, k0sctl#159).
		"R8: a passphrase":                       {data: map[string][]byte{hostaccess.KeyPrivate: locked, hostaccess.KeyPassphrase: []byte("correct horse")}, keys: 1},
		"R8: a passphrase of an RSA key":         {data: map[string][]byte{hostaccess.KeyPrivate: rsaLocked, hostaccess.KeyPassphrase: []byte("correct horse")}, keys: 1},
		"R8: a passphrase with a line feed":      {data: map[string][]byte{hostaccess.KeyPrivate: locked, hostaccess.KeyPassphrase: []byte("correct horse\n")}, keys: 1},
		"R8: a passphrase for one of two keys":   {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyRetiring: locked, hostaccess.KeyPassphrase: []byte("correct horse")}, keys: 2},
		"R8: no passphrase":                      {data: map[string][]byte{hostaccess.KeyPrivate: locked}, reason: v1beta1.ReasonKeyEncrypted},
		"R8: another passphrase":                 {data: map[string][]byte{hostaccess.KeyPrivate: locked, hostaccess.KeyPassphrase: []byte("battery staple")}, reason: v1beta1.ReasonWrongPassphrase},
		"R8: no passphrase for the retiring key": {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyRetiring: locked}, reason: v1beta1.ReasonKeyEncrypted},
		"a passphrase that is not needed":        {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyPassphrase: []byte("battery staple")}, keys: 1},
		"no key":                                 {data: map[string][]byte{hostaccess.KeyRetiring: old}, reason: v1beta1.ReasonSSHKeyMissing},
		"a public key":                           {data: map[string][]byte{hostaccess.KeyPrivate: ssh.MarshalAuthorizedKey(public)}, reason: v1beta1.ReasonSSHKeyInvalid},
		// Field report R6 (pulumi-command#824, terraform#23441, golang/go#54027, golang/go#52930).
		"R6: a certificate":                       {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyCertificate: certificate(t, public, ssh.UserCert, earlier, later)}, keys: 2},
		"R6: a certificate of an RSA key":         {data: map[string][]byte{hostaccess.KeyPrivate: rsaPEM, hostaccess.KeyCertificate: certificate(t, rsaKey.PublicKey(), ssh.UserCert, earlier, later)}, keys: 2},
		"R6: a certificate without an end":        {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyCertificate: certificate(t, public, ssh.UserCert, earlier, time.Time{})}, keys: 2},
		"R6: a certificate of each of two keys":   {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyRetiring: old, hostaccess.KeyCertificate: append(certificate(t, oldPublic, ssh.UserCert, earlier, later), certificate(t, public, ssh.UserCert, earlier, later)...)}, keys: 4, retiring: ssh.FingerprintSHA256(oldPublic)},
		"R6: an expired certificate":              {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyCertificate: certificate(t, public, ssh.UserCert, earlier, earlier.Add(time.Minute))}, reason: v1beta1.ReasonSSHCertificateExpired},
		"R6: a certificate that is not valid yet": {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyCertificate: certificate(t, public, ssh.UserCert, later, later.Add(time.Hour))}, reason: v1beta1.ReasonSSHCertificateExpired},
		"R6: a certificate for another key":       {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyCertificate: certificate(t, oldPublic, ssh.UserCert, earlier, later)}, reason: v1beta1.ReasonSSHCertificateInvalid},
		"R6: a host's certificate":                {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyCertificate: certificate(t, public, ssh.HostCert, earlier, later)}, reason: v1beta1.ReasonSSHCertificateInvalid},
		"R6: a plain key for a certificate":       {data: map[string][]byte{hostaccess.KeyPrivate: login, hostaccess.KeyCertificate: ssh.MarshalAuthorizedKey(public)}, reason: v1beta1.ReasonSSHCertificateInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := hostaccess.ParseLogin(newSecret(tc.data))
			if err == nil {
				err = got.Check(now)
			}
			if tc.reason == "" {
				if err != nil {
					t.Fatal(err)
				}
				if len(got.Keys) != tc.keys || tc.retiring != "" && got.Retiring != tc.retiring {
					t.Errorf("%d keys, want %d; retiring %q", len(got.Keys), tc.keys, got.Retiring)
				}
				return
			}
			var bad *hostaccess.LoginError
			if !errors.As(err, &bad) || bad.Reason != tc.reason {
				t.Fatalf("got %v, want %s", err, tc.reason)
			}
			for name, value := range tc.data {
				if strings.Contains(err.Error(), strings.TrimSpace(string(value))) {
					t.Errorf("the error holds %s", name)
				}
			}
		})
	}
}

// Field report R9 (k3sup#304 and others): spec.jumps reaches the host, each hop with its own Secret.
func TestR9JumpHostsOfASpecAreDialledInTheirOrder(t *testing.T) {
	secretOf := func(name string, private []byte, server *remotetest.Server) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{
			hostaccess.KeyPrivate: private, hostaccess.KeyKnownHost: []byte(server.Fingerprint()),
		}}
	}
	var keys [3][]byte
	var servers [3]*remotetest.Server
	for i := range servers {
		private, public := privateKey(t, "")
		keys[i] = private
		servers[i] = remotetest.New(t, remotetest.Config{AuthorizedKeys: []ssh.PublicKey{public}})
	}
	routes := map[string]string{"gate.example:2222": servers[1].HostPort(), "192.0.2.7:22": servers[2].HostPort()}
	for _, server := range servers[:2] {
		server.SetForward(func(hostPort string) (string, error) { return routes[hostPort], nil })
	}
	first := servers[0].Target()
	host := newHost(&v1beta1.ShimIdentity{HostID: "0123456789abcdef", ReceiptKey: receiptKey(t).String()})
	host.Spec.Jumps = []v1beta1.JumpHost{
		{Address: first.Address, Port: int32(first.Port), User: "ops", SSHKeySecretRef: v1beta1.SecretRef{Name: "jump-1"}},
		{Address: "gate.example", Port: 2222, User: "relay", SSHKeySecretRef: v1beta1.SecretRef{Name: "jump-2"}},
	}
	objects := []client.Object{secretOf("jump-1", keys[0], servers[0]), secretOf("jump-2", keys[1], servers[1]), secretOf("keys", keys[2], servers[2])}
	got, err := hostaccess.New(fake.NewClientBuilder().WithObjects(objects...).Build(), namespace, false).Host(context.Background(), host)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := remote.Dial(t.Context(), got.Target)
	if err != nil {
		t.Fatal(err)
	}
	if conn.HostKeyFingerprint() != servers[2].Fingerprint() {
		t.Error("that is not the host")
	}
	_ = conn.Close()

	for name, tc := range map[string]struct {
		spoil  func(*corev1.Secret)
		reason string
	}{
		"a jump host without a pin":    {func(s *corev1.Secret) { delete(s.Data, hostaccess.KeyKnownHost) }, hostaccess.ReasonHostKeyUnpinned},
		"a jump host without a key":    {func(s *corev1.Secret) { delete(s.Data, hostaccess.KeyPrivate) }, v1beta1.ReasonSSHKeyMissing},
		"a jump host without a Secret": {func(s *corev1.Secret) { s.Name = "other" }, v1beta1.ReasonSSHKeyMissing},
	} {
		t.Run(name, func(t *testing.T) {
			spoilt := objects[1].DeepCopyObject().(*corev1.Secret)
			spoilt.ResourceVersion = ""
			tc.spoil(spoilt)
			_, err := hostaccess.New(fake.NewClientBuilder().WithObjects(objects[0], spoilt, objects[2]).Build(), namespace, false).Host(context.Background(), host)
			var refused *dispatch.Error
			if !errors.As(err, &refused) || refused.Reason != tc.reason || !strings.Contains(err.Error(), "spec.jumps[1]") {
				t.Errorf("got %v, want %s", err, tc.reason)
			}
		})
	}
}
