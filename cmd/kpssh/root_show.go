package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const rootShowUsage = `
Usage: @kpssh root show [flags] [FILE]

Shows a root document ("-": stdin), or the folder's current one after checking
the chain that leads to it.

Flags:
  --dir DIR           trust folder (default $KPSSH_DIR, else "trust")
  -o, --output FMT    table (default), json or yaml

Example:
    $ @kpssh root show
    $ @kpssh root show -o json trust/public/root.1.json
`

type rootShowOptions struct{ dir, output string }

func rootShowCommand() *cli.Command {
	o := &rootShowOptions{}
	return &cli.Command{
		Name: "show", Short: "show who may sign what, and until when", Usage: rootShowUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			outputFlag(fs, &o.output)
		},
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) > 1 {
				return cli.Usagef("at most one file can be shown")
			}
			envelope, err := o.shown(env, args)
			if err != nil {
				return err
			}
			root, signed, err := documents.Peek(envelope)
			if err != nil {
				return err
			}
			if err := signing.CheckExpiry(root.Expires, env.Now()); err != nil {
				env.Warnf("root version %d: %v", root.Version, err)
			}
			return env.Print(o.output, root, func() *cli.Table { return rootTable(root, signed) })
		},
	}
}

// shown is the document to show, after a word about whether it holds.
func (o *rootShowOptions) shown(env *cli.Env, args []string) ([]byte, error) {
	if len(args) == 0 {
		d, err := trustdir.Open(env, o.dir)
		if err != nil {
			return nil, err
		}
		set, err := documents.Read(d)
		if err != nil {
			return nil, err
		}
		return set.Chain[len(set.Chain)-1], nil
	}
	envelope, err := env.Read(args[0])
	if err != nil {
		return nil, err
	}
	if _, _, err := documents.Peek(envelope); err != nil {
		return nil, fmt.Errorf("reading %q: %w", args[0], err)
	}
	if _, err := signing.OpenFirstRoot(envelope); signing.ReasonOf(err) == signing.ReasonUntrusted {
		env.Warnf("NOT VERIFIED: %v", err)
	} else if err != nil {
		return nil, err
	}
	return envelope, nil
}

func rootTable(root *signing.Root, signed []signing.Key) *cli.Table {
	t := cli.NewTable("ROLE", "THRESHOLD", "ALGORITHM", "KEY", "")
	for _, role := range []struct {
		name string
		keys signing.RoleKeys
	}{{"root", root.Root}, {"author", root.Author}, {"dispatch", root.Dispatch}} {
		for i, key := range role.keys.Keys {
			name, threshold := "", ""
			if i == 0 {
				name, threshold = role.name, fmt.Sprintf("%d of %d", role.keys.Threshold, len(role.keys.Keys))
			}
			note := ""
			if role.name == "root" && slices.ContainsFunc(signed, key.Equal) {
				note = "has signed"
			}
			t.Row(name, threshold, key.Algorithm, key.ID(), note)
		}
	}
	t.Row()
	t.Row("version", strconv.FormatInt(root.Version, 10))
	t.Row("issued", root.Issued.UTC().Format(time.RFC3339))
	t.Row("expires", root.Expires.UTC().Format(time.RFC3339))
	return t
}
