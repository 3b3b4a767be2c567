package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/authoring"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/review"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// countersignature adds a signature to the allowlist that waits for one, or else to the one in effect: a root may ask
// for more authors only when as many have signed that already.
func (o *signOptions) countersignature(ctx context.Context, env *cli.Env, d *trustdir.Dir, set *documents.Set) error {
	envelope, err := env.Read(d.PendingAllowlist())
	switch {
	case errors.Is(err, os.ErrNotExist) && set.Allowlist == nil:
		return fmt.Errorf("no allowlist waits for a signature in %s, and none is in effect", d.At("public"))
	case errors.Is(err, os.ErrNotExist):
		return o.countersignCurrent(ctx, env, d, set)
	case err != nil:
		return err
	}
	return o.countersignWaiting(ctx, env, d, set, envelope)
}

func (o *signOptions) countersignWaiting(ctx context.Context, env *cli.Env, d *trustdir.Dir, set *documents.Set, envelope []byte) error {
	list, err := documents.PeekAllowlist(envelope)
	if err != nil {
		return fmt.Errorf("reading %q: %w", d.PendingAllowlist(), err)
	}
	if set.Allowlist != nil && list.Version <= set.Allowlist.Version {
		return cli.Hint(fmt.Errorf("the allowlist that waits has version %d, and version %d is in effect", list.Version, set.Allowlist.Version),
			"sign the profiles again, or remove %s", d.PendingAllowlist())
	}
	env.Progress("signing allowlist version %d:", list.Version)
	if err := showSigned(env, d, set.Allowlist, list); err != nil {
		return err
	}
	env.Hintf("'%s profile diff --pending' shows the texts", env.Prog)
	return o.addSignature(ctx, env, d, set, envelope, list)
}

func (o *signOptions) countersignCurrent(ctx context.Context, env *cli.Env, d *trustdir.Dir, set *documents.Set) error {
	env.Progress("no allowlist waits; signing version %d, which is in effect:", set.Allowlist.Version)
	if err := showSigned(env, d, nil, set.Allowlist); err != nil { // who signs it allows all of it
		return err
	}
	env.Hintf("the texts are in %s", d.Scripts())
	if err := o.addSignature(ctx, env, d, set, set.AllowlistEnvelope(), set.Allowlist); err != nil {
		return err
	}
	return sayAuthors(env, set)
}

// sayAuthors says how many authors have signed the list in effect, and what that is good for.
func sayAuthors(env *cli.Env, set *documents.Set) error {
	signed, err := set.AllowlistAuthors()
	if err != nil {
		return err
	}
	env.Progress("%d of %d author keys have signed it, %d must", signed, len(set.Root.Author.Keys), set.Root.Author.Threshold)
	if signed > set.Root.Author.Threshold {
		env.Hintf("from now on %d may have to: '%s root new --sign-with KEY --author-threshold %d'", signed, env.Prog, signed)
	}
	return nil
}

// showSigned says what a signature under list would allow that old does not, before the key is opened.
func showSigned(env *cli.Env, d *trustdir.Dir, old, list *signing.Allowlist) error {
	env.PrintTo(env.Stderr, changeTable(authoring.Merge(old, list.Scripts, authoring.Mode{DropOlder: true})))
	report := review.Compare(old, list, review.NewLibrary(d.Scripts()).Text)
	return report.Print(env.Stderr, review.Style{Brief: true, Colour: env.Colour})
}

func (o *signOptions) addSignature(ctx context.Context, env *cli.Env, d *trustdir.Dir, set *documents.Set, envelope []byte, list *signing.Allowlist) error {
	signer, err := o.signer(ctx, env, d, set.Root)
	if err != nil {
		return err
	}
	in, err := signing.Inspect(envelope, set.Root.Author.Keys...)
	if err != nil {
		return fmt.Errorf("reading allowlist version %d: %w", list.Version, err)
	}
	if slices.ContainsFunc(in.SignedBy, signer.Public().Equal) {
		return o.signedAlready(env, d, set, envelope, list, signer.Public(), len(in.SignedBy))
	}
	signed, err := signing.AddSignature(ctx, envelope, signer)
	if err != nil {
		return fmt.Errorf("signing the allowlist: %w", err)
	}
	return o.place(env, d, set, signed, list)
}

// signedAlready puts what waits into effect if all signatures are there by now, and else refuses the second signature of a
// key, which counts once: that it brought nothing nearer would not be seen otherwise.
func (o *signOptions) signedAlready(env *cli.Env, d *trustdir.Dir, set *documents.Set, envelope []byte, list *signing.Allowlist, key signing.Key, signed int) error {
	waits := set.Allowlist == nil || list.Version > set.Allowlist.Version
	if _, err := signing.OpenAllowlist(envelope, set.Root); err == nil && waits {
		return o.place(env, d, set, envelope, list)
	}
	return cli.Hint(fmt.Errorf("%s has signed allowlist version %d already: a second signature of one key counts once, and nothing was changed", nameOf(d, key), list.Version),
		"%d of %d author keys have signed it, %d must; another author signs with '%s profile sign --dir %s --countersign --key KEY'",
		signed, len(set.Root.Author.Keys), set.Root.Author.Threshold, env.Prog, d.Path)
}
