package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/keyfile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const rootAddKeyUsage = `
Usage: @kpssh root add-key [flags] ROLE KEY

Makes a root document that lists one more key of a role: root, author or
dispatch. KEY is a public key (file or "ALGORITHM:BASE64"). Everything else
stays as it is.

Flags:
  --dir DIR               trust folder (default $KPSSH_DIR, else "trust")
  --threshold N           how many keys of the role must sign from now on
  --sign-with KEY         root key file to sign with; repeat for more; default:
                          those of offline/root in DIR that are needed
  --valid-days N          how long it holds (default 365)
  --passphrase-file FILE  passphrase of the key files; without it
                          $KPSSH_PASSPHRASE, else you are asked
  --dry-run               show the document, write nothing

Example:
    $ @kpssh keys new /media/usb/root-3.key
    $ @kpssh root add-key root /media/usb/root-3.key.pub --threshold 2
`

const rootRemoveKeyUsage = `
Usage: @kpssh root remove-key [flags] ROLE KEY

Makes a root document without one key of a role: root, author or dispatch. KEY
is a public key (file or "ALGORITHM:BASE64") or its id, as 'root show' prints it.
Hosts stop believing the key as soon as they have the document; one that nobody
contacts believes it until its root expires.

Flags:
  --dir DIR               trust folder (default $KPSSH_DIR, else "trust")
  --threshold N           how many keys of the role must sign from now on
  --sign-with KEY         root key file to sign with; repeat for more; default:
                          those of offline/root in DIR that are needed
  --valid-days N          how long it holds (default 365)
  --passphrase-file FILE  passphrase of the key files; without it
                          $KPSSH_PASSPHRASE, else you are asked
  --dry-run               show the document, write nothing

Example:
    $ @kpssh root remove-key root trust/public/root-2.pub
`

type rootKeysOptions struct {
	rootSigning
	dir, old, newKey string
	threshold        int
	dryRun           bool
}

func (o *rootKeysOptions) oneKeyFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.dir, "dir", "", "")
	fs.IntVar(&o.threshold, "threshold", 0, "")
	fs.BoolVar(&o.dryRun, "dry-run", false, "")
	o.flags(fs)
}

func rootAddKeyCommand() *cli.Command {
	o := &rootKeysOptions{}
	return &cli.Command{
		Name: "add-key", Short: "list one more key of a role", Usage: rootAddKeyUsage, Flags: o.oneKeyFlags,
		Run: func(ctx context.Context, env *cli.Env, args []string) error { return o.change(ctx, env, args, o.add) },
	}
}

func rootRemoveKeyCommand() *cli.Command {
	o := &rootKeysOptions{}
	return &cli.Command{
		Name: "remove-key", Short: "drop one key of a role", Usage: rootRemoveKeyUsage, Flags: o.oneKeyFlags,
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			return o.change(ctx, env, args, o.remove)
		},
	}
}

// change makes the successor that edit turns the current root into. edit is given the role and what KEY says.
func (o *rootKeysOptions) change(ctx context.Context, env *cli.Env, args []string,
	edit func(env *cli.Env, next *signing.Root, role, key string) error,
) error {
	if len(args) != 2 {
		return cli.Usagef("a role and a key are needed")
	}
	if err := o.check(); err != nil {
		return err
	}
	if keysOfRole(&signing.Root{}, args[0]) == nil {
		return cli.Usagef("%q is not a role: root, author or dispatch", args[0])
	}
	d, set, unlock, err := openDir(env, o.dir)
	if err != nil {
		return err
	}
	defer unlock()
	next := nextRoot(env, set.Root, o.validDays)
	if o.threshold > 0 {
		keysOfRole(next, args[0]).Threshold = o.threshold
	}
	if err := edit(env, next, args[0], args[1]); err != nil {
		return err
	}
	if o.dryRun {
		return o.show(env, next)
	}
	_, err = o.issue(ctx, env, d, set, next)
	return err
}

func (o *rootKeysOptions) check() error {
	return cli.Check(
		cli.Rule{Broken: o.validDays < 1 || o.validDays > maxValidDays, Message: "--valid-days must be from 1 to 3650"},
		cli.Rule{Broken: o.threshold < 0 || o.threshold > signing.MaxSignatures, Message: fmt.Sprintf("--threshold must be from 1 to %d", signing.MaxSignatures)},
	)
}

func (o *rootKeysOptions) show(env *cli.Env, next *signing.Root) error {
	env.Progress("would make root version %d, and write nothing now:", next.Version)
	return env.Print("table", next, func() *cli.Table { return rootTable(next, nil) })
}

func (o *rootKeysOptions) add(env *cli.Env, next *signing.Root, role, text string) error {
	key, err := keyfile.Public(env, text)
	if err != nil {
		return err
	}
	return addKey(env, next, role, key)
}

func addKey(env *cli.Env, next *signing.Root, role string, key signing.Key) error {
	for _, other := range []string{roleRoot, roleAuthor, roleDispatch} {
		if !slices.ContainsFunc(keysOfRole(next, other).Keys, key.Equal) {
			continue
		}
		if other == role {
			return cli.Hint(fmt.Errorf("%s is a %s key of root version %d already", key.ID(), role, next.Version-1), "'%s root show' lists the keys of each role", env.Prog)
		}
		return cli.Hint(fmt.Errorf("%s is a key of role %s: one key serves one role, or its loss is that of both", key.ID(), other), "make another: '%s keys new FILE'", env.Prog)
	}
	keys := keysOfRole(next, role)
	keys.Keys = append(keys.Keys, key)
	return checkThreshold(role, keys)
}

func (o *rootKeysOptions) remove(env *cli.Env, next *signing.Root, role, text string) error {
	key, err := listedKey(env, next, role, text)
	if err != nil {
		return err
	}
	return removeKey(next, role, key)
}

func removeKey(next *signing.Root, role string, key signing.Key) error {
	keys := keysOfRole(next, role)
	if len(keys.Keys) == 1 {
		return cli.Hint(fmt.Errorf("%s is the only %s key", key.ID(), role), "list its successor first: 'kpssh root add-key', or 'kpssh keys rotate' and 'kpssh root rotate' for both at once")
	}
	keys.Keys = slices.DeleteFunc(keys.Keys, key.Equal)
	return checkThreshold(role, keys)
}

func checkThreshold(role string, keys *signing.RoleKeys) error {
	if keys.Threshold <= len(keys.Keys) {
		return nil
	}
	return cli.Hint(fmt.Errorf("%d %s keys can never give the %d signatures that the threshold asks for", len(keys.Keys), role, keys.Threshold),
		"say how many must sign from now on: --threshold N ('root new': --%s-threshold N)", role)
}

// minID is how much of an id names a key: as much as tables show of it.
const minID = len("sha256:") + 12

// listedKey finds a key that a root lists, by its id or the public key itself.
func listedKey(env *cli.Env, root *signing.Root, role, text string) (signing.Key, error) {
	listed := keysOfRole(root, role).Keys
	for _, key := range listed {
		if id := key.ID(); len(text) >= minID && strings.HasPrefix(id, text) {
			return key, nil
		}
	}
	if strings.HasPrefix(text, "sha256:") {
		return signing.Key{}, cli.Hint(fmt.Errorf("there is no %s key whose id begins with %q", role, text),
			"'%s root show' lists the keys of each role; an id may be cut after 12 digits, not before", env.Prog)
	}
	key, err := keyfile.Public(env, text)
	if errors.Is(err, fs.ErrNotExist) {
		return signing.Key{}, cli.Hint(err, "a key is named by its public half or the id that '%s root show' lists", env.Prog)
	}
	if err != nil {
		return signing.Key{}, err
	}
	if !slices.ContainsFunc(listed, key.Equal) {
		return signing.Key{}, cli.Hint(fmt.Errorf("%s is no %s key", key.ID(), role), "'%s root show' lists the keys of each role", env.Prog)
	}
	return key, nil
}
