package main

import (
	"context"
	"encoding/base64"
	"os"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

// makeOrder is the script command "makeorder FILE [FLAW]": it orders the join of profile demo with the
// dispatch key of trust/, and leaves the parameters in parameters.json. A flaw is what it gets wrong:
// endpoint, script or key.
func makeOrder(ts *testscript.TestScript, _ bool, args []string) {
	read := func(path string) []byte {
		data, err := os.ReadFile(ts.MkAbs(path))
		ts.Check(err)
		return data
	}
	flaw := ""
	if len(args) > 1 {
		flaw = args[1]
	}
	secret, err := manifest.ReadSecret(read("trust/manifests/20-dispatch-key.secret.yaml"))
	ts.Check(err)
	signer, err := keys.FromSecret(secret)
	ts.Check(err)
	if flaw == "key" {
		signer, err = newSigner()
		ts.Check(err)
	}
	allowlist, err := signing.PayloadDigest(read("trust/public/allowlist.json"))
	ts.Check(err)
	params := map[string]string{
		"KPSSH_CLUSTER_ENDPOINT": "https://10.0.0.1:6443", "KPSSH_CLUSTER_CA_B64": base64.StdEncoding.EncodeToString(read("ca.crt")),
		"KPSSH_NODE_NAME": "n", "KPSSH_NODE_LABELS": "", "KPSSH_PROVIDER_ID": "kpssh://a/b",
		"KPSSH_TAINTS": "karpenter.sh/unregistered:NoExecute", "KPSSH_HOST_ADDRESS": "10.0.0.2", "KPSSH_NODE_ADDRESS": "10.0.0.2",
	}
	if flaw == "endpoint" {
		params["KPSSH_CLUSTER_ENDPOINT"] = "https://10.0.0.66:6443"
	}
	frame, err := signing.EncodeParameters(params)
	ts.Check(err)
	script := []byte("true")
	if flaw == "script" {
		script = []byte("false")
	}
	challenge := make([]byte, signing.ChallengeSize)
	envelope, err := signing.Sign(context.Background(), &signing.Order{
		HostID: "host-1", Challenge: challenge, Allowlist: allowlist, Profile: "demo", Version: "1", Phase: signing.PhaseJoin,
		Script: signing.Digest(script), Claim: "uid-1", Fence: 1, Parameters: signing.Digest(frame), TimeoutSeconds: 60,
		Secrets: map[string]string{"KPSSH_BOOTSTRAP_TOKEN": signing.Commitment(challenge, "KPSSH_BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef")},
	}, signer)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("parameters.json"), frame, 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), envelope, 0o600))
}
