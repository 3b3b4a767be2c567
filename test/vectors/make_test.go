package vectors

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Fixed instants and names: what is made is the same in every run.
var (
	issued  = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	expires = time.Date(2027, 5, 1, 12, 0, 0, 0, time.UTC)
	during  = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

	challenge = []byte("0123456789abcdef0123456789abcdef")
)

const (
	hostID      = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
	claim       = "c0ffee00-0000-4000-8000-000000000001"
	profile     = "tls-bootstrap"
	version     = "1.0.0"
	endpoint    = "https://api.example.com:6443"
	clusterName = "prod-1"
	token       = "abcdef.0123456789abcdef"
)

// scripts are those that the allowlist holds.
var scripts = map[signing.Phase]string{
	signing.PhaseInstall: "echo install\n",
	signing.PhaseJoin:    "echo join\n",
	signing.PhaseLeave:   "echo leave\n",
}

// deterministic signs ECDSA as RFC 6979 does, so that a signature is the same in every run.
type deterministic struct {
	private crypto.Signer
	public  signing.Key
}

// Public implements signing.Signer.
func (d deterministic) Public() signing.Key { return d.public }

// Sign implements signing.Signer.
func (d deterministic) Sign(_ context.Context, pae []byte) ([]byte, error) {
	if d.public.Algorithm == signing.AlgorithmECDSAP256 {
		sum := sha256.Sum256(pae)
		return d.private.Sign(nil, sum[:], crypto.SHA256)
	}
	return d.private.Sign(nil, pae, crypto.Hash(0))
}

// maker makes vectors; everything that goes wrong in it ends the test.
type maker struct {
	t                               testing.TB
	root, author, dispatch, host    signing.Signer
	nobody                          signing.Signer
	all                             []*vector
	rootDoc                         signing.Root
	list                            signing.Allowlist
	order                           signing.Order
	hello                           signing.Hello
	receipt                         signing.Receipt
	params, secrets                 map[string]string
	rootEnvelope, listEnvelope      []byte
	parametersFrame, secretsFrame   []byte
	caBundle, otherBundle, caPinned string
}

// vector is one case.
type vector struct {
	kind, name string
	want       signing.Reason
	about      settings
	files      map[string][]byte
}

// settings are case.json.
type settings struct {
	About string `json:"about"`
	From  string `json:"from,omitempty"`
	// HostID and Challenge are those of the host and its session.
	HostID    string `json:"hostID,omitempty"`
	Challenge []byte `json:"challenge,omitempty"`
	// At is the host's clock; without it nothing expires.
	At    *time.Time `json:"at,omitempty"`
	Floor int64      `json:"floor,omitempty"`
	// Key is the receipt key of the host's enrolment.
	Key string `json:"key,omitempty"`
}

// folder is where the vector is: its verdict is the end of its name.
func (v *vector) folder() string {
	verdict := "_ok"
	if v.want != "" {
		verdict = "_refused_" + string(v.want)
	}
	return v.kind + "/" + v.name + verdict
}

// slug makes a name of a sentence.
func slug(sentence string) string {
	words := strings.FieldsFunc(strings.ToLower(sentence), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_'
	})
	return strings.Join(words, "-")
}

// add adds a case. From says where it comes from: a row of the threat table, a case of another suite.
func (m *maker) add(kind string, want signing.Reason, from, about string, files map[string][]byte, set settings) {
	m.t.Helper()
	set.About, set.From = about, from
	name := slug(about)
	if i := strings.LastIndex(from, ": "); strings.HasPrefix(from, "tuf-conformance") && i > 0 {
		name = "tuf-" + slug(from[i+2:])
	}
	m.all = append(m.all, &vector{kind: kind, name: name, want: want, about: set, files: files})
}

func ed(t testing.TB, name string) signing.Signer {
	t.Helper()
	seed := sha256.Sum256([]byte("kpssh test vectors: " + name))
	private := ed25519.NewKeyFromSeed(seed[:])
	public, err := signing.KeyOf(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	return deterministic{private, public}
}

func p256(t testing.TB, name string) signing.Signer {
	t.Helper()
	seed := sha256.Sum256([]byte("kpssh test vectors: " + name))
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:])
	if err != nil {
		t.Fatal(err)
	}
	public, err := signing.KeyOf(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	return deterministic{private, public}
}

func role(threshold int, signers ...signing.Signer) signing.RoleKeys {
	r := signing.RoleKeys{Threshold: threshold, Keys: []signing.Key{}}
	for _, s := range signers {
		r.Keys = append(r.Keys, s.Public())
	}
	return r
}

// encode is the canonical encoding of a document whose lists are not nil. It does not ask whether
// the document is one that anybody should sign.
func encode(t testing.TB, doc any) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func signature(t testing.TB, payloadType string, payload []byte, s signing.Signer) []byte {
	t.Helper()
	sig, err := s.Sign(context.Background(), dsse.PAE(payloadType, payload))
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

// envelope is the spelling in which envelopes are written.
func envelope(payloadType string, payload []byte, signatures ...[]byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"payloadType":%q,"payload":%q,"signatures":[`, payloadType, base64.StdEncoding.EncodeToString(payload))
	for i, sig := range signatures {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"sig":%q}`, base64.StdEncoding.EncodeToString(sig))
	}
	b.WriteString("]}")
	return b.Bytes()
}

// sealed is any payload under any type, well signed: what a thief of a key can make.
func (m *maker) sealed(payloadType string, payload []byte, signers ...signing.Signer) []byte {
	m.t.Helper()
	var all [][]byte
	for _, s := range signers {
		all = append(all, signature(m.t, payloadType, payload, s))
	}
	return envelope(payloadType, payload, all...)
}

func (m *maker) signRoot(doc signing.Root, signers ...signing.Signer) []byte {
	m.t.Helper()
	return m.sealed(signing.TypeRoot, encode(m.t, &doc), signers...)
}

func (m *maker) signList(doc signing.Allowlist, signers ...signing.Signer) []byte {
	m.t.Helper()
	return m.sealed(signing.TypeAllowlist, encode(m.t, &doc), signers...)
}

// signOrder makes the order's digests and commitments fit what travels beside it.
func (m *maker) signOrder(change func(*signing.Order), signers ...signing.Signer) []byte {
	m.t.Helper()
	order := m.order
	if change != nil {
		change(&order)
	}
	if len(signers) == 0 {
		signers = []signing.Signer{m.dispatch}
	}
	return m.sealed(signing.TypeOrder, encode(m.t, &order), signers...)
}

// negated is the other signature that fits the same message and P-256 key: (r, n-s).
func negated(t testing.TB, der []byte) []byte {
	t.Helper()
	var rs struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &rs); err != nil {
		t.Fatal(err)
	}
	rs.S.Sub(elliptic.P256().Params().N, rs.S)
	twin, err := asn1.Marshal(rs)
	if err != nil {
		t.Fatal(err)
	}
	return twin
}

// certificate is a self-signed CA in PEM; ed25519 makes it the same in every run.
func certificate(t testing.TB, name string) []byte {
	t.Helper()
	seed := sha256.Sum256([]byte("kpssh test vectors: ca " + name))
	private := ed25519.NewKeyFromSeed(seed[:])
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: issued, NotAfter: expires, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(nil, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func bundle(parts ...[]byte) string { return base64.StdEncoding.EncodeToString(bytes.Join(parts, nil)) }

func newMaker(t testing.TB) *maker {
	m := &maker{
		t: t, root: ed(t, "root"), author: p256(t, "author"), dispatch: ed(t, "dispatch"), host: ed(t, "host"), nobody: ed(t, "nobody"),
		caBundle: bundle(certificate(t, "cluster")), otherBundle: bundle(certificate(t, "attacker")),
	}
	pins, err := signing.SPKIPins(m.caBundle)
	if err != nil {
		t.Fatal(err)
	}
	m.caPinned = pins[0]
	m.rootDoc = signing.Root{
		Version: 1, Issued: issued, Expires: expires,
		Root: role(1, m.root), Author: role(1, m.author), Dispatch: role(1, m.dispatch),
	}
	m.rootEnvelope = m.signRoot(m.rootDoc, m.root)
	m.list = signing.Allowlist{Version: 3, Issued: issued, Expires: expires.AddDate(0, -1, 0), Scripts: []signing.AllowedScript{
		m.script(signing.PhaseInstall),
		m.script(signing.PhaseJoin, m.joinParameters()...),
		m.script(signing.PhaseLeave),
	}}
	m.list.Scripts[2].GraceSeconds = 7 * 24 * 60 * 60
	m.listEnvelope = m.signList(m.list, m.author)
	m.params = map[string]string{
		"KPSSH_CLUSTER_ENDPOINT": endpoint, "KPSSH_CLUSTER_CA_B64": m.caBundle, "KPSSH_CLUSTER_NAME": clusterName,
		"KPSSH_NODE_NAME": "node-1.example.com", "KPSSH_NODE_ADDRESS": "10.0.0.11", "KPSSH_PROVIDER_ID": "kpssh://pool/node-1",
		"KPSSH_NODE_LABELS": "kubernetes.io/arch=arm64,x=1", "KPSSH_TAINTS": "karpenter.sh/unregistered:NoExecute",
	}
	m.secrets = map[string]string{"KPSSH_BOOTSTRAP_TOKEN": token}
	m.parametersFrame, m.secretsFrame = encode(t, m.params), encode(t, m.secrets)
	m.order = signing.Order{
		HostID: hostID, Challenge: challenge, Allowlist: signing.Digest(encode(t, &m.list)),
		Profile: profile, Version: version, Phase: signing.PhaseJoin, Script: signing.Digest([]byte(scripts[signing.PhaseJoin])),
		Claim: claim, Fence: 7, Parameters: signing.Digest(m.parametersFrame),
		Secrets:        map[string]string{"KPSSH_BOOTSTRAP_TOKEN": signing.Commitment(challenge, "KPSSH_BOOTSTRAP_TOKEN", token)},
		TimeoutSeconds: 600,
	}
	m.answers()
	return m
}

func (m *maker) script(phase signing.Phase, parameters ...signing.Parameter) signing.AllowedScript {
	if parameters == nil {
		parameters = []signing.Parameter{}
	}
	return signing.AllowedScript{
		Profile: profile, Version: version, Phase: phase, Digest: signing.Digest([]byte(scripts[phase])), Parameters: parameters,
	}
}

func (m *maker) joinParameters() []signing.Parameter {
	return []signing.Parameter{
		{Name: "KPSSH_CLUSTER_ENDPOINT", Type: signing.ParamEndpoint, Pins: []string{endpoint, "https://[2001:db8::1]:6443"}},
		{Name: "KPSSH_CLUSTER_CA_B64", Type: signing.ParamCABundle, Pins: []string{m.caPinned}},
		{Name: "KPSSH_CLUSTER_NAME", Type: signing.ParamString, Pins: []string{clusterName}},
		{Name: "KPSSH_NODE_NAME", Type: signing.ParamNodeName},
		{Name: "KPSSH_NODE_ADDRESS", Type: signing.ParamIP},
		{Name: "KPSSH_PROVIDER_ID", Type: signing.ParamURI},
		{Name: "KPSSH_NODE_LABELS", Type: signing.ParamLabels},
		{Name: "KPSSH_TAINTS", Type: signing.ParamTaints},
		{Name: "KPSSH_VAR_CHANNEL", Type: signing.ParamString, Enum: []string{"stable", "edge"}, Optional: true},
		{Name: "KPSSH_VAR_MTU", Type: signing.ParamString, Pattern: "[0-9]{3,4}", MaxLength: 4, Optional: true},
		{Name: "KPSSH_VAR_NOTE", Type: signing.ParamString, Optional: true},
		{Name: "KPSSH_VAR_REGISTRY", Type: signing.ParamHost, Optional: true},
		{Name: "KPSSH_BOOTSTRAP_TOKEN", Type: signing.ParamToken, Secret: true},
	}
}

// answers are what the host says.
func (m *maker) answers() {
	script := m.order.Script
	m.hello = signing.Hello{
		Protocol: 1, ShimVersion: "1.0.0", ShimDigest: signing.Digest([]byte("shim")), HostID: hostID,
		BootID: "5b3f6f0e-0000-4000-8000-000000000002", Challenge: challenge,
		Root:      signing.DocumentRef{Version: 1, Digest: signing.Digest(encode(m.t, &m.rootDoc))},
		Allowlist: signing.DocumentRef{Version: 3, Digest: m.order.Allowlist},
		Claim:     signing.Claim{UID: "", Fence: 6}, Scripts: []string{script},
		Clock: during, ClockSynced: true, Findings: []string{"forwarding", "tty"},
	}
	m.receipt = signing.Receipt{
		HostID: hostID, BootID: m.hello.BootID, Order: signing.Digest(encode(m.t, &m.order)), Challenge: challenge,
		Claim: claim, Fence: 7, Profile: profile, Version: version, Phase: signing.PhaseJoin, Script: script,
		Parameters: m.order.Parameters, Outcome: signing.OutcomeOK,
		Output:  signing.OutputRef{Bytes: 5, Kept: 5, Digest: signing.Digest([]byte("join\n"))},
		Started: during, Finished: during.Add(4 * time.Second), DurationMillis: 4012,
	}
}
