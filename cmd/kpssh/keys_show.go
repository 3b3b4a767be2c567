package main

import (
	"context"
	"flag"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/keyfile"
)

const keysShowUsage = `
Usage: @kpssh keys show [flags] KEY

Prints the public half of a key as root documents list it, "ALGORITHM:BASE64".
KEY is a key file, private or public, or a key in a KMS.

Flags:
  --passphrase-file FILE  passphrase of a private key file; without it
                          $KPSSH_PASSPHRASE, else you are asked
  -o, --output FMT        table (default: the line alone), json or yaml

Example:
    $ @kpssh keys show awskms:///alias/kpssh-dispatch
    $ @kpssh keys show -o json trust/public/dispatch.pub
`

type keysShowOptions struct {
	output     string
	passphrase cli.Passphrase
}

// shownKey is what keys show prints for programs.
type shownKey struct {
	Algorithm string `json:"algorithm"`
	// Key is the line that root documents and flags take.
	Key string `json:"key"`
	// ID is the digest by which messages name the key.
	ID string `json:"id"`
}

func keysShowCommand() *cli.Command {
	o := &keysShowOptions{}
	return &cli.Command{
		Name: "show", Short: "print the public half of a key", Usage: keysShowUsage,
		Flags: func(fs *flag.FlagSet) {
			o.passphrase.Flags(fs, false)
			outputFlag(fs, &o.output)
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("one key is needed")
			}
			key, err := keyfile.PublicHalf(ctx, env, args[0], &o.passphrase)
			if err != nil {
				return err
			}
			return env.Print(o.output, shownKey{key.Algorithm, key.String(), key.ID()}, func() *cli.Table {
				t := cli.NewTable("")
				t.Row(key.String())
				return t
			})
		},
	}
}
