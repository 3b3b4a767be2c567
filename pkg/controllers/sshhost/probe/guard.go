package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/dispatch"
	"github.com/kpssh/karpenter-provider-ssh/pkg/membership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/pool"
	"github.com/kpssh/karpenter-provider-ssh/signing"
)

// Reasons beside those of the API.
const (
	// reasonRunInProgress: a phase of an earlier claim has not ended yet.
	reasonRunInProgress = "RunInProgress"
	// reasonNodeRemains: the Node of the last claim is being deleted; a successor would have its provider id.
	reasonNodeRemains = "NodeRemains"
	// reasonDuplicateHost: another SSHHost is the same machine, and in use.
	reasonDuplicateHost = "DuplicateHost"
	// reasonLeaveOwed: something of an earlier membership is on the host, or may be.
	reasonLeaveOwed = "LeaveOwed"
	// reasonClaimUnproven: the host says that it serves a NodeClaim, and nothing of this cluster says so yet.
	reasonClaimUnproven = "ClaimUnproven"
)

type verdict int

const (
	clean verdict = iota
	waiting
	foreign
	zombie
	serving
	unproven
)

// finding is what a probe means for a host that nobody has claimed.
type finding struct {
	verdict         verdict
	reason, message string
	// claim is what the host says it holds, kubelet whether one runs there, nodes what it backs.
	claim   types.UID
	kubelet bool
	nodes   []corev1.Node
	// serves is the living NodeClaim that a host is a member for, although its status does not say so.
	serves *karpenterv1.NodeClaim
	// leftovers is what else there is of a membership, by the host's own word, and marked whether its last run was for this
	// cluster, by the same.
	leftovers []string
	marked    bool
	// settled is the claim whose leave is owed and, as the host shows, ended well while nobody could hear of it.
	settled types.UID
}

// examine decides whether a membership is left on the host, and whose.
func (c *Controller) examine(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe) (finding, error) {
	nodes, err := membership.NodesOf(ctx, c.Client, host)
	if err != nil {
		return finding{}, err
	}
	f := finding{kubelet: runs(probe.Facts.KubeletState), nodes: nodes, leftovers: probe.Facts.Leftovers}
	if probe.Hello != nil {
		f.claim, _ = c.Cluster.Owner(probe.Hello.Claim.UID)
		f.marked = probe.Hello.LastRun != nil && c.Cluster.Marks(probe.Hello.LastRun.Claim)
		f.settled = c.settled(host, probe.Hello, f)
	}
	if why, err := c.foreignMember(ctx, host, probe, f); why != "" || err != nil {
		return foreigner(f, why), err
	}
	if why := c.anotherMachine(host, probe); why != "" {
		f.verdict, f.reason, f.message, f.claim = foreign, v1beta1.ReasonIdentityChanged, why, ""
		return f, nil
	}
	if run := running(probe); run != nil {
		f.verdict, f.reason = waiting, reasonRunInProgress
		f.message = fmt.Sprintf("%s of claim %s is still running", run.Phase, run.Claim)
		return f, nil
	}
	if other := c.duplicate(host, f); other != "" {
		f.verdict, f.reason = foreign, reasonDuplicateHost
		f.message = fmt.Sprintf("the machine is that of host %s, which is in use", other)
		return f, nil
	}
	if f.serves, err = c.serves(ctx, host, f); f.serves != nil || err != nil {
		if err == nil {
			f.message, err = c.doubt(ctx, host, f.serves)
		}
		if f.verdict = serving; f.message != "" {
			f.verdict, f.reason = unproven, reasonClaimUnproven
		}
		return f, err
	}
	return judge(host, f), nil
}

// settled returns the claim whose leave the host owed, if that leave is the last thing that ran there, ended well, and the
// host has nothing of a membership any more: its receipt is collected then, and nothing runs a second time.
func (c *Controller) settled(host *v1beta1.SSHHost, hello *signing.Hello, f finding) types.UID {
	debt, last := host.Status.Cleanup, hello.LastRun
	if debt == nil || debt.ClaimRef == nil || last == nil || hello.Claim.UID != "" || f.kubelet || len(f.leftovers) > 0 {
		return ""
	}
	if last.Phase != signing.PhaseLeave || last.State != signing.RunFinished || last.Outcome != signing.OutcomeOK {
		return ""
	}
	if claim, ours := c.Cluster.Owner(last.Claim); ours && claim == debt.ClaimRef.UID {
		return claim
	}
	return ""
}

// running is the run that the host has not ended yet.
func running(probe *dispatch.Probe) *signing.RunRef {
	if probe.Hello == nil || probe.Hello.LastRun == nil || probe.Hello.LastRun.State != signing.RunStarted {
		return nil
	}
	return probe.Hello.LastRun
}

// judge decides whose a membership is: ours by the host's own word, by the debt or the marker on record, by a Node of
// this cluster, or because it is being left already. Where all that is lost, what is left on a host is still of the
// cluster that its last run was for; a kubelet that runs there without a claim may be anybody's.
func judge(host *v1beta1.SSHHost, f finding) finding {
	owed := f.claim != "" || pool.Owed(host)
	ours := owed || len(f.nodes) > 0 || host.Status.InstalledProfile != "" || host.Status.State == v1beta1.HostLeaving
	switch {
	case f.kubelet && !ours:
		f.verdict, f.reason = foreign, v1beta1.ReasonForeignKubelet
		f.message = "a kubelet runs on the host that is not of this cluster and that we did not install"
	case f.kubelet || owed:
		f.verdict, f.reason = zombie, reasonLeaveOwed
		f.message = describe(f)
	case len(f.leftovers) > 0 && (ours || f.marked):
		f.verdict, f.reason = zombie, v1beta1.ReasonNotClean
		f.message = "the unclaimed host has " + strings.Join(f.leftovers, ", ")
		f.nodes = remains(host, f.nodes)
	case len(f.leftovers) > 0:
		f.verdict, f.reason = foreign, v1beta1.ReasonNotClean
		f.message = "the host has what we did not bring, and what no free host has; take it away: " + strings.Join(f.leftovers, ", ")
	default:
		if f.nodes = remains(host, f.nodes); len(f.nodes) > 0 {
			f.verdict, f.reason = waiting, reasonNodeRemains
			f.message = fmt.Sprintf("node %q of an earlier membership is still there", f.nodes[0].Name)
		}
	}
	return f
}

// runs says whether a kubelet unit runs, or is about to.
func runs(state string) bool {
	return state == "active" || state == "activating" || state == "reloading"
}

// remains returns the Nodes that no kubelet of the host keeps alive but that the host would be taken for:
// those with its provider id, and those with its address that are not Ready. A Ready one with the
// address is another machine's.
func remains(host *v1beta1.SSHHost, nodes []corev1.Node) []corev1.Node {
	var out []corev1.Node
	for i := range nodes {
		if nodes[i].Spec.ProviderID == host.StaticProviderID() || !membership.Ready(&nodes[i]) {
			out = append(out, nodes[i])
		}
	}
	return out
}

// duplicate returns the other SSHHost whose living claim the machine serves, if there is one: two objects
// for one machine are a mistake that must not cost the node that is in use. Another machine with the claim is
// what is left of one that was released for being extra, and is to be left.
func (c *Controller) duplicate(host *v1beta1.SSHHost, f finding) string {
	if f.claim != "" {
		if other, err := c.Hosts.ByClaim(f.claim); err == nil && other.Name != host.Name && sameMachine(host, other) {
			return other.Name
		}
	}
	for i := range f.nodes {
		other, err := c.Hosts.ByProviderID(f.nodes[i].Spec.ProviderID)
		if err == nil && other.Name != host.Name && other.Status.ClaimRef != nil {
			return other.Name
		}
	}
	return ""
}

// sameMachine goes by the identity that the machine proves in every hello.
func sameMachine(a, b *v1beta1.SSHHost) bool {
	return a.Spec.Shim != nil && b.Spec.Shim != nil && a.Spec.Shim.HostID == b.Spec.Shim.HostID
}

func describe(f finding) string {
	switch {
	case f.kubelet && f.claim != "":
		return fmt.Sprintf("a kubelet runs on the unclaimed host, under claim %s", f.claim)
	case f.kubelet:
		return "a kubelet runs on the unclaimed host"
	case f.claim != "":
		return fmt.Sprintf("the unclaimed host still holds claim %s", f.claim)
	default:
		return "a leave is owed to the host"
	}
}

// guard fences the host, has it leave, and only then deletes its Node, which a living kubelet would make
// again.
func (c *Controller) guard(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe, f finding) (reconcile.Result, error) {
	if host.Status.State != v1beta1.HostLeaving {
		if wait := pool.LeaveIn(host, c.Clock.Now()); wait > 0 {
			return c.backOff(ctx, host, probe, wait)
		}
		if f.kubelet {
			c.warn(host, v1beta1.EventZombieKubelet, f.message)
		}
		var err error
		if host, err = c.fence(ctx, host, probe, f); err != nil {
			return reconcile.Result{}, err
		}
	}
	if err := c.leave(ctx, host, f); err != nil {
		return c.leaveFailed(ctx, host, err)
	}
	if err := membership.DeleteNodes(ctx, c.Client, f.nodes); err != nil {
		return reconcile.Result{}, err // still Leaving: the next attempt finds leave done
	}
	return c.verify(ctx, host)
}

// backOff waits with the next attempt at a leave that failed.
func (c *Controller) backOff(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe, wait time.Duration) (reconcile.Result, error) {
	p, _ := c.observed(host, probe)
	p.Reason, p.Message = pool.BackingOff(host)
	result, err := c.record(ctx, host, p)
	result.RequeueAfter = min(result.RequeueAfter, wait)
	return result, err
}

// fence makes the host unclaimable, with a fence above every one that it has seen.
func (c *Controller) fence(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe, f finding) (*v1beta1.SSHHost, error) {
	p, _ := c.observed(host, probe)
	p.Generation = host.Generation
	p.Reason, p.Message, p.Configuration = f.reason, f.message, true
	host, err := c.Hosts.RecordProbe(ctx, host, p)
	if err != nil {
		return nil, err
	}
	if host, err = c.Hosts.BeginLeaving(ctx, host, f.message); err != nil {
		return nil, fmt.Errorf("fencing host %q: %w", host.GetName(), err)
	}
	log.FromContext(ctx).Info("leaving an unclaimed host", "host", host.Name, "detail", f.message)
	return host, nil
}

func (c *Controller) leave(ctx context.Context, host *v1beta1.SSHHost, f finding) error {
	profile, vars, err := c.Scripts.ForHost(ctx, host)
	if err != nil {
		return err
	}
	claim := f.claim
	if claim == "" {
		claim = f.settled
	}
	return c.Phases.Leave(ctx, host, profile, vars, claim)
}

func (c *Controller) leaveFailed(ctx context.Context, host *v1beta1.SSHHost, err error) (reconcile.Result, error) {
	if ctx.Err() != nil {
		return reconcile.Result{}, ctx.Err()
	}
	var failure *membership.Failure
	if !errors.As(err, &failure) {
		return reconcile.Result{}, err
	}
	if failure.Kind == membership.Busy {
		return reconcile.Result{RequeueAfter: busyDelay}, nil
	}
	c.warn(host, v1beta1.EventZombieLeaveFailed, failure.Error())
	c.Metrics.Zombie(membership.ZombieLeaveFailed)
	if failure.Kind == membership.Configuration {
		// Not the host's fault: it stays fenced, and is tried again until somebody mends it.
		return reconcile.Result{RequeueAfter: leavingDelay}, nil
	}
	if _, err := c.Hosts.EndLeaving(ctx, host, unleft(host, failure)); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: c.Interval}, nil
}

// unleft is what becomes of a host on which leave did not end well. That it was out of reach is not held against it.
// What a leave left undone a host with the shim says itself, if it is known for ours; for another one it is put on record.
func unleft(host *v1beta1.SSHHost, failure *membership.Failure) pool.Outcome {
	out := pool.Outcome{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonZombieFailed, Message: failure.Error()}
	out.Leave = owes(host)
	if failure.Kind == membership.HostFault {
		out.Failure = out.Reason
	}
	return out
}

// owes is what a leave that did not clean the host is on record as. The leave took the claim away, and was the last run:
// without a debt a host whose status was lost would not be known for ours any more.
func owes(host *v1beta1.SSHHost) pool.Leave {
	if host.Raw() || host.Status.InstalledProfile == "" {
		return pool.LeaveOwed
	}
	return pool.LeaveUnknown
}

// verify believes what the host says now, and not the exit status of its leave.
func (c *Controller) verify(ctx context.Context, host *v1beta1.SSHHost) (reconcile.Result, error) {
	probe, err := c.probe(ctx, host)
	if err != nil {
		return reconcile.Result{RequeueAfter: retryDelay}, nil //nolint:nilerr // still Leaving: the next probe decides
	}
	f, err := c.examine(ctx, host, probe)
	if err != nil {
		return reconcile.Result{}, err
	}
	if f.verdict == foreign {
		return c.park(ctx, host, probe, f)
	}
	if f.kubelet || f.claim != "" {
		return c.leaveFailed(ctx, host, &membership.Failure{
			Kind: membership.HostFault, Reason: v1beta1.ReasonLeaveFailed, Host: host.Name, Phase: signing.PhaseLeave,
			Detail: "leave ended well, but " + describe(f),
		})
	}
	if len(f.leftovers) > 0 {
		return c.notClean(ctx, host, probe, f)
	}
	if f.verdict == waiting {
		// Still Leaving: core drains the Node, and a successor's NodeClaim would be taken to have it.
		return reconcile.Result{RequeueAfter: retryDelay}, nil
	}
	return c.left(ctx, host, probe)
}

// left ends the leave of a host that was found clean.
func (c *Controller) left(ctx context.Context, host *v1beta1.SSHHost, probe *dispatch.Probe) (reconcile.Result, error) {
	out := pool.Outcome{
		State: v1beta1.HostAvailable, Reason: v1beta1.ReasonZombieLeft, Message: "left, and found clean",
		Leave: pool.LeaveEnded, Conditions: cleanConditions(probe),
	}
	out.Machine = c.machine(host, probe, "")
	out.Conditions = append(out.Conditions, preflightCondition(out.Machine.Preflight))
	unfit, err := c.unfit(ctx, host, probe, out.Machine.Preflight)
	if err != nil {
		return reconcile.Result{}, err
	}
	if unfit != nil {
		out.State, out.Reason, out.Message = v1beta1.HostUnhealthy, unfit.Reason, unfit.Detail
	}
	if _, err := c.Hosts.EndLeaving(ctx, host, out); err != nil {
		return reconcile.Result{}, fmt.Errorf("ending the leave of host %q: %w", host.Name, err)
	}
	c.warn(host, v1beta1.EventZombieLeft, "an unclaimed host was still a member of the cluster, and has been made to leave")
	c.Metrics.Zombie(membership.ZombieLeft)
	return reconcile.Result{RequeueAfter: c.Interval}, nil
}
