// Package controllers puts the controllers together. Each is a package of its own, OBJECT/CONCERN, and
// none knows another: what they tell each other is in the objects.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/certificate/approval"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/joinprofile/status"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclaim/join"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclaim/leave"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass/hash"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass/startuptaints"
	classstatus "github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass/status"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass/termination"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/claim"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/maintenance"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/prepare"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/probe"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/sshhost/token"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Defaults of Dependencies.
const (
	DefaultProbeInterval = probe.DefaultInterval
	DefaultProbeTimeout  = probe.DefaultTimeout
	DefaultParallelism   = 100
	// DefaultPrepareParallelism is small: nobody waits for it, and installs share mirrors with joins that somebody waits for.
	DefaultPrepareParallelism = 10
)

// apiWorkers is how many hosts are looked at at once by controllers that only talk to the API server.
const apiWorkers = 10

// Access finds out how to reach hosts, and what is in their Secrets.
type Access interface {
	membership.Access
	classstatus.Access
}

// Dependencies are what the controllers need. All are required but those that name a default.
type Dependencies struct {
	// Client writes, and reads from a cache that holds at least: SSHHosts and Secrets of the pool
	// namespace, the ConfigMaps of the controller's, node classes, join profiles, NodeClaims, Nodes,
	// CertificateSigningRequests and Pods. Core's index of pods by spec.nodeName must be there.
	Client client.Client
	// Live reads from the API server: NodeClaims, Nodes, Secrets of the pool namespace and of
	// kube-system, and kube-public/cluster-info.
	Live client.Reader
	// Indexer is the manager's; New adds one index of Nodes to it.
	Indexer client.FieldIndexer
	// Pool and the Inventory that it finds hosts in.
	Pool      *pool.Pool
	Inventory *pool.Inventory
	// Dispatcher runs phases, on hosts that Access finds out how to reach.
	Dispatcher membership.Dispatcher
	Access     Access
	// Logins is the Dispatcher's memory of logins; it may be nil.
	Logins *dispatch.Logins
	// Trust hands out the signed documents of TrustConfigMap.
	Trust          classstatus.Trust
	TrustConfigMap types.NamespacedName
	// DispatchKeySecret is the Secret that DispatchKey reads; zero when the key is elsewhere.
	DispatchKeySecret types.NamespacedName
	// DispatchKey is the public half of the key that the Dispatcher signs with, or why there is none.
	DispatchKey func() (signing.Key, error)
	Recorder    events.Recorder
	Registerer  prometheus.Registerer
	// Cluster is the one that hosts become members of.
	Cluster membership.Cluster
	// ClusterVersion is the version of the API server, empty while it is not known; it may be nil.
	ClusterVersion func() string
	// PoolNamespace holds the SSHHosts.
	PoolNamespace string
	// AllowRaw says whether hosts without the shim may be used. The Dispatcher has the last word.
	AllowRaw bool

	// Clock is the wall clock when nil.
	Clock clock.WithTicker
	// ProbeInterval and ProbeTimeout are DefaultProbeInterval and DefaultProbeTimeout when zero.
	ProbeInterval time.Duration
	ProbeTimeout  time.Duration
	// How many hosts are joined, left and probed at once; DefaultParallelism when zero. Most of them wait:
	// connections are bounded by the Dispatcher.
	JoinParallelism  int
	LeaveParallelism int
	ProbeParallelism int
	// PrepareParallelism is how many free hosts are prepared at once; DefaultPrepareParallelism when zero.
	PrepareParallelism int
}

func (d *Dependencies) complete() error {
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	for _, n := range []*int{&d.JoinParallelism, &d.LeaveParallelism, &d.ProbeParallelism} {
		if *n <= 0 {
			*n = DefaultParallelism
		}
	}
	if d.PrepareParallelism <= 0 {
		d.PrepareParallelism = DefaultPrepareParallelism
	}
	var missing []error
	for name, given := range map[string]bool{
		"Client": d.Client != nil, "Live": d.Live != nil, "Indexer": d.Indexer != nil, "Pool": d.Pool != nil, "Inventory": d.Inventory != nil,
		"Dispatcher": d.Dispatcher != nil, "Access": d.Access != nil, "Trust": d.Trust != nil, "DispatchKey": d.DispatchKey != nil,
		"Recorder": d.Recorder != nil, "Registerer": d.Registerer != nil, "Cluster": d.Cluster != "", "PoolNamespace": d.PoolNamespace != "", "TrustConfigMap": d.TrustConfigMap.Name != "",
	} {
		if !given {
			missing = append(missing, fmt.Errorf("%s is missing", name))
		}
	}
	return errors.Join(missing...)
}

// New returns the controllers, to be registered with a manager.
func New(ctx context.Context, d Dependencies) ([]controller.Controller, error) {
	if err := d.complete(); err != nil {
		return nil, fmt.Errorf("putting the controllers together: %w", err)
	}
	if err := membership.IndexNodes(ctx, d.Indexer); err != nil {
		return nil, err
	}
	metrics, err := membership.NewMetrics(d.Registerer)
	if err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	if err := d.Registerer.Register(pool.NewCollector(d.Inventory)); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	if err := d.Registerer.Register(membership.NewTrustCollector(d.Inventory, d.Dispatcher.Newest)); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	preparing, err := prepare.NewMetrics(d.Registerer)
	if err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	phases := membership.NewPhases(membership.PhasesOptions{
		Dispatcher: d.Dispatcher, Access: d.Access, Reader: d.Live, Namespace: d.PoolNamespace, Clock: d.Clock, Metrics: metrics,
		Recorder: d.Recorder, Cluster: d.Cluster,
	})
	tokens := bootstrap.NewTokens(d.Client, d.Live, d.Clock)
	scripts, turns := membership.NewScripts(d.Client), membership.NewTurns()
	return []controller.Controller{
		join.NewController(join.Options{
			Client: d.Client, Live: d.Live, Hosts: d.Pool, Phases: phases, Tokens: tokens, Turns: turns,
			Recorder: d.Recorder, Clock: d.Clock, Namespace: d.PoolNamespace, Workers: d.JoinParallelism,
		}),
		leave.NewController(leave.Options{
			Client: d.Client, Live: d.Live, Cluster: d.Cluster, Hosts: d.Pool, Phases: phases, Scripts: scripts, Tokens: tokens, Turns: turns,
			Recorder: d.Recorder, Clock: d.Clock, Namespace: d.PoolNamespace, Workers: d.LeaveParallelism,
		}),
		probe.NewController(probe.Options{
			Client: d.Client, Live: d.Live, Cluster: d.Cluster, ClusterVersion: d.ClusterVersion,
			Hosts: d.Pool, Phases: phases, Scripts: scripts, Turns: turns,
			Recorder: d.Recorder, Clock: d.Clock,
			Metrics: metrics, Interval: d.ProbeInterval, Timeout: d.ProbeTimeout, Namespace: d.PoolNamespace, Workers: d.ProbeParallelism,
			TrustConfigMap: d.TrustConfigMap,
		}),
		prepare.NewController(prepare.Options{
			Client: d.Client, Hosts: d.Pool, Inventory: d.Inventory, Phases: phases, Turns: turns, Recorder: d.Recorder, Clock: d.Clock,
			Metrics: preparing, Namespace: d.PoolNamespace, Workers: d.PrepareParallelism,
		}),
		claim.NewController(claim.Options{
			Client: d.Client, Live: d.Live, Hosts: d.Pool, Tokens: tokens, Turns: turns, Namespace: d.PoolNamespace, Workers: apiWorkers,
		}),
		token.NewController(d.Client, d.Pool, tokens, d.PoolNamespace, apiWorkers),
		approval.NewController(approval.Options{
			Client: d.Client, Live: d.Live, Hosts: d.Pool, Tokens: tokens, Recorder: d.Recorder, Clock: d.Clock, Workers: apiWorkers,
		}),
		maintenance.NewController(d.Pool, d.Recorder, d.Clock, d.PoolNamespace),
		classstatus.NewController(classstatus.Options{
			Client: d.Client, Live: d.Live, Hosts: d.Pool, Access: d.Access, Logins: d.Logins, Environment: phases, Trust: d.Trust, DispatchKey: d.DispatchKey,
			AllowRaw: d.AllowRaw, Clock: d.Clock, Namespace: d.PoolNamespace, TrustConfigMap: d.TrustConfigMap,
			DispatchKeySecret: d.DispatchKeySecret,
		}),
		termination.NewController(d.Client, d.Live, d.Recorder),
		hash.NewController(d.Client),
		startuptaints.NewController(d.Client),
		status.NewController(d.Client, d.Clock),
	}, nil
}
