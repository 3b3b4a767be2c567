package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/rotation"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const keysRotateUsage = `
Usage: @kpssh keys rotate [flags] dispatch|author

Replaces the dispatch key or an author key, step by step, with hosts in use and
without a moment in which they take no orders:

  key     the new key is made
  list    a root document lists the old key and the new one
  spread  every host has that root
  switch  dispatch: the controller signs with the new key;
          author: the new key has signed the allowlist, and every host has it
  drop    a root document drops the old key

Each call does what can be done and says what it waits for: a manifest to apply,
a host, the signature of another root key. Call it again then. It knows where it
is from the documents and the cluster alone, so that an interruption costs
nothing. Nothing is deleted: you are told when the old key file may go.

Where kpssh finds a cluster it looks for itself whether a step is done, and
refuses to sign when the cluster has other root documents than the folder. With
--offline you look: it says how, and --confirm STEP says that it is so.

Flags:
  --dir DIR               trust folder (default $KPSSH_DIR, else "trust")
  --sign-with KEY         root key file to sign with; repeat for more; default:
                          those of offline/root in DIR that are needed
  --old KEY               the key to replace, where the role has several: public
                          key, file or id
  --new FILE              the new author key, made if it is not there (default
                          offline/author/author-N.key in DIR)
  --without HOST          do not wait for this host; repeat for more. It catches
                          up on its next contact
  --wait DURATION         how long to wait for hosts (default 0: look once)
  --offline               do not look into the cluster
  --confirm STEP          spread or switch is done; repeat for both
  --emergency             the old key is in wrong hands: drop it at once, without
                          spread, and say who goes on believing it until when;
                          where the key was replaced before: with --again once
  --again                 replace the key although that was finished within a
                          day, or ever with --emergency or --confirm; or where
                          it cannot be seen whether an emergency was
  --valid-days N          how long the root documents hold (default 365)
  --kubeconfig FILE       in place of $KUBECONFIG and ~/.kube/config
  --context NAME          context of the kubeconfig
  --passphrase-file FILE  passphrase of the key files; without it
                          $KPSSH_PASSPHRASE, else you are asked
  --no-passphrase         leave a new author key unencrypted: for labs
  --dry-run               say what would be done next, make and write nothing
  -o, --output FMT        table (default), json or yaml

Example:
    $ @kpssh keys rotate dispatch
    $ kubectl apply -f trust/manifests/10-trust.yaml
    $ @kpssh keys rotate dispatch --wait 5m
`

// Steps of a rotation, in their order.
const (
	stepKey    = "key"
	stepList   = "list"
	stepSpread = "spread"
	stepSwitch = "switch"
	stepDrop   = "drop"
)

type rotateOptions struct {
	rootSigning
	clusterFlags
	role, dir, old, newKey, output    string
	without, confirm                  files
	wait                              time.Duration
	offline, emergency, again, dryRun bool
}

func keysRotateCommand() *cli.Command {
	o := &rotateOptions{}
	return &cli.Command{
		Name: "rotate", Short: "replace the dispatch key or an author key, step by step", Usage: keysRotateUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			fs.StringVar(&o.old, "old", "", "")
			fs.StringVar(&o.newKey, "new", "", "")
			fs.Var(&o.without, "without", "")
			fs.Var(&o.confirm, "confirm", "")
			fs.DurationVar(&o.wait, "wait", 0, "")
			fs.BoolVar(&o.offline, "offline", false, "")
			fs.BoolVar(&o.emergency, "emergency", false, "")
			fs.BoolVar(&o.again, "again", false, "")
			fs.BoolVar(&o.dryRun, "dry-run", false, "")
			o.rootSigning.flags(fs)
			fs.BoolVar(&o.passphrase.None, "no-passphrase", false, "")
			o.clusterFlags.flags(fs)
			outputFlag(fs, &o.output)
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if len(args) != 1 || args[0] != roleDispatch && args[0] != roleAuthor {
				return cli.Usagef("which key is to be replaced: dispatch or author? (root keys: '%s root rotate')", env.Prog)
			}
			o.role = args[0]
			if err := o.check(); err != nil {
				return err
			}
			return o.run(ctx, env)
		},
	}
}

func (o *rotateOptions) check() error {
	unknown := func(step string) bool { return step != stepSpread && step != stepSwitch }
	return cli.Check(
		cli.Rule{Broken: o.validDays < 1 || o.validDays > maxValidDays, Message: "--valid-days must be from 1 to 3650"},
		cli.Rule{Broken: slices.ContainsFunc(o.confirm, unknown), Message: "--confirm takes spread or switch"},
		cli.Rule{Broken: o.role == roleDispatch && o.newKey != "", Message: "--new is for author keys: 'root add-key' and 'root remove-key' replace a dispatch key that is in a key service"},
		cli.Rule{Broken: o.wait < 0, Message: "--wait must not be negative"},
	)
}

// rotator is one call.
type rotator struct {
	*rotateOptions
	env   *cli.Env
	dir   *trustdir.Dir
	set   *documents.Set
	state rotation.State
	pool  *cluster.Pool // as last looked at
	// at is the step that the rotation stands at, empty when it is finished, and note what it waits for there.
	at, note string
	// acted says that this call did a step itself.
	acted bool
	// private is, of each key that no root ever listed, the file of its private half; empty when that is not at hand.
	private map[string]string
}

func (o *rotateOptions) run(ctx context.Context, env *cli.Env) error {
	d, set, unlock, err := openDir(env, o.dir)
	if err != nil {
		return err
	}
	defer unlock()
	o.ControllerNamespace, o.PoolNamespace = d.ControllerNamespace, d.PoolNamespace
	r := &rotator{rotateOptions: o, env: env, dir: d, set: set}
	for moved := true; moved; {
		if err := r.load(ctx); err != nil {
			return err
		}
		if moved, err = r.advance(ctx); err != nil {
			return err
		}
	}
	return r.report(ctx)
}

// keys are the role's keys in a root.
func (r *rotator) keys(root *signing.Root) signing.RoleKeys { return *keysOfRole(root, r.role) }

// advance does the next step, if that can be done, and says whether to go on from there.
func (r *rotator) advance(ctx context.Context) (bool, error) {
	r.at, r.note = "", ""
	if r.state.Phase != rotation.Dropped && !r.offline && r.pool == nil {
		if err := r.look(ctx); err != nil { // before a key is made or a root is signed
			return false, err
		}
	}
	switch r.state.Phase {
	case rotation.Idle:
		if err := refuseWaitingRoot(r.env, r.dir, r.set); err != nil {
			return false, err
		}
		return r.act(stepKey, "make the new key", r.makeKey)
	case rotation.Made:
		if r.emergency {
			return r.act(stepDrop, "drop the old key at once and list the new one", func() (bool, error) { return r.replace(ctx) })
		}
		return r.act(stepList, "list the new key beside the old one", func() (bool, error) { return r.list(ctx) })
	case rotation.Listed:
		if r.emergency {
			return r.act(stepDrop, "drop the old key at once", func() (bool, error) { return r.replace(ctx) })
		}
		return r.settle(ctx)
	}
	return r.after(ctx)
}

// act does a step, or says what it would do.
func (r *rotator) act(step, what string, do func() (bool, error)) (bool, error) {
	r.at = step
	if r.dryRun {
		r.note = "would " + what
		return false, nil
	}
	r.acted = true
	return do()
}

// settle goes from both keys listed to the old one dropped.
func (r *rotator) settle(ctx context.Context) (bool, error) {
	r.at = stepSpread
	if done, err := r.spread(ctx); !done || err != nil {
		return false, err
	}
	r.at = stepSwitch
	written, err := r.switchWritten()
	if err != nil {
		return false, err
	}
	if !written {
		return r.act(stepSwitch, r.switchWhat(), func() (bool, error) { return r.writeSwitch(ctx) })
	}
	if done, err := r.switched(ctx); !done || err != nil {
		return false, err
	}
	return r.act(stepDrop, "drop the old key", func() (bool, error) { return r.drop(ctx) })
}

// after is what remains to be done when the old key is dropped: in an emergency the switch comes last. One that was
// interrupted before that is gone on with also by a call that does not say --emergency.
func (r *rotator) after(ctx context.Context) (bool, error) {
	if r.role != roleDispatch {
		return false, nil
	}
	if !r.emergency {
		switched, err := r.switchSeen(ctx, r.state)
		if switched != switchOwed || err != nil {
			return false, err
		}
		r.emergency = true
	}
	written, err := r.switchWritten()
	if err != nil {
		return false, err
	}
	if !written {
		return r.act(stepSwitch, r.switchWhat(), func() (bool, error) { return r.writeSwitch(ctx) })
	}
	r.at = stepSwitch
	done, err := r.switched(ctx)
	if done {
		r.at = ""
	}
	return false, err
}

func (r *rotator) list(ctx context.Context) (bool, error) {
	next := nextRoot(r.env, r.set.Root, r.validDays)
	if err := r.addNew(next); err != nil {
		return false, err
	}
	return r.root(ctx, next)
}

// addNew lists the new key, and says which that is before a root key signs it.
func (r *rotator) addNew(next *signing.Root) error {
	r.env.Progress("root version %d is to list the %s key %s of %s", next.Version, r.role, r.state.New.ID(), r.private[r.state.New.String()])
	return addKey(r.env, next, r.role, r.state.New)
}

func (r *rotator) drop(ctx context.Context) (bool, error) {
	next := nextRoot(r.env, r.set.Root, r.validDays)
	if err := removeKey(next, r.role, r.state.Old); err != nil {
		return false, err
	}
	return r.root(ctx, next)
}

// replace drops the old key at once. An author's successor signs the allowlist before, which waits for the root.
func (r *rotator) replace(ctx context.Context) (bool, error) {
	next := nextRoot(r.env, r.set.Root, r.validDays)
	if r.state.Phase == rotation.Made {
		if err := r.addNew(next); err != nil {
			return false, err
		}
	}
	if err := removeKey(next, r.role, r.state.Old); err != nil {
		return false, err
	}
	if r.role == roleAuthor && !r.set.AllowlistHolds(next) {
		if complete, err := r.signWaiting(ctx, next); err != nil || !complete {
			return false, err
		}
	}
	return r.root(ctx, next)
}

func (r *rotator) root(ctx context.Context, next *signing.Root) (bool, error) {
	inEffect, err := r.issue(ctx, r.env, r.dir, r.set, next)
	if err == nil && !inEffect {
		r.note = fmt.Sprintf("root %d waits for other root keys: '%s root sign --dir %s --key KEY', then call this again", next.Version, r.env.Prog, r.dir.Path)
	}
	return inEffect, err
}

func (r *rotator) confirmed(step string) bool { return slices.Contains(r.confirm, step) }

// report says where the rotation stands.
func (r *rotator) report(ctx context.Context) error {
	result := r.result(ctx)
	return r.env.Print(r.output, result, func() *cli.Table { return result.table() })
}
