package signing

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// Signer signs the DSSE pre-authentication encoding of a payload. Local keys and key services
// implement it.
type Signer interface {
	// Sign signs pae itself: ed25519 over the bytes, ECDSA over their SHA-256, in DER.
	Sign(ctx context.Context, pae []byte) ([]byte, error)
	Public() Key
}

type localSigner struct {
	private crypto.Signer
	public  Key
}

// NewSigner makes a Signer of a local ed25519 or ECDSA P-256 private key.
func NewSigner(private crypto.Signer) (Signer, error) {
	if private == nil {
		return nil, errors.New("no private key")
	}
	public, err := KeyOf(private.Public())
	if err != nil {
		return nil, err
	}
	return &localSigner{private: private, public: public}, nil
}

// Public implements Signer.
func (s *localSigner) Public() Key { return s.public }

// Sign implements Signer.
func (s *localSigner) Sign(ctx context.Context, pae []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	message, hash := pae, crypto.Hash(0)
	if s.public.Algorithm == AlgorithmECDSAP256 {
		sum := sha256.Sum256(pae)
		message, hash = sum[:], crypto.SHA256
	}
	sig, err := s.private.Sign(rand.Reader, message, hash)
	if err != nil {
		return nil, fmt.Errorf("signing with %s: %w", s.public.ID(), err)
	}
	return sig, nil
}
