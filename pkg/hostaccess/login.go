package hostaccess

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
)

// Keys of the Secret that a host's, or a jump host's, sshKeySecretRef names.
const (
	// KeyPrivate is the private key to log in with, in PEM: ed25519, ECDSA or RSA.
	KeyPrivate = "privateKey"
	// KeyRetiring is the key before it, for hosts that do not know the new one yet.
	KeyRetiring = "privateKey.retiring"
	// KeyPassphrase opens those of the keys that have one.
	KeyPassphrase = "passphrase" //nolint:gosec // a name
	// KeyCertificate are user certificates for the keys, a line each, as ssh-keygen writes them into *-cert.pub.
	KeyCertificate = "ssh-certificate"
	// KeyKnownHost pins the host key, one a line: a SHA256: fingerprint, a known_hosts line or a public key line, or with
	// the marker @cert-authority that of a host CA.
	KeyKnownHost = "knownHost"
)

// LoginError is why a Secret cannot be used to log in. It holds no key material.
type LoginError struct{ Reason, Detail string }

// Error implements error.
func (e *LoginError) Error() string { return e.Reason + ": " + e.Detail }

func unusable(reason, format string, args ...any) error {
	return &LoginError{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// Login is what a Secret holds to log in with.
type Login struct {
	// Keys are in the order in which they are offered: the new one before the retiring one, and each one's certificates
	// before itself.
	Keys []ssh.Signer
	// Retiring is the fingerprint of the retiring key; empty when there is none.
	Retiring string
	// Pinned says whether the Secret pins a host key.
	Pinned bool

	secret       string
	certificates []*ssh.Certificate
}

// ParseLogin reads a Secret. An error is a *LoginError.
func ParseLogin(secret *corev1.Secret) (*Login, error) {
	l := &Login{secret: secret.Name}
	if len(secret.Data[KeyPrivate]) == 0 {
		return nil, unusable(v1beta1.ReasonSSHKeyMissing, "Secret %q has no key %q", secret.Name, KeyPrivate)
	}
	if pin := secret.Data[KeyKnownHost]; len(pin) > 0 {
		if _, err := remote.Pin(string(pin)); err != nil {
			return nil, unusable(ReasonHostKeyInvalid, "%s of Secret %q: %v", KeyKnownHost, secret.Name, err)
		}
		l.Pinned = true
	}
	certificates, err := parseCertificates(secret)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{KeyPrivate, KeyRetiring} {
		text := secret.Data[name]
		if len(text) == 0 {
			continue
		}
		key, err := parseKey(secret.Name, name, text, secret.Data[KeyPassphrase])
		if err != nil {
			return nil, err
		}
		if name == KeyRetiring {
			l.Retiring = ssh.FingerprintSHA256(key.PublicKey())
		}
		l.add(key, certificates)
	}
	if len(l.certificates) < len(certificates) {
		return nil, unusable(v1beta1.ReasonSSHCertificateInvalid, "a certificate in %s of Secret %q is for none of its keys", KeyCertificate, secret.Name)
	}
	if len(l.Keys) > remote.MaxKeys {
		return nil, unusable(v1beta1.ReasonSSHKeyInvalid, "Secret %q has %d keys and certificates, of which sshd would let us try %d", secret.Name, len(l.Keys), remote.MaxKeys)
	}
	return l, nil
}

// add takes a key and the certificates that are for it.
func (l *Login) add(key ssh.Signer, certificates []*ssh.Certificate) {
	for _, certificate := range certificates {
		if signer, err := ssh.NewCertSigner(certificate, key); err == nil {
			l.Keys = append(l.Keys, signer)
			l.certificates = append(l.certificates, certificate)
		}
	}
	l.Keys = append(l.Keys, key)
}

func parseKey(secret, name string, text, passphrase []byte) (ssh.Signer, error) {
	key, err := ssh.ParsePrivateKey(text)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		if len(passphrase) == 0 {
			return nil, unusable(v1beta1.ReasonKeyEncrypted, "%s of Secret %q has a passphrase: put it into its key %q, or take it off with \"ssh-keygen -p\"", name, secret, KeyPassphrase)
		}
		// A file that the passphrase came from ends with a line feed.
		for _, p := range [][]byte{passphrase, bytes.TrimRight(passphrase, "\r\n")} {
			if key, err = ssh.ParsePrivateKeyWithPassphrase(text, p); err == nil {
				break
			}
		}
		if errors.Is(err, x509.IncorrectPasswordError) {
			return nil, unusable(v1beta1.ReasonWrongPassphrase, "%s of Secret %q is not opened by its %s", name, secret, KeyPassphrase)
		}
	}
	// What the parser says could hold a piece of the key.
	if err != nil {
		return nil, unusable(v1beta1.ReasonSSHKeyInvalid, "%s of Secret %q is not a private key in PEM: \"ssh-keygen -p -f FILE\" writes it in OpenSSH's format", name, secret)
	}
	switch key.PublicKey().Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoRSA, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521:
		return key, nil
	}
	return nil, unusable(v1beta1.ReasonSSHKeyInvalid, "%s of Secret %q is a key of type %s: ed25519, ECDSA and RSA keys can be used", name, secret, key.PublicKey().Type())
}

func parseCertificates(secret *corev1.Secret) ([]*ssh.Certificate, error) {
	var out []*ssh.Certificate
	for line := range bytes.Lines(secret.Data[KeyCertificate]) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, _, _, _, err := ssh.ParseAuthorizedKey(line)
		certificate, ok := key.(*ssh.Certificate)
		if err != nil || !ok || certificate.CertType != ssh.UserCert {
			return nil, unusable(v1beta1.ReasonSSHCertificateInvalid, "%s of Secret %q has a line that is no user certificate", KeyCertificate, secret.Name)
		}
		out = append(out, certificate)
	}
	return out, nil
}

// Check says whether the certificates hold at a time. An error is a *LoginError.
func (l *Login) Check(now time.Time) error {
	for _, c := range l.certificates {
		switch from, until := c.ValidAfter, certificateEnd(c); {
		case now.Unix() >= 0 && uint64(now.Unix()) < from:
			return unusable(v1beta1.ReasonSSHCertificateExpired, "a certificate in %s of Secret %q is not valid before %s", KeyCertificate, l.secret, time.Unix(int64(from), 0).UTC().Format(time.RFC3339)) //nolint:gosec // a time for people
		case !until.IsZero() && !now.Before(until):
			return unusable(v1beta1.ReasonSSHCertificateExpired, "a certificate in %s of Secret %q expired at %s: put a new one in", KeyCertificate, l.secret, until.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// Expires is when the first certificate does; zero when none does.
func (l *Login) Expires() time.Time {
	var first time.Time
	for _, c := range l.certificates {
		if until := certificateEnd(c); !until.IsZero() && (first.IsZero() || until.Before(first)) {
			first = until
		}
	}
	return first
}

// certificateEnd is zero for a certificate that does not expire.
func certificateEnd(c *ssh.Certificate) time.Time {
	const farFuture = 1 << 40 // seconds; beyond what a time.Time of ours is compared with
	if c.ValidBefore >= farFuture {
		return time.Time{}
	}
	return time.Unix(int64(c.ValidBefore), 0) //nolint:gosec // bounded above
}
