package signing

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
)

// The two algorithms. Nothing else is ever verified.
const (
	AlgorithmEd25519 = "ed25519"
	// AlgorithmECDSAP256 is ECDSA on P-256 over SHA-256, the signature in ASN.1 DER: what the
	// key services of AWS, GCP and Azure offer.
	AlgorithmECDSAP256 = "ecdsa-p256-sha256"
)

// Key is a public key: its algorithm and its PKIX DER (base64 in JSON). One key has exactly one
// spelling, so that keys can be counted by comparing bytes: P-256 points are uncompressed.
type Key struct {
	Algorithm string `json:"algorithm"`
	Public    []byte `json:"public"`
}

// The DER that stands before the key itself (RFC 8410 and RFC 5480). Comparing it keeps a general
// ASN.1 parser, and the choice it would give an attacker, out of the verifier.
const (
	ed25519Prefix = "\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00"
	p256Prefix    = "\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00"

	ed25519KeyLen = len(ed25519Prefix) + ed25519.PublicKeySize
	p256KeyLen    = len(p256Prefix) + 65
)

// KeyOf is the Key of an ed25519 or ECDSA P-256 public key.
func KeyOf(public crypto.PublicKey) (Key, error) {
	switch p := public.(type) {
	case ed25519.PublicKey:
		k := Key{Algorithm: AlgorithmEd25519, Public: append([]byte(ed25519Prefix), p...)}
		return k, k.check()
	case *ecdsa.PublicKey:
		if p == nil || p.Curve != elliptic.P256() {
			return Key{}, errors.New("unsupported curve, only P-256 is")
		}
		point, err := p.Bytes()
		if err != nil {
			return Key{}, fmt.Errorf("encoding public key: %v", err)
		}
		k := Key{Algorithm: AlgorithmECDSAP256, Public: append([]byte(p256Prefix), point...)}
		return k, k.check()
	}
	return Key{}, fmt.Errorf("unsupported key type %T", public)
}

// ParseKey reads what String prints.
func ParseKey(s string) (Key, error) {
	algorithm, text, found := strings.Cut(s, ":")
	if !found || len(text) > 256 {
		return Key{}, refuse(ReasonMalformed, "key is not ALGORITHM:BASE64")
	}
	der, err := decodeBase64(base64.StdEncoding, text)
	if err != nil {
		return Key{}, refuse(ReasonMalformed, "key is not ALGORITHM:BASE64")
	}
	k := Key{Algorithm: algorithm, Public: der}
	return k, k.check()
}

// String is the key on one line, "ed25519:<base64 of the DER>", for specs and configuration.
func (k Key) String() string {
	return k.Algorithm + ":" + base64.StdEncoding.EncodeToString(k.Public)
}

// ID names the key in logs and file names: "sha256:<hex>" of its DER.
func (k Key) ID() string { return Digest(k.Public) }

// Equal tells whether both are the same key.
func (k Key) Equal(other Key) bool {
	return k.Algorithm == other.Algorithm && bytes.Equal(k.Public, other.Public)
}

func contains(keys []Key, k Key) bool { return slices.ContainsFunc(keys, k.Equal) }

// Verify tells whether sig is k's signature over message. It is false for a key or a signature of
// wrong form, and for an ed25519 key of small order, which fits every message.
func (k Key) Verify(message, sig []byte) bool {
	if !k.fits(sig) {
		return false
	}
	switch k.Algorithm {
	case AlgorithmEd25519:
		point, ok := k.ed25519()
		return ok && ed25519.Verify(point, message, sig)
	case AlgorithmECDSAP256:
		public, ok := k.p256()
		if !ok {
			return false
		}
		sum := sha256.Sum256(message)
		return ecdsa.VerifyASN1(public, sum[:], sig)
	}
	return false
}

// fits tells whether sig has the outer form of a signature by k, at no cost.
func (k Key) fits(sig []byte) bool {
	switch k.Algorithm {
	case AlgorithmEd25519:
		return len(sig) == ed25519.SignatureSize
	case AlgorithmECDSAP256:
		return len(sig) >= 8 && len(sig) <= 72 && sig[0] == 0x30 && int(sig[1]) == len(sig)-2
	}
	return false
}

func (k Key) ed25519() (ed25519.PublicKey, bool) {
	if len(k.Public) != ed25519KeyLen || string(k.Public[:len(ed25519Prefix)]) != ed25519Prefix {
		return nil, false
	}
	point := k.Public[len(ed25519Prefix):]
	return point, !weakPoint(point)
}

func (k Key) p256() (*ecdsa.PublicKey, bool) {
	if len(k.Public) != p256KeyLen || string(k.Public[:len(p256Prefix)]) != p256Prefix {
		return nil, false
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), k.Public[len(p256Prefix):])
	return public, err == nil
}

// check refuses keys that must not stand in a document: unknown algorithms, wrong lengths, points
// off the curve, of small order, or in a second spelling.
func (k Key) check() error {
	switch k.Algorithm {
	case AlgorithmEd25519:
		point, ok := k.ed25519()
		if !ok {
			return refuse(ReasonMalformed, "not a good ed25519 public key")
		}
		if !onEdwardsCurve(point) {
			return refuse(ReasonMalformed, "ed25519 public key is not on the curve")
		}
	case AlgorithmECDSAP256:
		if _, ok := k.p256(); !ok {
			return refuse(ReasonMalformed, "not a good P-256 public key")
		}
	default:
		return refuse(ReasonMalformed, "unknown key algorithm %.40q", k.Algorithm)
	}
	return nil
}

// smallOrderY are the y coordinates, little endian, of the eight points of small order: 0 (order
// 4), 1 (order 1), the two of order 8, and p-1 (order 2).
const smallOrderY = "0000000000000000000000000000000000000000000000000000000000000000" +
	"0100000000000000000000000000000000000000000000000000000000000000" +
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05" +
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a" +
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"

// weakPoint tells whether an encoded ed25519 point has small order or is not in its one canonical
// spelling (y ≥ p, RFC 8032 5.1.3), by which one key could be counted twice.
func weakPoint(point []byte) bool {
	y := [ed25519.PublicKeySize]byte(point)
	y[31] &= 0x7f
	if y[31] == 0x7f && y[0] >= 0xed && !slices.ContainsFunc(y[1:31], func(b byte) bool { return b != 0xff }) {
		return true
	}
	text := hex.EncodeToString(y[:])
	for i := 0; i < len(smallOrderY); i += len(text) {
		if smallOrderY[i:i+len(text)] == text {
			return true
		}
	}
	return false
}

// edwards has the prime 2²⁵⁵-19 of the field and the curve's d = -121665/121666 (RFC 8032, 5.1).
var edwards = sync.OnceValues(func() (p, d *big.Int) {
	p = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	d = new(big.Int).ModInverse(big.NewInt(121666), p)
	return p, d.Mul(d, big.NewInt(-121665)).Mod(d, p)
})

// onEdwardsCurve tells whether a point with this y exists: (y²-1)/(dy²+1) must be a square. A key
// off the curve verifies nothing, but would count towards the n of a threshold.
func onEdwardsCurve(point []byte) bool {
	y := slices.Clone(point)
	y[31] &= 0x7f
	slices.Reverse(y)
	p, d := edwards()
	y2 := new(big.Int).SetBytes(y)
	y2.Mul(y2, y2).Mod(y2, p)
	u := new(big.Int).Sub(y2, big.NewInt(1))
	v := new(big.Int).Mul(d, y2)
	v.Add(v, big.NewInt(1))
	// u/v is a square exactly when u·v is.
	return big.Jacobi(u.Mul(u, v).Mod(u, p), p) >= 0
}

// Digest is "sha256:<hex>" of b.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Commitment binds a secret's value to one session without telling it:
// "sha256:<hex>" of challenge ‖ name ‖ 0x00 ‖ value.
func Commitment(challenge []byte, name, value string) string {
	b := make([]byte, 0, len(challenge)+len(name)+1+len(value))
	b = append(b, challenge...)
	b = append(b, name...)
	b = append(b, 0)
	return Digest(append(b, value...))
}

// isDigest tells whether s is what Digest returns.
func isDigest(s string) bool {
	text, found := strings.CutPrefix(s, "sha256:")
	if !found || len(text) != 2*sha256.Size {
		return false
	}
	return !strings.ContainsFunc(text, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}
