package main

import (
	"context"
	"encoding/json"
	"flag"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const verifyWalkUsage = `
Usage: @kpssh verify walk [flags] ROOT DOCUMENT...

Takes documents in the order in which they reach a host: first the root that it was
provisioned with, then roots and allowlists. Prints "ok" when it would take them all,
or "refused REASON" of the first that it would not; exit code 1 means refused.

Flags:
  -o, --output FMT   table (default), json or yaml

Example:
    $ @kpssh verify walk root.1.json allowlist.json root.2.json allowlist-2.json
`

func verifyWalkCommand() *cli.Command {
	o := &verifyOptions{}
	return &cli.Command{
		Name: "walk", Short: "check roots and allowlists in the order in which they reach a host", Usage: verifyWalkUsage,
		Flags: func(fs *flag.FlagSet) { outputFlag(fs, &o.output) },
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no document is given")
			}
			return o.judge(env, func() (int64, error) {
				var w walk
				for _, path := range args {
					envelope, err := env.Read(path)
					if err != nil {
						return 0, err
					}
					if err := w.take(envelope); err != nil {
						return 0, err
					}
				}
				return w.newest, nil
			})
		},
	}
}

// walk is what a host believes (shim, type trust): a root, and below which version it takes no
// allowlist. The vectors of test/vectors hold both to the same verdicts.
type walk struct {
	root       *signing.Root
	rootDigest string
	floor      int64  // version of the allowlist that was taken last
	list       string // its digest
	authors    string // the authors under whom it is a floor
	newest     int64  // version of what was taken last
}

func (w *walk) take(envelope []byte) error {
	var err error
	switch {
	case w.root == nil:
		if w.root, err = signing.OpenFirstRoot(envelope); err == nil {
			w.rootDigest, err = signing.PayloadDigest(envelope)
		}
	case isAllowlist(envelope):
		return w.takeAllowlist(envelope)
	default:
		err = w.takeRoot(envelope)
	}
	if err == nil {
		w.newest = w.root.Version
	}
	return err
}

func (w *walk) takeRoot(envelope []byte) error {
	digest, err := signing.PayloadDigest(envelope)
	if err == nil && digest == w.rootDigest {
		return nil // the host has it already
	}
	next, err := signing.NextRoot(w.root, envelope)
	if err == nil {
		w.root, w.rootDigest = next, digest
	}
	return err
}

func (w *walk) takeAllowlist(envelope []byte) error {
	list, err := signing.OpenAllowlist(envelope, w.root)
	if err != nil {
		return err
	}
	digest, err := signing.PayloadDigest(envelope)
	if err != nil {
		return err
	}
	floor := w.floor
	if w.authors != authorsOf(w.root) {
		floor = 0 // other authors: the one way back from a version that is far too high
	}
	if list.Version < floor || list.Version == floor && digest != w.list {
		return refused(signing.ReasonRollback, "allowlist version %d, the host has another one of version %d", list.Version, floor)
	}
	w.floor, w.list, w.authors, w.newest = list.Version, digest, authorsOf(w.root), list.Version
	return nil
}

// isAllowlist only says where a document goes; it is checked there.
func isAllowlist(envelope []byte) bool {
	var e struct {
		PayloadType string `json:"payloadType"`
	}
	return json.Unmarshal(envelope, &e) == nil && e.PayloadType == signing.TypeAllowlist
}

// authorsOf names the set of a root's author keys, whatever their order.
func authorsOf(root *signing.Root) string {
	var ids []string
	for _, k := range root.Author.Keys {
		ids = append(ids, k.ID())
	}
	slices.Sort(ids)
	return strings.Join(ids, "\n")
}
