package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/keyfile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
	"github.com/kpssh/karpenter-provider-ssh/signing/keys"
)

const keysNewUsage = `
Usage: @kpssh keys new [flags] FILE

Makes one key pair: the private half in FILE (mode 0600, never overwritten), the
public half in FILE.pub and on stdout.

Flags:
  --algorithm NAME        ed25519 (default) or ecdsa-p256-sha256
  --ssh                   make an SSH client key instead (ed25519, OpenSSH format,
                          no passphrase: the controller has nobody to ask)
  --passphrase-file FILE  passphrase: the first line of FILE ("-": stdin); without
                          it $KPSSH_PASSPHRASE, else you are asked
  --no-passphrase         leave the key unencrypted

Example:
    $ @kpssh keys new /media/usb/root-3.key
`

type keysNewOptions struct {
	algorithm  string
	ssh        bool
	passphrase cli.Passphrase
}

func keysNewCommand() *cli.Command {
	o := &keysNewOptions{}
	return &cli.Command{
		Name: "new", Short: "make a key pair", Usage: keysNewUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.algorithm, "algorithm", signing.AlgorithmEd25519, "")
			fs.BoolVar(&o.ssh, "ssh", false, "")
			o.passphrase.Flags(fs, true)
		},
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) != 1 || args[0] == "-" {
				return cli.Usagef("one file is needed for the private key")
			}
			line, err := o.make(env, args[0])
			if errors.Is(err, fs.ErrExist) {
				return cli.Hint(fmt.Errorf("%q exists already; nothing was changed", args[0]), "a key is never overwritten: choose another name")
			}
			if err != nil {
				return err
			}
			if err := cli.WriteFile(args[0]+".pub", []byte(line+"\n"), 0o644); err != nil {
				return err
			}
			_, err = fmt.Fprintln(env.Stdout, line)
			return err
		},
	}
}

// make writes the private key and returns the public line.
func (o *keysNewOptions) make(env *cli.Env, path string) (string, error) {
	if o.ssh {
		key, err := keys.MakeSSH("kpssh")
		if err != nil {
			return "", err
		}
		return key.Authorized, cli.CreateFile(path, key.Private, 0o600)
	}
	if o.algorithm != signing.AlgorithmEd25519 && o.algorithm != signing.AlgorithmECDSAP256 {
		return "", cli.Usagef("--algorithm must be %s or %s", signing.AlgorithmEd25519, signing.AlgorithmECDSAP256)
	}
	if cli.Exists(path) {
		return "", &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	passphrase, err := o.passphrase.New(env, path)
	if err != nil {
		return "", err
	}
	var pass keys.PassFunc
	if passphrase != nil {
		pass = keys.Static(passphrase)
	}
	signer, err := keyfile.Create(path, o.algorithm, pass)
	if err != nil {
		return "", err
	}
	return signer.Public().String(), nil
}
