package dispatch

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// documents are the signed documents, verified from the first root on.
type documents struct {
	roots    map[int64][]byte
	refs     map[int64]string // digests of the roots' payloads
	root     *signing.Root    // the newest
	list     *signing.Allowlist
	listRef  string
	envelope []byte // of list
}

// store verifies documents once, for as long as they stay the same.
type store struct {
	source Trust

	mu     sync.Mutex
	sum    [sha256.Size]byte
	cached *documents
}

// load returns documents that verify, all of them.
func (s *store) load() (*documents, error) {
	docs, err := s.read()
	if err != nil {
		return nil, err
	}
	return docs, nil
}

// read returns, with an error, the roots if they verify.
func (s *store) read() (*documents, error) {
	roots, allowlist, err := s.source.Documents()
	if err != nil {
		return nil, &Error{Class: Config, Reason: ReasonTrustMissing, Detail: fmt.Sprintf("reading trust documents: %v", err), Err: err}
	}
	sum := fingerprint(roots, allowlist)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cached != nil && s.sum == sum {
		return s.cached, nil
	}
	docs, err := verifyDocuments(roots, allowlist)
	if err == nil {
		s.sum, s.cached = sum, docs
	}
	return docs, err
}

func fingerprint(roots map[int64][]byte, allowlist []byte) [sha256.Size]byte {
	h := sha256.New()
	for _, version := range slices.Sorted(maps.Keys(roots)) {
		fmt.Fprintf(h, "%d %x ", version, sha256.Sum256(roots[version]))
	}
	h.Write(allowlist)
	return [sha256.Size]byte(h.Sum(nil))
}

func untrusted(what string, err error) error {
	return &Error{Class: Config, Reason: ReasonTrustMissing, Detail: fmt.Sprintf("%s: %v", what, err)}
}

// sealed is an envelope as hosts get it, without what nobody signed, and the digest of its payload.
func sealed(envelope []byte) ([]byte, string, error) {
	clean, err := signing.Reseal(envelope)
	if err != nil {
		return nil, "", err
	}
	digest, err := signing.PayloadDigest(clean)
	return clean, digest, err
}

// verifyDocuments returns, with an error, the roots if they verify.
func verifyDocuments(roots map[int64][]byte, allowlist []byte) (*documents, error) {
	docs, err := verifyRoots(roots)
	if err != nil {
		return nil, err
	}
	return docs, docs.verifyAllowlist(allowlist)
}

func verifyRoots(roots map[int64][]byte) (*documents, error) {
	docs := &documents{roots: map[int64][]byte{}, refs: map[int64]string{}}
	if len(roots) == 0 {
		return nil, untrusted("reading root document", fmt.Errorf("there is none: run \"kpssh init\""))
	}
	for i, version := range slices.Sorted(maps.Keys(roots)) {
		var err error
		if i == 0 {
			docs.root, err = signing.OpenFirstRoot(roots[version])
		} else {
			docs.root, err = signing.NextRoot(docs.root, roots[version])
		}
		if err == nil && docs.root.Version != version {
			err = fmt.Errorf("it is version %d", docs.root.Version)
		}
		if err != nil {
			return nil, untrusted(fmt.Sprintf("opening root document %d", version), err)
		}
		if docs.roots[version], docs.refs[version], err = sealed(roots[version]); err != nil {
			return nil, untrusted(fmt.Sprintf("opening root document %d", version), err)
		}
	}
	return docs, nil
}

func (docs *documents) verifyAllowlist(allowlist []byte) (err error) {
	if len(allowlist) == 0 {
		return untrusted("reading allowlist", fmt.Errorf("there is none: run \"kpssh profile sign\""))
	}
	if docs.list, err = signing.OpenAllowlist(allowlist, docs.root); err != nil {
		return untrusted("opening allowlist", err)
	}
	if docs.envelope, docs.listRef, err = sealed(allowlist); err != nil {
		return untrusted("opening allowlist", err)
	}
	return nil
}

// allowed is the allowlist's entry for a script, unless that may not run now.
func (docs *documents) allowed(profile, version string, phase signing.Phase, script []byte, now time.Time) (*signing.AllowedScript, error) {
	digest := signing.Digest(script)
	entry, err := docs.list.Find(profile, version, phase, digest)
	if err != nil {
		return nil, &Error{
			Class: Config, Reason: string(signing.ReasonNotAllowed), Phase: phase,
			Detail: fmt.Sprintf("the %s script of profile %q version %q (%s) is not in allowlist version %d: run \"kpssh profile sign\"",
				phase, profile, version, digest, docs.list.Version),
		}
	}
	if err := docs.expired(entry, now); err != nil {
		return nil, &Error{
			Class: Config, Reason: string(signing.ReasonExpired), Phase: phase,
			Detail: fmt.Sprintf("%v: sign a new one with \"kpssh profile sign\" or \"kpssh root new\"", err),
		}
	}
	return entry, nil
}

func (docs *documents) expired(entry *signing.AllowedScript, now time.Time) error {
	grace := time.Duration(entry.GraceSeconds) * time.Second
	if err := signing.CheckExpiry(docs.root.Expires.Add(grace), now); err != nil {
		return fmt.Errorf("root document %d: %w", docs.root.Version, err)
	}
	if err := signing.CheckExpiry(docs.list.Expires.Add(grace), now); err != nil {
		return fmt.Errorf("allowlist %d: %w", docs.list.Version, err)
	}
	return nil
}

// missing are the frames that bring a host's documents up to ours.
func (docs *documents) missing(hello *signing.Hello) ([]frame, error) {
	known, ours := docs.refs[hello.Root.Version]
	newest := docs.root.Version
	switch {
	case hello.Root.Version > newest:
		return nil, &Error{
			Class: Config, Reason: string(signing.ReasonRollback),
			Detail: fmt.Sprintf("host has root document %d, the cluster only %d: publish the newer ones", hello.Root.Version, newest),
		}
	case !ours || known != hello.Root.Digest:
		return nil, &Error{
			Class: Untrusted, Reason: ReasonForeignRoot,
			Detail: fmt.Sprintf("host trusts root document %d with digest %s, which is not of this cluster", hello.Root.Version, hello.Root.Digest),
		}
	case newest-hello.Root.Version > wire.MaxRoots:
		return nil, &Error{
			Class: Untrusted, Reason: ReasonForeignRoot,
			Detail: fmt.Sprintf("host is %d root documents behind, at most %d can be caught up: provision it again", newest-hello.Root.Version, wire.MaxRoots),
		}
	}
	var frames []frame
	for version := hello.Root.Version + 1; version <= newest; version++ {
		frames = append(frames, frame{wire.Root, docs.roots[version]})
	}
	// With a root goes the allowlist, also one that the host has: other author keys have reset its floor, and this
	// sets it again, before somebody brings an older list.
	if len(frames) > 0 || hello.Allowlist.Digest != docs.listRef {
		frames = append(frames, frame{wire.Allowlist, docs.envelope})
	}
	return frames, nil
}
