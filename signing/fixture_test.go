package signing

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// Fixed instants: no test reads the clock.
var (
	issued  = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	expires = time.Date(2027, 5, 1, 12, 0, 0, 0, time.UTC)
)

// ed25519Signer is the same key for the same name, in every run.
func ed25519Signer(t testing.TB, name string) Signer {
	t.Helper()
	seed := sha256.Sum256([]byte(name))
	s, err := NewSigner(ed25519.NewKeyFromSeed(seed[:]))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func p256Private(t testing.TB, name string) *ecdsa.PrivateKey {
	t.Helper()
	seed := sha256.Sum256([]byte(name))
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:])
	if err != nil {
		t.Fatal(err)
	}
	return private
}

func p256Signer(t testing.TB, name string) Signer {
	t.Helper()
	s, err := NewSigner(p256Private(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func role(threshold int, signers ...Signer) RoleKeys {
	r := RoleKeys{Threshold: threshold}
	for _, s := range signers {
		r.Keys = append(r.Keys, s.Public())
	}
	return r
}

// pool is a root with one key a role, the host's key, and one good document of each type.
type pool struct {
	root, author, dispatch, host Signer

	rootDoc   *Root
	allowlist *Allowlist
	order     *Order
	hello     *Hello
	receipt   *Receipt
}

func newPool(t testing.TB) *pool {
	t.Helper()
	p := &pool{
		root:     ed25519Signer(t, "root"),
		author:   p256Signer(t, "author"),
		dispatch: ed25519Signer(t, "dispatch"),
		host:     ed25519Signer(t, "host"),
	}
	p.rootDoc = &Root{
		Version: 1, Issued: issued, Expires: expires,
		Root: role(1, p.root), Author: role(1, p.author), Dispatch: role(1, p.dispatch),
	}
	script := Digest([]byte("#!/bin/bash\n"))
	challenge := []byte(strings.Repeat("c", ChallengeSize))
	p.allowlist = &Allowlist{
		Version: 3, Issued: issued, Expires: expires, MinShim: "1.0.0",
		Scripts: []AllowedScript{{
			Profile: "tls-bootstrap", Version: "1.0.0", Phase: PhaseJoin, Digest: script,
			Parameters: []Parameter{
				{Name: "KPSSH_CLUSTER_ENDPOINT", Type: ParamEndpoint, Pins: []string{"https://10.0.0.1:6443"}},
				{Name: "KPSSH_NODE_NAME", Type: ParamNodeName},
				{Name: "KPSSH_VAR_CHANNEL", Type: ParamString, Enum: []string{"stable", "edge"}, Optional: true},
				{Name: "KPSSH_VAR_MTU", Type: ParamString, Pattern: `[0-9]{3,4}`, MaxLength: 4, Optional: true},
				{Name: "KPSSH_BOOTSTRAP_TOKEN", Type: ParamToken, Secret: true},
			},
		}},
	}
	p.order = &Order{
		HostID: "0a1b2c3d", Challenge: challenge, Allowlist: Digest([]byte("allowlist")),
		Profile: "tls-bootstrap", Version: "1.0.0", Phase: PhaseJoin, Script: script,
		Claim: "c0ffee00-0000-4000-8000-000000000001", Fence: 7, Parameters: Digest([]byte("{}")),
		Secrets:        map[string]string{"KPSSH_BOOTSTRAP_TOKEN": Commitment(challenge, "KPSSH_BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef")},
		TimeoutSeconds: 600,
	}
	p.hello = &Hello{
		Protocol: 1, ShimVersion: "1.0.0", ShimDigest: Digest([]byte("shim")), HostID: "0a1b2c3d",
		BootID: "5b3f6f0e-0000-4000-8000-000000000002", Challenge: challenge,
		Root:    DocumentRef{Version: 1, Digest: Digest([]byte("root"))},
		Claim:   Claim{UID: "c0ffee00-0000-4000-8000-000000000001", Fence: 7},
		LastRun: &RunRef{Order: Digest([]byte("order")), Profile: "tls-bootstrap", Version: "1.0.0", Phase: PhaseInstall, Script: script, State: RunFinished, Outcome: OutcomeOK, Deadline: 600},
		Scripts: []string{script}, Clock: issued, ClockSynced: true, Findings: []string{"permit-tty", "agent-forwarding"},
	}
	p.receipt = &Receipt{
		HostID: "0a1b2c3d", BootID: "5b3f6f0e-0000-4000-8000-000000000002", Order: Digest([]byte("order")),
		Challenge: challenge, Claim: "c0ffee00-0000-4000-8000-000000000001", Fence: 7,
		Profile: "tls-bootstrap", Version: "1.0.0", Phase: PhaseJoin, Script: script, Parameters: Digest([]byte("{}")),
		Outcome: OutcomeFailed, ExitCode: 3, Output: OutputRef{Bytes: 12, Kept: 12, Digest: Digest([]byte("joined: no!\n"))},
		Started: issued, Finished: issued.Add(4 * time.Second), DurationMillis: 4012,
	}
	return p
}

// slot is one place where a document is read: its type, a good envelope, and how to open it.
type slot struct {
	payloadType string
	envelope    []byte
	open        func(envelope []byte) error
}

// slots are the five, by name.
func (p *pool) slots(t testing.TB) map[string]slot {
	t.Helper()
	root := p.rootDoc
	return map[string]slot{
		"root": {TypeRoot, sign(t, p.rootDoc, p.root), func(e []byte) error { _, err := OpenFirstRoot(e); return err }},
		"allowlist": {TypeAllowlist, sign(t, p.allowlist, p.author), func(e []byte) error {
			_, err := OpenAllowlist(e, root)
			return err
		}},
		"order": {TypeOrder, sign(t, p.order, p.dispatch), func(e []byte) error { _, err := OpenOrder(e, root); return err }},
		"hello": {TypeHello, sign(t, p.hello, p.host), func(e []byte) error { _, err := OpenHello(e, p.host.Public()); return err }},
		"receipt": {TypeReceipt, sign(t, p.receipt, p.host), func(e []byte) error {
			_, err := OpenReceipt(e, p.host.Public())
			return err
		}},
	}
}

func sign[T Document](t testing.TB, doc *T, signers ...Signer) []byte {
	t.Helper()
	envelope, err := Sign(context.Background(), doc, signers...)
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}

// signPayload signs any bytes as any type: what a thief of a key, or a careless author, can do.
func signPayload(t testing.TB, payloadType string, payload []byte, signers ...Signer) []byte {
	t.Helper()
	var all [][]byte
	for _, s := range signers {
		sig, err := s.Sign(context.Background(), dsse.PAE(payloadType, payload))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sig)
	}
	return sealEnvelope(payloadType, payload, all)
}

func payloadOf(t testing.TB, envelope []byte) []byte {
	t.Helper()
	o, err := openEnvelope(envelope, "")
	if err != nil {
		t.Fatal(err)
	}
	return o.payload
}

// wantReason fails unless err is a refusal with the reason; "" wants none.
func wantReason(t testing.TB, err error, want Reason) {
	t.Helper()
	if got := ReasonOf(err); got != want || (err == nil) != (want == "") {
		t.Errorf("got %v (reason %q), want reason %q", err, got, want)
	}
}

// each runs a table in the order of its names.
func each[V any](t *testing.T, table map[string]V, test func(t *testing.T, v V)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(table)) {
		t.Run(name, func(t *testing.T) { test(t, table[name]) })
	}
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// caCert is a self-signed CA certificate in PEM.
func caCert(t testing.TB, name string) []byte {
	t.Helper()
	private := p256Private(t, name)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: issued, NotAfter: expires, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), crypto.Signer(private))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func bundle(parts ...[]byte) string {
	return base64.StdEncoding.EncodeToString(slices.Concat(parts...))
}
