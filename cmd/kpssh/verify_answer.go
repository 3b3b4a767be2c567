package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/shim/wire"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

const verifyHelloUsage = `
Usage: @kpssh verify hello --key KEY [flags] HELLO

Checks a host's hello the way a controller does. Prints "ok" or "refused REASON";
exit code 1 means refused.

Flags:
  --key KEY          the receipt key of the host's enrolment, "ALGORITHM:BASE64"
  --host-id ID       refuse hellos of other hosts
  -o, --output FMT   table (default), json or yaml

Example:
    $ @kpssh verify hello --key ecdsa-p256-sha256:MFkw… --host-id 0a1b2c3d hello.json
`

const verifyReceiptUsage = `
Usage: @kpssh verify receipt --key KEY [flags] RECEIPT

Checks a host's receipt the way a controller does. Prints "ok" or "refused REASON";
exit code 1 means refused. That it is ok says who answered, not that the script was:
the receipt tells that, also where it is itself a refusal.

Flags:
  --key KEY          the receipt key of the host's enrolment, "ALGORITHM:BASE64"
  --host-id ID       refuse receipts of other hosts
  --order FILE       refuse receipts that answer another order than this one
  -o, --output FMT   table (default), json or yaml

Example:
    $ @kpssh verify receipt --key ecdsa-p256-sha256:MFkw… \
        --order order.json receipt.json
`

// answerOptions are what the answer of a host is held against.
type answerOptions struct {
	verifyOptions
	key, hostID, order string
}

func (o *answerOptions) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.key, "key", "", "")
	fs.StringVar(&o.hostID, "host-id", "", "")
	outputFlag(fs, &o.output)
}

func verifyHelloCommand() *cli.Command {
	o := &answerOptions{}
	return &cli.Command{
		Name: "hello", Short: "check a host's hello under its receipt key", Usage: verifyHelloUsage, Flags: o.flags,
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) != 1 || o.key == "" {
				return cli.Usagef("one hello and --key are needed")
			}
			return o.judge(env, func() (int64, error) { return 0, o.hello(env, args[0]) })
		},
	}
}

func verifyReceiptCommand() *cli.Command {
	o := &answerOptions{}
	return &cli.Command{
		Name: "receipt", Short: "check a host's receipt under its receipt key", Usage: verifyReceiptUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.order, "order", "", "")
			o.flags(fs)
		},
		Run: func(_ context.Context, env *cli.Env, args []string) error {
			if len(args) != 1 || o.key == "" {
				return cli.Usagef("one receipt and --key are needed")
			}
			return o.judge(env, func() (int64, error) { return 0, o.receipt(env, args[0]) })
		},
	}
}

func (o *answerOptions) read(env *cli.Env, path string) (signing.Key, []byte, error) {
	key, err := signing.ParseKey(o.key)
	if err != nil {
		return key, nil, cli.Usagef("--key: %v", err)
	}
	envelope, err := env.Read(path)
	return key, envelope, err
}

func (o *answerOptions) hello(env *cli.Env, path string) error {
	key, envelope, err := o.read(env, path)
	if err != nil {
		return err
	}
	hello, err := signing.OpenHello(envelope, key)
	switch {
	case err != nil:
		return err
	case o.hostID != "" && hello.HostID != o.hostID:
		return refused(signing.ReasonWrongHost, "it is host %q", hello.HostID)
	case hello.Protocol != wire.Protocol:
		return refused(signing.ReasonUnsupportedProto, "it speaks protocol %d, this program %d", hello.Protocol, wire.Protocol)
	}
	return nil
}

func (o *answerOptions) receipt(env *cli.Env, path string) error {
	key, envelope, err := o.read(env, path)
	if err != nil {
		return err
	}
	receipt, err := signing.OpenReceipt(envelope, key)
	switch {
	case err != nil:
		return err
	case o.hostID != "" && receipt.HostID != o.hostID:
		return refused(signing.ReasonWrongHost, "it is host %q", receipt.HostID)
	case o.order == "":
		return nil
	}
	return o.answers(env, receipt)
}

// answers holds a receipt against the order that it must answer. A controller has signed the order
// itself, so nothing is asked of its signature.
func (o *answerOptions) answers(env *cli.Env, r *signing.Receipt) error {
	envelope, err := env.Read(o.order)
	if err != nil {
		return err
	}
	in, err := signing.Inspect(envelope)
	if err != nil {
		return err
	}
	var order signing.Order
	if in.Type != signing.TypeOrder || json.Unmarshal(in.Payload, &order) != nil {
		return cli.Usagef("--order is not an order")
	}
	return answersOrder(r, &order, signing.Digest(in.Payload))
}

// ordered is what order and receipt say alike of a run.
type ordered struct {
	claim            string
	fence            int64
	profile, version string
	phase            signing.Phase
	script, params   string
}

func answersOrder(r *signing.Receipt, o *signing.Order, digest string) error {
	mismatch := func(field string) error {
		return refused(dispatch.ReasonReceiptMismatch, "the receipt is of another run: field %s", field)
	}
	switch {
	case r.HostID != o.HostID:
		return mismatch("hostID")
	case !bytes.Equal(r.Challenge, o.Challenge):
		return mismatch("challenge")
	case r.Outcome == signing.OutcomeRefused && r.Order == "":
		return nil // the host never got as far as reading it
	case r.Order != digest:
		return mismatch("order")
	case r.Outcome == signing.OutcomeRefused:
		return nil
	case ordered{r.Claim, r.Fence, r.Profile, r.Version, r.Phase, r.Script, r.Parameters} !=
		ordered{o.Claim, o.Fence, o.Profile, o.Version, o.Phase, o.Script, o.Parameters}:
		return mismatch("claim, fence, profile, version, phase, script or parameters")
	case r.Outcome == signing.OutcomeOK && (r.ExitCode != 0 || r.Signal != ""):
		return mismatch("exitCode")
	}
	return nil
}
