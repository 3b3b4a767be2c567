package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/documents"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/truststate"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
)

const trustUsage = `
Usage: @kpssh trust VERB [flags]

What hosts believe, and what is on its way to them.
`

const trustStatusUsage = `
Usage: @kpssh trust status [flags]

Says which root document, allowlist and shim each host has, by the host's own
signed word, when it said so, what it still waits for, and when the documents
expire. The measure is the trust folder where there is one, else what the
cluster publishes.

What a host can wait for: never-seen, root-behind, allowlist-behind, root-ahead,
trust-foreign, allowlist-foreign, shim-too-old. What documents can:
root-unpublished, allowlist-unpublished, folder-behind, root-forked,
allowlist-forked, no-allowlist, root-expired, allowlist-expired,
dispatch-key-unlisted. Documents are compared by digest, also of one version.

Exit codes: 0 nothing waits, 1 something does, 2 it could not be found out.

Flags:
  --dir DIR              trust folder (default $KPSSH_DIR, else "trust")
  --kubeconfig FILE      in place of $KUBECONFIG and ~/.kube/config
  --context NAME         context of the kubeconfig
  --namespace NS         namespace of the controller (default: the folder's)
  --pool-namespace NS    namespace of the SSHHosts (default: the folder's)
  -o, --output FMT       table (default), json or yaml

Example:
    $ @kpssh trust status
    $ @kpssh trust status -o json | jq -r '.hosts[] | select(.waiting != []) | .name'
`

// expiresSoon is how many days before its end a document is spoken of.
const expiresSoon = 30

// clusterFlags are how a verb finds the cluster.
type clusterFlags struct{ cluster.Access }

func (c *clusterFlags) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "")
	fs.StringVar(&c.Context, "context", "", "")
}

type trustStatusOptions struct {
	clusterFlags
	dir, output string
}

func trustStatusCommand() *cli.Command {
	o := &trustStatusOptions{}
	return &cli.Command{
		Name: "status", Short: "say what each host believes, and what still waits", Usage: trustStatusUsage,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&o.dir, "dir", "", "")
			o.flags(fs)
			fs.StringVar(&o.ControllerNamespace, "namespace", "", "")
			fs.StringVar(&o.PoolNamespace, "pool-namespace", "", "")
			outputFlag(fs, &o.output)
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("trust status takes no arguments, but got %q", args[0])
			}
			return cli.Trouble(o.run(ctx, env))
		},
	}
}

func (o *trustStatusOptions) run(ctx context.Context, env *cli.Env) error {
	folder, err := o.folder(env)
	if err != nil {
		return err
	}
	pool, err := cluster.Look(ctx, o.Access)
	if err != nil {
		return err
	}
	report, err := truststate.Evaluate(folder, pool, env.Now())
	if err != nil {
		return err
	}
	warnOfExpiry(env, report)
	if err := env.Print(o.output, report, func() *cli.Table { return trustTable(report, env.Now()) }); err != nil {
		return err
	}
	if !report.Settled() {
		return cli.ErrVerdict
	}
	return nil
}

// folder opens the trust folder, if there is one, and fills in what it says of the cluster.
func (o *trustStatusOptions) folder(env *cli.Env) (*documents.Set, error) {
	var set *documents.Set
	settings := trustdir.Settings{ControllerNamespace: defaultControllerNamespace, PoolNamespace: apis.DefaultPoolNamespace}
	if o.dir != "" || env.Getenv("KPSSH_DIR") != "" || cli.Exists(trustdir.Locate(env, o.dir)) {
		d, err := trustdir.Open(env, o.dir)
		if err != nil {
			return nil, err
		}
		if set, err = documents.Read(d); err != nil {
			return nil, err
		}
		settings = d.Settings
	}
	if o.ControllerNamespace == "" {
		o.ControllerNamespace = settings.ControllerNamespace
	}
	if o.PoolNamespace == "" {
		o.PoolNamespace = settings.PoolNamespace
	}
	return set, nil
}

func warnOfExpiry(env *cli.Env, r *truststate.Report) {
	warn := func(what string, d *truststate.Document, renew string) {
		if d == nil || d.DaysLeft >= expiresSoon {
			return
		}
		env.Warnf("the %s expires on %s: nothing runs after that", what, d.Expires.UTC().Format(time.DateOnly))
		env.Hintf("%s", renew)
	}
	warn("root document", &r.Root, "renew it: '"+env.Prog+" root new --sign-with KEY'")
	warn("allowlist", r.Allowlist, "renew it: '"+env.Prog+" profile sign MANIFEST...'")
}

func trustTable(r *truststate.Report, now time.Time) *cli.Table {
	t := cli.NewTable("DOCUMENT", "VERSION", "EXPIRES", "DAYS LEFT", "IN THE CLUSTER")
	row := func(name string, d *truststate.Document) {
		if d == nil {
			t.Row(name, "none")
			return
		}
		t.Row(name, versionCell(d.Version), d.Expires.UTC().Format(time.DateOnly), strconv.Itoa(d.DaysLeft), versionCell(d.Published))
	}
	row("root", &r.Root)
	row("allowlist", r.Allowlist)
	if len(r.Waiting) > 0 {
		t.Row("waiting", strings.Join(r.Waiting, ","))
	}
	t.Row()
	t.Row("HOST", "STATE", "ROOT", "ALLOWLIST", "SHIM", "SEEN", "WAITING", "FINDINGS")
	for _, h := range r.Hosts {
		waiting := strings.Join(h.Waiting, ",")
		if h.Reason != "" {
			waiting = strings.TrimSpace(waiting + " (" + h.Reason + ")")
		}
		t.Row(h.Name, cmp.Or(h.State, "-"), versionCell(h.RootVersion), versionCell(h.AllowlistVersion), h.ShimVersion, ago(h.Seen, now), waiting, strings.Join(h.Findings, ","))
	}
	return t
}

func versionCell(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// ago is how long ago something was, as coarsely as people say it.
func ago(at *time.Time, now time.Time) string {
	if at == nil {
		return "never"
	}
	switch d := now.Sub(*at); {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
}
