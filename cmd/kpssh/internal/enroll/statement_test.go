package enroll

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha512"
	"encoding/json"
	"encoding/pem"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

func seeded(letter string) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed([]byte(strings.Repeat(letter, ed25519.SeedSize)))
}

// sshSignature is what "ssh-keygen -Y sign" writes (OpenSSH's PROTOCOL.sshsig).
func sshSignature(t testing.TB, signer ssh.Signer, namespace string, message []byte) string {
	t.Helper()
	sum := sha512.Sum512(message)
	sig, err := signer.Sign(nil, append([]byte("SSHSIG"), ssh.Marshal(struct {
		Namespace, Reserved, HashAlgorithm string
		Hash                               []byte
	}{namespace, "", "sha512", sum[:]})...))
	if err != nil {
		t.Fatal(err)
	}
	blob := append([]byte("SSHSIG"), ssh.Marshal(struct {
		Version                            uint32
		PublicKey                          []byte
		Namespace, Reserved, HashAlgorithm string
		Signature                          []byte
	}{1, signer.PublicKey().Marshal(), namespace, "", "sha512", ssh.Marshal(sig)})...)
	return string(pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE", Bytes: blob}))
}

// statement is what a good host says of itself, and the digest of the root that it names.
func statement(t testing.TB, namespace string) (st wire.Statement, root string) {
	t.Helper()
	receipt, err := signing.NewSigner(seeded("r"))
	if err != nil {
		t.Fatal(err)
	}
	hostKey, err := ssh.NewSignerFromKey(seeded("h"))
	if err != nil {
		t.Fatal(err)
	}
	root = signing.Digest([]byte("root"))
	hello, err := signing.Sign(context.Background(), &signing.Hello{
		Protocol: wire.Protocol, ShimVersion: "1.0.0", HostID: "0a1b2c3d", Challenge: make([]byte, signing.ChallengeSize),
		Root: signing.DocumentRef{Version: 1, Digest: root}, Findings: []string{"tty"},
	}, receipt)
	if err != nil {
		t.Fatal(err)
	}
	return wire.Statement{
		HostID: "0a1b2c3d", ReceiptKey: receipt.Public().String(), ShimVersion: "1.0.0", Findings: []string{"tty"}, Root: 1, Hello: hello,
		HostKeys:   []string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(hostKey.PublicKey())))},
		Signatures: []string{sshSignature(t, hostKey, namespace, hello)},
	}, root
}

func TestAStatementSignedForSomethingElseIsNotBelieved(t *testing.T) {
	st, root := statement(t, wire.StatementNamespace)
	if _, err := Believe(&st, []string{root}, ""); err != nil {
		t.Fatal(err)
	}
	st, root = statement(t, "file")
	if id, err := Believe(&st, []string{root}, ""); err == nil {
		t.Errorf("believed: %+v", id)
	}
}

// FuzzStatement reads what a host prints at enrolment. Nobody but the host can sign, so that whatever
// is believed is this host, or one that vouches for itself with keys of its own making.
func FuzzStatement(f *testing.F) {
	good, root := statement(f, wire.StatementNamespace)
	want, err := Believe(&good, []string{root}, "")
	if err != nil {
		f.Fatal(err)
	}
	text, err := json.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	other, _ := statement(f, "file")
	text, err = json.Marshal(other)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(bytes.ReplaceAll(text, []byte(`"hostKeys":[`), []byte(`"hostKeys":["ssh-ed25519 AAAA",`)))
	f.Add([]byte(`{"hostKeys":["",null],"signatures":[""],"statement":""}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var st wire.Statement
		if json.Unmarshal(data, &st) != nil {
			return
		}
		for _, fingerprint := range []string{"", "SHA256:AAAA"} {
			id, err := Believe(&st, []string{root}, fingerprint)
			if err != nil {
				continue
			}
			if fingerprint != "" || !reflect.DeepEqual(id, want) {
				t.Fatalf("believed %+v of %q", id, data)
			}
		}
	})
}
