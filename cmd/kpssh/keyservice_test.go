package main

import (
	"crypto/elliptic"
	"fmt"
	"os"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/kpssh/karpenter-provider-ssh/signing/keys/keystest"
)

// scriptT is a script as keystest wants it.
type scriptT struct{ *testscript.TestScript }

func (s scriptT) Helper()                   {}
func (s scriptT) Cleanup(f func())          { s.Defer(f) }
func (s scriptT) Fatal(args ...any)         { s.Fatalf("%s", fmt.Sprint(args...)) }
func (s scriptT) Errorf(f string, a ...any) { s.Logf(f, a...) }

// startTransit is the script command "transit": Vault's transit engine in memory, with the key kpssh-ed25519, and
// where it is in the environment.
func startTransit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: transit")
	}
	v := keystest.NewVault(scriptT{ts}, keystest.Ed25519)
	ts.Setenv("VAULT_ADDR", v.URL)
	ts.Setenv("VAULT_TOKEN", keystest.VaultToken)
}

// makeCosignKey is the script command "cosignkey NAME PASSPHRASE": it writes NAME.key and NAME.pub as
// `cosign generate-key-pair` does, by the code that it uses.
func makeCosignKey(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: cosignkey NAME PASSPHRASE")
	}
	private, public, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), cryptoutils.StaticPasswordFunc([]byte(args[1])))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".key"), private, 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".pub"), public, 0o600))
}
