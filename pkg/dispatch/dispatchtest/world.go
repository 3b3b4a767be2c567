// Package dispatchtest is a cluster's keys and documents, and hosts in the test's own process that
// speak the shim's protocol over real SSH with real signatures. It is for tests of what is built on
// pkg/dispatch, at a scale and with faults that real hosts do not offer. Nothing is executed.
package dispatchtest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"maps"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote"
	"github.com/kpssh/karpenter-provider-ssh/pkg/remote/remotetest"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// TB is what is needed of a test, so that a benchmark program can stand in for one.
type TB interface {
	Helper()
	Fatal(args ...any)
	Cleanup(func())
}

// World is a cluster: the keys of all roles, what they have signed, and one SSH key.
type World struct {
	tb     TB
	author signing.Signer
	sshKey ssh.Signer

	mu       sync.Mutex
	root     signing.Root
	rootKey  signing.Signer
	dispatch signing.Signer
	list     signing.Allowlist
	roots    map[int64][]byte
	envelope []byte
}

// NewWorld makes all keys, root document 1 and an empty allowlist 1.
func NewWorld(tb TB) *World {
	tb.Helper()
	key, err := remotetest.GenerateKey()
	if err != nil {
		tb.Fatal(err)
	}
	w := &World{tb: tb, author: NewSigner(tb), rootKey: NewSigner(tb), dispatch: NewSigner(tb), sshKey: key, roots: map[int64][]byte{}}
	issued := time.Now().Add(-time.Hour)
	w.list = signing.Allowlist{Issued: issued, Expires: issued.Add(365 * 24 * time.Hour)}
	w.root = signing.Root{Issued: issued, Expires: issued.Add(5 * 365 * 24 * time.Hour)}
	w.Rotate(func(root *signing.Root) {
		one := func(s signing.Signer) signing.RoleKeys {
			return signing.RoleKeys{Keys: []signing.Key{s.Public()}, Threshold: 1}
		}
		root.Root, root.Author, root.Dispatch = one(w.rootKey), one(w.author), one(w.dispatch)
	})
	w.Allow()
	return w
}

// NewSigner makes an ed25519 key.
func NewSigner(tb TB) signing.Signer {
	tb.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	signer, err := signing.NewSigner(private)
	if err != nil {
		tb.Fatal(err)
	}
	return signer
}

// Rotate publishes the next root document, changed as told.
func (w *World) Rotate(change func(*signing.Root)) {
	w.tb.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.root.Version++
	change(&w.root)
	envelope, err := signing.Sign(context.Background(), &w.root, w.rootKey)
	if err != nil {
		w.tb.Fatal(err)
	}
	w.roots[w.root.Version] = envelope
}

// Allow publishes the next allowlist, with these scripts added.
func (w *World) Allow(scripts ...signing.AllowedScript) {
	w.tb.Helper()
	w.Change(func(list *signing.Allowlist) { list.Scripts = append(list.Scripts, scripts...) })
}

// Change publishes the next allowlist, changed as told.
func (w *World) Change(change func(*signing.Allowlist)) {
	w.tb.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list.Version++
	change(&w.list)
	envelope, err := signing.Sign(context.Background(), &w.list, w.author)
	if err != nil {
		w.tb.Fatal(err)
	}
	w.envelope = envelope
}

// Script is an allowlist entry for a script.
func Script(profile, version string, phase signing.Phase, script []byte, parameters ...signing.Parameter) signing.AllowedScript {
	return signing.AllowedScript{Profile: profile, Version: version, Phase: phase, Digest: signing.Digest(script), Parameters: parameters}
}

// Documents implements dispatch.Trust.
func (w *World) Documents() (map[int64][]byte, []byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.roots), w.envelope, nil
}

// Signer is the dispatch key.
func (w *World) Signer() signing.Signer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dispatch
}

// SetSigner replaces the dispatch key, without listing the new one anywhere.
func (w *World) SetSigner(s signing.Signer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dispatch = s
}

// Dispatcher makes a dispatcher of this cluster with a connection pool of its own; options may change
// what it is made of.
func (w *World) Dispatcher(options ...func(*dispatch.Options)) *dispatch.Dispatcher {
	pool := remote.NewPool(remote.PoolOptions{})
	w.tb.Cleanup(func() { _ = pool.Close() })
	o := dispatch.Options{Trust: w, Signer: w.Signer(), Pool: pool}
	for _, change := range options {
		change(&o)
	}
	return dispatch.New(o)
}
