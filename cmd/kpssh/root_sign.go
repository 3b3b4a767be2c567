package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/keyfile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const rootSignUsage = `
Usage: @kpssh root sign --key KEY [flags] [FILE]
       @kpssh root sign --merge FILE [flags]

Adds a signature to a root document that waits for it, after showing what is
being signed. FILE is changed in place; without it, the folder's pending root
is meant, which takes effect as soon as it has the signatures that it needs.

With --merge it signs nothing, and takes the signatures of a copy that was signed
elsewhere into the folder's pending root, which may have been signed here since.
The copy must say the same to the byte, and be signed by root keys alone.

Flags:
  --dir DIR               trust folder (default $KPSSH_DIR, else "trust")
  --key KEY               root key (file or KMS)
  --merge FILE            a copy that is brought back; repeat for more
  --passphrase-file FILE  passphrase of the key file; without it
                          $KPSSH_PASSPHRASE, else you are asked

Example:
    $ @kpssh root sign --key /media/usb/root-2.key root.2.pending.json
    $ @kpssh root sign --merge /media/usb/root.2.pending.json
`

type rootSignOptions struct {
	dir, key   string
	copies     files
	passphrase cli.Passphrase
}

func rootSignCommand() *cli.Command {
	o := &rootSignOptions{}
	return &cli.Command{
		Name: "sign", Short: "add a signature to a root document that waits", Usage: rootSignUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			fs.StringVar(&o.key, "key", "", "")
			fs.Var(&o.copies, "merge", "")
			o.passphrase.Flags(fs, false)
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if len(o.copies) > 0 {
				if len(args) > 0 || o.key != "" {
					return cli.Usagef("--merge signs nothing and works in the folder: it takes no --key and no other file")
				}
				return o.mergeCopies(env)
			}
			if len(args) > 1 || o.key == "" {
				return cli.Usagef("--key and at most one file are needed")
			}
			if len(args) == 1 {
				_, _, err := o.addSignature(ctx, env, args[0], nil)
				return err
			}
			return o.inFolder(ctx, env)
		},
	}
}

// inFolder signs the root that waits in the folder, and puts it into effect when nothing is missing any more.
func (o *rootSignOptions) inFolder(ctx context.Context, env *cli.Env) error {
	d, set, unlock, err := openDir(env, o.dir)
	if err != nil {
		return err
	}
	defer unlock()
	path := d.PendingRoot(set.Root.Version + 1)
	if !cli.Exists(path) {
		return cli.Hint(fmt.Errorf("no root document waits for a signature in %s: version %d is in effect, and there is no %s", d.At("public"), set.Root.Version, filepath.Base(path)),
			"'%s root -h' lists the verbs that make its successor; to sign a file elsewhere, name it", env.Prog)
	}
	envelope, root, err := o.addSignature(ctx, env, path, set.Root)
	if errors.Is(err, errSigned) { // all signatures may be there, brought back from another machine
		if root, placeErr := set.PutRoot(d, envelope); placeErr == nil {
			_, err = placed(env, d, root)
			return err
		}
	}
	if err != nil {
		return err
	}
	_, err = placeRoot(env, d, set, envelope, root)
	return err
}

// errSigned refuses the second signature of a key: that it adds nothing would not be seen otherwise.
var errSigned = errors.New("has signed it already: a second signature of one key adds nothing, and nothing was changed")

// addSignature signs the document at path and writes it back. current is the root before it, where that is known. Where
// the key has signed it already the document is returned besides errSigned.
func (o *rootSignOptions) addSignature(ctx context.Context, env *cli.Env, path string, current *signing.Root) ([]byte, *signing.Root, error) {
	envelope, err := env.Read(path)
	if err != nil {
		return nil, nil, err
	}
	root, signed, err := documents.Peek(envelope)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %q: %w", path, err)
	}
	env.Progress("signing this root document:")
	env.PrintTo(env.Stderr, rootTable(root, signed))
	signer, err := keyfile.Open(ctx, env, o.key, &o.passphrase)
	if err != nil {
		return nil, nil, err
	}
	if err := o.checkKey(env, path, envelope, signer.Public(), current, root); err != nil {
		return envelope, root, err
	}
	envelope, err = signing.AddSignature(ctx, envelope, signer)
	if err != nil {
		return nil, nil, fmt.Errorf("signing %q: %w", path, err)
	}
	return envelope, root, cli.WriteFile(path, envelope, 0o644)
}

// checkKey refuses a signature that would add nothing. Without the root before it, a key that the document does not list
// can only be warned of: that root may list it.
func (o *rootSignOptions) checkKey(env *cli.Env, path string, envelope []byte, key signing.Key, current, root *signing.Root) error {
	in, err := signing.Inspect(envelope, key)
	if err != nil {
		return fmt.Errorf("reading %q: %w", path, err)
	}
	if slices.ContainsFunc(in.SignedBy, key.Equal) {
		return cli.Hint(fmt.Errorf("%s: %q %w", path, o.key, errSigned), "have another root key sign it")
	}
	if current != nil {
		return checkRootKey(env, o.key, key, current, root)
	}
	if !slices.ContainsFunc(root.Root.Keys, key.Equal) {
		env.Warnf("root version %d does not list %q as a root key: its signature counts only where version %d does", root.Version, o.key, root.Version-1)
	}
	return nil
}
