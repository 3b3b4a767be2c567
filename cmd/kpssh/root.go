package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/keyfile"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/setup"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// What every verb that makes a root document has in common.

// clockSkew is how far ahead another signer's clock may be.
const clockSkew = 5 * time.Minute

// Roles of a root document.
const (
	roleRoot     = "root"
	roleAuthor   = "author"
	roleDispatch = "dispatch"
)

// keysOfRole is the part of a root document that is about a role; nil for an unknown one.
func keysOfRole(root *signing.Root, role string) *signing.RoleKeys {
	switch role {
	case roleRoot:
		return &root.Root
	case roleAuthor:
		return &root.Author
	case roleDispatch:
		return &root.Dispatch
	}
	return nil
}

// rootSigning is how a successor is signed, and for how long.
type rootSigning struct {
	signWith   files
	always     files // sign in any case, besides those or the folder's
	validDays  int
	passphrase cli.Passphrase
}

func (o *rootSigning) flags(fs *flag.FlagSet) {
	fs.Var(&o.signWith, "sign-with", "")
	fs.IntVar(&o.validDays, "valid-days", 365, "")
	o.passphrase.Flags(fs, false)
}

func (o *rootSigning) open(ctx context.Context, env *cli.Env, refs []string) ([]signing.Signer, error) {
	var signers []signing.Signer
	for _, ref := range refs {
		signer, err := keyfile.Open(ctx, env, ref, &o.passphrase)
		if err != nil {
			return nil, err
		}
		signers = append(signers, signer)
	}
	return signers, nil
}

// nextRoot is the successor of a root that changes nothing yet.
func nextRoot(env *cli.Env, current *signing.Root, validDays int) *signing.Root {
	next := *current
	next.Version++
	next.Issued = env.Now()
	next.Expires = next.Issued.Add(time.Duration(validDays) * 24 * time.Hour)
	for _, role := range []*signing.RoleKeys{&next.Root, &next.Author, &next.Dispatch} {
		role.Keys = slices.Clone(role.Keys)
	}
	return &next
}

func signRoot(ctx context.Context, next *signing.Root, signers []signing.Signer) ([]byte, error) {
	envelope, err := signing.Sign(ctx, next, signers...)
	if err != nil {
		return nil, fmt.Errorf("signing root version %d: %w", next.Version, err)
	}
	return envelope, nil
}

// issue signs a successor with the root keys that are at hand and puts it into effect, or lets it wait for the others.
// What waits already is gone on with when it says the same, and stands in the way of anything else. It reports whether
// a root that says so is in effect.
func (o *rootSigning) issue(ctx context.Context, env *cli.Env, d *trustdir.Dir, set *documents.Set, next *signing.Root) (bool, error) {
	envelope, err := o.pending(env, d, set, next)
	if err != nil {
		return false, err
	}
	if envelope != nil {
		if root, err := set.PutRoot(d, envelope); err == nil {
			return placed(env, d, root)
		}
	}
	if envelope, err = o.signed(ctx, env, d, set.Root, next, envelope); err != nil {
		return false, err
	}
	return placeRoot(env, d, set, envelope, next)
}

// signed is a successor with the signatures of the root keys that are at hand: a new one, or the one that waits.
func (o *rootSigning) signed(ctx context.Context, env *cli.Env, d *trustdir.Dir, current, next *signing.Root, waiting []byte) ([]byte, error) {
	signers, err := o.openSigners(ctx, env, d, current, next)
	switch {
	case err != nil:
		return nil, err
	case waiting != nil:
		return addSignatures(ctx, waiting, signers)
	case len(signers) == 0:
		return nil, cli.Hint(fmt.Errorf("no root key is in %s", d.At("offline", "root")), "name one on its offline medium: --sign-with FILE")
	}
	return signRoot(ctx, next, signers)
}

func addSignatures(ctx context.Context, envelope []byte, signers []signing.Signer) ([]byte, error) {
	var err error
	for _, signer := range signers {
		if envelope, err = signing.AddSignature(ctx, envelope, signer); err != nil {
			return nil, fmt.Errorf("signing the root that waits: %w", err)
		}
	}
	return envelope, nil
}

// openSigners opens the root keys that are at hand and needed.
func (o *rootSigning) openSigners(ctx context.Context, env *cli.Env, d *trustdir.Dir, current, next *signing.Root) ([]signing.Signer, error) {
	refs, err := o.signers(d, current, next)
	if err != nil {
		return nil, err
	}
	signers, err := o.open(ctx, env, refs)
	for i, signer := range signers {
		if err := checkRootKey(env, refs[i], signer.Public(), current, next); err != nil {
			return nil, err
		}
	}
	return signers, err
}

// checkRootKey refuses a key whose signature under a successor could never count.
func checkRootKey(env *cli.Env, ref string, key signing.Key, current, next *signing.Root) error {
	if slices.ContainsFunc(slices.Concat(current.Root.Keys, next.Root.Keys), key.Equal) {
		return nil
	}
	return cli.Hint(fmt.Errorf("%q is a root key neither of root version %d nor of its successor", ref, current.Version), "'%s root show' lists the keys of each role", env.Prog)
}

// waitingRoot is the successor that waits for signatures, nil when there is none.
func waitingRoot(d *trustdir.Dir, set *documents.Set) ([]byte, *signing.Root, error) {
	path := d.PendingRoot(set.Root.Version + 1)
	envelope, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	waiting, _, err := documents.Peek(envelope)
	if err != nil {
		return nil, nil, cli.Hint(fmt.Errorf("reading %q: %w", path, err), "take it from where it was signed again, or remove the file: nothing is made while it is there")
	}
	return envelope, waiting, nil
}

// refuseWaitingRoot comes before a key is made: a successor that waits cannot list that key yet, and would stand in the
// way of the one that does.
func refuseWaitingRoot(env *cli.Env, d *trustdir.Dir, set *documents.Set) error {
	_, waiting, err := waitingRoot(d, set)
	if err != nil || waiting == nil {
		return err
	}
	return otherWaits(env, d, set)
}

func otherWaits(env *cli.Env, d *trustdir.Dir, set *documents.Set) error {
	return cli.Hint(fmt.Errorf("another successor waits for signatures in %s", d.PendingRoot(set.Root.Version+1)),
		"have it signed first ('%s root sign'), or remove the file if it is not wanted any more", env.Prog)
}

// pending is the successor that waits for signatures already, if it says what next says.
func (o *rootSigning) pending(env *cli.Env, d *trustdir.Dir, set *documents.Set, next *signing.Root) ([]byte, error) {
	path := d.PendingRoot(set.Root.Version + 1)
	envelope, waiting, err := waitingRoot(d, set)
	if err != nil || waiting == nil {
		return nil, err
	}
	for _, role := range []string{roleRoot, roleAuthor, roleDispatch} {
		if !sameKeys(keysOfRole(waiting, role), keysOfRole(next, role)) {
			return nil, otherWaits(env, d, set)
		}
	}
	if err := checkWaiting(waiting, set.Root, next); err != nil {
		return nil, cli.Hint(fmt.Errorf("the successor that waits in %s is not signed unseen: %w", path, err),
			"call this with the --valid-days of the first call; or read and sign it ('%s root sign'), or remove the file if nobody here made it", env.Prog)
	}
	env.Progress("going on with %s: root version %d, issued %s, valid until %s", path, waiting.Version,
		waiting.Issued.UTC().Format(time.DateOnly), waiting.Expires.UTC().Format(time.DateOnly))
	return envelope, nil
}

// checkWaiting refuses a waiting successor whose version and dates an earlier call with the same flags cannot have made.
func checkWaiting(waiting, current, next *signing.Root) error {
	switch {
	case waiting.Version != next.Version:
		return fmt.Errorf("it is version %d, not %d", waiting.Version, next.Version)
	case waiting.Issued.Before(current.Issued):
		return fmt.Errorf("it is issued %s, before the root in effect", waiting.Issued.UTC().Format(time.RFC3339))
	case waiting.Issued.After(next.Issued.Add(clockSkew)):
		return fmt.Errorf("it is issued %s, which is yet to come", waiting.Issued.UTC().Format(time.RFC3339))
	case waiting.Expires.After(next.Expires.Add(clockSkew)):
		return fmt.Errorf("it is valid until %s, longer than --valid-days allows", waiting.Expires.UTC().Format(time.DateOnly))
	case !waiting.Expires.After(next.Issued):
		return fmt.Errorf("it has expired, on %s", waiting.Expires.UTC().Format(time.DateOnly))
	}
	return nil
}

func sameKeys(a, b *signing.RoleKeys) bool {
	return a.Threshold == b.Threshold && slices.EqualFunc(a.Keys, b.Keys, signing.Key.Equal)
}

// signers are the root keys to sign with: those that were named, or as many of the folder's as the old threshold and
// the new one take.
func (o *rootSigning) signers(d *trustdir.Dir, current, next *signing.Root) ([]string, error) {
	if len(o.signWith) > 0 {
		return append(slices.DeleteFunc(slices.Clone(o.always), func(ref string) bool { return slices.Contains(o.signWith, ref) }), o.signWith...), nil
	}
	paths, err := d.OfflineKeys("root")
	if err != nil {
		return nil, err
	}
	var chosen []string
	missing := map[*signing.RoleKeys]int{&current.Root: current.Root.Threshold, &next.Root: next.Root.Threshold}
	for _, path := range append(slices.Clone(o.always), paths...) {
		key, err := publicHalf(d, path)
		if err != nil || slices.Contains(chosen, path) {
			continue // a file that init and 'root rotate' did not make; --sign-with takes it
		}
		needed := slices.Contains(o.always, path)
		for role, n := range missing {
			if n > 0 && slices.ContainsFunc(role.Keys, key.Equal) {
				missing[role]--
				needed = true
			}
		}
		if needed {
			chosen = append(chosen, path)
		}
	}
	return chosen, nil
}

// publicHalf is the public half of a key file, of the folder or elsewhere, without opening that.
func publicHalf(d *trustdir.Dir, path string) (signing.Key, error) {
	var err error
	for _, public := range []string{d.PublicKey(keyName(path)), path + ".pub"} {
		var data []byte
		if data, err = os.ReadFile(public); err == nil {
			return signing.ParseKey(strings.TrimSpace(string(data)))
		}
	}
	return signing.Key{}, err
}

func keyName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".key") }

// nameOf is what the folder calls a key, or as much of its id as tells it from others.
func nameOf(d *trustdir.Dir, key signing.Key) string {
	files, err := filepath.Glob(d.PublicKey("*"))
	if err == nil {
		for _, file := range files {
			data, err := os.ReadFile(file)
			if known, parseErr := signing.ParseKey(strings.TrimSpace(string(data))); err == nil && parseErr == nil && known.Equal(key) {
				return strings.TrimSuffix(filepath.Base(file), ".pub")
			}
		}
	}
	return shortDigest(key.ID())
}

// openDir opens a folder, its documents, and keeps others from writing them.
func openDir(env *cli.Env, flag string) (*trustdir.Dir, *documents.Set, func(), error) {
	d, err := trustdir.Open(env, flag)
	if err != nil {
		return nil, nil, nil, err
	}
	unlock, err := d.Lock()
	if err != nil {
		return nil, nil, nil, err
	}
	set, err := documents.Read(d)
	if err != nil {
		unlock()
		return nil, nil, nil, err
	}
	return d, set, unlock, nil
}

// placeRoot puts a successor into effect, or lets it wait when signatures are missing. It reports which.
func placeRoot(env *cli.Env, d *trustdir.Dir, set *documents.Set, envelope []byte, next *signing.Root) (bool, error) {
	root, err := set.PutRoot(d, envelope)
	if signing.ReasonOf(err) != signing.ReasonUntrusted {
		if err != nil {
			return false, err
		}
		return placed(env, d, root)
	}
	pending := d.PendingRoot(set.Root.Version + 1)
	if err := cli.WriteFile(pending, envelope, 0o644); err != nil {
		return false, err
	}
	env.Warnf("root version %d is not in effect yet: %v", next.Version, err)
	names := unsigned(d, set.Root, next, envelope)
	who := "have %s sign it"
	if len(names) > 1 {
		who = "have as many as are missing of %s sign it"
	}
	env.Hintf(who+": '%s root sign --dir %s --key KEY', or, on another machine, '%s root sign --key KEY %s' and '%s root sign --dir %s --merge FILE' when it is back",
		strings.Join(names, ", "), env.Prog, d.Path, env.Prog, filepath.Base(pending), env.Prog, d.Path)
	return false, nil
}

// unsigned names the root keys whose signature could still be added.
func unsigned(d *trustdir.Dir, current, next *signing.Root, envelope []byte) []string {
	in, err := signing.Inspect(envelope, current.Root.Keys...)
	if err != nil {
		return nil
	}
	var names []string
	for _, key := range append(slices.Clone(current.Root.Keys), next.Root.Keys...) {
		if name := nameOf(d, key); !slices.ContainsFunc(in.SignedBy, key.Equal) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func placed(env *cli.Env, d *trustdir.Dir, root *signing.Root) (bool, error) {
	env.Progress("root version %d is in effect, valid until %s", root.Version, root.Expires.UTC().Format(time.DateOnly))
	path := d.Manifest(setup.TrustManifest)
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	env.Hintf("%s", manifest.ApplyCommand(path, int(info.Size())))
	return true, nil
}
