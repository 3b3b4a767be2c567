package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/authoring"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/keyfile"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/review"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/setup"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const profileSignUsage = `
Usage: @kpssh profile sign [flags] MANIFEST...

Allows the scripts of join profiles to run on hosts. Reads SSHJoinProfiles, and
the SSHNodeClasses that use them, from files, folders or stdin ("-"); renders
the scripts with each class's values; signs the next version of the allowlist
and writes it into the folder and its ConfigMap manifest. Scripts of other
profiles and versions stay allowed. Before it signs it says what changes, and
what 'profile lint' takes for an error; look at the texts with --dry-run, or later
with 'profile diff'.

The standard KPSSH_* variables have a built-in schema. Vars of a node class that
the profile does not declare may only have the value that they have now. The
cluster must be pinned, or a stolen dispatch key could send your hosts to
another one; pins of an earlier signature are kept unless you give new ones.

Flags:
  --dir DIR               trust folder (default $KPSSH_DIR, else "trust")
  --pin-cluster           pin endpoint and CA of the kubeconfig's cluster, as its
                          ConfigMap kube-public/cluster-info says
  --kubeconfig FILE       in place of $KUBECONFIG and ~/.kube/config
  --context NAME          context of the kubeconfig
  --pin-endpoint URL      pin an endpoint yourself; repeat for more
  --pin-ca FILE           pin the CA certificates of a PEM file; repeat for more
  --no-pins               pin nothing: for labs
  --key KEY               author key, a file or in a KMS (default: the one of
                          offline/author in DIR)
  --passphrase-file FILE  passphrase of the key; without it $KPSSH_PASSPHRASE,
                          else you are asked
  --valid-days N          how long hosts accept the allowlist (default 365)
  --leave-grace-days N    how long after that they may still leave (default 30)
  --min-shim VERSION      refuse hosts with an older kpssh-shim
  --add                   keep other scripts of the same profile and version, for
                          node classes that are signed on their own
  --drop-older            drop other versions of these profiles
  --countersign           add this key's signature to the allowlist that waits
                          for one (author threshold above 1), or else to the one
                          in effect (before the threshold is raised); no MANIFEST
  --merge FILE            sign nothing, and take the signatures of a copy of that
                          list that was signed elsewhere; repeat for more; no
                          MANIFEST
  --dry-run               show what would be allowed, with a diff of the scripts;
                          sign nothing
  -o, --output FMT        table (default), json or yaml

Example:
    $ @kpssh profile sign --pin-cluster profile.yaml nodeclass.yaml
    $ kubectl apply -f trust/manifests/10-trust.yaml
`

type signOptions struct {
	dir, key, kubeconfig, context, minShim, output string
	pinEndpoints, pinCAs, copies                   files
	pinCluster, noPins, add, dropOlder             bool
	countersign, dryRun                            bool
	validDays, graceDays                           int
	passphrase                                     cli.Passphrase
}

func profileSignCommand() *cli.Command {
	o := &signOptions{}
	return &cli.Command{
		Name: "sign", Short: "allow the scripts of join profiles", Usage: profileSignUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			fs.BoolVar(&o.pinCluster, "pin-cluster", false, "")
			fs.StringVar(&o.kubeconfig, "kubeconfig", "", "")
			fs.StringVar(&o.context, "context", "", "")
			fs.Var(&o.pinEndpoints, "pin-endpoint", "")
			fs.Var(&o.pinCAs, "pin-ca", "")
			fs.BoolVar(&o.noPins, "no-pins", false, "")
			fs.StringVar(&o.key, "key", "", "")
			fs.IntVar(&o.validDays, "valid-days", 365, "")
			fs.IntVar(&o.graceDays, "leave-grace-days", 30, "")
			fs.StringVar(&o.minShim, "min-shim", "", "")
			fs.BoolVar(&o.add, "add", false, "")
			fs.BoolVar(&o.dropOlder, "drop-older", false, "")
			fs.BoolVar(&o.countersign, "countersign", false, "")
			fs.Var(&o.copies, "merge", "")
			fs.BoolVar(&o.dryRun, "dry-run", false, "")
			outputFlag(fs, &o.output)
			o.passphrase.Flags(fs, false)
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if err := o.check(args); err != nil {
				return err
			}
			d, set, unlock, err := openDir(env, o.dir)
			if err != nil {
				return err
			}
			defer unlock()
			if err := set.CheckRoot(env.Now()); err != nil {
				return err
			}
			if len(o.copies) > 0 {
				return o.mergeCopies(env, d, set)
			}
			if o.countersign {
				return o.countersignature(ctx, env, d, set)
			}
			return o.sign(ctx, env, d, set, args)
		},
	}
}

func (o *signOptions) check(args []string) error {
	byHand := len(o.pinEndpoints) > 0 || len(o.pinCAs) > 0
	return cli.Check(
		cli.Rule{Broken: o.countersign && len(args) > 0, Message: "--countersign takes no manifests: it signs what is in the folder"},
		cli.Rule{Broken: len(o.copies) > 0 && (len(args) > 0 || o.countersign || o.key != ""), Message: "--merge signs nothing: it takes no manifests, no --key and no --countersign"},
		cli.Rule{Broken: !o.countersign && len(o.copies) == 0 && len(args) == 0, Message: "no manifest is given"},
		cli.Rule{Broken: o.noPins && (o.pinCluster || byHand), Message: "--no-pins and the other pin flags exclude each other"},
		cli.Rule{Broken: (len(o.pinEndpoints) > 0) != (len(o.pinCAs) > 0), Message: "--pin-endpoint and --pin-ca belong together"},
		cli.Rule{Broken: o.validDays < 1 || o.validDays > maxValidDays, Message: "--valid-days must be from 1 to 3650"},
		cli.Rule{Broken: o.graceDays < 0 || o.graceDays > 366, Message: "--leave-grace-days must be from 0 to 366"},
		cli.Rule{Broken: o.minShim != "" && !shimVersion().MatchString(o.minShim), Message: "--min-shim must be a version like 1.2.3"},
	)
}

// shimVersion is what hosts can compare; anything else would have all of them refuse every order.
func shimVersion() *regexp.Regexp {
	return regexp.MustCompile(`^v?[0-9]{1,9}([.][0-9]{1,9}){0,2}$`)
}

func (o *signOptions) sign(ctx context.Context, env *cli.Env, d *trustdir.Dir, set *documents.Set, args []string) error {
	if !o.dryRun {
		if err := refuseWaiting(env, d, set); err != nil {
			return err
		}
	}
	objects, err := manifest.Load(env, args)
	if err != nil {
		return err
	}
	sources, err := authoring.Sources(objects)
	if err != nil {
		return err
	}
	changes, err := o.changes(ctx, env, set.Allowlist, sources)
	if err != nil {
		return err
	}
	for _, name := range authoring.EditedInPlace(changes) {
		env.Warnf("the install script of %s changed without a new spec.version: hosts that ran the old one keep it", name)
	}
	next := o.next(env, set.Allowlist, changes)
	if set.Root.Expires.Before(next.Issued.AddDate(0, 0, 30)) {
		env.Warnf("the root document expires on %s: nothing runs after that", set.Root.Expires.Format(time.DateOnly))
		env.Hintf("'%s root new' makes its successor", env.Prog)
	}
	texts, err := o.show(env, d, set.Allowlist, next, sources)
	if err != nil {
		return err
	}
	if o.dryRun {
		env.Progress("would sign allowlist version %d", next.Version)
		return o.print(env, changes)
	}
	signer, err := o.signer(ctx, env, d, set.Root)
	if err != nil {
		return err
	}
	envelope, err := signing.Sign(ctx, next, signer)
	if err != nil {
		return fmt.Errorf("signing the allowlist: %w", err)
	}
	if err := review.Keep(d.Scripts(), texts); err != nil {
		return err
	}
	if err := o.place(env, d, set, envelope, next); err != nil {
		return err
	}
	return o.print(env, changes)
}

// refuseWaiting keeps an allowlist that waits for signatures, and those that it has, from being replaced by another.
func refuseWaiting(env *cli.Env, d *trustdir.Dir, set *documents.Set) error {
	_, list, err := waitingAllowlist(d, set)
	if err != nil || list == nil {
		return err
	}
	return cli.Hint(fmt.Errorf("allowlist version %d waits for signatures in %s; nothing was signed", list.Version, d.PendingAllowlist()),
		"read it ('%[1]s profile diff --dir %[2]s --pending') and have it signed first ('%[1]s profile sign --dir %[2]s --countersign --key KEY'), or remove the file if it is not wanted any more", env.Prog, d.Path)
}

// next is the successor of an allowlist, which may be nil.
func (o *signOptions) next(env *cli.Env, old *signing.Allowlist, changes []authoring.Change) *signing.Allowlist {
	now := env.Now().Truncate(time.Second) // as it is signed
	next := &signing.Allowlist{
		Version: 1, Issued: now, Expires: now.AddDate(0, 0, o.validDays), MinShim: o.minShim, Scripts: authoring.Scripts(changes),
	}
	if old != nil {
		next.Version = old.Version + 1
		if o.minShim == "" {
			next.MinShim = old.MinShim
		}
	}
	return next
}

// show says what a signature would change, before the key is opened, and returns the scripts that it is about.
func (o *signOptions) show(env *cli.Env, d *trustdir.Dir, old, next *signing.Allowlist, sources []authoring.Source) ([][]byte, error) {
	library := review.NewLibrary(d.Scripts())
	var texts [][]byte
	for _, source := range sources {
		scripts, err := source.Render()
		if err != nil {
			return nil, err
		}
		for _, script := range scripts {
			library.Add(script.Content)
			texts = append(texts, script.Content)
		}
	}
	sayFindings(env, sources)
	report := review.Compare(old, next, library.Text)
	return texts, report.Print(env.Stderr, review.Style{Brief: !o.dryRun, Colour: env.Colour})
}

// changes computes what is to be allowed.
func (o *signOptions) changes(ctx context.Context, env *cli.Env, old *signing.Allowlist, sources []authoring.Source) ([]authoring.Change, error) {
	asked, err := o.pins(ctx)
	if err != nil {
		return nil, err
	}
	var entries []signing.AllowedScript
	for _, source := range sources {
		pins := asked
		if len(pins.Endpoints) == 0 && !pins.None {
			if pins, err = source.Carried(old); err != nil {
				return nil, err
			}
		}
		made, err := source.Entries(pins, int64(o.graceDays)*24*3600)
		if errors.Is(err, authoring.ErrNoPins) {
			return nil, cli.Hint(fmt.Errorf("profile %q: %w: with a stolen dispatch key it could be anybody's", source.Profile.Name, authoring.ErrNoPins),
				"add --pin-cluster to pin the kubeconfig's cluster, or --pin-endpoint and --pin-ca; --no-pins is for labs")
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, made...)
	}
	if o.noPins {
		env.Warnf("no cluster is pinned: whoever has the dispatch key can make these hosts join any")
	}
	return authoring.Merge(old, entries, authoring.Mode{Add: o.add, DropOlder: o.dropOlder}), nil
}

func (o *signOptions) pins(ctx context.Context) (authoring.Pins, error) {
	pins := authoring.Pins{None: o.noPins, Endpoints: o.pinEndpoints}
	for _, path := range o.pinCAs {
		bundle, err := os.ReadFile(path)
		if err != nil {
			return pins, err
		}
		found, err := cluster.CAPins(bundle)
		if err != nil {
			return pins, fmt.Errorf("--pin-ca %q: %w", path, err)
		}
		pins.CAPins = append(pins.CAPins, found...)
	}
	if o.pinCluster {
		id, err := cluster.Info(ctx, o.kubeconfig, o.context)
		if err != nil {
			return pins, err
		}
		pins.Add(id)
	}
	return pins, nil
}

// authorKey is the newest of the folder's author keys that a root lists, else the one that init made.
func authorKey(d *trustdir.Dir, root *signing.Root) string {
	paths, err := d.OfflineKeys(roleAuthor)
	if err != nil {
		return d.AuthorKey()
	}
	for _, listed := range slices.Backward(root.Author.Keys) {
		for _, path := range paths {
			if key, err := publicHalf(d, path); err == nil && key.Equal(listed) {
				return path
			}
		}
	}
	return d.AuthorKey()
}

// signer opens the author key and makes sure that it is one.
func (o *signOptions) signer(ctx context.Context, env *cli.Env, d *trustdir.Dir, root *signing.Root) (signing.Signer, error) {
	ref := o.key
	if ref == "" {
		ref = authorKey(d, root)
		if !cli.Exists(ref) {
			return nil, cli.Hint(fmt.Errorf("the author key is not in %s", ref), "name it on its offline medium, or in its KMS: --key KEY")
		}
	}
	signer, err := keyfile.Open(ctx, env, ref, &o.passphrase)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(root.Author.Keys, signer.Public().Equal) {
		return nil, cli.Hint(fmt.Errorf("%q is not an author key of root version %d", ref, root.Version), "'%s root show' lists the keys of each role", env.Prog)
	}
	return signer, nil
}

// place puts an allowlist into effect, or lets it wait for the signatures that it misses.
func (o *signOptions) place(env *cli.Env, d *trustdir.Dir, set *documents.Set, envelope []byte, list *signing.Allowlist) error {
	err := set.PutAllowlist(d, envelope)
	if signing.ReasonOf(err) == signing.ReasonUntrusted {
		if err := cli.WriteFile(d.PendingAllowlist(), envelope, 0o644); err != nil {
			return err
		}
		env.Warnf("allowlist version %d is not in effect yet: %v", list.Version, err)
		env.Hintf("have the other authors sign %[1]s: '%[2]s profile sign --dir %[3]s --countersign --key KEY'; where one did so in another copy of the folder: '%[2]s profile sign --dir %[3]s --merge FILE'",
			d.PendingAllowlist(), env.Prog, d.Path)
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.RemoveAll(d.PendingAllowlist()); err != nil {
		return err
	}
	env.Progress("allowlist version %d is signed, valid until %s", list.Version, list.Expires.UTC().Format(time.DateOnly))
	env.Hintf("%s", manifest.ApplyCommand(d.Manifest(setup.TrustManifest), len(envelope)))
	return nil
}

func (o *signOptions) print(env *cli.Env, changes []authoring.Change) error {
	return env.Print(o.output, changes, func() *cli.Table { return changeTable(changes) })
}

func changeTable(changes []authoring.Change) *cli.Table {
	t := cli.NewTable("", "PROFILE", "VERSION", "PHASE", "DIGEST", "PINNED")
	for _, c := range changes {
		var pinned []string
		for _, p := range c.Script.Parameters {
			if len(p.Pins) > 0 {
				pinned = append(pinned, strings.TrimPrefix(p.Name, "KPSSH_"))
			}
		}
		t.Row(c.Fate, c.Script.Profile, c.Script.Version, string(c.Script.Phase), shortDigest(c.Script.Digest), strings.Join(pinned, ","))
	}
	return t
}

// shortDigest is enough of a digest to tell scripts apart in a table.
func shortDigest(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }
