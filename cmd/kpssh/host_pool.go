package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cli"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/cluster"
	"github.com/kpssh/karpenter-provider-ssh/cmd/kpssh/internal/trustdir"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// What an operator does with hosts that are in the pool. All of it is annotations and the deletion of a NodeClaim, which
// kubectl can do as well; the verbs know the order, and what to wait for.

const hostDrainUsage = `
Usage: @kpssh host drain [flags] NAME

Takes a host out of use: parks it with the maintenance annotation, so that nobody
claims it any more, and deletes the NodeClaim that holds it. Karpenter drains the
node, heeding PodDisruptionBudgets, and the host is left. A host that is free is
parked at once. Safe to run again.

Flags:
  --wait                 wait until the host is parked and nothing is owed to it:
                         it may be worked on, and its SSHHost deleted
  --timeout DURATION     wait no longer than that (default 15m)
  --dir DIR              trust folder (default $KPSSH_DIR, else "trust"), for the
                         namespace
  --kubeconfig FILE      in place of $KUBECONFIG and ~/.kube/config
  --context NAME         context of the kubeconfig
  --pool-namespace NS    namespace of the SSHHosts (default: the folder's)

Example:
    $ @kpssh host drain --wait rpi-3
    $ @kpssh host undrain rpi-3
`

const hostUndrainUsage = `
Usage: @kpssh host undrain [flags] NAME

Gives a host back to the pool: takes the maintenance annotation away. The host is
probed, has the leave that it may be owed, and is Available after that. A
maintenance window that is open keeps it parked.

Flags:
  --dir DIR              trust folder (default $KPSSH_DIR, else "trust"), for the
                         namespace
  --kubeconfig FILE      in place of $KUBECONFIG and ~/.kube/config
  --context NAME         context of the kubeconfig
  --pool-namespace NS    namespace of the SSHHosts (default: the folder's)

Example:
    $ @kpssh host undrain rpi-3
`

const hostResetUsage = `
Usage: @kpssh host reset [flags] NAME

Forgets the failures of a host and tries it again at once: it leaves quarantine,
and another machine id is taken for the host's. For after a repair. A host that
is in use forgets them when it is released.

Flags:
  --dir DIR              trust folder (default $KPSSH_DIR, else "trust"), for the
                         namespace
  --kubeconfig FILE      in place of $KUBECONFIG and ~/.kube/config
  --context NAME         context of the kubeconfig
  --pool-namespace NS    namespace of the SSHHosts (default: the folder's)

Example:
    $ @kpssh host reset rpi-3
`

// poolFlags are how a verb finds the hosts of the pool.
type poolFlags struct {
	clusterFlags
	dir string
}

func (p *poolFlags) flags(fs *flag.FlagSet) {
	p.clusterFlags.flags(fs)
	fs.StringVar(&p.dir, "dir", "", "")
	fs.StringVar(&p.PoolNamespace, "pool-namespace", "", "")
}

// pool connects to the cluster of the pool. The trust folder is asked for the namespace alone, where there is one.
func (p *poolFlags) pool(env *cli.Env) (*cluster.Hosts, error) {
	if p.PoolNamespace == "" {
		p.PoolNamespace = apis.DefaultPoolNamespace
		if p.dir != "" || env.Getenv("KPSSH_DIR") != "" || cli.Exists(trustdir.Locate(env, p.dir)) {
			d, err := trustdir.Open(env, p.dir)
			if err != nil {
				return nil, err
			}
			p.PoolNamespace = d.PoolNamespace
		}
	}
	return cluster.OpenHosts(p.Access)
}

// namePattern is what the name of an SSHHost may be.
var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// one makes a verb about one host of the pool.
func (p *poolFlags) one(run func(ctx context.Context, env *cli.Env, hosts *cluster.Hosts, name string) error) func(context.Context, *cli.Env, []string) error {
	return func(ctx context.Context, env *cli.Env, args []string) error {
		if len(args) != 1 {
			return cli.Usagef("one host is needed: the NAME of its SSHHost")
		}
		if !namePattern.MatchString(args[0]) { // which becomes part of a path
			return cli.Usagef("%q is not the name of an SSHHost", args[0])
		}
		hosts, err := p.pool(env)
		if err != nil {
			return err
		}
		return run(ctx, env, hosts, args[0])
	}
}

func hostUndrainCommand() *cli.Command {
	o := &poolFlags{}
	return &cli.Command{
		Name: "undrain", Short: "give a host back to the pool", Usage: hostUndrainUsage, Flags: o.flags,
		Run: o.one(func(ctx context.Context, env *cli.Env, hosts *cluster.Hosts, name string) error {
			if _, err := hosts.Annotate(ctx, name, apis.AnnotationMaintenance, nil); err != nil {
				return err
			}
			env.Progress("%s: not parked by the annotation any more", name)
			return nil
		}),
	}
}

func hostResetCommand() *cli.Command {
	o := &poolFlags{}
	return &cli.Command{
		Name: "reset", Short: "forget the failures of a host, try it again", Usage: hostResetUsage, Flags: o.flags,
		Run: o.one(func(ctx context.Context, env *cli.Env, hosts *cluster.Hosts, name string) error {
			value := env.Now().UTC().Format(time.RFC3339Nano) // another one each time is what counts
			host, err := hosts.Annotate(ctx, name, apis.AnnotationReset, &value)
			if err != nil {
				return err
			}
			if claim := host.Status.ClaimRef; claim != nil {
				env.Progress("%s: in use by NodeClaim %s; its failures are forgotten when it is released", name, claim.Name)
				return nil
			}
			env.Progress("%s: its failures are forgotten", name)
			if host.InMaintenance() {
				env.Hintf("it is parked, and not probed before '%s host undrain %s'", env.Prog, name)
			}
			return nil
		}),
	}
}

type drainOptions struct {
	poolFlags
	wait    bool
	timeout time.Duration
}

func hostDrainCommand() *cli.Command {
	o := &drainOptions{}
	return &cli.Command{
		Name: "drain", Short: "take a host out of use, and its node with it", Usage: hostDrainUsage,
		Flags: func(fs *flag.FlagSet) {
			o.flags(fs)
			fs.BoolVar(&o.wait, "wait", false, "")
			fs.DurationVar(&o.timeout, "timeout", 15*time.Minute, "")
		},
		Run: o.one(o.run),
	}
}

func (o *drainOptions) run(ctx context.Context, env *cli.Env, hosts *cluster.Hosts, name string) error {
	if o.timeout <= 0 {
		return cli.Usagef("--timeout must be positive")
	}
	// Whoever claims a host compares resourceVersions: once there is the annotation, a claim that is not in the answer is
	// not made any more.
	host, err := hosts.Get(ctx, name)
	if err == nil && !host.InMaintenance() { // what somebody has written there stays
		value := "true"
		host, err = hosts.Annotate(ctx, name, apis.AnnotationMaintenance, &value)
	}
	if err != nil {
		return err
	}
	if claim := host.Status.ClaimRef; claim != nil {
		if err := hosts.DeleteNodeClaim(ctx, claim.Name, claim.UID); err != nil {
			return cli.Hint(err, "the host is parked for when it is released; run this again, or 'kubectl delete nodeclaim %s'", claim.Name)
		}
		env.Progress("%s: parked; NodeClaim %s is deleted, which drains its node", name, claim.Name)
	} else {
		env.Progress("%s: parked; no NodeClaim holds it", name)
	}
	if !o.wait {
		if waitingFor(host) != "" {
			env.Hintf("'%s host drain --wait %s' says when that is done", env.Prog, name)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	return o.await(ctx, env, hosts, host)
}

// await looks at the host until nothing is waited for, and says what is whenever that is another thing.
func (o *drainOptions) await(ctx context.Context, env *cli.Env, hosts *cluster.Hosts, host *v1beta1.SSHHost) error {
	name, uid, said := host.Name, host.UID, ""
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		switch {
		case host.UID != uid || !host.InMaintenance():
			return fmt.Errorf("host %q was given back to the pool, or made again, while it was waited for", name)
		case owed(host):
			// A parked host is not probed, and so not left: waiting would not end.
			return cli.Hint(fmt.Errorf("host %q is parked, but it is owed a leave: %s: %s", name, host.Status.Cleanup.Reason, host.Status.Cleanup.Message),
				"bring the machine back, have it left with '%[1]s host undrain %[2]s', then drain it again", env.Prog, name)
		}
		next := waitingFor(host)
		if next == "" {
			env.Progress("%s: out of use", name)
			return nil
		}
		if next != said {
			env.Progress("%s: waiting: %s", name, next)
			said = next
		}
		var err error
		select {
		case <-tick.C:
			host, err = hosts.Get(ctx, name)
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err == nil {
			continue
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return cli.Hint(fmt.Errorf("host %q is not out of use after %s: %s", name, o.timeout, said),
				"it goes on by itself; what keeps a node from draining: kubectl describe nodeclaim, and PodDisruptionBudgets")
		}
		return err
	}
}

// drainPoll is how often a host is looked at that is waited for.
const drainPoll = time.Second

// owed says whether a parked host is owed a leave.
func owed(host *v1beta1.SSHHost) bool {
	return host.Status.Cleanup != nil && host.Status.ClaimRef == nil && host.Status.State == v1beta1.HostMaintenance
}

// waitingFor says what keeps a host from being out of use; nothing when it is.
func waitingFor(host *v1beta1.SSHHost) string {
	switch claim := host.Status.ClaimRef; {
	case claim != nil:
		text := "NodeClaim " + claim.Name + " holds the host"
		for _, c := range host.Status.Conditions {
			if c.Type == v1beta1.ConditionLeaveBlocked && c.IsTrue() {
				return text + ": " + c.Message
			}
		}
		return text
	case host.Status.State != v1beta1.HostMaintenance:
		return fmt.Sprintf("the host is %s, not yet Maintenance", cmp.Or(host.Status.State, v1beta1.HostPending))
	case host.Status.Cleanup != nil:
		return "a leave is owed to the host"
	}
	return ""
}
