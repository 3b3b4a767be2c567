// Package shimtest stands around a shim in tests: it has every key and signs every document, makes the orders that a good
// controller makes, for a test to bend, and holds a host's answer against its receipt.
package shimtest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const (
	// Profile is whose scripts are ordered, in version 1.
	Profile = "tls-bootstrap"

	year = 365 * 24 * time.Hour
)

// Trust is every key and every document.
type Trust struct {
	T        testing.TB
	Root     []signing.Signer
	Author   signing.Signer
	Dispatch signing.Signer

	RootDoc signing.Root
	Roots   map[int64][]byte // envelopes by version
	List    signing.Allowlist
	ListEnv []byte
}

// NewTrust has a root and an allowlist of version 1 that were issued at a time.
func NewTrust(t testing.TB, issued time.Time, scripts ...signing.AllowedScript) *Trust {
	t.Helper()
	w := &Trust{T: t, Root: []signing.Signer{NewSigner(t)}, Author: NewSigner(t), Dispatch: NewSigner(t), Roots: map[int64][]byte{}}
	w.RootDoc = signing.Root{
		Version: 1, Issued: issued, Expires: issued.Add(5 * year),
		Root: Role(1, w.Root...), Author: Role(1, w.Author), Dispatch: Role(1, w.Dispatch),
	}
	w.Roots[1] = Sign(t, &w.RootDoc, w.Root...)
	w.List = signing.Allowlist{Version: 1, Issued: issued, Expires: issued.Add(year), Scripts: scripts}
	w.ListEnv = Sign(t, &w.List, w.Author)
	return w
}

// NewSigner makes a key.
func NewSigner(t testing.TB) signing.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := signing.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Role is that of the signers' keys.
func Role(threshold int, signers ...signing.Signer) signing.RoleKeys {
	r := signing.RoleKeys{Threshold: threshold}
	for _, s := range signers {
		r.Keys = append(r.Keys, s.Public())
	}
	return r
}

// Sign signs a document.
func Sign[T signing.Document](t testing.TB, doc *T, by ...signing.Signer) []byte {
	t.Helper()
	envelope, err := signing.Sign(context.Background(), doc, by...)
	if err != nil {
		t.Fatalf("signing %T: %v", doc, err)
	}
	return envelope
}

// NewList signs the next allowlist.
func (w *Trust) NewList(change func(*signing.Allowlist)) {
	w.T.Helper()
	w.List.Scripts = slices.Clone(w.List.Scripts)
	w.List.Version++
	change(&w.List)
	w.ListEnv = Sign(w.T, &w.List, w.Author)
}

// NewRoot signs the next root with the root keys of before and of after; change may replace keys of w.
func (w *Trust) NewRoot(change func(*signing.Root)) {
	w.T.Helper()
	by := slices.Clone(w.Root)
	w.RootDoc.Version++
	change(&w.RootDoc)
	for _, s := range w.Root {
		if !slices.Contains(by, s) {
			by = append(by, s)
		}
	}
	w.Roots[w.RootDoc.Version] = Sign(w.T, &w.RootDoc, by...)
}

// Snapshot is every byte, mode and time of a state directory.
func Snapshot(t testing.TB, state string) string {
	t.Helper()
	all := map[string]string{}
	err := filepath.Walk(state, func(path string, info fs.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if info.IsDir() {
			all[path] = info.Mode().String()
			return nil
		}
		data, err := os.ReadFile(path)
		all[path] = info.Mode().String() + " " + info.ModTime().String() + " " + signing.Digest(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
