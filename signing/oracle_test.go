package signing

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// oracleKey lets go-securesystemslib sign and verify with our keys. Its own ed25519 verifier
// panics on keys of wrong length, so the check is here.
type oracleKey struct {
	signer Signer
	key    Key
	id     string
}

func (k oracleKey) Sign(ctx context.Context, data []byte) ([]byte, error) {
	return k.signer.Sign(ctx, data)
}

func (k oracleKey) Verify(_ context.Context, data, sig []byte) error {
	public, err := x509.ParsePKIXPublicKey(k.key.Public)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	switch p := public.(type) {
	case ed25519.PublicKey:
		if ed25519.Verify(p, data, sig) {
			return nil
		}
	case *ecdsa.PublicKey:
		if ecdsa.VerifyASN1(p, sum[:], sig) {
			return nil
		}
	}
	return errors.New("bad signature")
}

func (k oracleKey) KeyID() (string, error) { return k.id, nil }

func (k oracleKey) Public() crypto.PublicKey {
	public, err := x509.ParsePKIXPublicKey(k.key.Public)
	if err != nil {
		return nil
	}
	return public
}

// oracleVerify asks the oracle without the key ids. Nobody signs those: it passes over a good signature
// whose key id is another key's, and we do not. That is the only thing that we take and it does not.
func oracleVerify(t testing.TB, envelope []byte, r RoleKeys) ([]byte, error) {
	t.Helper()
	var e dsse.Envelope
	if err := json.Unmarshal(envelope, &e); err != nil {
		return nil, err
	}
	for i := range e.Signatures {
		e.Signatures[i].KeyID = ""
	}
	var keys []dsse.Verifier
	for _, k := range r.Keys {
		keys = append(keys, oracleKey{key: k, id: k.ID()})
	}
	v, err := dsse.NewMultiEnvelopeVerifier(r.Threshold, keys...)
	if err != nil {
		return nil, err
	}
	_, payload, err := v.VerifyAndDecode(context.Background(), &e)
	return payload, err
}

func TestWhatWeSignTheOracleVerifies(t *testing.T) {
	all := tenSigners(t)
	p := newPool(t)
	p.rootDoc.Root = role(3, all[:5]...)
	envelope := sign(t, p.rootDoc, all[0], all[3], all[4])
	payload, err := oracleVerify(t, envelope, p.rootDoc.Root)
	if err != nil || !bytes.Equal(payload, payloadOf(t, envelope)) {
		t.Errorf("the oracle says %v", err)
	}
	if _, err := oracleVerify(t, sign(t, p.rootDoc, all[0], all[3]), p.rootDoc.Root); err == nil {
		t.Error("the oracle takes two of three")
	}
}

func TestWhatTheOracleSignsWeVerify(t *testing.T) {
	all := tenSigners(t)
	p := newPool(t)
	p.rootDoc.Root = role(2, all[:3]...)
	payload, err := canonical(p.rootDoc)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", "any", all[0].Public().ID()} {
		es, err := dsse.NewEnvelopeSigner(oracleKey{signer: all[0], key: all[0].Public(), id: id}, oracleKey{signer: all[1], key: all[1].Public(), id: id})
		if err != nil {
			t.Fatal(err)
		}
		e, err := es.SignPayload(context.Background(), TypeRoot, payload)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := OpenFirstRoot(marshal(t, e)); err != nil {
			t.Errorf("keyid %q: %v", id, err)
		}
	}
}
