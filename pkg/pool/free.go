package pool

import (
	"context"
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// The writes in this file are on free hosts, but for ForgetBootstrapToken. They are tried once, on the version of the
// host that is passed, and answer ErrConflict when it is not the newest.

// Probe is what a probe found.
type Probe struct {
	// Generation is metadata.generation of the host that was probed.
	Generation int64
	// Reason is empty when the host is fit to be claimed; else why not, with Message for people.
	Reason, Message string
	// Configuration says that the reason is a fault of configuration and not of the host, which then becomes Pending
	// and not Unhealthy.
	Configuration bool
	// Unseen says that the host could not be looked at: what is known of it is kept, and said to be stale.
	Unseen bool
	// What was found out; zero values leave what is known as it is.
	Arch               string
	Capacity           corev1.ResourceList
	HostKeyFingerprint string
	// Fence is the highest fence that the host says it has seen. It can exceed status.fence when the SSHHost was
	// deleted and made again; a lower one would be refused by the host for ever.
	Fence   int64
	Machine Machine
	// Trust is what the host said of itself; nil leaves what is known as it is.
	Trust *v1beta1.HostTrust
	// Conditions are set as they are.
	Conditions []status.Condition
}

// RecordProbe records the outcome of a probe and makes a free host Available, Unhealthy or, for a fault of
// configuration, Pending. A host that is well and that a leave is owed to becomes Pending, one whose failures are too
// recent Unhealthy, and one that was parked meanwhile goes to Maintenance. A claimed host and one in Leaving or Maintenance answer an EdgeError.
func (p *Pool) RecordProbe(ctx context.Context, host *v1beta1.SSHHost, probe Probe) (*v1beta1.SSHHost, error) {
	switch host.Status.State {
	case "", v1beta1.HostPending, v1beta1.HostAvailable, v1beta1.HostUnhealthy:
	default:
		return nil, &EdgeError{Host: host.Name, From: host.Status.State, To: v1beta1.HostAvailable}
	}
	return p.swap(ctx, host, func(h *v1beta1.SSHHost) error {
		forgive(h)
		if err := p.judge(h, probe); err != nil {
			return err
		}
		p.observe(h, probe)
		return nil
	})
}

// observe writes down what a probe found out.
func (p *Pool) observe(h *v1beta1.SSHHost, probe Probe) {
	h.Status.LastProbeTime = &metav1.Time{Time: p.clock.Now()}
	h.Status.ObservedGeneration = probe.Generation
	h.Status.LastProbeError = ""
	if probe.Reason != "" {
		h.Status.LastProbeError = lastError(probe)
	}
	if probe.Arch != "" {
		h.Status.ObservedArch = probe.Arch
	}
	if len(probe.Capacity) > 0 {
		h.Status.ObservedCapacity = probe.Capacity
	}
	if probe.HostKeyFingerprint != "" {
		h.Status.HostKeyFingerprint = probe.HostKeyFingerprint
	}
	observeMachine(h, probe.Machine)
	h.Status.Fence = max(h.Status.Fence, probe.Fence)
	if probe.Trust != nil {
		h.Status.Trust = probe.Trust.DeepCopy()
	}
	switch {
	case !probe.Unseen:
		clearCondition(h, v1beta1.ConditionStale)
	case h.Status.ObservedArch != "": // else there is nothing that could be stale
		p.setCondition(h, v1beta1.ConditionStale, metav1.ConditionTrue, probe.Reason, "probes cannot look at the host: what is said of it here was found before")
	}
	for _, c := range probe.Conditions {
		p.setCondition(h, c.Type, c.Status, c.Reason, c.Message)
	}
}

// judge moves a host to where a probe puts it.
func (p *Pool) judge(h *v1beta1.SSHHost, probe Probe) error {
	switch {
	case probe.Reason == v1beta1.ReasonUnreachable && Owed(h):
		return p.move(h, v1beta1.HostUnhealthy, v1beta1.ReasonLeavePending, "leave runs when the host can be reached: "+probe.Message)
	case probe.Configuration && probe.Reason != "":
		return p.move(h, v1beta1.HostPending, probe.Reason, probe.Message)
	case probe.Reason != "":
		return p.move(h, v1beta1.HostUnhealthy, probe.Reason, probe.Message)
	case Owed(h):
		debt := h.Status.Cleanup
		return p.move(h, v1beta1.HostPending, v1beta1.ReasonLeavePending, "a leave is owed to the host: "+debt.Reason+": "+debt.Message)
	case RetryIn(h, p.clock.Now()) > 0:
		reason, message := BackingOff(h)
		return p.move(h, v1beta1.HostUnhealthy, reason, message)
	}
	if parking := p.parked(h); parking.Reason != "" {
		return p.move(h, v1beta1.HostMaintenance, parking.Reason, parking.Message)
	}
	return p.move(h, v1beta1.HostAvailable, v1beta1.ReasonProbed, "")
}

func lastError(probe Probe) string {
	text := probe.Reason
	if probe.Message != "" {
		text += ": " + probe.Message
	}
	return cut(text)
}

// BeginLeaving fences a free host against claims while leave is run on it, and raises its fence so that an order of
// an earlier claim that is still under way is refused. A host that is Leaving already answers as it is: the caller
// resumes.
func (p *Pool) BeginLeaving(ctx context.Context, host *v1beta1.SSHHost, message string) (*v1beta1.SSHHost, error) {
	if host.Status.State == v1beta1.HostLeaving {
		return host.DeepCopy(), nil
	}
	return p.swap(ctx, host, func(h *v1beta1.SSHHost) error {
		if err := p.move(h, v1beta1.HostLeaving, v1beta1.ReasonLeaving, message); err != nil {
			return err
		}
		p.overtake(h)
		h.Status.Fence++
		if h.Status.Cleanup != nil {
			h.Status.Cleanup.Attempts++
		}
		return nil
	})
}

// EndLeaving ends what BeginLeaving began: with Available when leave ran and the host was found clean, with Unhealthy
// when it was not. A host whose failures are too recent becomes Unhealthy in place of Available.
func (p *Pool) EndLeaving(ctx context.Context, host *v1beta1.SSHHost, out Outcome) (*v1beta1.SSHHost, error) {
	if host.Status.State != v1beta1.HostLeaving {
		return nil, &EdgeError{Host: host.Name, From: host.Status.State, To: out.State}
	}
	return p.swap(ctx, host, func(h *v1beta1.SSHHost) error {
		p.overtake(h)
		observeMachine(h, out.Machine)
		return p.end(h, out)
	})
}

// ForgetBootstrapToken clears the recorded token id once the token is deleted, on a free or a claimed host, and only
// if it is still that id.
func (p *Pool) ForgetBootstrapToken(ctx context.Context, host *v1beta1.SSHHost, id string) (*v1beta1.SSHHost, error) {
	current := host
	for attempt := 1; ; attempt++ {
		next, err := p.swap(ctx, current, func(h *v1beta1.SSHHost) error {
			if h.Status.BootstrapTokenID == id {
				h.Status.BootstrapTokenID = ""
			}
			return nil
		})
		if err == nil || attempt == maxAttempts || !isConflict(err) {
			return next, err
		}
		if current, err = p.Live(ctx, host.Name); err != nil {
			return nil, err
		}
		if current.UID != host.UID {
			return nil, fmt.Errorf("host %q was made again: %w", host.Name, ErrHostNotFound)
		}
	}
}
