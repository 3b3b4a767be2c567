package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

const hostileRounds = 200

// document is one kind of document that a host reads from somebody it does not trust yet.
type document struct {
	name, kind string
	most       int // bytes of an envelope
	good       []byte
	open       func([]byte) error
}

// hostile measures what it costs to refuse the dearest envelopes that were found, beside accepting a good one of the
// same kind. Only the dearest is reported.
func (b *bench) hostile(ctx context.Context) ([]Result, error) {
	documents, err := goodDocuments(ctx)
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, d := range documents {
		var worst Result
		for name, envelope := range hostileEnvelopes(d) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			pairs, err := d.refuse(envelope)
			if err != nil {
				return nil, fmt.Errorf("refusing %s as %s: %w", name, d.name, err)
			}
			r := goal{
				figure: "P9 " + d.name, what: "refusing the worst envelope (" + name + ") / accepting a good one",
				most: 2, required: true, quantile: 0.5, unit: "s",
			}.judge(pairs)
			if r.Ratio > worst.Ratio {
				worst = r
			}
		}
		results = append(results, worst)
	}
	return results, nil
}

// refuse measures refusals of envelope and acceptances of the good one in turns.
func (d document) refuse(envelope []byte) (*sides, error) {
	var pairs sides
	for range hostileRounds {
		rejected, err := timed(func() error { return d.open(envelope) })
		if err == nil {
			return nil, errors.New("it was accepted")
		}
		accepted, err := timed(func() error { return d.open(d.good) })
		if err != nil {
			return nil, err
		}
		pairs.add(rejected, accepted)
	}
	return &pairs, nil
}

// goodDocuments are a root, an allowlist of a dozen profiles and an order as a join has it.
func goodDocuments(ctx context.Context) ([]document, error) {
	var signers [4]signing.Signer
	var public [4]signing.Key
	for i := range signers {
		private, err := keys.Make(keys.Ed25519)
		if err != nil {
			return nil, err
		}
		if signers[i], err = signing.NewSigner(private); err != nil {
			return nil, err
		}
		public[i] = signers[i].Public()
	}
	now := time.Now().UTC().Truncate(time.Second)
	role := func(k ...signing.Key) signing.RoleKeys { return signing.RoleKeys{Threshold: 1, Keys: k} }
	root := &signing.Root{
		Version: 1, Issued: now, Expires: now.AddDate(1, 0, 0),
		Root: role(public[0], public[1]), Author: role(public[2]), Dispatch: role(public[3]),
	}
	rootEnvelope, err := signing.Sign(ctx, root, signers[0])
	if err != nil {
		return nil, err
	}
	opened, err := signing.OpenFirstRoot(rootEnvelope)
	if err != nil {
		return nil, err
	}
	list, err := signing.Sign(ctx, largeAllowlist(now), signers[2])
	if err != nil {
		return nil, err
	}
	order, err := signing.Sign(ctx, goodOrder(), signers[3])
	if err != nil {
		return nil, err
	}
	return []document{
		{"root", signing.TypeRoot, 64 << 10, rootEnvelope, func(e []byte) error { _, err := signing.OpenFirstRoot(e); return err }},
		{"allowlist", signing.TypeAllowlist, 1 << 20, list, func(e []byte) error { _, err := signing.OpenAllowlist(e, opened); return err }},
		{"order", signing.TypeOrder, 8 << 10, order, func(e []byte) error { _, err := signing.OpenOrder(e, opened); return err }},
	}, nil
}

// largeAllowlist is about as long as an allowlist may be (three quarters of it): its hostile sisters are, and reading takes its time
// whoever signed. A script has the parameters that a join has.
func largeAllowlist(now time.Time) *signing.Allowlist {
	list := &signing.Allowlist{Version: 1, Issued: now, Expires: now.AddDate(0, 3, 0)}
	for i := range 1000 {
		list.Scripts = append(list.Scripts, signing.AllowedScript{
			Profile: fmt.Sprintf("profile-%03d", i), Version: "1", Phase: signing.PhaseJoin,
			Digest: signing.Digest(fmt.Append(nil, i)),
			Parameters: []signing.Parameter{
				{Name: "KPSSH_CLUSTER_ENDPOINT", Type: signing.ParamEndpoint, Pins: []string{"https://192.0.2.1:6443"}},
				{Name: "KPSSH_NODE_NAME", Type: signing.ParamNodeName},
				{Name: "KPSSH_PROVIDER_ID", Type: signing.ParamURI},
				{Name: "KPSSH_HOST_ADDRESS", Type: signing.ParamHost},
				{Name: "KPSSH_NODE_ADDRESS", Type: signing.ParamIP},
				{Name: "KPSSH_NODE_LABELS", Type: signing.ParamLabels},
				{Name: "KPSSH_BOOTSTRAP_TOKEN", Type: signing.ParamToken, Secret: true},
				{Name: "KPSSH_VAR_POOL", Type: signing.ParamString, Pattern: "[a-z]{1,20}", MaxLength: 20},
			},
		})
	}
	return list
}

func goodOrder() *signing.Order {
	return &signing.Order{
		HostID: "00112233445566778899aabbccddeeff", Challenge: make([]byte, signing.ChallengeSize),
		Allowlist: signing.Digest(nil), Profile: benchProfile, Version: "1", Phase: signing.PhaseJoin,
		Script: signing.Digest(nil), Claim: "claim", Fence: 1, Parameters: signing.Digest(nil),
		Secrets:        map[string]string{"KPSSH_BOOTSTRAP_TOKEN": signing.Digest(nil)},
		TimeoutSeconds: 60,
	}
}

// hostileEnvelopes are as long as an envelope of the kind may be, each of them dear in its own way. None of them takes a
// key to make.
func hostileEnvelopes(d document) map[string][]byte {
	head := fmt.Sprintf(`{"payloadType":%q,"payload":"`, d.kind)
	junk := `{"sig":"` + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 64)) + `"}`
	eight := `"signatures":[` + strings.Repeat(junk+",", 7) + junk + `]}`
	fill := func(prefix, unit, suffix string) []byte {
		n := (d.most - len(prefix) - len(suffix)) / len(unit)
		return []byte(prefix + strings.Repeat(unit, n) + suffix)
	}
	return map[string][]byte{
		"eight signatures, full payload": fill(head, "eHh4", `",`+eight),
		"twenty thousand signatures":     []byte(head + `eHh4","signatures":[` + strings.Repeat(junk+",", 20000) + junk + `]}`),
		"signatures without end":         fill(head+`eHh4","signatures":[`, `{},`, `{}]}`),
		"deep":                           fill(`{"x":`, `[`, ``),
		"numbers":                        fill(`{"x":[`, `1e9,`, `0]}`),
		"one number":                     fill(`{"x":`, `1`, `}`),
		"escapes":                        fill(`{"payload":"`, `\u0041`, `"}`),
		"white space":                    fill(`{"x":`, ` `, `0}`),
		"text of three bytes a letter":   fill(`{"x":"`, `ಠ`, `"}`),
		"no JSON at all":                 bytes.Repeat([]byte{0}, d.most),
	}
}
