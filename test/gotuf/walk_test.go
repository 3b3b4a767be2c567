// Package gotuf holds our walk along roots against that of go-tuf, whose rule it is (TUF 5.3).
package gotuf

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/theupdateframework/go-tuf/v2/metadata"
	"github.com/theupdateframework/go-tuf/v2/metadata/trustedmetadata"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

var (
	issued  = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	expires = time.Date(2106, 5, 1, 12, 0, 0, 0, time.UTC)
)

// version is one root: whose keys it lists, how many must sign, and who did.
type version struct {
	number        int64
	keys, signers []int
	threshold     int
	ours, theirs  []byte
}

func private(i int) ed25519.PrivateKey {
	seed := sha256.Sum256(fmt.Append(nil, "gotuf ", i))
	return ed25519.NewKeyFromSeed(seed[:])
}

// random draws a root that more often than not follows the one before.
func random(r *rand.Rand, before *version) *version {
	v := &version{number: 1, keys: some(r, 1+r.IntN(4)), threshold: 1}
	v.threshold = 1 + r.IntN(len(v.keys))
	if before == nil {
		v.signers = v.keys
		return v
	}
	v.number = before.number + []int64{1, 1, 1, 1, 1, 1, 0, 2, -1}[r.IntN(9)]
	if r.IntN(2) == 0 {
		v.keys = before.keys
	}
	v.threshold = 1 + r.IntN(len(v.keys))
	// Enough of both sets, or anybody.
	v.signers = union(some(r, 1+r.IntN(3)), some(r, r.IntN(3)))
	if r.IntN(4) > 0 {
		v.signers = union(before.keys[:min(len(before.keys), before.threshold+r.IntN(2))], v.keys[:min(len(v.keys), v.threshold)])
	}
	return v
}

func some(r *rand.Rand, n int) []int { return r.Perm(6)[:n] }

func union(a, b []int) (all []int) {
	seen := map[int]bool{}
	for _, i := range append(append([]int{}, a...), b...) {
		if !seen[i] {
			seen[i], all = true, append(all, i)
		}
	}
	return all
}

func (v *version) write(t *testing.T) {
	t.Helper()
	root := signing.RoleKeys{Threshold: v.threshold}
	theirs := metadata.Root(expires)
	theirs.Signed.Version = v.number
	for _, i := range v.keys {
		key, err := signing.KeyOf(private(i).Public())
		if err != nil {
			t.Fatal(err)
		}
		root.Keys = append(root.Keys, key)
		tufKey, err := metadata.KeyFromPublicKey(private(i).Public())
		if err != nil {
			t.Fatal(err)
		}
		if err := theirs.Signed.AddKey(tufKey, metadata.ROOT); err != nil {
			t.Fatal(err)
		}
	}
	theirs.Signed.Roles[metadata.ROOT].Threshold = v.threshold
	var signers []signing.Signer
	for _, i := range v.signers {
		s, err := signing.NewSigner(private(i))
		if err != nil {
			t.Fatal(err)
		}
		signers = append(signers, s)
		tufSigner, err := signature.LoadED25519Signer(private(i))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.Sign(tufSigner); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if v.theirs, err = theirs.ToBytes(false); err != nil {
		t.Fatal(err)
	}
	v.ours, err = signing.Sign(context.Background(), &signing.Root{
		Version: v.number, Issued: issued, Expires: expires, Root: root, Author: root, Dispatch: root,
	}, signers...)
	if err != nil {
		t.Fatal(err)
	}
}

func TestWeWalkRootsAsGoTUFDoes(t *testing.T) {
	const chains = 100
	taken, refused := 0, 0
	for seed := range uint64(chains) {
		r := rand.New(rand.NewPCG(seed, 1))
		first := random(r, nil)
		first.write(t)
		ours, err := signing.OpenFirstRoot(first.ours)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := trustedmetadata.New(first.theirs)
		if err != nil {
			t.Fatal(err)
		}
		before := first
		for range 4 {
			v := random(r, before)
			if v.number < 1 {
				continue
			}
			v.write(t)
			next, ourErr := signing.NextRoot(ours, v.ours)
			_, theirErr := theirs.UpdateRoot(v.theirs)
			if (ourErr == nil) != (theirErr == nil) {
				t.Fatalf("chain %d: after version %d of keys %v (%d must sign) comes version %d of keys %v (%d must sign), signed by %v: we say %v, go-tuf %v",
					seed, before.number, before.keys, before.threshold, v.number, v.keys, v.threshold, v.signers, ourErr, theirErr)
			}
			if ourErr != nil {
				refused++
				continue
			}
			ours, before = next, v
			taken++
		}
	}
	if taken < chains/2 || refused < chains/2 {
		t.Errorf("%d roots were taken and %d refused: the chains show little", taken, refused)
	}
	t.Logf("%d roots were taken by both, %d refused by both", taken, refused)
}
