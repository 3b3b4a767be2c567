package keys

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/crypto/ssh"
)

// SSHKey is a client key for the controller: what goes into its Secret and what goes onto hosts.
type SSHKey struct {
	// Private is an OpenSSH private key file, not encrypted.
	Private []byte
	// Authorized is the line for authorized_keys, without line break or options.
	Authorized string
	// Fingerprint is "SHA256:…", as ssh-keygen prints it.
	Fingerprint string
}

// MakeSSH makes an ed25519 client key. The comment ends up in both halves.
func MakeSSH(comment string) (*SSHKey, error) {
	if len(comment) > 256 || strings.ContainsFunc(comment, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return nil, refuse(ReasonUnsupportedKey, "comment of an SSH key must be one short line of text")
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making SSH key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, fmt.Errorf("encoding SSH key: %w", err)
	}
	public, err := ssh.NewPublicKey(private.Public())
	if err != nil {
		return nil, fmt.Errorf("encoding SSH key: %w", err)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public)) + " " + comment)
	return &SSHKey{
		Private:     pem.EncodeToMemory(block),
		Authorized:  strings.Replace(line, "\n ", " ", 1),
		Fingerprint: ssh.FingerprintSHA256(public),
	}, nil
}
