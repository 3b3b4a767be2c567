//go:build e2e

package transport

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/hostaccess"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// Every kind of key that ssh-keygen makes and we take, in every form; and field report R8 (rke#2224, rke#192,
// kubeone#152, k3sup#8, k0sctl#159): with a passphrase too.
func TestR8EveryKindOfKeyLogsInWithAndWithoutAPassphrase(t *testing.T) {
	const phrase = "correct horse"
	keys := map[string]keyFile{}
	for kind, args := range map[string][]string{
		"ed25519": {"-t", "ed25519"}, "ECDSA 256": {"-t", "ecdsa", "-b", "256"}, "ECDSA 384": {"-t", "ecdsa", "-b", "384"},
		"ECDSA 521": {"-t", "ecdsa", "-b", "521"}, "RSA 2048": {"-t", "rsa", "-b", "2048"},
	} {
		keys[kind] = newKey(t, args...)
		keys[kind+" with a passphrase"] = newKey(t, append(args, "-N", phrase)...)
		if !strings.HasPrefix(kind, "ed25519") { // which has OpenSSH's format only
			keys[kind+" as PEM"] = newKey(t, append(args, "-m", "PEM")...)
			keys[kind+" as PKCS 8"] = newKey(t, append(args, "-m", "PKCS8")...)
			keys[kind+" as PEM with a passphrase"] = newKey(t, append(args, "-m", "PEM", "-N", phrase)...)
		}
	}
	var lines []string
	for _, key := range keys {
		lines = append(lines, key.public(t))
	}
	for _, suite := range []string{oldSuite, newSuite} {
		port := map[string]int{oldSuite: 2301, newSuite: 2302}[suite]
		d := start(t, spec{suite: suite, namespace: gate, address: gateAddress, port: port, authorized: map[string][]string{"kpssh": lines}})
		for name, key := range keys {
			t.Run(suite+" "+name, func(t *testing.T) {
				t.Parallel()
				locked := strings.HasSuffix(name, "passphrase")
				data := map[string]string{}
				if locked {
					for given, reason := range map[string]string{"": v1beta1.ReasonKeyEncrypted, "battery staple": v1beta1.ReasonWrongPassphrase} {
						_, err := hostaccess.ParseLogin(key.secret(t, map[string]string{hostaccess.KeyPassphrase: given}))
						var bad *hostaccess.LoginError
						if !errors.As(err, &bad) || bad.Reason != reason {
							t.Errorf("with the passphrase %q: got %v, want %s", given, err, reason)
						}
					}
					data[hostaccess.KeyPassphrase] = phrase
				}
				login, err := hostaccess.ParseLogin(key.secret(t, data))
				if err != nil {
					t.Fatal(err)
				}
				target := d.target(t, "kpssh")
				target.Keys = login.Keys
				logIn(t, target)
				if !d.log.accepted("kpssh", key.fingerprint(t)) {
					t.Error("sshd does not say that it took the key")
				}
			})
		}
	}
}

// Field report R7 (rke#2881, rke#2696, k3sup#383, ssh-action#157): an RSA key signs with what an sshd takes of SHA-2, and
// never with SHA-1.
func TestR7AnRSAKeySignsWithSHA2Only(t *testing.T) {
	key, ca := newKey(t, "-t", "rsa", "-b", "3072"), newKey(t, "-t", "rsa", "-b", "3072")
	withCertificate := key.signed(t, ca, "-t", "rsa-sha2-256", "-n", "kpssh", "-V", "+1h")
	for i, test := range []struct {
		algorithms string
		key        keyFile
		works      bool
	}{
		{"rsa-sha2-256", key, true}, {"rsa-sha2-512", key, true}, {"rsa-sha2-256,rsa-sha2-512", key, true}, {"ssh-rsa", key, false},
		{"rsa-sha2-256-cert-v01@openssh.com", withCertificate, true}, {"rsa-sha2-512-cert-v01@openssh.com", withCertificate, true},
		{"ssh-rsa-cert-v01@openssh.com", withCertificate, false},
	} {
		t.Run(test.algorithms, func(t *testing.T) {
			options := []string{"PubkeyAcceptedAlgorithms " + test.algorithms, "CASignatureAlgorithms rsa-sha2-256"}
			lines := []string{key.public(t), "cert-authority " + ca.public(t)}
			d := start(t, spec{namespace: gate, address: gateAddress, port: 2311 + i, authorized: map[string][]string{"kpssh": lines}, options: options})
			conn, err := remote.Dial(t.Context(), d.target(t, "kpssh", test.key))
			if err == nil {
				_ = conn.Close()
			}
			if test.works != (err == nil) || !test.works && remote.Class(err) != remote.ClassAuthRejected {
				t.Errorf("got %v", err)
			}
		})
	}
}

// world is a Secret and how the host that it is for is reached.
func newAccess(t *testing.T, d *daemon, key keyFile, data map[string]string) (client.Client, func() (dispatch.Host, error)) {
	t.Helper()
	if _, ok := data[hostaccess.KeyKnownHost]; !ok {
		data[hostaccess.KeyKnownHost] = d.hostKeys[0].fingerprint(t)
	}
	objects := fake.NewClientBuilder().WithObjects(key.secret(t, data)).Build()
	access := hostaccess.New(objects, namespace, true)
	host := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "host-a"},
		Spec: v1beta1.SSHHostSpec{
			Address: d.address, Port: int32(d.port), User: "kpssh", ExecMode: v1beta1.ExecModeRaw, SSHKeySecretRef: v1beta1.SecretRef{Name: "keys"},
		},
	}
	return objects, func() (dispatch.Host, error) { return access.Host(t.Context(), host) }
}

// replace writes a key's files over those in the Secret, as one who renews it does.
func replace(t *testing.T, objects client.Client, key keyFile, data map[string]string) {
	t.Helper()
	secret := key.secret(t, data)
	if err := objects.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

// Field report R6 (pulumi-command#824, terraform#23441, golang/go#54027, golang/go#52930): the certificate beside the key is
// used; an expired one is said before anything is dialled, and a renewed one is used without a restart.
func TestR6AUserCertificateLogsInAndARenewedOneIsUsedAtOnce(t *testing.T) {
	ca := newKey(t, "-t", "ed25519")
	d := start(t, spec{namespace: gate, address: gateAddress, port: 2321, options: []string{"AuthorizedKeysFile none", "TrustedUserCAKeys /etc/ssh/test-user-ca.pub"}})
	d.write(t, "../test-user-ca.pub", 0o644, ca.public(t)+"\n")
	for kind, args := range map[string][]string{"ed25519": {"-t", "ed25519"}, "ECDSA": {"-t", "ecdsa"}, "RSA": {"-t", "rsa", "-b", "2048"}} {
		t.Run(kind, func(t *testing.T) {
			key := newKey(t, args...)
			pinned := map[string]string{hostaccess.KeyKnownHost: d.hostKeys[0].fingerprint(t)}
			try := func(certified keyFile) error {
				_, reach := newAccess(t, d, certified, pinned)
				to, err := reach()
				if err != nil {
					return err
				}
				conn, err := remote.Dial(t.Context(), to.Target)
				if err == nil {
					_ = conn.Close()
				}
				return err
			}
			for what, refused := range map[string]keyFile{
				"without one": key, "for somebody else": key.signed(t, ca, "-n", "ops", "-V", "+1h"),
				"of another CA":           key.signed(t, newKey(t, "-t", "ed25519"), "-n", "kpssh", "-V", "+1h"),
				"from another place only": key.signed(t, ca, "-n", "kpssh", "-V", "+1h", "-O", "source-address=192.0.2.0/24"),
			} {
				if err := try(refused); remote.Class(err) != remote.ClassAuthRejected {
					t.Errorf("%s: got %v", what, err)
				}
			}
			expired := key.signed(t, ca, "-n", "kpssh", "-V", "-2h:-1h")
			objects, reach := newAccess(t, d, expired, pinned)
			_, err := reach()
			var bad *dispatch.Error
			if !errors.As(err, &bad) || bad.Reason != v1beta1.ReasonSSHCertificateExpired {
				t.Errorf("expired: got %v", err)
			}
			replace(t, objects, key.signed(t, ca, "-n", "kpssh", "-V", "+1h"), pinned)
			to, err := reach()
			if err != nil {
				t.Fatal(err)
			}
			if user, _ := logIn(t, to.Target); user != "kpssh" {
				t.Errorf("logged in as %q", user)
			}
			if !d.log.has("ID test (serial 0) CA ED25519 " + ca.fingerprint(t)) {
				t.Error("sshd does not say that it was by certificate")
			}
		})
	}
}

// Field report R20 (WMCO#249): with the new key and the retiring one in the Secret, hosts are reached before, while and
// after they are told of the new one, and it is known which one each takes.
func TestR20AKeyIsRotatedWithoutLosingAHost(t *testing.T) {
	old, fresh := newKey(t, "-t", "ed25519"), newKey(t, "-t", "ecdsa")
	d := start(t, spec{namespace: gate, address: gateAddress, port: 2331, authorized: map[string][]string{"kpssh": {old.public(t)}}})
	objects, reach := newAccess(t, d, old, map[string]string{})
	pool := newPool(t, remote.PoolOptions{})
	uses := func(when string, want keyFile) {
		t.Helper()
		to, err := reach()
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		conn, release, err := pool.Get(t.Context(), to.Target)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer release()
		if conn.UserKeyFingerprint() != want.fingerprint(t) {
			t.Errorf("%s: the host takes %s", when, conn.UserKeyFingerprint())
		}
		conn.Retire() // the next one logs in anew
	}
	uses("before", old)
	both := map[string]string{hostaccess.KeyRetiring: old.private(t), hostaccess.KeyKnownHost: d.hostKeys[0].fingerprint(t)}
	replace(t, objects, fresh, both)
	uses("with both in the Secret, on a host that knows the old one", old)
	d.write(t, "authorized/kpssh", 0o644, old.public(t)+"\n"+fresh.public(t)+"\n")
	uses("with both in the Secret, on a host that knows both", fresh)
	d.write(t, "authorized/kpssh", 0o644, fresh.public(t)+"\n")
	uses("with both in the Secret, on a host that knows the new one", fresh)
	delete(both, hostaccess.KeyRetiring)
	replace(t, objects, fresh, both)
	uses("afterwards", fresh)
	replace(t, objects, old, both)
	to, err := reach()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := pool.Get(t.Context(), to.Target); remote.Class(err) != remote.ClassAuthRejected {
		t.Errorf("with the old key only: got %v", err)
	}
}

// Field report R17 (SSH.NET#37, tmt#960, proxcenter-ui#370): sshd asks a name server that does not answer, and the login is
// slow, but one.
func TestR17ASlowLoginIsALoginAndSaysHowLongItTook(t *testing.T) {
	silentNameServer(t)
	key := newKey(t, "-t", "ed25519")
	d := start(t, spec{namespace: gate, address: gateAddress, port: 2341, authorized: map[string][]string{"kpssh": {key.public(t)}}, options: []string{"UseDNS yes"}})
	d.write(t, "../../resolv.conf", 0o644, "nameserver 10.77.0.1\noptions timeout:1 attempts:1\n")
	conn, err := remote.Dial(t.Context(), d.target(t, "kpssh", key))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if conn.LoginTime() < 900*time.Millisecond {
		t.Errorf("took %v: sshd asked nobody", conn.LoginTime())
	}
}
