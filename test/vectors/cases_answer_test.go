package vectors

import (
	"bytes"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// confusions presents every document in every place but its own (A13), under its own type and signed
// with the key of the place.
func (m *maker) confusions() {
	type document struct {
		name, payloadType string
		payload           []byte
		signer            signing.Signer
	}
	documents := []document{
		{"root", signing.TypeRoot, encode(m.t, &m.rootDoc), m.root},
		{"allowlist", signing.TypeAllowlist, encode(m.t, &m.list), m.author},
		{"order", signing.TypeOrder, encode(m.t, &m.order), m.dispatch},
		{"hello", signing.TypeHello, encode(m.t, &m.hello), m.host},
		{"receipt", signing.TypeReceipt, encode(m.t, &m.receipt), m.host},
	}
	attestation := document{"cosign attestation", "application/vnd.in-toto+json", []byte(`{"_type":"https://in-toto.io/Statement/v1"}`), nil}
	for _, place := range documents {
		for _, d := range append(slices.Clone(documents), attestation) {
			if d.name == place.name {
				continue
			}
			e := m.sealed(d.payloadType, d.payload, place.signer)
			about := "a " + d.name + " as " + place.name
			switch place.name {
			case "root":
				m.add("root", signing.ReasonWrongType, "A13", about, chain(m.rootEnvelope, e), settings{})
			case "allowlist":
				m.add("allowlist", signing.ReasonWrongType, "A13", about, map[string][]byte{"allowlist.json": e}, settings{})
			case "order":
				m.orders(signing.ReasonWrongType, "A13", about, e, nil)
			default:
				m.answer(place.name, signing.ReasonWrongType, "A13", about, e)
			}
		}
		if d := documents[0]; place.name == "order" {
			m.orders(signing.ReasonMalformed, "A13", "a root relabelled as order", m.sealed(signing.TypeOrder, d.payload, place.signer), nil)
		}
	}
}

// answer adds a case of a hello or a receipt.
func (m *maker) answer(kind string, want signing.Reason, from, about string, envelope []byte) {
	m.add(kind, want, from, about, map[string][]byte{kind + ".json": envelope}, settings{HostID: hostID, Key: m.host.Public().String()})
}

func (m *maker) hellos() {
	hello := func(want signing.Reason, from, about string, change func(*signing.Hello), signer signing.Signer) {
		h := m.hello
		if change != nil {
			change(&h)
		}
		m.answer("hello", want, from, about, m.sealed(signing.TypeHello, encode(m.t, &h), signer))
	}
	hello("", "", "a host that is free", nil, m.host)
	hello("", "", "a host that has run something", func(h *signing.Hello) {
		h.Claim = signing.Claim{UID: claim, Fence: 7}
		h.LastRun = &signing.RunRef{
			Order: m.receipt.Order, Claim: claim, Profile: profile, Version: version, Phase: signing.PhaseJoin, Script: m.order.Script,
			BootID: h.BootID, State: signing.RunFinished, Outcome: signing.OutcomeOK, Deadline: 600,
		}
	}, m.host)
	hello(signing.ReasonUntrusted, "D13", "signed by another host", nil, m.nobody)
	hello(signing.ReasonWrongHost, "D7", "of another host with the same key", func(h *signing.Hello) { h.HostID = "f0f0" }, m.host)
	hello(signing.ReasonUnsupportedProto, "", "a protocol of the future", func(h *signing.Hello) { h.Protocol = 2 }, m.host)
	hello(signing.ReasonMalformed, "D7", "findings that are not sorted", func(h *signing.Hello) { h.Findings = []string{"tty", "forwarding"} }, m.host)
	hello(signing.ReasonMalformed, "D7", "a finding that is a sentence", func(h *signing.Hello) { h.Findings = []string{"all is well"} }, m.host)
	hello(signing.ReasonMalformed, "D7", "a shim version with an escape sequence", func(h *signing.Hello) { h.ShimVersion = "1\x1b[2J" }, m.host)
	hello(signing.ReasonMalformed, "D7", "a challenge of 31 bytes", func(h *signing.Hello) { h.Challenge = h.Challenge[:31] }, m.host)
	payload := encode(m.t, &m.hello)
	sig := signature(m.t, signing.TypeHello, payload, m.host)
	m.answer("hello", signing.ReasonUntrusted, "D7", "changed after it was signed",
		envelope(signing.TypeHello, bytes.Replace(payload, []byte(`"fence":6`), []byte(`"fence":5`), 1), sig))
}

func (m *maker) receipts() {
	order := m.signOrder(nil)
	receipt := func(want signing.Reason, from, about string, change func(*signing.Receipt), signer signing.Signer) {
		r := m.receipt
		if change != nil {
			change(&r)
		}
		m.add("receipt", want, from, about, map[string][]byte{
			"receipt.json": m.sealed(signing.TypeReceipt, encode(m.t, &r), signer), "order.json": order,
		}, settings{HostID: hostID, Key: m.host.Public().String()})
	}
	refusal := func(r *signing.Receipt) {
		*r = signing.Receipt{
			HostID: hostID, Challenge: r.Challenge, Order: r.Order, Outcome: signing.OutcomeRefused, Reason: signing.ReasonPin,
			Started: during, Finished: during,
		}
	}
	receipt("", "", "a run that went well", nil, m.host)
	receipt("", "", "a run that failed", func(r *signing.Receipt) { r.Outcome, r.ExitCode = signing.OutcomeFailed, 3 }, m.host)
	receipt("", "", "a refusal", refusal, m.host)
	receipt("", "", "a refusal of an order that was never read", func(r *signing.Receipt) { refusal(r); r.Order = "" }, m.host)
	receipt(signing.ReasonUntrusted, "D7", "signed by another host", nil, m.nobody)
	receipt(signing.ReasonWrongHost, "D7", "of another host with the same key", func(r *signing.Receipt) { r.HostID = "f0f0" }, m.host)
	mismatch := func(about string, change func(*signing.Receipt)) {
		receipt(dispatch.ReasonReceiptMismatch, "D7", about, change, m.host)
	}
	mismatch("of another order", func(r *signing.Receipt) { r.Order = signing.Digest([]byte("another")) })
	mismatch("of another session", func(r *signing.Receipt) { r.Challenge = bytes.Repeat([]byte{1}, 32) })
	mismatch("a refusal of another session", func(r *signing.Receipt) { refusal(r); r.Challenge = bytes.Repeat([]byte{1}, 32) })
	mismatch("of another phase", func(r *signing.Receipt) { r.Phase = signing.PhaseLeave })
	mismatch("of another claim", func(r *signing.Receipt) { r.Claim = "other" })
	mismatch("of other parameters", func(r *signing.Receipt) { r.Parameters = signing.Digest(nil) })
	mismatch("a run that went well with exit code 3", func(r *signing.Receipt) { r.ExitCode = 3 })
	malformed := func(about string, change func(*signing.Receipt)) {
		receipt(signing.ReasonMalformed, "D7", about, change, m.host)
	}
	malformed("a refusal without a reason", func(r *signing.Receipt) { refusal(r); r.Reason = "" })
	malformed("a reason without a refusal", func(r *signing.Receipt) { r.Reason = signing.ReasonBusy })
	malformed("more output kept than there was", func(r *signing.Receipt) { r.Output.Kept = 6 })
	malformed("an outcome that nobody knows", func(r *signing.Receipt) { r.Outcome = "fine" })
}
