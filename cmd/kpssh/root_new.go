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
)

const rootNewUsage = `
Usage: @kpssh root new --sign-with KEY... [flags]

Makes the successor of the folder's root document. Roles that no flag names keep
their keys. It takes effect when the threshold of the old root keys and of the
new ones has signed it; until then it waits as root.N.pending.json for
'root sign' on the machines where the other keys are. While one waits, a call
that says the same adds its signatures, and one that says something else is
refused.

Flags:
  --dir DIR               trust folder (default $KPSSH_DIR, else "trust")
  --sign-with KEY         root key to sign with (file or KMS); repeat for more
  --root-key KEY          a public key (file, "ALGORITHM:BASE64" or KMS); repeat to
  --author-key KEY        list all keys of the role: those that are not named are
  --dispatch-key KEY      dropped
  --root-threshold N      how many keys of the role must sign; default: as before
  --author-threshold N
  --dispatch-threshold N
  --valid-days N          how long it holds (default 365)
  --passphrase-file FILE  passphrase of the key files; without it
                          $KPSSH_PASSPHRASE, else you are asked
  --out FILE              write it there and leave the folder as it is; FILE
                          must not be there yet

Example:
    $ @kpssh keys new --no-passphrase dispatch-2.key
    $ @kpssh root new --sign-with /media/usb/root-1.key \
        --dispatch-key trust/public/dispatch.pub --dispatch-key dispatch-2.key.pub
`

type rootNewOptions struct {
	rootSigning
	dir, out                                          string
	rootKeys, authorKeys, dispatchKeys                files
	rootThreshold, authorThreshold, dispatchThreshold int
}

func rootNewCommand() *cli.Command {
	o := &rootNewOptions{}
	return &cli.Command{
		Name: "new", Short: "make the next root document", Usage: rootNewUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			fs.Var(&o.rootKeys, "root-key", "")
			fs.Var(&o.authorKeys, "author-key", "")
			fs.Var(&o.dispatchKeys, "dispatch-key", "")
			fs.IntVar(&o.rootThreshold, "root-threshold", 0, "")
			fs.IntVar(&o.authorThreshold, "author-threshold", 0, "")
			fs.IntVar(&o.dispatchThreshold, "dispatch-threshold", 0, "")
			fs.StringVar(&o.out, "out", "", "")
			o.flags(fs)
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			switch {
			case len(args) > 0:
				return cli.Usagef("root new takes no arguments, but got %q", args[0])
			case len(o.signWith) == 0:
				return cli.Usagef("--sign-with is needed: at least one root key signs a new root")
			case o.validDays < 1 || o.validDays > maxValidDays:
				return cli.Usagef("--valid-days must be from 1 to 3650")
			case min(o.rootThreshold, o.authorThreshold, o.dispatchThreshold) < 0:
				return cli.Usagef("a threshold must be 1 or more")
			}
			return o.make(ctx, env)
		},
	}
}

func (o *rootNewOptions) make(ctx context.Context, env *cli.Env) error {
	d, set, unlock, err := openDir(env, o.dir)
	if err != nil {
		return err
	}
	defer unlock()
	next, err := o.successor(env, set.Root)
	if err != nil {
		return err
	}
	if o.out != "" {
		return o.makeApart(ctx, env, set.Root, next)
	}
	_, err = o.issue(ctx, env, d, set, next)
	return err
}

// makeApart writes the successor to --out. What is there may be a root that others have signed: it is not replaced.
func (o *rootNewOptions) makeApart(ctx context.Context, env *cli.Env, current, next *signing.Root) error {
	taken := cli.Hint(fmt.Errorf("%q exists already; nothing was changed", o.out),
		"have it signed by another key ('%s root sign --key KEY %s'), or choose another --out", env.Prog, o.out)
	if cli.Exists(o.out) { // before anybody is asked for a passphrase
		return taken
	}
	signers, err := o.open(ctx, env, o.signWith)
	if err != nil {
		return err
	}
	for i, signer := range signers { // it may be to try a key that no root lists yet
		if err := checkRootKey(env, o.signWith[i], signer.Public(), current, next); err != nil {
			env.Warnf("%v: its signature does not count", err)
		}
	}
	envelope, err := signRoot(ctx, next, signers)
	if err != nil {
		return err
	}
	err = cli.CreateFile(o.out, envelope, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return taken
	}
	if err == nil {
		env.Progress("wrote root version %d to %s; it is not in effect", next.Version, o.out)
	}
	return err
}

// successor is the current root with what the flags change.
func (o *rootNewOptions) successor(env *cli.Env, current *signing.Root) (*signing.Root, error) {
	next := nextRoot(env, current, o.validDays)
	for _, role := range []struct {
		name      string
		keys      files
		threshold int
		of        *signing.RoleKeys
	}{
		{roleRoot, o.rootKeys, o.rootThreshold, &next.Root},
		{roleAuthor, o.authorKeys, o.authorThreshold, &next.Author},
		{roleDispatch, o.dispatchKeys, o.dispatchThreshold, &next.Dispatch},
	} {
		if len(role.keys) > 0 {
			role.of.Keys = nil
		}
		for _, text := range role.keys {
			key, err := keyfile.Public(env, text)
			if err != nil {
				return nil, err
			}
			role.of.Keys = append(role.of.Keys, key)
		}
		if role.threshold > 0 {
			role.of.Threshold = role.threshold
		}
		if err := checkThreshold(role.name, role.of); err != nil {
			return nil, err
		}
	}
	return next, nil
}
