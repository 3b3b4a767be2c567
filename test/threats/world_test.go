//go:build e2e

package threats

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/shimtest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// world is all that stands around hosts: every key and every document, so that a test can play every part.
type world struct{ shimtest.Trust }

const (
	profile        = shimtest.Profile
	bootstrapToken = "abcdef.0123456789abcdef"
	secret         = "KPSSH_BOOTSTRAP_TOKEN"

	hour = time.Hour
	day  = 24 * hour
	year = 365 * day
)

func newSigner(t testing.TB) signing.Signer { return shimtest.NewSigner(t) }

// newWorld has a root, and an allowlist with the scripts, each as "phase: text".
func newWorld(t testing.TB, scripts ...string) *world {
	t.Helper()
	var allowed []signing.AllowedScript
	for _, s := range scripts {
		allowed = append(allowed, allow(s))
	}
	return &world{*shimtest.NewTrust(t, time.Now().Add(-day), allowed...)}
}

// allow is the author's entry for "phase: text".
func allow(script string) signing.AllowedScript {
	phase, text := split(script)
	return signing.AllowedScript{
		Profile: profile, Version: "1", Phase: phase, Digest: signing.Digest([]byte(text)),
		Parameters: []signing.Parameter{
			{Name: "KPSSH_NODE_NAME", Type: signing.ParamNodeName, Optional: true},
			{Name: "KPSSH_GATE", Type: signing.ParamString, Optional: true},
			{Name: secret, Type: signing.ParamString, Secret: true, Optional: true},
		},
	}
}

// split takes "phase: text" apart.
func split(script string) (signing.Phase, string) {
	for i := range script {
		if script[i] == ':' {
			return signing.Phase(script[:i]), script[i+2:]
		}
	}
	panic("no phase in " + script)
}

func role(threshold int, signers ...signing.Signer) signing.RoleKeys {
	return shimtest.Role(threshold, signers...)
}

func sign[T signing.Document](t testing.TB, doc *T, by ...signing.Signer) []byte {
	t.Helper()
	return shimtest.Sign(t, doc, by...)
}

// forge signs any bytes as any type, what a thief of a key can do: signing.Sign refuses what Open would refuse.
func forge(t testing.TB, payloadType string, payload []byte, by ...signing.Signer) []byte {
	t.Helper()
	var all [][]byte
	for _, s := range by {
		all = append(all, signature(t, payloadType, payload, s))
	}
	return enclose(payloadType, payload, all...)
}

// signature is DSSE's: over its pre-authentication encoding.
func signature(t testing.TB, payloadType string, payload []byte, by signing.Signer) []byte {
	t.Helper()
	message := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload)
	sig, err := by.Sign(context.Background(), message)
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

type envelope struct {
	PayloadType string              `json:"payloadType"`
	Payload     []byte              `json:"payload"`
	Signatures  []envelopeSignature `json:"signatures"`
}

type envelopeSignature struct {
	KeyID string `json:"keyid,omitempty"`
	Sig   []byte `json:"sig"`
}

// enclose puts a payload and signatures, whatever they are, into an envelope.
func enclose(payloadType string, payload []byte, signatures ...[]byte) []byte {
	e := envelope{PayloadType: payloadType, Payload: payload, Signatures: []envelopeSignature{}}
	for _, sig := range signatures {
		e.Signatures = append(e.Signatures, envelopeSignature{Sig: sig})
	}
	data, err := json.Marshal(e)
	if err != nil {
		panic(err) // bytes and strings
	}
	return data
}

// payloadOf takes the payload out of an envelope.
func payloadOf(t testing.TB, text []byte) []byte {
	t.Helper()
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		t.Fatal(err)
	}
	return e.Payload
}
