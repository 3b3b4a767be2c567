package signing

import (
	"context"
	"errors"
	"fmt"
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
	o, err := openEnvelope(envelope, "")
	if err != nil {
		return nil, err
	}
	if o.payloadType != TypeRoot && o.payloadType != TypeAllowlist {
		return nil, refuse(ReasonWrongType, "only root and allowlist are signed by more than one")
	}
	if err := decode(o.payload, newDocument(o.payloadType)); err != nil {
		return nil, err
	}
	message := o.pae()
	var all [][]byte
	for _, sig := range o.signatures {
		all = append(all, sig.sig)
	}
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
