package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const verifyOrderUsage = `
Usage: @kpssh verify order --root ROOT... --allowlist FILE [flags] ORDER

Checks an order under a chain of roots and an allowlist, in the order in which a
host does. What is not given is not checked. Prints "ok" or "refused REASON"; exit
code 1 means refused.

Flags:
  --root FILE        a root document; repeat for a chain, oldest first
  --allowlist FILE   the allowlist that the host has
  --host-id ID       refuse orders for other hosts
  --challenge B64    refuse orders for other sessions
  --at TIME          refuse when root or allowlist is expired at TIME (RFC 3339); a
                     leave may have a grace
  --parameters FILE  the order's parameters frame, to check against schema and pins
  --script FILE      the script's bytes
  --secrets FILE     the order's secrets frame, to check against its commitments
  -o, --output FMT   table (default), json or yaml

Example:
    $ @kpssh verify order --root root.1.json --allowlist allowlist.json order.json
`

// orderOptions are what an order is held against, beside root and allowlist.
type orderOptions struct {
	verifyOptions
	allowlist, hostID, challenge string
	parameters, script, secrets  string
}

func verifyOrderCommand() *cli.Command {
	o := &orderOptions{}
	return &cli.Command{
		Name: "order", Short: "check an order under a root and an allowlist", Usage: verifyOrderUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.Var(&o.roots, "root", "")
			fs.StringVar(&o.allowlist, "allowlist", "", "")
			fs.StringVar(&o.hostID, "host-id", "", "")
			fs.StringVar(&o.challenge, "challenge", "", "")
			fs.StringVar(&o.parameters, "parameters", "", "")
			fs.StringVar(&o.script, "script", "", "")
			fs.StringVar(&o.secrets, "secrets", "", "")
			o.common(fs)
		},
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) != 1 || len(o.roots) == 0 || o.allowlist == "" {
				return cli.Usagef("one order, --root and --allowlist are needed")
			}
			return o.judge(env, func() (int64, error) { return 0, o.check(env, args[0]) })
		},
	}
}

// check makes the checks of a host (shim, method checkOrder and those after it) as far as they need
// nothing that only the host knows.
func (o *orderOptions) check(env *cli.Env, path string) error {
	root, err := o.root(env)
	if err != nil {
		return err
	}
	listEnvelope, err := env.Read(o.allowlist)
	if err != nil {
		return err
	}
	list, err := signing.OpenAllowlist(listEnvelope, root)
	if err != nil {
		return err
	}
	envelope, err := env.Read(path)
	if err != nil {
		return err
	}
	order, err := signing.OpenOrder(envelope, root)
	if err != nil {
		return err
	}
	if err := o.checkSession(order); err != nil {
		return err
	}
	digest, err := signing.PayloadDigest(listEnvelope)
	if err != nil {
		return err
	}
	if order.Allowlist != digest {
		return refused(signing.ReasonRollback, "the order was made under another allowlist")
	}
	script, err := list.Find(order.Profile, order.Version, order.Phase, order.Script)
	if err != nil {
		return err
	}
	if err := o.orderExpiry(root, list, script); err != nil {
		return err
	}
	return o.checkRest(env, order, script)
}

func refused(reason signing.Reason, format string, args ...any) error {
	return &signing.Refusal{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

func (o *orderOptions) checkSession(order *signing.Order) error {
	if o.hostID != "" && order.HostID != o.hostID {
		return refused(signing.ReasonWrongHost, "the order is for host %q", order.HostID)
	}
	if o.challenge == "" {
		return nil
	}
	challenge, err := base64.StdEncoding.DecodeString(o.challenge)
	if err != nil {
		return cli.Usagef("--challenge is not base64")
	}
	if !bytes.Equal(order.Challenge, challenge) {
		return refused(signing.ReasonStaleChallenge, "the order is for another session")
	}
	return nil
}

// orderExpiry holds root and list against the latest time that a host at that time would know of.
func (o *orderOptions) orderExpiry(root *signing.Root, list *signing.Allowlist, script *signing.AllowedScript) error {
	if o.at.IsZero() {
		return nil
	}
	grace := time.Duration(script.GraceSeconds) * time.Second
	for _, expires := range []time.Time{root.Expires, list.Expires} {
		if err := signing.CheckExpiry(expires.Add(grace), o.at, root.Issued, list.Issued); err != nil {
			return err
		}
	}
	return nil
}

// checkRest holds what travels beside an order against it.
func (o *orderOptions) checkRest(env *cli.Env, order *signing.Order, script *signing.AllowedScript) error {
	if o.parameters != "" {
		frame, err := env.Read(o.parameters)
		if err != nil {
			return err
		}
		if signing.Digest(frame) != order.Parameters {
			return refused(signing.ReasonParam, "the parameters are not those of the order")
		}
		params, err := signing.DecodeParameters(frame)
		if err != nil {
			return err
		}
		if err := script.Check(params, slices.Sorted(maps.Keys(order.Secrets))); err != nil {
			return err
		}
	}
	if o.script != "" {
		body, err := env.Read(o.script)
		if err != nil {
			return err
		}
		if signing.Digest(body) != order.Script {
			return refused(signing.ReasonNotAllowed, "the script is not the one that the order names")
		}
	}
	if o.secrets == "" {
		return nil
	}
	frame, err := env.Read(o.secrets)
	if err != nil {
		return err
	}
	return checkSecrets(frame, order, script)
}

func checkSecrets(frame []byte, order *signing.Order, script *signing.AllowedScript) error {
	secrets, err := signing.DecodeParameters(frame)
	if err != nil {
		return err
	}
	if len(secrets) != len(order.Secrets) {
		return refused(signing.ReasonSecretMismatch, "%d secrets are there, the order names %d", len(secrets), len(order.Secrets))
	}
	for name, value := range secrets {
		if order.Secrets[name] != signing.Commitment(order.Challenge, name, value) {
			return refused(signing.ReasonSecretMismatch, "secret %.80q is not the one that the order commits to", name)
		}
	}
	return script.CheckSecrets(secrets)
}
