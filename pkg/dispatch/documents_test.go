package dispatch

import (
	"bytes"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// What somebody put around a signature is not passed on to hosts.
func TestHostsAreSentDocumentsWithoutPadding(t *testing.T) {
	signer, err := signing.NewSigner(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	issued := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	role := signing.RoleKeys{Keys: []signing.Key{signer.Public()}, Threshold: 1}
	signed := func(version int64) []byte {
		root := signing.Root{Version: version, Issued: issued, Expires: issued.AddDate(1, 0, 0), Root: role, Author: role, Dispatch: role}
		envelope, err := signing.Sign(t.Context(), &root, signer)
		if err != nil {
			t.Fatal(err)
		}
		return envelope
	}
	roots := map[int64][]byte{1: signed(1), 2: signed(2)}
	list, err := signing.Sign(t.Context(), &signing.Allowlist{Version: 1, Issued: issued, Expires: issued.AddDate(1, 0, 0)}, signer)
	if err != nil {
		t.Fatal(err)
	}
	pad := func(envelope []byte) []byte {
		return append(bytes.TrimSuffix(bytes.Clone(envelope), []byte("}")), `,"x":"<<<<"}`...)
	}
	docs, err := verifyDocuments(map[int64][]byte{1: pad(roots[1]), 2: pad(roots[2])}, pad(list))
	if err != nil {
		t.Fatal(err)
	}
	frames, err := docs.missing(&signing.Hello{Root: signing.DocumentRef{Version: 1, Digest: docs.refs[1]}})
	if err != nil || len(frames) != 2 {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	for i, want := range [][]byte{roots[2], list} {
		if !bytes.Equal(frames[i].payload, want) {
			t.Errorf("frame %d is %s", i, frames[i].payload)
		}
	}
}
