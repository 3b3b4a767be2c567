// Package wycheproof runs the signature vectors of Project Wycheproof (C2SP/wycheproof) against
// package signing. It is a package of its own because theirs embeds all of their files, which no
// other test binary should carry.
package wycheproof

import (
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"testing"

	"github.com/c2sp/wycheproof"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// group is what their signature files have in common.
type group struct {
	PublicKeyDER string `json:"publicKeyDer"`
	Tests        []struct {
		ID       int `json:"tcId"`
		Comment  string
		Msg, Sig string
		Result   string // valid, invalid, acceptable
		Flags    []string
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func groups(t *testing.T, file string) []group {
	t.Helper()
	text, err := fs.ReadFile(wycheproof.TestVectors, file)
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ TestGroups []group }
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all.TestGroups
}

// Case by case: no key of theirs is refused, and no signature is judged otherwise than they do. What is
// not in DER is refused, right or wrong.
func TestWycheproof(t *testing.T) {
	for file, c := range map[string]struct {
		algorithm string
		// least is how many cases, and of them invalid ones, there were when this was written.
		least, invalid int
		// none says that no signature is of our form, good or bad.
		none bool
	}{
		"ed25519_test.json":                      {signing.AlgorithmEd25519, 151, 63, false},
		"ecdsa_secp256r1_sha256_test.json":       {signing.AlgorithmECDSAP256, 484, 310, false},
		"ecdsa_secp256r1_sha256_p1363_test.json": {signing.AlgorithmECDSAP256, 262, 0, true},
	} {
		t.Run(file, func(t *testing.T) {
			cases, invalid := 0, 0
			for _, g := range groups(t, file) {
				key, err := signing.ParseKey(signing.Key{Algorithm: c.algorithm, Public: unhex(t, g.PublicKeyDER)}.String())
				if err != nil {
					t.Fatalf("key %s: %v", g.PublicKeyDER, err)
				}
				for _, v := range g.Tests {
					cases++
					want := v.Result == "valid" && !c.none
					if v.Result != "valid" {
						invalid++
					}
					if got := key.Verify(unhex(t, v.Msg), unhex(t, v.Sig)); got != want {
						t.Errorf("case %d (%s %v), %s: Verify says %v", v.ID, v.Comment, v.Flags, v.Result, got)
					}
				}
			}
			if cases < c.least || invalid < c.invalid {
				t.Errorf("%d cases, %d of them invalid; there were %d and %d", cases, invalid, c.least, c.invalid)
			}
		})
	}
}
