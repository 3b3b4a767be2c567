package signing_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// signer makes a key from a letter, so that the example prints the same every time. Real keys
// come from signing/keys.
func signer(letter string) signing.Signer {
	s, err := signing.NewSigner(ed25519.NewKeyFromSeed([]byte(strings.Repeat(letter, 32))))
	if err != nil {
		panic(err)
	}
	return s
}

// From the operator's root to the host's receipt.
func Example() {
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	operator, author, dispatch, host := signer("o"), signer("a"), signer("d"), signer("h")
	role := func(s signing.Signer) signing.RoleKeys {
		return signing.RoleKeys{Keys: []signing.Key{s.Public()}, Threshold: 1}
	}
	issued := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

	// Offline: who may sign what, and which scripts may run with which parameters.
	rootEnvelope, err := signing.Sign(ctx, &signing.Root{
		Version: 1, Issued: issued, Expires: issued.AddDate(1, 0, 0),
		Root: role(operator), Author: role(author), Dispatch: role(dispatch),
	}, operator)
	must(err)
	script := signing.Digest([]byte("#!/bin/bash\nsystemctl enable --now kubelet\n"))
	listEnvelope, err := signing.Sign(ctx, &signing.Allowlist{
		Version: 1, Issued: issued, Expires: issued.AddDate(0, 3, 0),
		Scripts: []signing.AllowedScript{{
			Profile: "tls-bootstrap", Version: "1.0.0", Phase: signing.PhaseJoin, Digest: script,
			Parameters: []signing.Parameter{
				{Name: "KPSSH_CLUSTER_ENDPOINT", Type: signing.ParamEndpoint, Pins: []string{"https://10.0.0.1:6443"}},
				{Name: "KPSSH_BOOTSTRAP_TOKEN", Type: signing.ParamToken, Secret: true},
			},
		}},
	}, author)
	must(err)

	// On the host: a challenge that lives only in this process.
	challenge := []byte(strings.Repeat("x", signing.ChallengeSize))

	// In the controller: one order for this host and this session.
	params := map[string]string{"KPSSH_CLUSTER_ENDPOINT": "https://10.0.0.1:6443"}
	frame, err := signing.EncodeParameters(params)
	must(err)
	listDigest, err := signing.PayloadDigest(listEnvelope)
	must(err)
	const token = "abcdef.0123456789abcdef"
	orderEnvelope, err := signing.Sign(ctx, &signing.Order{
		HostID: "host-1", Challenge: challenge, Allowlist: listDigest,
		Profile: "tls-bootstrap", Version: "1.0.0", Phase: signing.PhaseJoin, Script: script,
		Claim: "7d0f", Fence: 1, Parameters: signing.Digest(frame),
		Secrets:        map[string]string{"KPSSH_BOOTSTRAP_TOKEN": signing.Commitment(challenge, "KPSSH_BOOTSTRAP_TOKEN", token)},
		TimeoutSeconds: 600,
	}, dispatch)
	must(err)

	// On the host again: everything is verified before anything is done.
	root, err := signing.OpenFirstRoot(rootEnvelope)
	must(err)
	list, err := signing.OpenAllowlist(listEnvelope, root)
	must(err)
	must(signing.CheckExpiry(list.Expires, issued.Add(time.Hour)))
	order, err := signing.OpenOrder(orderEnvelope, root)
	must(err)
	allowed, err := list.Find(order.Profile, order.Version, order.Phase, order.Script)
	must(err)
	must(allowed.Check(params, []string{"KPSSH_BOOTSTRAP_TOKEN"}))
	fmt.Println("run", order.Phase, "of", order.Profile)

	// The order, changed by one byte; an attacker's endpoint; the order in the place of a list.
	_, err = signing.OpenOrder([]byte(strings.Replace(string(orderEnvelope), "ey", "fy", 1)), root)
	fmt.Println(signing.ReasonOf(err))
	fmt.Println(signing.ReasonOf(allowed.Check(map[string]string{"KPSSH_CLUSTER_ENDPOINT": "https://evil.example:6443"}, []string{"KPSSH_BOOTSTRAP_TOKEN"})))
	_, err = signing.OpenAllowlist(orderEnvelope, root)
	fmt.Println(signing.ReasonOf(err))

	// The host's answer, which only this host can give.
	digest, err := signing.PayloadDigest(orderEnvelope)
	must(err)
	receiptEnvelope, err := signing.Sign(ctx, &signing.Receipt{
		HostID: order.HostID, Order: digest, Challenge: challenge, Claim: order.Claim, Fence: order.Fence,
		Profile: order.Profile, Version: order.Version, Phase: order.Phase, Script: order.Script,
		Parameters: order.Parameters, Outcome: signing.OutcomeOK, Started: issued, Finished: issued.Add(time.Second),
	}, host)
	must(err)
	receipt, err := signing.OpenReceipt(receiptEnvelope, host.Public())
	must(err)
	fmt.Println(receipt.Outcome)

	// Output:
	// run join of tls-bootstrap
	// untrusted
	// pin
	// wrong-type
	// ok
}

// The smallest document as it is on the wire: the worked example of the package comment.
func ExampleSign() {
	envelope, err := signing.Sign(context.Background(), &signing.Receipt{
		HostID: "host-1", Outcome: signing.OutcomeRefused, Reason: signing.ReasonExpired,
	}, signer("h"))
	if err != nil {
		panic(err)
	}
	in, err := signing.Inspect(envelope, signer("h").Public())
	if err != nil {
		panic(err)
	}
	fmt.Println(string(in.Payload))
	fmt.Println(string(envelope))
	fmt.Println(in.SignedBy[0])
	// Output:
	// {"hostID":"host-1","bootID":"","order":"","challenge":"","claim":"","fence":0,"profile":"","version":"","phase":"","script":"","parameters":"","outcome":"refused","reason":"expired","exitCode":0,"output":{"bytes":0,"kept":0,"digest":"","truncated":false},"started":"0001-01-01T00:00:00Z","finished":"0001-01-01T00:00:00Z","durationMillis":0}
	// {"payloadType":"application/vnd.kpssh.receipt.v1+json","payload":"eyJob3N0SUQiOiJob3N0LTEiLCJib290SUQiOiIiLCJvcmRlciI6IiIsImNoYWxsZW5nZSI6IiIsImNsYWltIjoiIiwiZmVuY2UiOjAsInByb2ZpbGUiOiIiLCJ2ZXJzaW9uIjoiIiwicGhhc2UiOiIiLCJzY3JpcHQiOiIiLCJwYXJhbWV0ZXJzIjoiIiwib3V0Y29tZSI6InJlZnVzZWQiLCJyZWFzb24iOiJleHBpcmVkIiwiZXhpdENvZGUiOjAsIm91dHB1dCI6eyJieXRlcyI6MCwia2VwdCI6MCwiZGlnZXN0IjoiIiwidHJ1bmNhdGVkIjpmYWxzZX0sInN0YXJ0ZWQiOiIwMDAxLTAxLTAxVDAwOjAwOjAwWiIsImZpbmlzaGVkIjoiMDAwMS0wMS0wMVQwMDowMDowMFoiLCJkdXJhdGlvbk1pbGxpcyI6MH0=","signatures":[{"sig":"nJMse0l5sbou+Hz95K0SC/0bmQzFrSRydni6I0kHu/1sInxb6sCHoqNci18aA7zgO73SrN6YjktfZBGh4ockDg=="}]}
	// ed25519:MCowBQYDK2VwAyEAVLDYHQ+n0A5KfWAN+rpvKyIDWyL+M14X7fX5qluwUHQ=
}
