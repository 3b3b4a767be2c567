package pool

import (
	"fmt"
	"math"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/apis"
	"github.com/kpssh/karpenter-provider-ssh/pkg/apis/v1beta1"
)

// Defaults of Backoff.
const (
	DefaultBackoffBase     = 30 * time.Second
	DefaultBackoffMax      = time.Hour
	DefaultQuarantineAfter = 5
)

// Backoff is how long a host that failed is not offered: Base after the first failure, twice as long after each further
// one in a row, Max at most. From failure number QuarantineAfter on people are told of it.
type Backoff struct {
	Base, Max       time.Duration
	QuarantineAfter int32
}

func (b Backoff) complete() Backoff {
	if b.Base <= 0 {
		b.Base = DefaultBackoffBase
	}
	if b.Max <= 0 {
		b.Max = DefaultBackoffMax
	}
	if b.QuarantineAfter <= 0 {
		b.QuarantineAfter = DefaultQuarantineAfter
	}
	return b
}

// after is the wait after the count-th failure in a row.
func (b Backoff) after(count int32) time.Duration {
	wait := b.Base
	for ; count > 1 && wait < b.Max; count-- {
		wait *= 2
	}
	return min(wait, b.Max)
}

// fail counts a phase that failed for a reason of the host.
func (p *Pool) fail(host *v1beta1.SSHHost, reason, message string) {
	now := p.clock.Now()
	f := host.Status.Failures
	if f == nil {
		f = &v1beta1.HostFailures{}
		host.Status.Failures = f
	}
	if f.Count < math.MaxInt32 {
		f.Count++
	}
	f.Reason, f.Message, f.Generation = reason, cut(message), host.Generation
	f.LastTime = &metav1.Time{Time: now}
	f.RetryTime = &metav1.Time{Time: now.Add(p.backoff.after(f.Count))}
	if f.Count >= p.backoff.QuarantineAfter {
		p.setCondition(host, v1beta1.ConditionQuarantined, metav1.ConditionTrue, reason, backingOff(f))
	}
}

// forget is what makes a host like one that never failed.
func forget(host *v1beta1.SSHHost) {
	host.Status.Failures = nil
	clearCondition(host, v1beta1.ConditionQuarantined)
}

// forgive forgets the failures of a host whose spec was edited since, or whose operator asked for it, and says whether
// there was anything to forget.
func forgive(host *v1beta1.SSHHost) bool {
	forgiven := host.Status.Failures != nil && forgivable(host)
	host.Status.ObservedReset = Reset(host)
	if forgiven {
		forget(host)
	}
	return forgiven
}

func forgivable(host *v1beta1.SSHHost) bool {
	return Reset(host) != host.Status.ObservedReset || host.Status.Failures.Generation != host.Generation
}

// Reset is what the operator's annotation says, as far as status can hold it: cut between two characters, or what is
// stored would be another value than what is compared with it.
func Reset(host *v1beta1.SSHHost) string {
	value := host.Annotations[apis.AnnotationReset]
	return strings.ToValidUTF8(value[:min(len(value), maxReset)], "")
}

// maxReset is what status.observedReset and status.identity.reset may hold.
const maxReset = 128

// Failed says whether the host failed since something last went well on it. It is claimed only when no other will do.
func Failed(host *v1beta1.SSHHost) bool {
	return host.Status.Failures != nil && host.Status.Failures.Count > 0
}

// RetryIn is how long a host that failed is not offered yet; 0 when it may be. A leave that failed does not count: once
// the host is found clean, nothing speaks against it.
func RetryIn(host *v1beta1.SSHHost, now time.Time) time.Duration {
	if leaveFailed(host) {
		return 0
	}
	return waitOf(host, now)
}

// LeaveIn is how long leave is not tried again on a host on which it failed; 0 when it may be. A failure of another
// phase does not keep a host from being left.
func LeaveIn(host *v1beta1.SSHHost, now time.Time) time.Duration {
	if leaveFailed(host) {
		return waitOf(host, now)
	}
	return 0
}

func leaveFailed(host *v1beta1.SSHHost) bool {
	if host.Status.Failures == nil {
		return false
	}
	switch host.Status.Failures.Reason {
	case v1beta1.ReasonLeaveFailed, v1beta1.ReasonZombieFailed, v1beta1.ReasonNotClean:
		return true
	}
	return false
}

func waitOf(host *v1beta1.SSHHost, now time.Time) time.Duration {
	f := host.Status.Failures
	if f == nil || f.RetryTime == nil || forgivable(host) {
		return 0
	}
	return max(0, f.RetryTime.Sub(now))
}

// BackingOff is the reason, and a text for people, why a host that failed is not offered yet.
func BackingOff(host *v1beta1.SSHHost) (reason, message string) {
	f := host.Status.Failures
	if HasCondition(host, v1beta1.ConditionQuarantined) {
		return v1beta1.ReasonQuarantined, f.Reason + ": " + backingOff(f)
	}
	return f.Reason, backingOff(f)
}

func backingOff(f *v1beta1.HostFailures) string {
	times := "once"
	if f.Count > 1 {
		times = fmt.Sprintf("%d times in a row", f.Count)
	}
	text := fmt.Sprintf("failed %s, tried again at %s ('kpssh host reset' or an edit of the spec: at once)", times, f.RetryTime.UTC().Format(time.RFC3339))
	if f.Message != "" {
		text += "; the last time: " + f.Message
	}
	return text
}
