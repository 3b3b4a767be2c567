// Package documents reads the signed documents of a trust folder, always verified, and writes them
// back together with the ConfigMap that carries them.
package documents

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/setup"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Set is a chain of roots and the allowlist under the last of them.
type Set struct {
	Chain [][]byte
	// Roots are the chain's documents, Root the last of them.
	Roots []*signing.Root
	Root  *signing.Root
	// Allowlist is nil when nothing was signed yet.
	Allowlist *signing.Allowlist
	envelope  []byte
}

// Open verifies a chain from version 1 and, when it is not empty, an allowlist.
func Open(chain [][]byte, allowlist []byte) (*Set, error) {
	if len(chain) == 0 {
		return nil, errors.New("there is no root document")
	}
	s := &Set{Chain: chain, envelope: allowlist}
	root, err := signing.OpenFirstRoot(chain[0])
	if err != nil {
		return nil, fmt.Errorf("opening the first root: %w", err)
	}
	s.Roots = append(s.Roots, root)
	for _, envelope := range chain[1:] {
		next, err := signing.NextRoot(root, envelope)
		if err != nil {
			return nil, fmt.Errorf("opening the root after version %d: %w", root.Version, err)
		}
		root = next
		s.Roots = append(s.Roots, root)
	}
	s.Root = root
	if len(allowlist) > 0 {
		if s.Allowlist, err = signing.OpenAllowlist(allowlist, root); err != nil {
			return nil, fmt.Errorf("opening the allowlist: %w", err)
		}
	}
	return s, nil
}

// Read opens the documents of a folder.
func Read(d *trustdir.Dir) (*Set, error) {
	chain, err := d.RootDocuments()
	if err != nil {
		return nil, err
	}
	allowlist, err := os.ReadFile(d.Allowlist())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	s, err := Open(chain, allowlist)
	if err != nil && len(allowlist) > 0 {
		// A root that drops an author takes effect together with the allowlist that waited for it, which a crash in
		// between left where it was.
		if waiting, readErr := os.ReadFile(d.PendingAllowlist()); readErr == nil {
			if s, openErr := Open(chain, waiting); openErr == nil {
				return s, nil
			}
		}
	}
	if err != nil {
		return nil, cli.Hint(fmt.Errorf("in %s: %w", d.At("public"), err),
			"bring back what is damaged: the cluster has the documents (kubectl -n %s get configmap %s -o yaml), and allowlist.N.json is what was signed before", d.ControllerNamespace, manifest.TrustName)
	}
	return s, nil
}

// Mend finishes what a crash left half done: files that are made of others, and what waited for something that is in
// effect now.
func (s *Set) Mend(d *trustdir.Dir) error {
	if err := d.Sweep(); err != nil {
		return err
	}
	trust, err := manifest.Trust(d.ControllerNamespace, s.Chain, s.envelope)
	if err != nil {
		return err
	}
	for path, want := range map[string][]byte{d.Allowlist(): s.envelope, d.Manifest(setup.TrustManifest): trust} {
		have, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(want) > 0 && !bytes.Equal(have, want) {
			if err := cli.WriteFile(path, want, 0o644); err != nil {
				return err
			}
		}
	}
	if s.Allowlist != nil && !cli.Exists(d.AllowlistVersion(s.Allowlist.Version)) {
		if err := cli.WriteFile(d.AllowlistVersion(s.Allowlist.Version), s.envelope, 0o644); err != nil {
			return err
		}
	}
	return s.dropSettled(d)
}

// dropSettled removes pending documents whose version is in effect.
func (s *Set) dropSettled(d *trustdir.Dir) error {
	for n := int64(2); n <= s.Root.Version; n++ {
		if err := os.RemoveAll(d.PendingRoot(n)); err != nil {
			return err
		}
	}
	waiting, err := os.ReadFile(d.PendingAllowlist())
	if err == nil && bytes.Equal(waiting, s.envelope) {
		return os.Remove(d.PendingAllowlist())
	}
	return nil
}

// RootDigests are the digests of the chain's payloads, by which hosts name the root that they believe.
func (s *Set) RootDigests() ([]string, error) {
	var digests []string
	for _, envelope := range s.Chain {
		digest, err := signing.PayloadDigest(envelope)
		if err != nil {
			return nil, err
		}
		digests = append(digests, digest)
	}
	return digests, nil
}

// CheckRoot refuses an expired root: what is signed under it, no host accepts.
func (s *Set) CheckRoot(now time.Time) error {
	if err := signing.CheckExpiry(s.Root.Expires, now); err != nil {
		return cli.Hint(fmt.Errorf("root version %d: %w", s.Root.Version, err), "sign a successor first: 'kpssh root new'")
	}
	return nil
}

// PutAllowlist replaces the folder's allowlist, and then the ConfigMap that is made from it: a crash in
// between leaves an old ConfigMap, never a version that a later signature would use again.
func (s *Set) PutAllowlist(d *trustdir.Dir, envelope []byte) error {
	list, err := signing.OpenAllowlist(envelope, s.Root)
	if err != nil {
		return err
	}
	trust, err := manifest.Trust(d.ControllerNamespace, s.Chain, envelope)
	if err != nil {
		return err
	}
	if err := s.keep(d, envelope); err != nil {
		return err
	}
	if err := cli.WriteFile(d.Allowlist(), envelope, 0o644); err != nil {
		return err
	}
	s.Allowlist, s.envelope = list, envelope
	return cli.WriteFile(d.Manifest(setup.TrustManifest), trust, 0o644)
}

// keep leaves an allowlist, and the one that it replaces, where a review finds them by version.
func (s *Set) keep(d *trustdir.Dir, next []byte) error {
	for _, envelope := range [][]byte{s.envelope, next} {
		if len(envelope) == 0 {
			continue
		}
		list, err := signing.OpenAllowlist(envelope, s.Root)
		if err != nil {
			continue // the old author key may be gone
		}
		if err := cli.WriteFile(d.AllowlistVersion(list.Version), envelope, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// AllowlistEnvelope is the signed form of the allowlist in effect, nil when nothing was signed yet.
func (s *Set) AllowlistEnvelope() []byte { return s.envelope }

// AllowlistRef is the version and the digest of the allowlist in effect, by which hosts name it; zero when nothing was
// signed yet.
func (s *Set) AllowlistRef() (signing.DocumentRef, error) {
	if s.Allowlist == nil {
		return signing.DocumentRef{}, nil
	}
	digest, err := signing.PayloadDigest(s.envelope)
	return signing.DocumentRef{Version: s.Allowlist.Version, Digest: digest}, err
}

// AllowlistAuthors is how many author keys of the newest root have signed the allowlist in effect.
func (s *Set) AllowlistAuthors() (int, error) {
	if len(s.envelope) == 0 {
		return 0, nil
	}
	in, err := signing.Inspect(s.envelope, s.Root.Author.Keys...)
	if err != nil {
		return 0, fmt.Errorf("reading the allowlist: %w", err)
	}
	return len(in.SignedBy), nil
}

// AllowlistHolds says whether the allowlist in effect holds under another root too. None holds under every root.
func (s *Set) AllowlistHolds(root *signing.Root) bool {
	if s.Allowlist == nil {
		return true
	}
	_, err := signing.OpenAllowlist(s.envelope, root)
	return err == nil
}

// PutRoot adds the successor of the folder's root.
func (s *Set) PutRoot(d *trustdir.Dir, envelope []byte) (*signing.Root, error) {
	next, err := signing.NextRoot(s.Root, envelope)
	if err != nil {
		return nil, err
	}
	allowlist, err := s.allowlistUnder(d, next)
	if err != nil {
		return nil, err
	}
	after, err := Open(append(s.Chain[:len(s.Chain):len(s.Chain)], envelope), allowlist)
	if err != nil {
		return nil, err
	}
	// It must fit into a ConfigMap before it counts.
	if _, err := manifest.Trust(d.ControllerNamespace, after.Chain, after.envelope); err != nil {
		return nil, err
	}
	if err := cli.CreateFile(d.RootDocument(next.Version), envelope, 0o644); err != nil {
		return nil, err
	}
	return next, after.Mend(d)
}

// allowlistUnder is the allowlist that goes with a successor: the one in effect, or the one that waits for this root,
// signed by an author that only it lists.
func (s *Set) allowlistUnder(d *trustdir.Dir, next *signing.Root) ([]byte, error) {
	if s.Allowlist == nil {
		return nil, nil
	}
	_, err := signing.OpenAllowlist(s.envelope, next)
	if err == nil {
		return s.envelope, nil
	}
	if waiting, readErr := os.ReadFile(d.PendingAllowlist()); readErr == nil {
		if list, openErr := signing.OpenAllowlist(waiting, next); openErr == nil && list.Version > s.Allowlist.Version {
			return waiting, nil
		}
	}
	hint := "'kpssh keys rotate author' lists the new author key, has it sign the allowlist, and then drops the old one"
	if next.Author.Threshold > s.Root.Author.Threshold {
		hint = "have as many authors sign the list in effect before, each with 'kpssh profile sign --countersign --key KEY'; " +
			"a key that is not listed yet: 'kpssh root add-key author' first, with the threshold as it is"
	}
	return nil, cli.Hint(fmt.Errorf("root version %d would leave the hosts without an allowlist: %v", next.Version, err), "%s", hint)
}
