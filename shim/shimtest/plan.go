package shimtest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Plan is an order with everything that belongs to it; tests bend it before it is sent.
type Plan struct {
	Roots   [][]byte
	List    []byte
	Order   signing.Order
	By      []signing.Signer
	Env     []byte // instead of Order
	Params  map[string]string
	Raw     []byte // instead of Params
	Script  []byte
	Secrets map[string]string
	Sent    bool // the test has sent what it wants to send
}

// Plan makes the order that a good controller would make for a script, for the host that has said hello.
func (w *Trust) Plan(hello *signing.Hello, phase signing.Phase, text, claim string, fence int64) *Plan {
	w.T.Helper()
	p := &Plan{By: []signing.Signer{w.Dispatch}, Params: map[string]string{}, Secrets: map[string]string{}}
	for v := hello.Root.Version + 1; w.Roots[v] != nil; v++ {
		p.Roots = append(p.Roots, w.Roots[v])
	}
	list, err := signing.PayloadDigest(w.ListEnv)
	if err != nil {
		w.T.Fatal(err)
	}
	if hello.Allowlist.Digest != list {
		p.List = w.ListEnv
	}
	script := signing.Digest([]byte(text))
	if !slices.Contains(hello.Scripts, script) {
		p.Script = []byte(text)
	}
	p.Order = signing.Order{
		HostID: hello.HostID, Challenge: hello.Challenge, Allowlist: list, Profile: Profile, Version: "1",
		Phase: phase, Script: script, Claim: claim, Fence: fence, TimeoutSeconds: 60,
	}
	return p
}

// Bind fills in what depends on parameters and secrets, and returns the frames of both.
func (p *Plan) Bind(t testing.TB, challenge []byte) (params, secrets []byte) {
	t.Helper()
	var err error
	if params = p.Raw; params == nil {
		if params, err = signing.EncodeParameters(p.Params); err != nil {
			t.Fatal(err)
		}
	}
	if p.Order.Parameters == "" {
		p.Order.Parameters = signing.Digest(params)
	}
	if p.Order.Secrets == nil {
		p.Order.Secrets = map[string]string{}
		for name, value := range p.Secrets {
			p.Order.Secrets[name] = signing.Commitment(challenge, name, value)
		}
	}
	if secrets, err = signing.EncodeParameters(p.Secrets); err != nil {
		t.Fatal(err)
	}
	return params, secrets
}

// Submit sends a plan, its secrets bound to a challenge.
func (p *Plan) Submit(t testing.TB, challenge []byte, frame func(wire.Type, []byte)) {
	t.Helper()
	params, secrets := p.Bind(t, challenge)
	env := p.Env
	if env == nil {
		env = Sign(t, &p.Order, p.By...)
	}
	for _, r := range p.Roots {
		frame(wire.Root, r)
	}
	if p.List != nil {
		frame(wire.Allowlist, p.List)
	}
	frame(wire.Order, env)
	frame(wire.Parameters, params)
	if p.Script != nil {
		frame(wire.Script, p.Script)
	}
	frame(wire.Secrets, secrets)
}

// Answer reads output and receipt of a host, and holds the one against the other. Where there is no receipt the output
// is what came until then.
func Answer(r *wire.Reader, key signing.Key) (*signing.Receipt, string, error) {
	var out bytes.Buffer
	for {
		kind, payload, err := r.Next()
		if err != nil {
			return nil, out.String(), err
		}
		if kind == wire.Output {
			out.Write(payload)
			continue
		}
		if kind != wire.Receipt {
			return nil, "", fmt.Errorf("frame %s", kind)
		}
		c, err := signing.OpenReceipt(payload, key)
		if err != nil {
			return nil, "", err
		}
		ran := c.Outcome != signing.OutcomeRefused && c.Outcome != signing.OutcomeInterrupted
		if ran && (c.Output.Digest != signing.Digest(out.Bytes()) || c.Output.Kept != int64(out.Len())) {
			return nil, "", fmt.Errorf("receipt tells of other output than the %d bytes that came: %+v", out.Len(), c.Output)
		}
		return c, out.String(), nil
	}
}
