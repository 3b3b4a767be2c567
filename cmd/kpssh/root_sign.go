package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/keyfile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const rootSignUsage = `
Usage: @kpssh root sign --key KEY [flags] [FILE]

Adds a signature to a root document that waits for it, after showing what is
being signed. FILE is changed in place; without it, the folder's pending root
is meant, which takes effect as soon as it has the signatures that it needs.

Flags:
  --dir DIR               trust folder (default $KPSSH_DIR, else "trust")
  --key KEY               root key (file or KMS)
  --passphrase-file FILE  passphrase of the key file; without it
                          $KPSSH_PASSPHRASE, else you are asked

Example:
    $ @kpssh root sign --key /media/usb/root-2.key root.2.pending.json
`

type rootSignOptions struct {
	dir, key   string
	passphrase cli.Passphrase
}

func rootSignCommand() *cli.Command {
	o := &rootSignOptions{}
	return &cli.Command{
		Name: "sign", Short: "add a signature to a root document that waits", Usage: rootSignUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			fs.StringVar(&o.key, "key", "", "")
			o.passphrase.Flags(fs, false)
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if len(args) > 1 || o.key == "" {
				return cli.Usagef("--key and at most one file are needed")
			}
			if len(args) == 1 {
				_, err := o.addSignature(ctx, env, args[0])
				return err
			}
			d, set, unlock, err := openDir(env, o.dir)
			if err != nil {
				return err
			}
			defer unlock()
			envelope, err := o.addSignature(ctx, env, d.PendingRoot(set.Root.Version+1))
			if err != nil {
				return err
			}
			root, _, err := documents.Peek(envelope)
			if err != nil {
				return err
			}
			_, err = placeRoot(env, d, set, envelope, root)
			return err
		},
	}
}

func (o *rootSignOptions) addSignature(ctx context.Context, env *cli.Env, path string) ([]byte, error) {
	envelope, err := env.Read(path)
	if err != nil {
		return nil, err
	}
	root, signed, err := documents.Peek(envelope)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	env.Progress("signing this root document:")
	env.PrintTo(env.Stderr, rootTable(root, signed))
	signer, err := keyfile.Open(ctx, env, o.key, &o.passphrase)
	if err != nil {
		return nil, err
	}
	envelope, err = signing.AddSignature(ctx, envelope, signer)
	if err != nil {
		return nil, fmt.Errorf("signing %q: %w", path, err)
	}
	return envelope, cli.WriteFile(path, envelope, 0o644)
}
