package enroll

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/sshsig"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Identity is what is known of a host once its statement has been believed.
type Identity struct {
	HostID     string
	ReceiptKey signing.Key
	// HostKey is the SSH host key to pin, one public key line.
	HostKey  string
	Findings []string
	Shim     string
}

// Believe checks a host's statement: the receipt key signed it, it speaks of one of our roots (given by
// their digests; a host that was enrolled before may be behind), and it is the host of the SSH
// connection that says so. fingerprint is empty when the connection does not tell its host key; then a
// signature by one of the host's keys must.
func Believe(st *wire.Statement, roots []string, fingerprint string) (*Identity, error) {
	key, err := signing.ParseKey(st.ReceiptKey)
	if err != nil {
		return nil, fmt.Errorf("checking the host's statement: receipt key: %w", err)
	}
	hello, err := signing.OpenHello(st.Hello, key)
	if err != nil {
		return nil, fmt.Errorf("checking the host's statement: %w", err)
	}
	if hello.HostID != st.HostID || hello.ShimVersion != st.ShimVersion || !slices.Equal(hello.Findings, st.Findings) {
		return nil, errors.New("checking the host's statement: what is signed differs from what is said")
	}
	if !slices.Contains(roots, hello.Root.Digest) {
		return nil, otherRoot(hello.Root.Version)
	}
	hostKey, err := hostKey(st, fingerprint)
	if err != nil {
		return nil, fmt.Errorf("checking the host's statement: %w", err)
	}
	return &Identity{HostID: st.HostID, ReceiptKey: key, HostKey: hostKey, Findings: hello.Findings, Shim: hello.ShimVersion}, nil
}

func otherRoot(version int64) error {
	return cli.Hint(fmt.Errorf("the host trusts a root document (version %d) that is none of this folder's", version),
		"if it was enrolled from another folder and is to change over, add --reset-trust; if this folder is behind, use the current one")
}

// hostKey picks the key to pin: that of the connection, and without one the first that has signed,
// ed25519 before others.
func hostKey(st *wire.Statement, fingerprint string) (string, error) {
	listed, signed, err := hostKeys(st)
	if err != nil {
		return "", err
	}
	of := func(k ssh.PublicKey) bool { return ssh.FingerprintSHA256(k) == fingerprint }
	if fingerprint == "" {
		slices.SortStableFunc(signed, func(a, b ssh.PublicKey) int { return rank(a) - rank(b) })
		of = func(ssh.PublicKey) bool { return true }
	} else if !slices.ContainsFunc(listed, of) {
		return "", fmt.Errorf("the host does not list the key %s that its SSH server shows", fingerprint)
	}
	i := slices.IndexFunc(signed, of)
	if i < 0 {
		return "", cli.Hint(errors.New("no host key of the connection has signed it"), "the host needs ssh-keygen of OpenSSH 8.1 or newer for its enrolment")
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signed[i]))), nil
}

func rank(k ssh.PublicKey) int {
	if k.Type() == ssh.KeyAlgoED25519 {
		return 0
	}
	return 1
}

// hostKeys are the keys that a statement lists, and those of them that have signed it. A signature
// that is there and does not verify spoils the statement.
func hostKeys(st *wire.Statement) (listed, signed []ssh.PublicKey, err error) {
	for i, line := range st.HostKeys {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, nil, errors.New("a host key cannot be read")
		}
		listed = append(listed, key)
		if i >= len(st.Signatures) || st.Signatures[i] == "" {
			continue
		}
		signer, err := sshsig.Verify([]byte(st.Signatures[i]), wire.StatementNamespace, st.Hello)
		if err != nil {
			return nil, nil, fmt.Errorf("host key %s: %w", ssh.FingerprintSHA256(key), err)
		}
		if !bytes.Equal(signer.Marshal(), key.Marshal()) {
			return nil, nil, fmt.Errorf("host key %s: another key has signed", ssh.FingerprintSHA256(key))
		}
		signed = append(signed, key)
	}
	return listed, signed, nil
}

// Check logs in like the controller will and reads the hello of a fresh session: SSH key, host key, the
// way to the root stage and the receipt key, all at once.
func Check(ctx context.Context, target remote.Target, id *Identity) error {
	conn, err := remote.Dial(ctx, target)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stream, err := conn.Start(ctx, "kpssh")
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	return wire.NewReader(stream).Hello(func(envelope []byte) error {
		hello, err := signing.OpenHello(envelope, id.ReceiptKey)
		if err == nil && hello.HostID != id.HostID {
			err = fmt.Errorf("it is host %q", hello.HostID)
		}
		return err
	})
}
