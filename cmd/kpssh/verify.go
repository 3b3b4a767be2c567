package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const verifyRootUsage = `
Usage: @kpssh verify root [flags] ROOT...

Walks root documents in the order given, the first of which is taken as the one
that a host was provisioned with. Prints "ok" or "refused REASON"; exit code 1
means refused.

Flags:
  --at TIME          also refuse when the last root is expired at TIME (RFC 3339)
  -o, --output FMT   table (default), json or yaml

Example:
    $ @kpssh verify root trust/public/root.1.json trust/public/root.2.json
`

const verifyAllowlistUsage = `
Usage: @kpssh verify allowlist --root ROOT... [flags] ALLOWLIST

Checks an allowlist under a chain of roots. Prints "ok" or "refused REASON"; exit
code 1 means refused.

Flags:
  --root FILE        a root document; repeat for a chain, oldest first
  --floor N          refuse versions below N, like a host that has seen N
  --at TIME          also refuse when root or allowlist is expired at TIME
  -o, --output FMT   table (default), json or yaml

Example:
    $ @kpssh verify allowlist --root root.1.json allowlist.json
`

// verdict is what verify prints.
type verdict struct {
	Verdict string         `json:"verdict"`
	Reason  signing.Reason `json:"reason,omitempty"`
	Detail  string         `json:"detail,omitempty"`
	Version int64          `json:"version,omitempty"`
}

type verifyOptions struct {
	roots  files
	at     time.Time // zero when nothing expires
	output string
	floor  int64
}

// files is a flag that may be repeated.
type files []string

// String implements flag.Value.
func (f *files) String() string { return "" }

// Set implements flag.Value.
func (f *files) Set(v string) error {
	*f = append(*f, v)
	return nil
}

func (o *verifyOptions) common(fs *flag.FlagSet) {
	fs.Func("at", "", func(value string) (err error) {
		if o.at, err = time.Parse(time.RFC3339, value); err != nil {
			return errors.New("is not a time like 2026-01-02T15:04:05Z")
		}
		return nil
	})
	outputFlag(fs, &o.output)
}

func outputFlag(fs *flag.FlagSet, output *string) {
	*output = "table"
	set := func(value string) error { // before the verb does anything
		if !slices.Contains([]string{"table", "json", "yaml"}, value) {
			return errors.New("must be table, json or yaml")
		}
		*output = value
		return nil
	}
	fs.Func("o", "", set)
	fs.Func("output", "", set)
}

func verifyRootCommand() *cli.Command {
	o := &verifyOptions{}
	return &cli.Command{
		Name: "root", Short: "check a chain of root documents", Usage: verifyRootUsage, Flags: o.common,
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no root document is given")
			}
			o.roots = args
			return o.judge(env, func() (int64, error) {
				root, err := o.root(env)
				if err != nil {
					return 0, err
				}
				return root.Version, o.expiry(env, "the root", root.Expires)
			})
		},
	}
}

func verifyAllowlistCommand() *cli.Command {
	o := &verifyOptions{}
	return &cli.Command{
		Name: "allowlist", Short: "check an allowlist under a root", Usage: verifyAllowlistUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.Var(&o.roots, "root", "")
			fs.Int64Var(&o.floor, "floor", 0, "")
			o.common(fs)
		},
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) != 1 || len(o.roots) == 0 {
				return cli.Usagef("one allowlist and --root are needed")
			}
			return o.judge(env, func() (int64, error) {
				root, err := o.root(env)
				if err != nil {
					return 0, err
				}
				return o.openAllowlist(env, root, args[0])
			})
		},
	}
}

// judge prints the verdict of check. An error that is no refusal (a file that is not there) is one.
func (o *verifyOptions) judge(env *cli.Env, check func() (int64, error)) error {
	version, err := check()
	v := verdict{Verdict: "ok", Version: version}
	if err != nil {
		var refusal *signing.Refusal
		if !errors.As(err, &refusal) {
			return err
		}
		v = verdict{Verdict: "refused", Reason: refusal.Reason, Detail: refusal.Detail}
	}
	printed := env.Print(o.output, v, func() *cli.Table {
		t := cli.NewTable("", "", "")
		switch {
		case v.Reason != "":
			t.Row(v.Verdict, string(v.Reason), v.Detail)
		case v.Version > 0:
			t.Row(v.Verdict, fmt.Sprintf("version %d", v.Version))
		default:
			t.Row(v.Verdict)
		}
		return t
	})
	if printed != nil || err == nil {
		return printed
	}
	return cli.ErrVerdict
}

func (o *verifyOptions) root(env *cli.Env) (*signing.Root, error) {
	var root *signing.Root
	for _, path := range o.roots {
		envelope, err := env.Read(path)
		if err != nil {
			return nil, err
		}
		if root == nil {
			root, err = signing.OpenFirstRoot(envelope)
		} else {
			root, err = signing.NextRoot(root, envelope)
		}
		if err != nil {
			return nil, err
		}
	}
	return root, nil
}

func (o *verifyOptions) openAllowlist(env *cli.Env, root *signing.Root, path string) (int64, error) {
	envelope, err := env.Read(path)
	if err != nil {
		return 0, err
	}
	list, err := signing.OpenAllowlist(envelope, root)
	if err != nil {
		return 0, err
	}
	if list.Version < o.floor {
		return 0, refused(signing.ReasonRollback, "allowlist version %d is below %d", list.Version, o.floor)
	}
	if err := o.expiry(env, "the root", root.Expires); err != nil {
		return 0, err
	}
	return list.Version, o.expiry(env, "the allowlist", list.Expires)
}

// expiry holds what expires against --at. Without it the verdict is the same on any day, and what has expired is a warning.
func (o *verifyOptions) expiry(env *cli.Env, what string, expires time.Time) error {
	if !o.at.IsZero() {
		return signing.CheckExpiry(expires, o.at)
	}
	if err := signing.CheckExpiry(expires, env.Now()); err != nil {
		env.Warnf("%s has expired, on %s: the verdict is about its signatures, with --at TIME also about that", what, expires.UTC().Format(time.DateOnly))
	}
	return nil
}
