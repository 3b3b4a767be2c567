package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/authoring"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/manifest"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/review"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const profileDiffUsage = `
Usage: @kpssh profile diff [flags] [OLD [NEW]]

Shows what changed between two signed allowlists: scripts as a diff, parameters,
pins, how long they hold. Lines that begin with "!" give more rights than there
were. OLD and NEW are allowlists, ConfigMaps kpssh-trust ("-": stdin), or versions
that the folder keeps; without them, the folder's allowlist is compared with the
one before it.

An allowlist names scripts by digest. Their texts come from where 'profile sign'
keeps them (DIR/public/scripts), from --scripts, and from manifests (--from); a
text is shown only under the digest that it has, so that no source of texts has
to be trusted. The signatures are checked under the folder's roots or --root.

Time-outs are a profile's and not part of what is signed.

Flags:
  --dir DIR          trust folder (default $KPSSH_DIR, else "trust")
  --pending          compare with the allowlist that waits for signatures
  --from FILE        manifests of join profiles and node classes whose rendering
                     gives texts; repeat for more
  --scripts DIR      folder of scripts named DIGEST.sh; repeat for more
  --root FILE        a root document, in place of the folder's; repeat for a
                     chain, oldest first
  --brief            without the texts
  -o, --output FMT   table (text, the default), json or yaml

Exit code 0 when nothing changed, 1 when something did, 2 when that could not be
found out.

Example:
    $ @kpssh profile diff
    $ @kpssh profile diff 3 5
    $ @kpssh profile diff --from old/ --from new/ old.json new.json
    $ kubectl get cm kpssh-trust -n kpssh-controller -o yaml | @kpssh profile diff -
`

type diffOptions struct {
	dir, output          string
	from, scripts, roots files
	pending, brief       bool
}

func profileDiffCommand() *cli.Command {
	o := &diffOptions{}
	return &cli.Command{
		Name: "diff", Short: "show what changed between two allowlists", Usage: profileDiffUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			fs.BoolVar(&o.pending, "pending", false, "")
			fs.Var(&o.from, "from", "")
			fs.Var(&o.scripts, "scripts", "")
			fs.Var(&o.roots, "root", "")
			fs.BoolVar(&o.brief, "brief", false, "")
			outputFlag(fs, &o.output)
		},
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if err := cli.Check(
				cli.Rule{Broken: len(args) > 2, Message: "at most two allowlists can be compared"},
				cli.Rule{Broken: o.pending && len(args) > 1, Message: "--pending takes the place of NEW"},
			); err != nil {
				return err
			}
			return cli.Trouble(o.run(env, args))
		},
	}
}

func (o *diffOptions) run(env *cli.Env, args []string) error {
	d, set, err := o.open(env)
	if err != nil {
		return err
	}
	old, next, err := o.sides(env, d, set, args)
	if err != nil {
		return err
	}
	library, err := o.library(env, d)
	if err != nil {
		return err
	}
	report := review.Compare(old, next, library.Text)
	for _, path := range library.Damaged {
		env.Warnf("%s does not hold the script that its name says: somebody changed it", path)
	}
	if o.output == "table" {
		err = report.Print(env.Stdout, review.Style{Brief: o.brief, Colour: env.ColourOut})
	} else {
		err = env.Print(o.output, report, nil)
	}
	switch {
	case err != nil:
		return err
	case report.Same():
		return nil
	}
	o.hint(env, report)
	return cli.ErrVerdict
}

func (o *diffOptions) hint(env *cli.Env, report *review.Report) {
	if !o.brief && slices.ContainsFunc(report.Scripts, func(s review.Script) bool { return len(s.NoText) > 0 }) {
		env.Hintf("for the texts that are not at hand: --from MANIFEST (profile and node class as they were signed), or --scripts DIR")
	}
}

// open opens the trust folder, or only a chain of roots where --root names one. Both may be nil.
func (o *diffOptions) open(env *cli.Env) (*trustdir.Dir, *documents.Set, error) {
	d, err := trustdir.Open(env, o.dir)
	if len(o.roots) > 0 {
		var chain [][]byte
		for _, path := range o.roots {
			root, err := env.Read(path)
			if err != nil {
				return nil, nil, err
			}
			chain = append(chain, root)
		}
		set, err := documents.Open(chain, nil)
		return d, set, err
	}
	if err != nil {
		return nil, nil, cli.Hint(err, "or say under which roots the allowlists were signed: --root FILE")
	}
	set, err := documents.Read(d)
	return d, set, err
}

// sides reads the two allowlists; the old one is nil when nothing was allowed before.
func (o *diffOptions) sides(env *cli.Env, d *trustdir.Dir, set *documents.Set, args []string) (old, next *signing.Allowlist, err error) {
	if d == nil && len(args) < 2 {
		return nil, nil, errors.New("without a trust folder, both allowlists must be named")
	}
	newName := ""
	switch {
	case len(args) == 2:
		newName = args[1]
	case o.pending:
		newName = d.PendingAllowlist()
	default:
		newName = d.Allowlist()
	}
	if next, err = o.read(env, d, set, newName); err != nil {
		return nil, nil, err
	}
	if len(args) > 0 {
		old, err = o.read(env, d, set, args[0])
		return old, next, err
	}
	if o.pending {
		old, err = o.read(env, d, set, d.Allowlist())
	} else {
		old, err = o.predecessor(env, d, set, next.Version)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, next, nil
	}
	return old, next, err
}

// predecessor is the newest allowlist that the folder keeps from before a version.
func (o *diffOptions) predecessor(env *cli.Env, d *trustdir.Dir, set *documents.Set, version int64) (*signing.Allowlist, error) {
	kept, err := d.AllowlistVersions()
	if err != nil {
		return nil, err
	}
	for _, n := range slices.Backward(kept) {
		if n < version {
			return o.read(env, d, set, d.AllowlistVersion(n))
		}
	}
	if version > 1 {
		return nil, fmt.Errorf("the folder keeps no allowlist from before version %d: name its file", version)
	}
	return nil, fs.ErrNotExist
}

// read reads an allowlist by file or version. One that misses signatures may be looked at: that is what the second
// author of two does.
func (o *diffOptions) read(env *cli.Env, d *trustdir.Dir, set *documents.Set, name string) (*signing.Allowlist, error) {
	path := name
	if n, err := strconv.ParseInt(name, 10, 64); err == nil && n > 0 && d != nil && !cli.Exists(name) {
		path = d.AllowlistVersion(n)
	}
	envelope, err := env.Read(path)
	if errors.Is(err, fs.ErrNotExist) && path != name {
		return nil, fmt.Errorf("the folder does not keep allowlist version %s: %w", name, err)
	}
	if errors.Is(err, fs.ErrNotExist) && d != nil && (path == d.Allowlist() || path == d.PendingAllowlist()) {
		return nil, cli.Hint(err, "'%s profile sign' makes allowlists, and those that miss signatures wait as %s", env.Prog, d.PendingAllowlist())
	}
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(envelope)) == 0 {
		return nil, fmt.Errorf("reading %q: it is empty", path)
	}
	envelope = inConfigMap(env, envelope)
	list, err := signing.OpenAllowlist(envelope, set.Root)
	if signing.ReasonOf(err) == signing.ReasonUntrusted && d != nil && path == d.PendingAllowlist() {
		env.Warnf("NOT VERIFIED: %s waits for signatures: %v", path, err)
		return documents.PeekAllowlist(envelope)
	}
	if signing.ReasonOf(err) == signing.ReasonUntrusted {
		var earlier error
		if list, earlier = set.OpenUnderAny(envelope); earlier == nil {
			env.Warnf("%s was signed under an earlier root: hosts that know root version %d do not accept it: %v", path, set.Root.Version, err)
			return list, nil
		}
		env.Warnf("NOT VERIFIED: %s: %v", path, err)
		list, err = documents.PeekAllowlist(envelope)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	return list, nil
}

// inConfigMap takes the allowlist out of a ConfigMap kpssh-trust; anything else stays as it is.
func inConfigMap(env *cli.Env, data []byte) []byte {
	if _, err := signing.Inspect(data); err == nil {
		return data
	}
	from := *env
	from.Stdin = bytes.NewReader(data)
	objects, err := manifest.Load(&from, []string{"-"})
	if err != nil || objects.Trust == nil {
		return data
	}
	_, allowlist := manifest.TrustDocuments(objects.Trust)
	return allowlist
}

func (o *diffOptions) library(env *cli.Env, d *trustdir.Dir) (*review.Library, error) {
	dirs := slices.Clone([]string(o.scripts))
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			return nil, err
		}
	}
	if d != nil {
		dirs = append(dirs, d.Scripts())
	}
	library := review.NewLibrary(dirs...)
	var sets []*manifest.Objects
	for _, path := range o.from {
		objects, err := manifest.Load(env, []string{path})
		if err != nil {
			return nil, err
		}
		sets = append(sets, objects)
	}
	for _, text := range authoring.Texts(sets) {
		library.Add(text)
	}
	return library, nil
}
