package signing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Document is one of the five.
type Document interface {
	Root | Allowlist | Order | Hello | Receipt
}

// Sign encodes doc canonically and signs it with each signer, which must be distinct keys. It
// refuses a document that Open would refuse, before any key is used; doc is not changed.
func Sign[T Document](ctx context.Context, doc *T, signers ...Signer) ([]byte, error) {
	if doc == nil {
		return nil, errors.New("no document to sign")
	}
	copied := *doc
	d := any(&copied).(document)
	payload, err := canonical(d)
	if err != nil {
		return nil, err
	}
	if len(signers) == 0 || len(signers) > MaxSignatures {
		return nil, fmt.Errorf("a document takes 1 to %d signers, not %d", MaxSignatures, len(signers))
	}
	var all [][]byte
	for i, s := range signers {
		if s == nil {
			return nil, errors.New("signer is nil")
		}
		for _, before := range signers[:i] {
			if before.Public().Equal(s.Public()) {
				return nil, fmt.Errorf("key %s would sign twice", s.Public().ID())
			}
		}
		sig, err := signOne(ctx, s, pae(d.payloadType(), payload))
		if err != nil {
			return nil, err
		}
		all = append(all, sig)
	}
	return seal(d.payloadType(), payload, all)
}

// AddSignature adds a signature to a root or an allowlist that others have signed already, for
// signers who never meet. An envelope that s has signed comes back with the same signatures.
// What is signed is the payload as it is: show it to the signer first (Inspect).
func AddSignature(ctx context.Context, envelope []byte, s Signer) (_ []byte, err error) {
	defer refusePanic(&err)
	o, err := openShared(envelope)
	if err != nil {
		return nil, err
	}
	message := o.pae()
	all := o.bare()
	if !o.signedBy(s.Public(), message) {
		if len(all) == MaxSignatures {
			return nil, refuse(ReasonTooLarge, "envelope carries %d signatures already", MaxSignatures)
		}
		sig, err := signOne(ctx, s, message)
		if err != nil {
			return nil, err
		}
		all = append(all, sig)
	}
	return seal(o.payloadType, o.payload, all)
}

// Merge adds the signatures of a copy to an envelope, where those who sign a root or an allowlist did so apart. It refuses
// a copy whose payload is not the same to the byte, and one with a signature by none of keys. A key that signed both
// counts once, so that merging again changes nothing. Whether the thresholds are met is for Open to say.
func Merge(envelope, other []byte, keys ...Key) (_ []byte, err error) {
	defer refusePanic(&err)
	o, err := openShared(envelope)
	if err != nil {
		return nil, err
	}
	same, err := openEnvelope(other, o.payloadType)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(o.payload, same.payload) {
		return nil, refuse(ReasonUntrusted, "the copy is of another document: digest %s, not %s", Digest(same.payload), Digest(o.payload))
	}
	message := o.pae()
	for _, s := range same.signatures {
		by := slices.IndexFunc(keys, func(k Key) bool { return k.Verify(message, s.sig) })
		if by < 0 {
			return nil, refuse(ReasonUntrusted, "the copy has a signature that is by none of the keys that count for it")
		}
		if !o.signedBy(keys[by], message) {
			o.signatures = append(o.signatures, s)
		}
	}
	if len(o.signatures) > MaxSignatures {
		return nil, refuse(ReasonTooLarge, "together they carry %d signatures, at most %d", len(o.signatures), MaxSignatures)
	}
	return seal(o.payloadType, o.payload, o.bare())
}

// openShared takes apart a document of the two that several keys may sign.
func openShared(envelope []byte) (*opened, error) {
	o, err := openEnvelope(envelope, "")
	if err != nil {
		return nil, err
	}
	if o.payloadType != TypeRoot && o.payloadType != TypeAllowlist {
		return nil, refuse(ReasonWrongType, "only root and allowlist are signed by more than one")
	}
	return o, decode(o.payload, newDocument(o.payloadType))
}

// bare are the signatures without what nobody signed.
func (o *opened) bare() [][]byte {
	var all [][]byte
	for _, s := range o.signatures {
		all = append(all, s.sig)
	}
	return all
}

// canonical checks a document and encodes it.
func canonical(d document) ([]byte, error) {
	d.normalise()
	if err := d.check(); err != nil {
		return nil, err
	}
	payload, err := encode(d)
	if err != nil {
		return nil, err
	}
	if d.payloadType() == TypeOrder && len(payload) > maxOrderPayload {
		return nil, refuse(ReasonTooLarge, "order has %d bytes", len(payload))
	}
	return payload, nil
}

// signOne signs and verifies: a key service that answers with another key, and a fault during
// signing, are found here and not on a host.
func signOne(ctx context.Context, s Signer, message []byte) ([]byte, error) {
	sig, err := s.Sign(ctx, message)
	if err != nil {
		return nil, err
	}
	if !s.Public().Verify(message, sig) {
		return nil, fmt.Errorf("signature does not verify under key %s", s.Public().ID())
	}
	return sig, nil
}

func seal(payloadType string, payload []byte, signatures [][]byte) ([]byte, error) {
	envelope := sealEnvelope(payloadType, payload, signatures)
	if limit := maxEnvelope(payloadType); len(envelope) > limit {
		return nil, refuse(ReasonTooLarge, "envelope has %d bytes, at most %d", len(envelope), limit)
	}
	return envelope, nil
}
