package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// An author rotation's part of the switch: the new key signs what the old one allowed.

// resigned is the allowlist once more, in its next version, by the new author; or what waits of it, with the new
// author's signature added. Anything else that waits is not signed: nobody has read it.
func (r *rotator) resigned(ctx context.Context) ([]byte, int64, error) {
	signer, err := r.signer(ctx)
	if err != nil {
		return nil, 0, err
	}
	now := r.env.Now()
	next := r.successorList(now)
	waiting, list, err := waitingAllowlist(r.dir, r.set)
	if err != nil {
		return nil, 0, err
	}
	if list != nil {
		envelope, err := r.continued(ctx, waiting, list, signer, now)
		return envelope, next.Version, err
	}
	envelope, err := signing.Sign(ctx, next, signer)
	return envelope, next.Version, err
}

// waitingAllowlist is the allowlist that waits for signatures and is newer than the one in effect, nil when there is none.
// One that cannot be read is an error and not none: writing over it could cost the signatures of others.
func waitingAllowlist(d *trustdir.Dir, set *documents.Set) ([]byte, *signing.Allowlist, error) {
	path := d.PendingAllowlist()
	envelope, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	list, err := documents.PeekAllowlist(envelope)
	if err != nil {
		return nil, nil, cli.Hint(fmt.Errorf("reading %q: %w", path, err), "take it from where it was signed again, or remove the file: nothing is signed while it is there")
	}
	if set.Allowlist != nil && list.Version <= set.Allowlist.Version {
		return nil, nil, nil
	}
	return envelope, list, nil
}

// successorList is the allowlist in effect in its next version, issued at a time.
func (r *rotator) successorList(issued time.Time) *signing.Allowlist {
	next := *r.set.Allowlist
	next.Version++
	next.Issued = issued
	next.Expires = issued.Add(r.set.Allowlist.Expires.Sub(r.set.Allowlist.Issued))
	return &next
}

// continued adds the new author's signature to a list that waits, if an earlier call made that of the list in effect:
// it is to the byte what would be made at its time.
func (r *rotator) continued(ctx context.Context, waiting []byte, list *signing.Allowlist, signer signing.Signer, now time.Time) ([]byte, error) {
	ours, err := signing.Sign(ctx, r.successorList(list.Issued), signer)
	if err != nil {
		return nil, err
	}
	same, err := samePayload(ours, waiting)
	if err != nil {
		return nil, err
	}
	if !same || list.Issued.Before(r.set.Allowlist.Issued) || list.Issued.After(now.Add(clockSkew)) {
		return nil, cli.Hint(fmt.Errorf("%s is allowlist %d with other content than the one in effect, and is not signed unseen", r.dir.PendingAllowlist(), list.Version),
			"if it is wanted, read and sign it: '%s profile sign --dir %s --countersign --key KEY'; else remove the file; then call this again", r.env.Prog, r.dir.Path)
	}
	return signing.AddSignature(ctx, waiting, signer)
}

func samePayload(a, b []byte) (bool, error) {
	one, err := signing.PayloadDigest(a)
	if err != nil {
		return false, err
	}
	other, err := signing.PayloadDigest(b)
	return one == other, err
}

// signAllowlist has the new author sign what is allowed, under a root that lists it.
func (r *rotator) signAllowlist(ctx context.Context) (bool, error) {
	envelope, version, err := r.resigned(ctx)
	if err != nil {
		return false, err
	}
	err = r.set.PutAllowlist(r.dir, envelope)
	if signing.ReasonOf(err) == signing.ReasonUntrusted {
		if err := cli.WriteFile(r.dir.PendingAllowlist(), envelope, 0o644); err != nil {
			return false, err
		}
		r.noteCountersign(version)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	r.env.Progress("allowlist version %d is signed by %s", version, nameOf(r.dir, r.state.New))
	return true, nil
}

func (r *rotator) noteCountersign(version int64) {
	r.note = fmt.Sprintf("allowlist %d waits for the other authors: '%s profile sign --dir %s --countersign --key KEY', then call this again", version, r.env.Prog, r.dir.Path)
}

// signWaiting has the new author sign what is allowed, for a root that is to list it. It waits beside the one in effect.
func (r *rotator) signWaiting(ctx context.Context, next *signing.Root) (bool, error) {
	envelope, version, err := r.resigned(ctx)
	if err != nil {
		return false, err
	}
	if err := cli.WriteFile(r.dir.PendingAllowlist(), envelope, 0o644); err != nil {
		return false, err
	}
	if _, err := signing.OpenAllowlist(envelope, next); err != nil {
		r.noteCountersign(version)
		return false, nil //nolint:nilerr // it waits
	}
	r.env.Warnf("the new author signs what the old one allowed: read it ('%s profile diff -h') if the old key may have signed it for somebody else", r.env.Prog)
	return true, nil
}

func (r *rotator) allowlistVersion() int64 {
	if r.set.Allowlist == nil {
		return 0
	}
	return r.set.Allowlist.Version
}
