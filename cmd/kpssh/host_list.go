package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

const hostListUsage = `
Usage: @kpssh host list [flags]

Lists the hosts of the pool: where each is in its life, the NodeClaim that holds
it and its node, and why it is as it is.

Flags:
  -o, --output FMT       table (default), json or yaml
  --dir DIR              trust folder (default $KPSSH_DIR, else "trust"), for the
                         namespace
  --kubeconfig FILE      in place of $KUBECONFIG and ~/.kube/config
  --context NAME         context of the kubeconfig
  --pool-namespace NS    namespace of the SSHHosts (default: the folder's)

Example:
    $ @kpssh host list
    $ @kpssh host list -o json | jq -r '.hosts[] | select(.leaveOwed) | .name'
`

// hostList is what host list prints.
type hostList struct {
	Hosts []listedHost `json:"hosts"`
}

type listedHost struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	// Phase is status.state; Maintenance is also to come for a host that is in use and parked.
	Phase  string `json:"phase"`
	Parked bool   `json:"parked"`
	Claim  string `json:"claim,omitempty"`
	Node   string `json:"node,omitempty"`
	// LeaveOwed says that a leave is owed to the host.
	LeaveOwed bool      `json:"leaveOwed"`
	Reason    string    `json:"reason,omitempty"`
	Message   string    `json:"message,omitempty"`
	Created   time.Time `json:"created"`
}

type listOptions struct {
	poolFlags
	output string
}

func hostListCommand() *cli.Command {
	o := &listOptions{}
	return &cli.Command{
		Name: "list", Short: "list the hosts of the pool", Usage: hostListUsage,
		Flags: func(fs *flag.FlagSet) {
			o.flags(fs)
			outputFlag(fs, &o.output)
		},
		Run: func(ctx context.Context, env *cli.Env, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("host list takes no arguments, but got %q", args[0])
			}
			return o.run(ctx, env)
		},
	}
}

func (o *listOptions) run(ctx context.Context, env *cli.Env) error {
	pool, err := o.pool(env)
	if err != nil {
		return err
	}
	hosts, err := pool.List(ctx)
	if err != nil {
		return err
	}
	nodes, err := pool.Nodes(ctx)
	if err != nil {
		env.Warnf("the names of nodes are not known: %v", err)
	}
	list := hostList{Hosts: []listedHost{}}
	for i := range hosts {
		list.Hosts = append(list.Hosts, rowOf(&hosts[i], nodes))
	}
	if len(hosts) == 0 {
		env.Hintf("there are no SSHHosts in namespace %q: '%s host enroll' makes one", o.PoolNamespace, env.Prog)
	}
	return env.Print(o.output, list, func() *cli.Table { return hostTable(list, env.Now()) })
}

func rowOf(host *v1beta1.SSHHost, nodes cluster.NodeNames) listedHost {
	h := listedHost{
		Name: host.Name, Address: host.Spec.Address, Phase: string(cmp.Or(host.Status.State, v1beta1.HostPending)),
		Parked: host.InMaintenance(), LeaveOwed: host.Status.Cleanup != nil, Created: host.CreationTimestamp.Time,
	}
	if claim := host.Status.ClaimRef; claim != nil {
		h.Claim, h.Node = claim.Name, nodes[claim.UID]
	}
	for _, c := range host.Status.Conditions {
		if c.Type == v1beta1.ConditionReady {
			h.Reason, h.Message = c.Reason, c.Message
		}
	}
	return h
}

func hostTable(list hostList, now time.Time) *cli.Table {
	t := cli.NewTable("NAME", "ADDRESS", "PHASE", "CLAIM", "NODE", "REASON", "AGE")
	for _, h := range list.Hosts {
		phase := h.Phase
		if h.Parked && phase != string(v1beta1.HostMaintenance) {
			phase += ",parked"
		}
		reason := h.Reason
		if h.LeaveOwed {
			reason = fmt.Sprintf("%s (leave owed)", cmp.Or(reason, "-"))
		}
		t.Row(h.Name, h.Address, phase, cmp.Or(h.Claim, "-"), cmp.Or(h.Node, "-"), cmp.Or(reason, "-"), duration.HumanDuration(now.Sub(h.Created)))
	}
	return t
}
