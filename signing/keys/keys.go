package keys

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"strings"

	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Reasons why a key is refused, beside those of signing.
const (
	// ReasonUnknownScheme: the reference names a key service that is not on the list.
	ReasonUnknownScheme signing.Reason = "unknown-key-scheme"
	// ReasonKeyReference: the scheme is known, the rest is not of its form.
	ReasonKeyReference signing.Reason = "key-reference"
	// ReasonKeyService: the key service does not answer in time, or says no. It may pass.
	ReasonKeyService signing.Reason = "key-service"
	// ReasonKeyChanged: the key service signs with another key than when it was opened.
	ReasonKeyChanged signing.Reason = "key-changed"
	// ReasonPassphrase: the key is encrypted and there is no passphrase, or a wrong one.
	ReasonPassphrase signing.Reason = "passphrase"
	// ReasonUnsupportedKey: the file holds no private key, or it or the service has one of another
	// algorithm.
	ReasonUnsupportedKey signing.Reason = "unsupported-key"
)

// Algorithms that Make takes.
const (
	Ed25519   = "ed25519"
	ECDSAP256 = "ecdsa-p256"
)

const maxFile = 64 << 10

// Open is the signer behind a reference: a key file, or SCHEME://… of a key service, which is asked
// for the public half of the key.
func Open(ctx context.Context, ref string, pass PassFunc) (signing.Signer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !IsReference(ref) {
		return Read(ref, pass)
	}
	k, err := NewServiceKey(ref)
	if err != nil {
		return nil, err
	}
	if _, err := k.Key(ctx); err != nil {
		return nil, err
	}
	return k, nil
}

// Make makes a private key: Ed25519 (also for "") or ECDSAP256.
func Make(algorithm string) (crypto.Signer, error) {
	switch algorithm {
	case "", Ed25519:
		_, private, err := ed25519.GenerateKey(rand.Reader)
		return private, err
	case ECDSAP256, signing.AlgorithmECDSAP256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	return nil, refuse(ReasonUnsupportedKey, "algorithm %.40q is not %s or %s", algorithm, Ed25519, ECDSAP256)
}

// Encode is a key file: PKCS #8, or encrypted as sigstore does when pass is not nil and gives a
// passphrase that is not empty.
func Encode(private crypto.Signer, pass PassFunc) ([]byte, error) {
	if _, err := signing.NewSigner(private); err != nil {
		return nil, refuse(ReasonUnsupportedKey, "%v", err)
	}
	if pass != nil {
		passphrase, err := pass(true)
		if err != nil {
			return nil, err
		}
		if len(passphrase) > 0 {
			der, err := cryptoutils.MarshalPrivateKeyToEncryptedDER(private, cryptoutils.StaticPasswordFunc(passphrase))
			if err != nil {
				return nil, fmt.Errorf("encrypting key: %v", err)
			}
			return cryptoutils.PEMEncode(cryptoutils.EncryptedSigstorePrivateKeyPEMType, der), nil
		}
	}
	text, err := cryptoutils.MarshalPrivateKeyToPEM(private)
	if err != nil {
		return nil, fmt.Errorf("encoding key: %v", err)
	}
	return text, nil
}

// Create makes a key and writes it to path, which must not exist, and its public half to
// path.pub.
func Create(path, algorithm string, pass PassFunc) (signing.Key, error) {
	private, err := Make(algorithm)
	if err != nil {
		return signing.Key{}, err
	}
	public, err := signing.KeyOf(private.Public())
	if err != nil {
		return signing.Key{}, err
	}
	text, err := Encode(private, pass)
	if err != nil {
		return signing.Key{}, err
	}
	if err := WriteNew(path, text, 0o600); err != nil {
		return signing.Key{}, err
	}
	if err := WriteNew(path+".pub", EncodePublic(public), 0o644); err != nil {
		// Without its public half the key is of no use to anyone yet, and would block the next try.
		_ = os.Remove(path)
		return signing.Key{}, err
	}
	return public, nil
}

// Read reads a key file.
func Read(path string, pass PassFunc) (signing.Signer, error) {
	text, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	signer, err := Parse(text, pass)
	if err != nil {
		return nil, fmt.Errorf("reading key %q: %w", path, err)
	}
	return signer, nil
}

// Parse reads the text of a key file.
func Parse(text []byte, pass PassFunc) (signing.Signer, error) {
	private, err := ParsePrivate(text, pass)
	if err != nil {
		return nil, err
	}
	signer, err := signing.NewSigner(private)
	if err != nil {
		return nil, refuse(ReasonUnsupportedKey, "%v", err)
	}
	return signer, nil
}

// ParsePrivate is Parse for a caller that needs the private key itself, to write it elsewhere.
func ParsePrivate(text []byte, pass PassFunc) (crypto.Signer, error) {
	block, rest := pem.Decode(text)
	if block == nil || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, refuse(ReasonUnsupportedKey, "not one PEM block")
	}
	switch {
	case block.Type == "ENCRYPTED SIGSTORE PRIVATE KEY" || block.Type == "ENCRYPTED COSIGN PRIVATE KEY":
		return parseEncrypted(text, pass)
	case strings.HasPrefix(block.Type, "ENCRYPTED ") || len(block.Headers) > 0:
		return nil, refuse(ReasonUnsupportedKey, "encrypted in a form that is not read: decrypt it, or import it with cosign")
	}
	private, err := cryptoutils.UnmarshalPEMToPrivateKey(text, nil)
	if err != nil {
		return nil, refuse(ReasonUnsupportedKey, "%v", err)
	}
	return supported(private)
}

func parseEncrypted(text []byte, pass PassFunc) (crypto.Signer, error) {
	if pass == nil {
		return nil, refuse(ReasonPassphrase, "key is encrypted and there is no passphrase")
	}
	passphrase, err := pass(false)
	if err != nil {
		return nil, err
	}
	if passphrase == nil {
		// cosign encrypts with the empty passphrase too, and sigstore takes nil for "not encrypted".
		passphrase = []byte{}
	}
	private, err := cryptoutils.UnmarshalPEMToPrivateKey(text, cryptoutils.StaticPasswordFunc(passphrase))
	if err != nil {
		return nil, refuse(ReasonPassphrase, "the passphrase does not open it: %v", err)
	}
	return supported(private)
}

func supported(private crypto.PrivateKey) (crypto.Signer, error) {
	switch p := private.(type) {
	case ed25519.PrivateKey:
		return p, nil
	case *ecdsa.PrivateKey:
		if p.Curve == elliptic.P256() {
			return p, nil
		}
	}
	return nil, refuse(ReasonUnsupportedKey, "key is neither ed25519 nor ECDSA P-256")
}

// Names in a Secret that FromSecret reads; the second of each is what cosign writes.
const (
	SecretKey              = "dispatch.key"
	SecretPassphrase       = "dispatch.passphrase"
	secretKeyCosign        = "cosign.key"
	secretPassphraseCosign = "cosign.password"
)

// FromSecret reads the key in the data of a Kubernetes Secret: SecretKey, and SecretPassphrase
// when it is encrypted, or the names that cosign uses.
func FromSecret(data map[string][]byte) (signing.Signer, error) {
	text, found := data[SecretKey]
	passphrase := data[SecretPassphrase]
	if !found {
		text, found = data[secretKeyCosign]
		passphrase = data[secretPassphraseCosign]
	}
	if !found {
		return nil, refuse(ReasonUnsupportedKey, "secret has no %q", SecretKey)
	}
	if len(text) > maxFile {
		return nil, refuse(ReasonUnsupportedKey, "key has %d bytes, at most %d", len(text), maxFile)
	}
	return Parse(text, Static(passphrase))
}

// EncodePublic is a public key file: PEM of the PKIX DER.
func EncodePublic(k signing.Key) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: k.Public})
}

// ParsePublic reads a public key: the PEM that EncodePublic writes (cosign.pub too), or the one
// line of signing.Key.
func ParsePublic(text []byte) (signing.Key, error) {
	block, rest := pem.Decode(text)
	if block == nil {
		return signing.ParseKey(strings.TrimSpace(string(text)))
	}
	if block.Type != "PUBLIC KEY" || len(strings.TrimSpace(string(rest))) > 0 {
		return signing.Key{}, refuse(ReasonUnsupportedKey, "not one public key in PEM")
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return signing.Key{}, refuse(ReasonUnsupportedKey, "%v", err)
	}
	k, err := signing.KeyOf(public)
	if err != nil {
		return signing.Key{}, refuse(ReasonUnsupportedKey, "%v", err)
	}
	return k, nil
}

// ReadPublic reads a public key file.
func ReadPublic(path string) (signing.Key, error) {
	text, err := readBounded(path)
	if err != nil {
		return signing.Key{}, err
	}
	k, err := ParsePublic(text)
	if err != nil {
		return signing.Key{}, fmt.Errorf("reading public key %q: %w", path, err)
	}
	return k, nil
}

func refuse(reason signing.Reason, format string, args ...any) error {
	return &signing.Refusal{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}
