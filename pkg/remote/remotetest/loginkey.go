package remotetest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"testing"

	"golang.org/x/crypto/ssh"
)

// LoginKey makes an ed25519 key, and its text as a Secret or a file holds it: PEM in OpenSSH's format, encrypted when
// there is a passphrase.
func LoginKey(tb testing.TB, passphrase string) (text []byte, key ssh.Signer) {
	tb.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return PEM(tb, private, passphrase)
}

// PEM is LoginKey for a private key that is there: a pointer to one of crypto/rsa or crypto/ecdsa, or an ed25519 key.
func PEM(tb testing.TB, private any, passphrase string) (text []byte, key ssh.Signer) {
	tb.Helper()
	key, err := ssh.NewSignerFromKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	var block *pem.Block
	if passphrase == "" {
		block, err = ssh.MarshalPrivateKey(private, "")
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte(passphrase))
	}
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(block), key
}
