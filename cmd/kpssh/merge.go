package main

import (
	"fmt"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Copies of one root or allowlist that were signed apart, put together. Nothing is signed here: who signed a copy has
// read it, and what is taken over are signatures that verify.

// mergeCopy adds the signatures of the copy at path to a document, each by one of keys, and says how many were new. Where
// there is no document yet the copy is it.
func mergeCopy(env *cli.Env, path string, envelope, other []byte, keys []signing.Key) ([]byte, error) {
	before := 0
	if envelope == nil {
		envelope = other
	} else if in, err := signing.Inspect(envelope); err == nil {
		before = in.Signatures
	}
	merged, err := signing.Merge(envelope, other, keys...)
	if err != nil {
		return nil, cli.Hint(fmt.Errorf("merging %q: %w; nothing was changed", path, err),
			"only copies of one file go together, each signed by keys that count for it: have the file of this folder signed, and that brought back")
	}
	after, err := signing.Inspect(merged)
	if err != nil {
		return nil, err
	}
	env.Progress("%s: signatures that were not here: %d", path, after.Signatures-before)
	return merged, nil
}

// mergeCopies puts copies of the root that waits together; the first of them is that root where the folder has none.
func (o *rootSignOptions) mergeCopies(env *cli.Env) error {
	d, set, unlock, err := openDir(env, o.dir)
	if err != nil {
		return err
	}
	defer unlock()
	envelope, root, err := waitingRoot(d, set)
	if err != nil {
		return err
	}
	for _, path := range o.copies {
		other, err := env.Read(path)
		if err != nil {
			return err
		}
		copied, _, err := documents.Peek(other)
		if err != nil {
			return fmt.Errorf("reading %q: %w", path, err)
		}
		if inEffect, err := isInEffect(env, set, path, copied, other); err != nil || inEffect {
			if err != nil {
				return err
			}
			continue
		}
		if envelope == nil {
			root = copied
		}
		if envelope, err = mergeCopy(env, path, envelope, other, slices.Concat(set.Root.Root.Keys, root.Root.Keys)); err != nil {
			return err
		}
	}
	if envelope == nil {
		return nil
	}
	return placeMerged(env, d, set, envelope, root)
}

func placeMerged(env *cli.Env, d *trustdir.Dir, set *documents.Set, envelope []byte, root *signing.Root) error {
	_, signed, err := documents.Peek(envelope)
	if err != nil {
		return err
	}
	env.PrintTo(env.Stderr, rootTable(root, signed))
	_, err = placeRoot(env, d, set, envelope, root)
	return err
}

// isInEffect says whether a copy is of a root of the chain, and refuses one that neither is nor follows it.
func isInEffect(env *cli.Env, set *documents.Set, path string, copied *signing.Root, envelope []byte) (bool, error) {
	switch current := set.Root.Version; {
	case copied.Version == current+1:
		return false, nil
	case copied.Version > current:
		return false, cli.Hint(fmt.Errorf("%q is root version %d, and version %d is in effect here", path, copied.Version, current), "bring this folder up to date first")
	}
	same, err := samePayload(set.Chain[copied.Version-1], envelope)
	if err != nil {
		return false, err
	}
	if !same {
		return false, fmt.Errorf("%q is another root version %d than the one that was put into effect here", path, copied.Version)
	}
	env.Progress("%s: root version %d is in effect already", path, copied.Version)
	return true, nil
}

// mergeCopies puts copies of the allowlist that waits together, or of the one in effect: a root may ask for more authors
// only when as many have signed that already. Where nothing waits, the first copy of a newer one is what waits.
func (o *signOptions) mergeCopies(env *cli.Env, d *trustdir.Dir, set *documents.Set) error {
	keys, err := authorsAhead(d, set)
	if err != nil {
		return err
	}
	envelope, list, err := waitingAllowlist(d, set)
	if err != nil {
		return err
	}
	for _, path := range o.copies {
		other, err := env.Read(path)
		if err != nil {
			return err
		}
		if list == nil {
			if envelope, list, err = mergeBase(set, path, other); err != nil {
				return err
			}
		}
		if envelope, err = mergeCopy(env, path, envelope, other, keys); err != nil {
			return err
		}
	}
	if set.Allowlist != nil && list.Version == set.Allowlist.Version {
		if err := set.PutAllowlist(d, envelope); err != nil {
			return err
		}
		return sayAuthors(env, set)
	}
	if err := showSigned(env, d, set.Allowlist, list); err != nil {
		return err
	}
	return o.place(env, d, set, envelope, list)
}

// mergeBase is what a copy is merged with where no allowlist waits: the one in effect, or nothing and the copy's list.
func mergeBase(set *documents.Set, path string, other []byte) ([]byte, *signing.Allowlist, error) {
	list, err := documents.PeekAllowlist(other)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("reading %q: %w", path, err)
	case set.Allowlist == nil || list.Version > set.Allowlist.Version:
		return nil, list, nil
	case list.Version < set.Allowlist.Version:
		return nil, nil, fmt.Errorf("%q is allowlist version %d, and version %d is in effect", path, list.Version, set.Allowlist.Version)
	}
	return set.AllowlistEnvelope(), set.Allowlist, nil
}

// authorsAhead are the author keys of the root in effect and of the one that waits, whose allowlist waits with it.
func authorsAhead(d *trustdir.Dir, set *documents.Set) ([]signing.Key, error) {
	_, next, err := waitingRoot(d, set)
	if err != nil || next == nil {
		return set.Root.Author.Keys, err
	}
	return slices.Concat(set.Root.Author.Keys, next.Author.Keys), nil
}
