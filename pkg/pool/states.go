package pool

import (
	"fmt"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// edges are all ways from one state to another. A host without a state is Pending.
//
// Two things are folded into one write each: a release onto an annotated host goes straight to Maintenance, so that
// there is no moment in which it looks free; and a host that cannot even be probed for a fault of configuration (its
// Secret is missing, say) goes back to Pending, since nothing is known about it and nothing is wrong with it.
//
// Reclaim alone takes none of them: it puts a state back that was lost.
func edges(from v1beta1.HostState) []v1beta1.HostState {
	const (
		pending     = v1beta1.HostPending
		available   = v1beta1.HostAvailable
		claimed     = v1beta1.HostClaimed
		inUse       = v1beta1.HostInUse
		unhealthy   = v1beta1.HostUnhealthy
		leaving     = v1beta1.HostLeaving
		maintenance = v1beta1.HostMaintenance
	)
	switch from {
	case "", pending:
		return []v1beta1.HostState{pending, available, unhealthy, leaving, maintenance}
	case available:
		return []v1beta1.HostState{available, claimed, unhealthy, leaving, maintenance, pending}
	case claimed:
		return []v1beta1.HostState{inUse, unhealthy, pending, available, maintenance}
	case inUse:
		return []v1beta1.HostState{available, unhealthy, pending, maintenance}
	case unhealthy:
		return []v1beta1.HostState{unhealthy, available, leaving, maintenance, pending}
	case leaving:
		return []v1beta1.HostState{available, unhealthy, maintenance}
	case maintenance:
		return []v1beta1.HostState{pending, leaving}
	default:
		return nil
	}
}

// Allowed says whether a host may go from one state to the other.
func Allowed(from, to v1beta1.HostState) bool {
	for _, e := range edges(from) {
		if e == to {
			return true
		}
	}
	return false
}

// EdgeError refuses a change of state that is not in the table.
type EdgeError struct {
	Host     string
	From, To v1beta1.HostState
}

// Error implements error.
func (e *EdgeError) Error() string {
	return fmt.Sprintf("host %q may not go from %q to %q", e.Host, e.From, e.To)
}

// holds says whether a host in the state has a claim.
func holds(s v1beta1.HostState) bool { return s == v1beta1.HostClaimed || s == v1beta1.HostInUse }

// move takes the edge to state and says why on the Ready condition. host must be the caller's own copy.
func (p *Pool) move(host *v1beta1.SSHHost, to v1beta1.HostState, reason, message string) error {
	from := host.Status.State
	if !Allowed(from, to) {
		return &EdgeError{Host: host.Name, From: from, To: to}
	}
	p.enter(host, to, reason, message)
	return nil
}

// enter puts the host into a state, by whatever way.
func (p *Pool) enter(host *v1beta1.SSHHost, to v1beta1.HostState, reason, message string) {
	host.Status.State = to
	if reason == "" { // which the API server refuses
		reason = string(to)
	}
	ready := metav1.ConditionFalse
	if to == v1beta1.HostAvailable || holds(to) {
		ready = metav1.ConditionTrue
		clearCondition(host, v1beta1.ConditionQuarantined) // it is offered
	}
	p.setCondition(host, v1beta1.ConditionReady, ready, reason, message)
}

const maxMessage = 1024

// cut shortens a text to what status may hold.
func cut(text string) string {
	if len(text) > maxMessage {
		return strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}

func (p *Pool) setCondition(host *v1beta1.SSHHost, kind string, value metav1.ConditionStatus, reason, message string) {
	next := status.Condition{
		Type: kind, Status: value, Reason: reason, Message: cut(message),
		ObservedGeneration: host.Generation, LastTransitionTime: metav1.NewTime(p.clock.Now()),
	}
	if !v1beta1.ReplaceCondition(host.Status.Conditions, next) {
		host.Status.Conditions = append(host.Status.Conditions, next)
	}
}

func clearCondition(host *v1beta1.SSHHost, kind string) {
	var kept []status.Condition
	for _, c := range host.Status.Conditions {
		if c.Type != kind {
			kept = append(kept, c)
		}
	}
	host.Status.Conditions = kept
}

// HasCondition says whether the host has the condition as True. Unlike StatusConditions it does not touch host, so
// it suits objects that a cache shares.
func HasCondition(host *v1beta1.SSHHost, kind string) bool {
	for i := range host.Status.Conditions {
		if c := &host.Status.Conditions[i]; c.Type == kind {
			return c.Status == metav1.ConditionTrue
		}
	}
	return false
}
