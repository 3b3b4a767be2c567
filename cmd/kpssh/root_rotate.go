package main

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/keyfile"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/rotation"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

const rootRotateUsage = `
Usage: @kpssh root rotate --old KEY [flags]

Replaces one root key: makes the new one, and a root document that lists it in
place of the old one, signed as the old thresholds and the new ones ask for. Run
it again after an interruption, or when other root keys have signed; it goes on
where it stopped. The old key file is left where it is: you are told when it is
of no more use.

Flags:
  --dir DIR               trust folder (default $KPSSH_DIR, else "trust")
  --old KEY               the key to replace: public key, file or id
  --new FILE              the new private key, made if it is not there (default
                          offline/root/root-N.key in DIR)
  --sign-with KEY         root key file to sign with besides the new one; repeat
                          for more; default: those of offline/root in DIR that
                          are needed
  --valid-days N          how long it holds (default 365)
  --passphrase-file FILE  passphrase of the key files; without it
                          $KPSSH_PASSPHRASE, else you are asked
  --no-passphrase         leave the new key unencrypted: for labs
  --dry-run               show the document, make and write nothing

Example:
    $ @kpssh root rotate --old trust/public/root-1.pub
`

func rootRotateCommand() *cli.Command {
	o := &rootKeysOptions{}
	return &cli.Command{
		Name: "rotate", Short: "replace a root key", Usage: rootRotateUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			fs.StringVar(&o.old, "old", "", "")
			fs.StringVar(&o.newKey, "new", "", "")
			fs.BoolVar(&o.dryRun, "dry-run", false, "")
			o.flags(fs)
			fs.BoolVar(&o.passphrase.None, "no-passphrase", false, "")
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if len(args) > 0 || o.old == "" {
				return cli.Usagef("--old is needed, and no arguments: which root key is to be replaced")
			}
			if err := o.check(); err != nil {
				return err
			}
			return o.rotate(ctx, env)
		},
	}
}

func (o *rootKeysOptions) rotate(ctx context.Context, env *cli.Env) error {
	d, set, unlock, err := openDir(env, o.dir)
	if err != nil {
		return err
	}
	defer unlock()
	if !o.dryRun {
		if err := set.Mend(d); err != nil {
			return err
		}
	}
	path, err := o.newPath(d, set.Roots)
	if err != nil {
		return err
	}
	old, done, err := o.replaced(env, d, set.Roots)
	if err != nil || done {
		return err
	}
	return o.replace(ctx, env, d, set, old, path)
}

// replace makes the key at path, or goes on with it, and the successor that lists it in place of old.
func (o *rootKeysOptions) replace(ctx context.Context, env *cli.Env, d *trustdir.Dir, set *documents.Set, old signing.Key, path string) error {
	if !cli.Exists(path) {
		if err := refuseWaitingRoot(env, d, set); err != nil {
			return err
		}
	}
	key, err := o.newRootKey(env, d, path)
	if err != nil {
		return err
	}
	if o.dryRun {
		return o.wouldRotate(env, d, set.Root, old, key, path)
	}
	next, err := o.replacement(env, set.Root, old, key)
	if err != nil {
		return err
	}
	o.always = files{path} // so that it is known to open
	inEffect, err := o.issue(ctx, env, d, set, next)
	if err == nil && inEffect {
		o.replacedNote(env, d, old)
	}
	return err
}

// replacement is the successor that lists one root key in place of another.
func (o *rootKeysOptions) replacement(env *cli.Env, current *signing.Root, old, key signing.Key) (*signing.Root, error) {
	next := nextRoot(env, current, o.validDays)
	if err := addKey(env, next, roleRoot, key); err != nil {
		return nil, err
	}
	return next, removeKey(next, roleRoot, old)
}

func (o *rootKeysOptions) wouldRotate(env *cli.Env, d *trustdir.Dir, current *signing.Root, old, key signing.Key, path string) error {
	env.Progress("would replace %s by %s", nameOf(d, old), path)
	if len(key.Public) == 0 {
		return nil // it is not made yet
	}
	next, err := o.replacement(env, current, old, key)
	if err != nil {
		return err
	}
	return o.show(env, next)
}

// newPath is where the new key is or is to be: a key of the folder that no root lists, or the next free name.
func (o *rootKeysOptions) newPath(d *trustdir.Dir, roots []*signing.Root) (string, error) {
	if o.newKey != "" {
		return o.newKey, nil
	}
	paths, err := d.OfflineKeys("root")
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		if key, err := publicHalf(d, path); err != nil || !rotation.EverListed(roots, key) {
			return path, nil //nolint:nilerr // its public half is written when it is opened
		}
	}
	for n := 1; ; n++ {
		if path := d.RootKey(n); !cli.Exists(path) && !cli.Exists(d.PublicKey(keyName(path))) {
			return path, nil
		}
	}
}

// replaced is the key to replace, unless the new one at path has taken its place already.
func (o *rootKeysOptions) replaced(env *cli.Env, d *trustdir.Dir, roots []*signing.Root) (old signing.Key, done bool, err error) {
	current := roots[len(roots)-1]
	for _, root := range roots {
		if old, err = listedKey(env, root, roleRoot, o.old); err == nil {
			break
		}
	}
	if err != nil {
		return old, false, err
	}
	if slices.ContainsFunc(current.Root.Keys, old.Equal) {
		return old, false, nil
	}
	env.Progress("root version %d does not list %s any more", current.Version, nameOf(d, old))
	o.replacedNote(env, d, old)
	return old, true, nil
}

func (o *rootKeysOptions) replacedNote(env *cli.Env, d *trustdir.Dir, old signing.Key) {
	env.Progress("%s is of no more use once every host has that root ('%s trust status'); its file may go then", nameOf(d, old), env.Prog)
}

// newRootKey makes the new key, or reads the one that an interrupted attempt made; with --dry-run it may be none.
func (o *rootKeysOptions) newRootKey(env *cli.Env, d *trustdir.Dir, path string) (signing.Key, error) {
	if o.dryRun {
		key, err := publicHalf(d, path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return key, err
	}
	return makeOrOpen(env, d, path, d.Algorithm, &o.passphrase)
}

// makeOrOpen makes a private key file with its public half, or finds those of an attempt that was interrupted. The
// public half goes to public/ for a key of the folder, and beside the file for another.
func makeOrOpen(env *cli.Env, d *trustdir.Dir, path, algorithm string, passphrase *cli.Passphrase) (signing.Key, error) {
	if cli.Exists(path) {
		if key, err := publicHalf(d, path); err == nil {
			return key, nil
		}
		signer, err := keyfile.Open(context.Background(), env, path, passphrase)
		if err != nil {
			return signing.Key{}, err
		}
		return signer.Public(), keyfile.WritePublic(publicPath(d, path), signer.Public())
	}
	secret, err := passphrase.New(env, path)
	if err != nil {
		return signing.Key{}, err
	}
	var pass keys.PassFunc
	if secret != nil {
		pass = keys.Static(secret)
	}
	signer, err := keyfile.Create(path, algorithm, pass)
	if errors.Is(err, fs.ErrNotExist) { // the offline folder is on its medium
		return signing.Key{}, cli.Hint(err, "name a place on the new key's own medium: --new FILE")
	}
	if err != nil {
		return signing.Key{}, err
	}
	env.Progress("made %s", path)
	return signer.Public(), keyfile.WritePublic(publicPath(d, path), signer.Public())
}

func publicPath(d *trustdir.Dir, path string) string {
	if strings.HasPrefix(path, d.At("offline")) {
		return d.PublicKey(keyName(path))
	}
	return path + ".pub"
}
