package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/preflight"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Dispatcher runs phases on hosts. A phase that has run to its end for the same claim is not run again:
// its result is collected.
type Dispatcher interface {
	Run(ctx context.Context, host dispatch.Host, request dispatch.Request) (*dispatch.Result, error)
	Probe(ctx context.Context, host dispatch.Host) (*dispatch.Probe, error)
	// Newest are the versions of the documents that hosts are brought, or why there are none.
	Newest() (dispatch.Versions, error)
}

// Access finds out how to reach a host: its address, keys and identity.
type Access interface {
	Host(ctx context.Context, host *v1beta1.SSHHost) (dispatch.Host, error)
}

// PhasesOptions are what Phases are made of.
type PhasesOptions struct {
	Dispatcher Dispatcher
	Access     Access
	// Reader reads the Secrets of the pool namespace and kube-public/cluster-info.
	Reader client.Reader
	// Cluster is the one that hosts are members of.
	Cluster Cluster
	// Namespace of the pool.
	Namespace string
	Clock     clock.PassiveClock
	// Metrics may be nil.
	Metrics *Metrics
	// Recorder takes an Event for each run that ended; it may be nil.
	Recorder events.Recorder
}

// Phases runs install, join and leave on hosts.
type Phases struct{ opts PhasesOptions }

// NewPhases returns Phases.
func NewPhases(opts PhasesOptions) *Phases { return &Phases{opts: opts} }

// Subject is one NodeClaim on one host, with what its scripts are made of.
type Subject struct {
	Host *v1beta1.SSHHost
	// NodeClaim is nil for a host that is prepared.
	NodeClaim *karpenterv1.NodeClaim
	Class     *v1beta1.SSHNodeClass
	Profile   *v1beta1.SSHJoinProfile
}

// Install makes the host ready for membership of its class's profile. An error is a *Failure, or the API server's.
func (p *Phases) Install(ctx context.Context, s Subject) error {
	return p.enter(ctx, s, signing.PhaseInstall, "")
}

// Join makes the host a node. An error is a *Failure, or the API server's.
func (p *Phases) Join(ctx context.Context, s Subject, token string) error {
	return p.enter(ctx, s, signing.PhaseJoin, token)
}

func (p *Phases) enter(ctx context.Context, s Subject, phase signing.Phase, token string) error {
	params, secrets, err := p.Environment(ctx, s, phase, token)
	if err != nil {
		return failure(s.Host, phase, nil, err)
	}
	// The skew may have grown since the last probe, and here it would show as an error of x509 (kubeadm#240, R34).
	var skew time.Duration
	if phase == signing.PhaseJoin && !slices.Contains(s.Class.Spec.IgnoredPreflightChecks, preflight.ClockSkew) {
		skew = preflight.MaxClockSkew
	}
	return p.run(ctx, s.Host, s.Profile, s.Class.Spec.Vars, dispatch.Request{
		MaxClockSkew: skew,
		Phase:        phase, Claim: p.opts.Cluster.Claim(s.NodeClaim.UID), EarlierClaim: string(s.NodeClaim.UID), ClaimName: s.NodeClaim.Name, Fence: s.Host.Status.Fence, Parameters: params, Secrets: secrets,
	})
}

// Leave ends the membership that the host has under a claim, by uid; vars are those of a node class,
// with which the profile's script is rendered. An error is a *Failure, or the API server's.
func (p *Phases) Leave(ctx context.Context, host *v1beta1.SSHHost, prof *v1beta1.SSHJoinProfile, vars map[string]string, claim types.UID) error {
	params, secrets, err := profile.Environment(profile.Input{
		Phase: profile.Leave, HostAddress: host.Spec.Address, NodeAddress: host.AdvertisedAddress(),
	})
	if err != nil {
		return failure(host, signing.PhaseLeave, nil, misconfigured(v1beta1.ReasonVarsInvalid, "%v", err))
	}
	return p.run(ctx, host, prof, vars, dispatch.Request{
		Phase: signing.PhaseLeave, Claim: p.opts.Cluster.Claim(claim), EarlierClaim: string(claim), ClaimName: claimName(host, claim), Fence: host.Status.Fence, Parameters: params, Secrets: secrets,
		// A leave that failed is tried again: what hindered it may have passed.
		RetryFailed: true,
	})
}

// Newest are the versions of the signed documents that hosts are brought, or why there are none.
func (p *Phases) Newest() (dispatch.Versions, error) { return p.opts.Dispatcher.Newest() }

// Probe asks the host how it is and brings it the documents that it lacks. An error, and what the probe says to
// be in the way of the documents, is a *Failure, or the API server's.
func (p *Phases) Probe(ctx context.Context, host *v1beta1.SSHHost) (*dispatch.Probe, error) {
	target, err := p.opts.Access.Host(ctx, host)
	if err != nil {
		return nil, failure(host, "", nil, err)
	}
	probe, err := p.opts.Dispatcher.Probe(ctx, target)
	if err != nil {
		return nil, failure(host, "", nil, err)
	}
	if probe.Behind != nil {
		probe.Behind = failure(host, "", nil, probe.Behind)
	}
	return probe, nil
}

func (p *Phases) run(ctx context.Context, host *v1beta1.SSHHost, prof *v1beta1.SSHJoinProfile, vars map[string]string, request dispatch.Request) error {
	started := p.opts.Clock.Now()
	err := p.dispatch(ctx, host, prof, vars, request)
	if err == nil {
		p.opts.Metrics.phase(request.Phase, outcomeOK, p.opts.Clock.Since(started))
		return nil
	}
	err = failure(host, request.Phase, request.Secrets, err)
	p.opts.Metrics.phase(request.Phase, outcomeOf(FailureOf(err)), p.opts.Clock.Since(started))
	return err
}

func (p *Phases) dispatch(ctx context.Context, host *v1beta1.SSHHost, prof *v1beta1.SSHJoinProfile, vars map[string]string, request dispatch.Request) error {
	source, timeout := script(prof, request.Phase)
	rendered, err := profile.Render([]byte(source), profile.Values{Vars: vars})
	if err != nil {
		return misconfigured(v1beta1.ReasonProfileInvalid, "profile %q: %v", prof.Name, err)
	}
	target, err := p.opts.Access.Host(ctx, host)
	if err != nil {
		return err
	}
	request.Profile, request.Version = prof.Name, Version(prof)
	request.Script, request.Timeout = rendered, timeout
	result, err := p.opts.Dispatcher.Run(ctx, target, request)
	p.runEnded(host, &request, result, err)
	return err
}

// Version is the version of a profile, also of one that never saw admission's default.
func Version(prof *v1beta1.SSHJoinProfile) string {
	if prof.Spec.Version == "" {
		return profile.DefaultVersion
	}
	return prof.Spec.Version
}

func script(prof *v1beta1.SSHJoinProfile, phase signing.Phase) (string, time.Duration) {
	scripts, timeouts := prof.Spec.Scripts, prof.Spec.Timeouts
	switch phase {
	case signing.PhaseInstall:
		return scripts.Install, timeout(timeouts.Install, profile.Install)
	case signing.PhaseJoin:
		return scripts.Join, timeout(timeouts.Join, profile.Join)
	default:
		return scripts.Leave, timeout(timeouts.Leave, profile.Leave)
	}
}

func timeout(set *metav1.Duration, phase profile.Phase) time.Duration {
	if set == nil || set.Duration <= 0 {
		return profile.DefaultTimeout(phase)
	}
	return min(set.Duration, profile.MaxTimeout)
}

// JoinTimeout is how long the profile's join may take; a token must live longer.
func JoinTimeout(prof *v1beta1.SSHJoinProfile) time.Duration {
	return timeout(prof.Spec.Timeouts.Join, profile.Join)
}

// Environment makes the variables of install or join; token is needed by join only. An error is a
// *Failure, or the API server's.
func (p *Phases) Environment(ctx context.Context, s Subject, phase signing.Phase, token string) (params, secrets map[string]string, err error) {
	cluster, err := p.cluster(ctx, s.Class)
	if err != nil {
		return nil, nil, err
	}
	joinSecrets, err := p.joinSecrets(ctx, s.Class)
	if err != nil {
		return nil, nil, err
	}
	providerID := s.Host.StaticProviderID()
	if s.Class.Adopts() {
		providerID = ""
	}
	input := profile.Input{
		Phase:           profile.Phase(phase),
		ClusterEndpoint: cluster.Endpoint,
		ClusterCA:       cluster.CA,
		BootstrapToken:  token,
		NodeName:        s.Host.Name,
		ProviderID:      providerID,
		HostAddress:     s.Host.Spec.Address,
		NodeAddress:     s.Host.AdvertisedAddress(),
		Vars:            s.Class.Spec.Vars,
		Secrets:         joinSecrets,
	}
	if s.NodeClaim != nil {
		input.NodeName, input.Labels, input.Taints = s.NodeClaim.Name, s.NodeClaim.Labels, taints(s.NodeClaim)
	}
	params, secrets, err = profile.Environment(input)
	if err != nil {
		return nil, nil, misconfigured(v1beta1.ReasonVarsInvalid, "%v", err)
	}
	return params, secrets, nil
}

func (p *Phases) cluster(ctx context.Context, class *v1beta1.SSHNodeClass) (bootstrap.Cluster, error) {
	override := bootstrap.Override{}
	if class.Spec.Cluster != nil {
		override = bootstrap.Override{Endpoint: class.Spec.Cluster.Endpoint, CABundle: string(class.Spec.Cluster.CABundle)}
	}
	cluster, err := bootstrap.FindCluster(ctx, p.opts.Reader, override)
	if errors.Is(err, bootstrap.ErrClusterInfoMissing) || errors.Is(err, bootstrap.ErrClusterInfoInvalid) {
		return cluster, misconfigured(v1beta1.ReasonClusterInfoMissing, "%v", err)
	}
	return cluster, err
}

func (p *Phases) joinSecrets(ctx context.Context, class *v1beta1.SSHNodeClass) (map[string][]byte, error) {
	if class.Spec.JoinSecretRef == nil {
		return nil, nil
	}
	name := class.Spec.JoinSecretRef.Name
	secret := &corev1.Secret{}
	err := p.opts.Reader.Get(ctx, types.NamespacedName{Namespace: p.opts.Namespace, Name: name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, misconfigured(v1beta1.ReasonJoinSecretNotFound, "Secret %s/%s does not exist", p.opts.Namespace, name)
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s/%s: %w", p.opts.Namespace, name, err)
	}
	return secret.Data, nil
}

func taints(nodeClaim *karpenterv1.NodeClaim) []profile.Taint {
	var out []profile.Taint
	for _, list := range [][]corev1.Taint{nodeClaim.Spec.Taints, nodeClaim.Spec.StartupTaints} {
		for _, t := range list {
			out = append(out, profile.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
		}
	}
	return out
}
