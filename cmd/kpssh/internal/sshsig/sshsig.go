// Package sshsig verifies signatures in the format of "ssh-keygen -Y sign" (PROTOCOL.sshsig of
// OpenSSH): over a namespace and the hash of a message, so that a signature for one purpose is worth
// nothing for another, nor as an SSH login.
package sshsig

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/pem"
	"errors"
	"fmt"

	"golang.org/x/crypto/ssh"
)

const (
	magic     = "SSHSIG"
	pemType   = "SSH SIGNATURE"
	maxArmor  = 16 << 10
	sigFormat = 1
)

// blob is the part after the magic.
type blob struct {
	Version       uint32
	PublicKey     []byte
	Namespace     string
	Reserved      []byte
	HashAlgorithm string
	Signature     []byte
}

// signed is what the signature is over, after the magic.
type signed struct {
	Namespace     string
	Reserved      []byte
	HashAlgorithm string
	Hash          []byte
}

// Verify returns the key that made an armored signature over message in namespace.
func Verify(armored []byte, namespace string, message []byte) (ssh.PublicKey, error) {
	b, err := dearmor(armored)
	if err != nil {
		return nil, err
	}
	if b.Version != sigFormat || b.Namespace != namespace {
		return nil, fmt.Errorf("version %d, namespace %.80q: not a signature for %q", b.Version, b.Namespace, namespace)
	}
	key, err := ssh.ParsePublicKey(b.PublicKey)
	if err != nil {
		return nil, errors.New("unknown key in SSH signature")
	}
	var sig ssh.Signature
	if err := ssh.Unmarshal(b.Signature, &sig); err != nil || len(sig.Rest) > 0 {
		return nil, errMalformed
	}
	if sig.Format == ssh.KeyAlgoRSA {
		return nil, errors.New("SHA-1 signatures are not accepted")
	}
	hash, err := digest(b.HashAlgorithm, message)
	if err != nil {
		return nil, err
	}
	data := append([]byte(magic), ssh.Marshal(signed{b.Namespace, b.Reserved, b.HashAlgorithm, hash})...)
	if err := key.Verify(data, &sig); err != nil {
		return nil, errors.New("SSH signature does not verify")
	}
	return key, nil
}

var errMalformed = errors.New("malformed SSH signature")

func dearmor(armored []byte) (*blob, error) {
	if len(armored) > maxArmor {
		return nil, errors.New("signature is too large")
	}
	block, rest := pem.Decode(armored)
	if block == nil || block.Type != pemType || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("not an SSH signature")
	}
	body, found := bytes.CutPrefix(block.Bytes, []byte(magic))
	if !found {
		return nil, errors.New("not an SSH signature")
	}
	b := new(blob)
	if err := ssh.Unmarshal(body, b); err != nil {
		return nil, errMalformed
	}
	return b, nil
}

func digest(algorithm string, message []byte) ([]byte, error) {
	switch algorithm {
	case "sha256":
		sum := sha256.Sum256(message)
		return sum[:], nil
	case "sha512":
		sum := sha512.Sum512(message)
		return sum[:], nil
	}
	return nil, fmt.Errorf("unknown hash algorithm %.40q", algorithm)
}
