package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/setup"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const initUsage = `
Usage: @kpssh init [flags]

Makes everything that a pool needs once: root, author and dispatch keys, an SSH
client key, the first root document, and the manifests for kubectl. Says which
files go offline. Overwrites nothing; goes on where an interrupted init stopped.

Flags:
  --dir DIR               the folder to make (default $KPSSH_DIR, else "trust")
  --root-keys N           root keys to make (default 2: one to use, one spare)
  --root-threshold N      root keys that must sign a new root (default 1)
  --valid-days N          how long the first root holds (default 365)
  --algorithm NAME        ed25519 (default) or ecdsa-p256-sha256
  --namespace NS          namespace of the controller (default "kpssh-controller")
  --pool-namespace NS     namespace of the SSHHosts (default "kpssh-system")
  --passphrase-file FILE  passphrase of the root and author keys: the first line
                          of FILE ("-": stdin); without it $KPSSH_PASSPHRASE,
                          else you are asked
  --no-passphrase         leave the offline keys unencrypted: for labs

Example:
    $ @kpssh init --dir trust
    $ @kpssh init --dir lab --no-passphrase
`

// defaultControllerNamespace is apart from the pool's: whoever can read the SSH keys of the pool
// should not find the dispatch key beside them.
const defaultControllerNamespace = "kpssh-controller"

// maxValidDays is how long a document may hold: past that, nobody remembers to sign the next.
const maxValidDays = 3650

var namespacePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

type initOptions struct {
	dir, algorithm, namespace, poolNamespace string
	rootKeys, rootThreshold, validDays       int
	passphrase                               cli.Passphrase
}

func initCommand() *cli.Command {
	o := &initOptions{}
	return &cli.Command{
		Name: "init", Short: "make keys, the first root document and manifests", Usage: initUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			fs.IntVar(&o.rootKeys, "root-keys", 2, "")
			fs.IntVar(&o.rootThreshold, "root-threshold", 1, "")
			fs.IntVar(&o.validDays, "valid-days", 365, "")
			fs.StringVar(&o.algorithm, "algorithm", signing.AlgorithmEd25519, "")
			fs.StringVar(&o.namespace, "namespace", defaultControllerNamespace, "")
			fs.StringVar(&o.poolNamespace, "pool-namespace", apis.DefaultPoolNamespace, "")
			o.passphrase.Flags(fs, true)
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if err := o.check(args); err != nil {
				return err
			}
			return o.run(ctx, env)
		},
	}
}

func (o *initOptions) check(args []string) error {
	switch {
	case len(args) > 0:
		return cli.Usagef("init takes no arguments, but got %q", args[0])
	case o.rootKeys < 1 || o.rootKeys > signing.MaxSignatures:
		return cli.Usagef("--root-keys must be from 1 to %d", signing.MaxSignatures)
	case o.rootThreshold < 1 || o.rootThreshold > o.rootKeys:
		return cli.Usagef("--root-threshold must be from 1 to --root-keys (%d)", o.rootKeys)
	case o.validDays < 1 || o.validDays > maxValidDays:
		return cli.Usagef("--valid-days must be from 1 to 3650")
	case o.algorithm != signing.AlgorithmEd25519 && o.algorithm != signing.AlgorithmECDSAP256:
		return cli.Usagef("--algorithm must be %s or %s", signing.AlgorithmEd25519, signing.AlgorithmECDSAP256)
	}
	for _, ns := range []string{o.namespace, o.poolNamespace} {
		if !namespacePattern.MatchString(ns) {
			return cli.Usagef("%q is not the name of a namespace", ns)
		}
	}
	return nil
}

func (o *initOptions) run(ctx context.Context, env *cli.Env) error {
	path := trustdir.Locate(env, o.dir)
	finished := cli.Hint(fmt.Errorf("%q holds a finished init already; nothing was changed", path),
		"its keys are in use: to change them make a new root document ('%s root new -h'); for another pool choose another --dir", env.Prog)
	if (&trustdir.Dir{Path: path}).Finished() { // before anybody is asked for a passphrase
		return finished
	}
	passphrase, err := o.passphrase.New(env, "the root and author keys")
	if err != nil {
		return err
	}
	d, resumed, unlock, err := trustdir.Begin(path, o.settings())
	if err != nil {
		return err
	}
	defer unlock()
	if d.Finished() {
		return finished
	}
	if resumed {
		env.Progress("going on with the init that was interrupted in %s", d.Path)
	}
	made, err := setup.Make(ctx, d, passphrase, env.Now())
	if errors.Is(err, setup.ErrOtherPassphrase) {
		return cli.Hint(err, "give the passphrase of the interrupted init; or, if nothing of it was ever applied, remove %s and start over", d.Path)
	}
	if err != nil {
		return err
	}
	if o.passphrase.None {
		env.Warnf("the offline keys have no passphrase: whoever reads them owns every host of the pool")
	}
	o.report(env, d, made)
	return nil
}

func (o *initOptions) settings() trustdir.Settings {
	return trustdir.Settings{
		Format:              1,
		ControllerNamespace: o.namespace,
		PoolNamespace:       o.poolNamespace,
		Algorithm:           o.algorithm,
		RootKeys:            o.rootKeys,
		RootThreshold:       o.rootThreshold,
		Encrypted:           !o.passphrase.None,
		ValidSeconds:        int64(o.validDays) * 24 * 3600,
	}
}

func (o *initOptions) report(env *cli.Env, d *trustdir.Dir, made *setup.Made) {
	t := cli.NewTable("FILE", "WHERE IT GOES")
	for n := 1; n <= d.RootKeys; n++ {
		note := fmt.Sprintf("OFFLINE: root key %d of %d (%d must sign); a medium of its own, in a safe", n, d.RootKeys, d.RootThreshold)
		t.Row(d.RootKey(n), note)
	}
	t.Row(d.AuthorKey(), "OFFLINE: allows scripts; only where join profiles are reviewed and signed")
	t.Row(d.Manifest(setup.DispatchManifest), "SECRET: signs orders; apply it, then delete the file")
	t.Row(d.SSHKey(), "SECRET: logs in to hosts, runs nothing by itself; keep it for 'host enroll'")
	t.Row(d.Manifest(setup.SSHManifest), "SECRET: the same for the controller; apply it")
	t.Row(d.Manifest(setup.TrustManifest), "public: apply it, and again after each signature")
	t.Row(d.At("public"), "public: documents and public keys; keep them with your manifests")
	env.Progress("Made %s: root version 1, valid until %s.\n", d.Path, made.Expires.UTC().Format(time.DateOnly))
	env.PrintTo(env.Stderr, t)
	env.Progress(`
Move the offline files to their media now. Whoever has a root key, or the author
key, decides what your hosts run. Without them nothing can be changed any more.

Next:
    $ %[1]s profile sign --dir %[2]s --pin-cluster PROFILE.yaml NODECLASS.yaml
    $ %[1]s host enroll --dir %[2]s root@HOST
    $ kubectl apply -f %[3]s/`, env.Prog, d.Path, d.At("manifests"))
}
